//! `/openapi.json`: the API in OpenAPI's form. `/docs` shows it to people.
//!
//! The types that requests are read into describe the requests ([`probe`]), docs/API.md has the
//! words about routes and fields ([`manual`]), and `answers.json` describes the answers.

pub(super) mod manual;
mod operations;
pub(super) mod probe;

use std::sync::LazyLock;

use actix_web::web::Bytes;
use actix_web::{HttpResponse, Responder};

static DOCUMENT: LazyLock<Bytes> =
    LazyLock::new(|| Bytes::from(operations::document().to_string()));

pub async fn document() -> impl Responder {
    HttpResponse::Ok()
        .content_type("application/json")
        .body(DOCUMENT.clone())
}
