//! `--api-key` and `--admin-api-key`.

use actix_web::Error;
use actix_web::body::MessageBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::StatusCode;
use actix_web::http::header::{
    AUTHORIZATION, HeaderMap, HeaderName, HeaderValue, WWW_AUTHENTICATE,
};
use actix_web::middleware::Next;
use actix_web::web::Data;

use super::cors;
use super::error::ApiError;
use super::shape::Shape;
use super::state::AppState;
use crate::config::Config;

/// Anthropic's clients send the key here.
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// For probes, scrapers and browsers, which have no keys.
const OPEN: [&str; 5] = ["/health", "/ready", "/metrics", "/openapi.json", "/docs"];
/// What changes the server for everybody.
const ADMIN: [&str; 4] = [
    "/flush_cache",
    "/abort_request",
    "/pause_generation",
    "/continue_generation",
];

/// Middleware.
///
/// # Errors
/// Those of the route; a refusal is an answer.
pub async fn check(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let state = request.app_data::<Data<AppState>>();
    let refused = state.and_then(|state| {
        // Decoded, as the routes are found: `/flush%5Fcache` is `/flush_cache` too.
        let path = request.match_info().as_str();
        refusal(&state.config, path, request.headers()).map(|error| (Shape::of(path), error))
    });
    let Some((shape, error)) = refused else {
        return Ok(next.call(request).await?.map_into_left_body());
    };
    let mut response = shape.refuse(&error);
    if response.status() == StatusCode::UNAUTHORIZED {
        let challenge = HeaderValue::from_static("Bearer");
        response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    }
    Ok(request.into_response(response).map_into_right_body())
}

/// Why a request for `path` is not let in.
fn refusal(config: &Config, path: &str, headers: &HeaderMap) -> Option<ApiError> {
    if OPEN.contains(&path) {
        return None;
    }
    // Whoever reads a page of another site must not empty the cache of a server at home with it.
    if ADMIN.contains(&path) && cors::is_a_strangers(config.cors.as_deref(), headers) {
        return Some(ApiError::forbidden(
            "a web page may do this only if --cors names its origin",
        ));
    }
    let (key, flag) = match (&config.admin_api_key, &config.api_key) {
        (Some(admin), _) if ADMIN.contains(&path) => (admin, "--admin-api-key"),
        (_, Some(key)) => (key, "--api-key"),
        (_, None) => return None,
    };
    match given(headers) {
        Some(given) if key.is(given) => None,
        Some(_) => Some(ApiError::unauthorized(format!(
            "the API key given is not the {flag} of this server"
        ))),
        None => Some(ApiError::unauthorized(
            "this server wants an API key: `Authorization: Bearer KEY`, or `x-api-key: KEY`",
        )),
    }
}

fn given(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.as_bytes().split_at_checked("Bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"Bearer ").then_some(key)
    });
    bearer.or_else(|| headers.get(X_API_KEY).map(HeaderValue::as_bytes))
}
