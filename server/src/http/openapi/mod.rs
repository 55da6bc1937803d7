//! `/openapi.json` and `/docs`: the API in OpenAPI's form, and for people.
//!
//! Requests are described by the types that they are read into ([`probe`]), routes and fields
//! in the words of docs/API.md ([`manual`]), answers by `answers.json`.

pub(super) mod manual;
mod operations;
pub(super) mod probe;

use std::sync::LazyLock;

use actix_web::web::Bytes;
use actix_web::{HttpResponse, Responder};

const PAGE: &str = include_str!("page.html");
static DOCUMENT: LazyLock<Bytes> =
    LazyLock::new(|| Bytes::from(operations::document().to_string()));

pub async fn document() -> impl Responder {
    HttpResponse::Ok()
        .content_type("application/json")
        .body(DOCUMENT.clone())
}

/// Everything is in the page but the document, which it fetches.
pub async fn page() -> impl Responder {
    HttpResponse::Ok()
        .content_type("text/html; charset=utf-8")
        .body(PAGE)
}
