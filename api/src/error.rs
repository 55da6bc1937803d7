//! Errors of every route. Written in OpenAI's form they are
//! `{"error": {"message", "type", "param", "code"}}`; [`Dialect`](crate::dialect::Dialect) has
//! the other forms.

use std::fmt;

use actix_web::http::StatusCode;
use actix_web::http::header::RETRY_AFTER;
use actix_web::{HttpResponse, ResponseError};
use serde::Serialize;

/// Seconds that a client is asked to wait when the server is full or still loading.
const RETRY_AFTER_SECONDS: u64 = 1;

/// Why a request is refused, without the form of any API.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    pub status: StatusCode,
    pub kind: &'static str,
    pub code: Option<&'static str>,
    /// The request field at fault, as a path: `messages[0].content`.
    pub param: Option<String>,
    pub message: String,
    /// Seconds after which the client may try again.
    pub retry_after: Option<u64>,
}

/// The JSON of an [`ApiError`] in OpenAI's form.
#[derive(Debug, Serialize)]
pub struct ErrorBody<'a> {
    error: ErrorFields<'a>,
}

#[derive(Debug, Serialize)]
struct ErrorFields<'a> {
    message: &'a str,
    r#type: &'static str,
    param: Option<&'a str>,
    code: Option<&'static str>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            kind,
            code: None,
            param: None,
            message: message.into(),
            retry_after: None,
        }
    }

    /// 400 that is not about one field.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// 400 about the field `param`; the message names it, its bound and the value given.
    pub fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            param: Some(param.into()),
            ..Self::bad_request(message)
        }
    }

    /// 400: a field of the API that this server does not implement.
    pub fn unsupported(param: &str) -> Self {
        let message = format!("`{param}` is not supported by this server; leave it out");
        Self::field(param, message).code("unsupported_parameter")
    }

    /// 400: the prompt, or the prompt and the tokens asked for, exceed the context.
    pub fn context_length(param: &str, message: String) -> Self {
        Self::field(param, message).code("context_length_exceeded")
    }

    /// 404: a model that is not the served one, which has the name `served` and perhaps `aliases`.
    pub fn model_not_found(given: &str, served: &str, aliases: &[String]) -> Self {
        let names: Vec<String> = std::iter::once(served)
            .chain(aliases.iter().map(String::as_str))
            .map(|name| format!("\"{name}\""))
            .collect();
        let names = names.join(" or ");
        let message =
            format!("`model` must be {names}, the model this server serves, got {given:?}");
        Self {
            status: StatusCode::NOT_FOUND,
            ..Self::field("model", message).code("model_not_found")
        }
    }

    /// 401: no API key, or not the one that this route asks for.
    pub fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "authentication_error", message).code("invalid_api_key")
    }

    /// 403: a web page of another site may not do this.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "permission_error", message).code("origin_not_allowed")
    }

    /// 429: the client's API key has used up one of its limits.
    pub fn too_many(seconds: u64, message: impl Into<String>) -> Self {
        Self {
            retry_after: Some(seconds),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
                .code("rate_limit_exceeded")
        }
    }

    /// Puts `parent` before the path of the field, where the body has the field inside of it.
    #[must_use]
    pub fn within(mut self, parent: &str) -> Self {
        self.param = self.param.map(|param| format!("{parent}.{param}"));
        self
    }

    /// The same error about the field `to`, which is the name in a dialect of the field `from`, or of its
    /// items and members.
    #[must_use]
    pub fn renamed(mut self, from: &str, to: &str) -> Self {
        for end in ["`", "[", "."] {
            let (ours, theirs) = (format!("`{from}{end}"), format!("`{to}{end}"));
            self.message = self.message.replacen(&ours, &theirs, 1);
        }
        let rest = self
            .param
            .as_deref()
            .and_then(|param| param.strip_prefix(from));
        if let Some(rest) = rest.filter(|rest| rest.is_empty() || rest.starts_with(['[', '.'])) {
            self.param = Some(format!("{to}{rest}"));
        }
        self
    }

    /// 404: a stored response that never was, or is not kept any more.
    pub fn response_not_found(id: &str) -> Self {
        let message = format!("there is no response {id:?}, or none any more");
        Self {
            status: StatusCode::NOT_FOUND,
            ..Self::bad_request(message).code("response_not_found")
        }
    }

    pub fn not_found(path: &str) -> Self {
        let message = format!("there is no route {path}");
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message).code("not_found")
    }

    /// The server was started with `--disable-metrics`.
    pub fn metrics_disabled() -> Self {
        let message = "disable_metrics is set, so that no metrics are recorded";
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message).code("metrics_disabled")
    }

    pub fn method_not_allowed(method: &str, path: &str) -> Self {
        let message = format!("{path} does not answer {method}");
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "invalid_request_error",
            message,
        )
        .code("method_not_allowed")
    }

    pub fn body_too_large(limit: usize) -> Self {
        let message =
            format!("the request body is larger than the {limit} bytes of --max-body-bytes");
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "invalid_request_error",
            message,
        )
        .code("body_too_large")
    }

    /// 499, nginx's status for a client that has gone. Only metrics and logs ever show it.
    pub fn client_gone() -> Self {
        let status = StatusCode::from_u16(499).expect("between 100 and 999");
        Self::new(status, "client_closed_request", "the client has gone")
    }

    pub fn body_timeout(whole: u64, some: u64) -> Self {
        let message = format!(
            "the request body did not arrive within {whole} s, or nothing of it within {some} s"
        );
        Self::new(
            StatusCode::REQUEST_TIMEOUT,
            "invalid_request_error",
            message,
        )
        .code("body_timeout")
    }

    /// 415 for a body of another type or encoding than plain JSON. `given` is the value of `header`.
    pub fn media_type(header: &str, bound: &str, given: &str) -> Self {
        let message = format!("`{header}` must be {bound}, got {given:?}");
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "invalid_request_error",
            message,
        )
        .code("unsupported_media_type")
    }

    /// 503 with `Retry-After`: the server is full, loading or shutting down.
    pub fn unavailable(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            retry_after: Some(RETRY_AFTER_SECONDS),
            ..Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "service_unavailable",
                message,
            )
            .code(code)
        }
    }

    /// 500: the request was fine, and the server failed.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
    }

    #[must_use]
    pub fn code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    pub fn body(&self) -> ErrorBody<'_> {
        ErrorBody {
            error: ErrorFields {
                message: &self.message,
                r#type: self.kind,
                param: self.param.as_deref(),
                code: self.code,
            },
        }
    }
}

