//! Errors in the words of the API that was asked, chosen by the route.

use std::fmt;
use std::marker::PhantomData;

use actix_web::http::StatusCode;
use actix_web::{HttpResponse, ResponseError};
use serde_json::{Value, json};

use super::error::ApiError;

/// Whose errors a route speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    OpenAi,
    Sglang,
    Anthropic,
    Ollama,
}

/// Routes of SGLang that are no other API's.
const SGLANG: [&str; 18] = [
    "/generate",
    "/model_info",
    "/get_model_info",
    "/server_info",
    "/get_server_info",
    "/get_load",
    "/v1/loads",
    "/tokenize",
    "/v1/tokenize",
    "/detokenize",
    "/v1/detokenize",
    "/health_generate",
    "/flush_cache",
    "/abort_request",
    "/pause_generation",
    "/continue_generation",
    "/encode",
    "/v1/score",
];

impl Shape {
    /// The shape of what `path` answers when it refuses.
    pub fn of(path: &str) -> Self {
        if path.starts_with("/api/") {
            Self::Ollama
        } else if path == "/v1/messages" || path.starts_with("/v1/messages/") {
            Self::Anthropic
        } else if SGLANG.contains(&path) {
            Self::Sglang
        } else {
            Self::OpenAi
        }
    }

    /// What a client of this API reads; also what a stream carries when it breaks off.
    pub fn body(self, error: &ApiError) -> Value {
        let ApiError {
            status,
            kind,
            code,
            param,
            message,
        } = error;
        match self {
            Self::OpenAi => json!(error.body()),
            // SGLang has two: one with everything at the top, one under `error`.
            Self::Sglang => json!({
                "object": "error",
                "message": message,
                "type": kind,
                "param": param,
                "code": status.as_u16(),
                "error": {"message": message, "type": kind, "param": param, "code": code},
            }),
            Self::Anthropic => json!({
                "type": "error",
                "error": {"type": anthropic_kind(*status), "message": message},
            }),
            Self::Ollama => json!({"error": message}),
        }
    }

    /// `error` as this API answers it.
    pub fn refuse(self, error: &ApiError) -> HttpResponse {
        error.respond(&self.body(error))
    }
}

fn anthropic_kind(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        404 | 405 => "not_found_error",
        413 => "request_too_large",
        503 => "overloaded_error",
        400..500 => "invalid_request_error",
        _ => "api_error",
    }
}

/// An API whose errors are not OpenAI's.
pub trait Api: 'static {
    const SHAPE: Shape;
}

#[derive(Debug)]
pub struct Sglang;
#[derive(Debug)]
pub struct Anthropic;
#[derive(Debug)]
pub struct Ollama;

impl Api for Sglang {
    const SHAPE: Shape = Shape::Sglang;
}
impl Api for Anthropic {
    const SHAPE: Shape = Shape::Anthropic;
}
impl Api for Ollama {
    const SHAPE: Shape = Shape::Ollama;
}

/// An error as `A` answers it: handlers of its routes return this, and `?` makes it.
#[derive(Debug)]
pub struct Shaped<A> {
    error: ApiError,
    api: PhantomData<fn() -> A>,
}

impl<A> From<ApiError> for Shaped<A> {
    fn from(error: ApiError) -> Self {
        Self {
            error,
            api: PhantomData,
        }
    }
}

impl<A> fmt::Display for Shaped<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<A: Api + fmt::Debug> ResponseError for Shaped<A> {
    fn status_code(&self) -> StatusCode {
        self.error.status
    }

    fn error_response(&self) -> HttpResponse {
        A::SHAPE.refuse(&self.error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_route_refuses_in_the_words_of_its_own_api() {
        assert_eq!(Shape::of("/v1/chat/completions"), Shape::OpenAi);
        assert_eq!(Shape::of("/v1/messages"), Shape::Anthropic);
        assert_eq!(Shape::of("/v1/messages/count_tokens"), Shape::Anthropic);
        assert_eq!(Shape::of("/v1/messagesx"), Shape::OpenAi);
        assert_eq!(Shape::of("/api/chat"), Shape::Ollama);
        assert_eq!(Shape::of("/generate"), Shape::Sglang);
        assert_eq!(Shape::of("/nowhere"), Shape::OpenAi);
    }

    #[test]
    fn every_shape_has_the_message_where_its_clients_look_for_it() {
        let error = ApiError::field("n", "`n` must be 1, got 2");
        let message = json!("`n` must be 1, got 2");
        assert_eq!(Shape::OpenAi.body(&error)["error"]["message"], message);
        let sglang = Shape::Sglang.body(&error);
        assert_eq!(
            (&sglang["message"], &sglang["error"]["message"]),
            (&message, &message)
        );
        assert_eq!(
            (&sglang["param"], &sglang["code"]),
            (&json!("n"), &json!(400))
        );
        let anthropic = Shape::Anthropic.body(&error);
        assert_eq!(anthropic["type"], "error");
        assert_eq!(
            anthropic["error"],
            json!({"type": "invalid_request_error", "message": message})
        );
        assert_eq!(Shape::Ollama.body(&error), json!({"error": message}));
    }
}
