//! `X-Request-Id`: taken from the client if it is usable, else made up, and sent back with every
//! answer.

use actix_web::body::MessageBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
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
    response.headers_mut().insert(X_REQUEST_ID, id);
    Ok(response)
}

fn usable(value: &HeaderValue) -> bool {
    let bytes = value.as_bytes();
    (1..=MAX_BYTES).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic)
}
