//! `X-Request-Id`: taken from the client if it is usable, else made up, and sent back with every
//! answer. Each refusal is logged under it.

use actix_web::body::MessageBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::StatusCode;
use actix_web::http::header::{HeaderName, HeaderValue};
use actix_web::middleware::Next;
use actix_web::{Error, HttpMessage, HttpRequest};
use uuid::Uuid;

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Longer ids are replaced, because they would be copied into every log line.
const MAX_BYTES: usize = 128;

/// The id of a request.
#[derive(Clone, Debug)]
pub struct RequestId(HeaderValue);

impl RequestId {
    /// The id as text, for the log.
    pub fn of(request: &HttpRequest) -> String {
        let extensions = request.extensions();
        let id = extensions.get::<Self>().and_then(|id| id.0.to_str().ok());
        id.unwrap_or_default().to_owned()
    }
}

/// Middleware.
///
/// # Errors
/// The route's errors.
pub async fn attach(
    request: ServiceRequest,
    next: Next<impl MessageBody>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let given = request
        .headers()
        .get(X_REQUEST_ID)
        .filter(|value| usable(value))
        .cloned();
    let id = given.unwrap_or_else(|| {
        let id = Uuid::now_v7().simple().to_string();
        HeaderValue::from_str(&id).expect("hexadecimal digits are a valid header value")
    });
    request.extensions_mut().insert(RequestId(id.clone()));
    let mut response = next.call(request).await?;
    log_refusal(&response, &id);
    response.headers_mut().insert(X_REQUEST_ID, id);
    Ok(response)
}

/// Logs a refusal. Requests that reach the engine are logged when they end, and these never reach
/// it.
fn log_refusal(response: &ServiceResponse<impl MessageBody>, id: &HeaderValue) {
    let status = response.status();
    if !status.is_client_error() && !status.is_server_error() {
        return;
    }
    let (request_id, path) = (id.to_str().unwrap_or_default(), response.request().path());
    let error = response.response().error().map(ToString::to_string);
    if status == StatusCode::INTERNAL_SERVER_ERROR {
        tracing::warn!(request_id, path, status = status.as_u16(), error, "failed");
    } else {
        tracing::debug!(request_id, path, status = status.as_u16(), error, "refused");
    }
}

fn usable(value: &HeaderValue) -> bool {
    let bytes = value.as_bytes();
    (1..=MAX_BYTES).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic)
}
