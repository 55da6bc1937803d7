//! `/`, `/docs` and `/ui/...`: the page that draws `/live` and talks to the model, and the one that
//! describes the API.
//!
//! Everything is in the binary. The page asks nothing of any other server, and its policy lets no
//! browser do so.

use actix_web::http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, REFERRER_POLICY, VARY,
    X_CONTENT_TYPE_OPTIONS,
};
use actix_web::web::Path;
use actix_web::{HttpRequest, HttpResponse};

use crate::error::ApiError;

const PAGE: &str = include_str!("index.html");
const DOCS: &str = include_str!("docs.html");
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'; require-trusted-types-for 'script'";
const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");

const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";

/// The files that the pages consist of.
const FILES: &[(&str, &str, &str)] = &[
    ("style.css", CSS, include_str!("style.css")),
    ("app.js", JS, include_str!("app.js")),
    ("chart.js", JS, include_str!("chart.js")),
    ("docs.css", CSS, include_str!("docs.css")),
    ("docs.js", JS, include_str!("docs.js")),
    ("dom.js", JS, include_str!("dom.js")),
    ("feed.js", JS, include_str!("feed.js")),
    ("keys.js", JS, include_str!("keys.js")),
    ("lanes.js", JS, include_str!("lanes.js")),
    ("live.js", JS, include_str!("live.js")),
    ("play.js", JS, include_str!("play.js")),
    ("request.js", JS, include_str!("request.js")),
    ("tokens.js", JS, include_str!("tokens.js")),
    ("tree.js", JS, include_str!("tree.js")),
    ("icon.svg", "image/svg+xml", include_str!("icon.svg")),
];

/// `/`: the page for browsers, and a line of text for tools that ask whether a server is running.
pub async fn root(request: HttpRequest) -> HttpResponse {
    let accept = request.headers().get(ACCEPT);
    let is_browser = accept
        .and_then(|accept| accept.to_str().ok())
        .is_some_and(|accept| accept.contains("text/html"));
    match is_browser {
        true => file("text/html; charset=utf-8", PAGE),
        false => HttpResponse::Ok()
            .content_type("text/plain; charset=utf-8")
            .insert_header((VARY, "Accept"))
            .body("Hearth is running"),
    }
}

/// `/docs`: the API, written out of `/openapi.json`.
pub async fn docs() -> HttpResponse {
    file("text/html; charset=utf-8", DOCS)
}

/// `/ui/{file}`.
///
/// # Errors
/// 404 for a file that is none of the page's.
pub async fn ui(request: HttpRequest, name: Path<String>) -> Result<HttpResponse, ApiError> {
    let mut files = FILES.iter();
    let found = files.find(|(known, ..)| **name == **known);
    let (_, kind, text) = found.ok_or_else(|| ApiError::not_found(request.path()))?;
    Ok(file(kind, text))
}

fn file(kind: &'static str, text: &'static str) -> HttpResponse {
    HttpResponse::Ok()
        .content_type(kind)
        // Another version of the server has another page.
        .insert_header((CACHE_CONTROL, "no-cache"))
        .insert_header((CONTENT_SECURITY_POLICY, POLICY))
        .insert_header((X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .insert_header((REFERRER_POLICY, "no-referrer"))
        .insert_header((OPENER_POLICY, "same-origin"))
        .insert_header((VARY, "Accept"))
        .body(text)
}
