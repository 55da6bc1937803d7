//! `--cors`: which web pages may talk to this server from a browser.

use actix_web::body::MessageBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::Method;
use actix_web::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HeaderMap, HeaderName, HeaderValue, ORIGIN, VARY,
};
use actix_web::middleware::Next;
use actix_web::web::Data;
use actix_web::{Error, HttpResponse};

use crate::state::AppState;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Seconds for which a browser may keep the answer to its preflight request.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");
const METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD, POST, PUT, DELETE, OPTIONS");
const EXPOSED: HeaderValue =
    HeaderValue::from_static("x-request-id, retry-after, x-hearth-schema-ignored");

/// Middleware. It refuses nothing: the browser itself hides answers from pages whose origin was not
/// allowed.
///
/// # Errors
/// The route's errors.
pub async fn share(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let state = request.app_data::<Data<AppState>>();
    let allowed = state.and_then(|state| state.config.cors.as_deref());
    let granted = allowed.and_then(|allowed| granted(allowed, request.headers()));
    let Some(origin) = granted else {
        return Ok(next.call(request).await?.map_into_left_body());
    };
    let asks_first = request.method() == Method::OPTIONS
        && request
            .headers()
            .contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    if asks_first {
        let mut response = HttpResponse::NoContent().finish();
        let wanted = request.headers().get(ACCESS_CONTROL_REQUEST_HEADERS);
        let headers = response.headers_mut();
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
        headers.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE);
        if let Some(wanted) = wanted {
            headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
        }
        grant(headers, origin);
        return Ok(request.into_response(response).map_into_right_body());
    }
    let mut response = next.call(request).await?;
    response
        .headers_mut()
        .insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    grant(response.headers_mut(), origin);
    Ok(response.map_into_left_body())
}

/// True if a browser sends this for a page whose origin `--cors` does not name. A request for an
/// image, or from a form, has no origin; for those the browser says that another site sent them, or
/// another name or port of the same one.
pub(super) fn is_a_strangers(allowed: Option<&str>, headers: &HeaderMap) -> bool {
    if allowed.is_some_and(|allowed| granted(allowed, headers).is_some()) {
        return false;
    }
    let other_site = headers
        .get(SEC_FETCH_SITE)
        .is_some_and(|site| site == "cross-site" || site == "same-site");
    other_site || headers.contains_key(ORIGIN)
}

/// The value of `Access-Control-Allow-Origin`, if `allowed` has the origin of the request.
fn granted(allowed: &str, headers: &HeaderMap) -> Option<HeaderValue> {
    let origin = headers.get(ORIGIN)?;
    let mut listed = allowed.split(',').map(str::trim);
    if allowed.trim() == "*" {
        return Some(HeaderValue::from_static("*"));
    }
    listed
        .any(|allowed| allowed.as_bytes() == origin.as_bytes())
        .then(|| origin.clone())
}

fn grant(headers: &mut HeaderMap, origin: HeaderValue) {
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.append(VARY, HeaderValue::from_static("Origin"));
}
