//! `--api-key` and `--admin-api-key`: who may call which route.

use actix_web::Error;
use actix_web::body::MessageBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::StatusCode;
use actix_web::http::header::{
    AUTHORIZATION, HeaderMap, HeaderName, HeaderValue, WWW_AUTHENTICATE,
};
use actix_web::middleware::Next;
use actix_web::web::Data;

use crate::config::HttpConfig;
use crate::error::ApiError;
use crate::middleware::cors;
use crate::routes::{self, Access};
use crate::state::AppState;

/// The header in which Anthropic's clients send the key.
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Middleware.
///
/// # Errors
/// The route's errors. A refusal is a response and not an error.
pub async fn check(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let state = request.app_data::<Data<AppState>>();
    let refused = state.and_then(|state| {
        // The path is percent-decoded, as it is when actix finds the handler: `/flush%5Fcache` is
        // `/flush_cache` too.
        let path = request.match_info().as_str();
        let access = routes::find(path).map_or(Access::Key, |route| route.access);
        refusal(&state.config, access, request.headers())
            .map(|error| (routes::dialect_of(path), error))
    });
    let Some((dialect, error)) = refused else {
        return Ok(next.call(request).await?.map_into_left_body());
    };
    let mut response = dialect.refuse(&error);
    if response.status() == StatusCode::UNAUTHORIZED {
        let challenge = HeaderValue::from_static("Bearer");
        response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    }
    Ok(request.into_response(response).map_into_right_body())
}

/// The error for a request that may not call a route with this `access`.
fn refusal(config: &HttpConfig, access: Access, headers: &HeaderMap) -> Option<ApiError> {
    if access == Access::Open {
        return None;
    }
    // A page of another site, open in a browser at home, must not empty the cache of a server
    // there.
    if access == Access::Admin && cors::is_a_strangers(config.cors.as_deref(), headers) {
        return Some(ApiError::forbidden(
            "a web page may do this only if --cors names its origin",
        ));
    }
    let (key, flag) = match (&config.admin_api_key, &config.api_key) {
        (Some(admin), _) if access == Access::Admin => (admin, "--admin-api-key"),
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
