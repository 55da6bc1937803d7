//! Refusals in the words of the API that was asked, and in the log.

use actix_web::Error;
use actix_web::body::{BoxBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::StatusCode;
use actix_web::middleware::Next;
use hearth_otel::BOUNDED;

use crate::error::ApiError;
use crate::middleware::request_id::RequestId;
use crate::routes::{self, Observation};

/// The most bytes of a URL's path, or of a field's, in a log line, because clients choose them.
const MAX_LOGGED_BYTES: usize = 128;

/// Middleware. Handlers return an [`ApiError`] without knowing whose API they belong to; here
/// it is written in the dialect that the route table names.
///
/// # Errors
/// The route's errors.
pub async fn translate(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let dialect = routes::dialect_of(request.match_info().as_str());
    let response = next.call(request).await?;
    let error = response.response().error();
    let body = error
        .and_then(Error::as_error::<ApiError>)
        .map(|error| dialect.body(error).to_string());
    // Only the body is another one: the error stays with the answer, for the log.
    Ok(match body {
        Some(body) => response
            .map_body(|_, _| BoxBody::new(body))
            .map_into_right_body(),
        None => response.map_into_left_body(),
    })
}

/// Middleware that logs refusals. Requests that reach the engine are logged when they end, and these
/// never reach it.
///
/// # Errors
/// The route's errors.
pub async fn log(
    request: ServiceRequest,
    next: Next<impl MessageBody>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let route = routes::find(request.match_info().as_str());
    // A probe of a server that loads is no refusal, and comes every few seconds.
    let quiet = route.is_some_and(|route| route.observation == Observation::Quiet);
    let response = next.call(request).await?;
    let status = response.status();
    if status.is_client_error() || status.is_server_error() {
        let request_id = RequestId::of(response.request());
        let path = shortened(response.request().path());
        let error = response.response().error();
        let refusal = error.and_then(Error::as_error::<ApiError>);
        let error = error.map(ToString::to_string);
        let code = status.as_u16();
        if status == StatusCode::INTERNAL_SERVER_ERROR {
            tracing::warn!(request_id, path, status = code, error, "failed");
        } else if quiet {
            tracing::debug!(request_id, path, status = code, error, "refused");
        } else {
            // The message may quote what the client sent, such as a prompt where a list should be.
            let why = refusal.map(|refusal| refusal.code.unwrap_or(refusal.kind));
            let param = refusal.and_then(|refusal| refusal.param.as_deref());
            let param = param.map(shortened);
            tracing::info!(name: BOUNDED, request_id, path, status = code, why, param, "refused");
            tracing::debug!(request_id, error, "the message of a refusal");
        }
    }
    Ok(response)
}

fn shortened(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_LOGGED_BYTES)]
}