/// 400: `field` must be `bound`, and was `given`.
pub fn out_of_bounds(field: &str, bound: &str, given: impl fmt::Display) -> ApiError {
    ApiError::field(field, format!("`{field}` must be {bound}, got {given}"))
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ApiError {}

impl ResponseError for ApiError {
    fn status_code(&self) -> StatusCode {
        self.status
    }

    fn error_response(&self) -> HttpResponse {
        self.respond(&self.body())
    }
}

impl ApiError {
    /// The HTTP answer, with the body that the dialect gave the error.
    pub fn respond(&self, body: &impl Serialize) -> HttpResponse {
        let mut response = HttpResponse::build(self.status);
        if let Some(seconds) = self.retry_after {
            response.insert_header((RETRY_AFTER, seconds));
        }
        // The connection is closed, because the rest of a body that was not read would be taken
        // for the next request.
        if matches!(
            self.status,
            StatusCode::PAYLOAD_TOO_LARGE
                | StatusCode::REQUEST_TIMEOUT
                | StatusCode::UNAUTHORIZED
                | StatusCode::FORBIDDEN
        ) {
            response.force_close();
        }
        response.json(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_the_name_that_its_dialect_gives_the_field() {
        let named = |error: ApiError| (error.param.unwrap(), error.message);
        let error = out_of_bounds("stop[3]", "a text", 7).renamed("stop", "stop_sequences");
        let message = "`stop_sequences[3]` must be a text, got 7";
        assert_eq!(
            named(error),
            ("stop_sequences[3]".to_owned(), message.to_owned())
        );
        let error = out_of_bounds("stop_regex", "a regex", 7).renamed("stop", "stop_sequences");
        let message = "`stop_regex` must be a regex, got 7";
        assert_eq!(named(error), ("stop_regex".to_owned(), message.to_owned()));
    }
}
