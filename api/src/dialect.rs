//! Errors in the words of the API that was asked. The route table says which API that is.

use actix_web::HttpResponse;
use actix_web::http::StatusCode;
use serde_json::{Value, json};

use crate::error::ApiError;

/// The API whose errors a route answers with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    OpenAi,
    Sglang,
    Anthropic,
    Ollama,
}

impl Dialect {
    /// The dialect of the error for a path that no route has.
    pub fn of_unknown(path: &str) -> Self {
        if path.starts_with("/api/") {
            Self::Ollama
        } else if path.starts_with("/v1/messages/") {
            Self::Anthropic
        } else {
            Self::OpenAi
        }
    }

    /// The JSON of `error` in this dialect: the body of a refusal, or an event of a stream that
    /// fails.
    pub fn body(self, error: &ApiError) -> Value {
        let ApiError {
            status,
            kind,
            code,
            param,
            message,
            ..
        } = error;
        match self {
            Self::OpenAi => json!(error.body()),
            // SGLang has two forms, and its clients read either: everything at the top, and
            // everything under `error`.
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

    /// The whole HTTP answer for `error` in this dialect.
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
        429 => "rate_limit_error",
        503 => "overloaded_error",
        400..500 => "invalid_request_error",
        _ => "api_error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dialect_has_the_message_where_its_clients_look_for_it() {
        let error = ApiError::field("n", "`n` must be 1, got 2");
        let message = json!("`n` must be 1, got 2");
        assert_eq!(Dialect::OpenAi.body(&error)["error"]["message"], message);
        let sglang = Dialect::Sglang.body(&error);
        assert_eq!(
            (&sglang["message"], &sglang["error"]["message"]),
            (&message, &message)
        );
        assert_eq!(
            (&sglang["param"], &sglang["code"]),
            (&json!("n"), &json!(400))
        );
        let anthropic = Dialect::Anthropic.body(&error);
        assert_eq!(anthropic["type"], "error");
        assert_eq!(
            anthropic["error"],
            json!({"type": "invalid_request_error", "message": message})
        );
        assert_eq!(Dialect::Ollama.body(&error), json!({"error": message}));
    }
}
