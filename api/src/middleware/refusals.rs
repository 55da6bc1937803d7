//! Refusals in the words of the API that was asked.

use actix_web::Error;
use actix_web::body::{BoxBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::middleware::Next;

use crate::error::ApiError;
use crate::routes;

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
