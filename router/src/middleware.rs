//! Every exchange passes through this: the check of the API key, and the counters of HTTP.

use std::time::Instant;

use actix_web::body::MessageBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::header::{AUTHORIZATION, HeaderName};
use actix_web::http::{Method, StatusCode};
use actix_web::middleware::Next;
use actix_web::web::Data;
use actix_web::{Error, HttpRequest, ResponseError};

use crate::error::{ERROR_CODE, RouterError};
use crate::routes::OPEN;
use crate::state::Router;
use crate::traced::Traced;

/// The header in which Anthropic's clients send the key.
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// The label of paths that no route has, so that clients cannot make up series.
const NO_ROUTE: &str = "unmatched";

/// Refuses requests without the key, if the router has one.
///
/// # Errors
/// The route's errors.
pub async fn auth(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let open = OPEN.contains(&request.path());
    let key = request
        .app_data::<Data<Router>>()
        .and_then(|router| router.config.api_key.clone());
    let known = key.is_none_or(|key| given(request.request()).any(|given| key.is(given)));
    if open || known {
        let response = next.call(request).await?;
        return Ok(response.map_into_boxed_body());
    }
    let message = "Send the API key as `authorization: Bearer KEY` or as `x-api-key: KEY`.";
    let error = RouterError::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message);
    let response = error.error_response();
    Ok(request.into_response(response).map_into_boxed_body())
}

fn given(request: &HttpRequest) -> impl Iterator<Item = &[u8]> {
    let headers = request.headers();
    let bearer = headers.get(AUTHORIZATION).map(|value| value.as_bytes());
    let bearer = bearer.and_then(|value| {
        let (scheme, key) = value.split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then_some(key)
    });
    let own = headers.get(X_API_KEY).map(|value| value.as_bytes());
    [bearer, own].into_iter().flatten()
}

/// The label of a method. Clients can make up methods, but no series.
fn known_method(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

/// Counts requests and responses.
///
/// # Errors
/// The route's errors.
pub async fn observe(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let started = Instant::now();
    let Some(router) = request.app_data::<Data<Router>>().cloned() else {
        return Ok(next.call(request).await?.map_into_boxed_body());
    };
    let method = known_method(request.method());
    let path = request.match_pattern();
    let path = path.unwrap_or_else(|| NO_ROUTE.to_owned());
    let labels = [method, path.as_str()];
    let metrics = &router.metrics;
    metrics.http_requests.with_label_values(&labels).inc();
    let probed = OPEN.contains(&request.path());
    let traces = router.traces.as_ref().filter(|_| !probed);
    let traced = traces.map(|traces| Traced::begin(traces, method, &path, request.request()));
    let response = next.call(request).await;
    let (status, code) = match &response {
        Ok(response) => {
            let code = response.headers().get(ERROR_CODE);
            let code = code.and_then(|code| code.to_str().ok()).unwrap_or("");
            (response.status(), code.to_owned())
        }
        Err(error) => (error.as_response_error().status_code(), String::new()),
    };
    let labels_of_response = [status.as_str(), code.as_str()];
    let responses = &metrics.http_responses;
    responses.with_label_values(&labels_of_response).inc();
    let duration = metrics.http_duration.with_label_values(&labels);
    duration.observe(started.elapsed().as_secs_f64());
    Ok(match traced {
        Some(traced) => traced.follow(response)?,
        None => response?.map_into_boxed_body(),
    })
}
