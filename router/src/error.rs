//! Errors that the router itself answers with, in OpenAI's form:
//! `{"error": {"message", "type", "param", "code"}}` and the header `x-smg-error-code`.

use std::fmt;

use actix_web::http::StatusCode;
use actix_web::http::header::{ALLOW, HeaderName, RETRY_AFTER};
use actix_web::{HttpResponse, ResponseError};
use serde_json::json;

/// The header with the error's code, as sglang-router has it.
pub const ERROR_CODE: HeaderName = HeaderName::from_static("x-smg-error-code");
/// Seconds that a client is asked to wait when the router or its workers are full or gone.
const RETRY_AFTER_SECONDS: u64 = 1;

/// Why the router refuses a request or fails it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterError {
    pub status: StatusCode,
    pub kind: &'static str,
    /// The value of `x-smg-error-code`.
    pub code: &'static str,
    /// The request field at fault.
    pub param: Option<&'static str>,
    pub message: String,
}

impl RouterError {
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        let kind = match status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_client_error() => "invalid_request_error",
            _ => "server_error",
        };
        Self {
            status,
            kind,
            code,
            param: None,
            message: message.into(),
        }
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request", message)
    }

    /// 400 about the field `param`.
    pub fn field(param: &'static str, message: impl Into<String>) -> Self {
        Self {
            param: Some(param),
            ..Self::bad_request(message)
        }
    }

    /// 503: no worker can take the request. `workers` says which kind: `prefill worker`.
    pub fn no_worker(workers: &str) -> Self {
        let message = format!(
            "No {workers} is available: each is unhealthy, draining or has an open circuit \
             breaker, or there is none. GET /workers lists them."
        );
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "no_available_workers",
            message,
        )
    }

    /// 502: a worker could not be reached, or its response broke off.
    pub fn unreachable(code: &'static str, url: &str, why: impl fmt::Display) -> Self {
        let message = format!("The worker at {url} did not respond: {why}.");
        Self::new(StatusCode::BAD_GATEWAY, code, message)
    }

    pub fn not_found(path: &str) -> Self {
        let message = format!("There is no route {path}.");
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    /// The body of the response, and the data of an error event in a stream.
    pub fn body(&self) -> String {
        json!({"error": {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        }})
        .to_string()
    }
}

impl fmt::Display for RouterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for RouterError {}

impl ResponseError for RouterError {
    fn status_code(&self) -> StatusCode {
        self.status
    }

    fn error_response(&self) -> HttpResponse {
        let mut response = HttpResponse::build(self.status);
        response
            .insert_header((ERROR_CODE, self.code))
            .content_type("application/json");
        if matches!(
            self.status,
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS
        ) {
            response.insert_header((RETRY_AFTER, RETRY_AFTER_SECONDS));
        }
        if self.status == StatusCode::METHOD_NOT_ALLOWED {
            response.insert_header((ALLOW, "GET, POST, DELETE"));
        }
        response.body(self.body())
    }
}
