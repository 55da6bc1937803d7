//! From the bytes of a request to its type, with errors that name the field.

use std::time::{Duration, Instant};

use actix_web::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, ORIGIN};
use actix_web::web::{Bytes, BytesMut, Payload};
use actix_web::{HttpRequest, mime};
use futures_util::StreamExt as _;
use serde::de::DeserializeOwned;
use serde_json::error::Category;
use tokio::time::timeout;

use crate::body_memory::Share;
use crate::error::ApiError;
use crate::fields::wire::Object;

/// The only type of a body.
const JSON: &str = "application/json";
/// A body must arrive within this time, in which the time that it waits for memory does not count.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// Some of it must arrive within this time.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(10);

/// The bytes of a request's body. It holds its share of the memory for bodies until it is dropped.
#[derive(Debug)]
pub struct Body {
    bytes: Bytes,
    _share: Share,
}

impl std::ops::Deref for Body {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Collects a JSON body of at most `limit` bytes, once there is room for it.
///
/// # Errors
/// 415 for another content type or encoding, 413 over the limit, 408 when it does not arrive,
/// 400 when the connection breaks.
pub async fn read(request: &HttpRequest, payload: Payload, limit: usize) -> Result<Body, ApiError> {
    check_content_type(request)?;
    collect(request, payload, limit).await
}

/// [`read`] for an API whose users send JSON by curl without a content type. A request from a web
/// page must have one: a page of any site can make a browser send the other types to this machine
/// without asking the server first.
///
/// # Errors
/// The same.
pub async fn read_any_type(
    request: &HttpRequest,
    payload: Payload,
    limit: usize,
) -> Result<Body, ApiError> {
    if request.headers().contains_key(ORIGIN) {
        check_content_type(request)?;
    }
    collect(request, payload, limit).await
}

async fn collect(
    request: &HttpRequest,
    mut payload: Payload,
    limit: usize,
) -> Result<Body, ApiError> {
    check_encoding(request)?;
    let declared = request
        .headers()
        .get(CONTENT_LENGTH)
        .and_then(|v| v.to_str().ok())
        .and_then(|v| v.parse::<usize>().ok());
    if declared.is_some_and(|length| length > limit) {
        return Err(ApiError::body_too_large(limit));
    }
    let mut share = Share::new(request.peer_addr().map(|peer| peer.ip()));
    let mut first = Bytes::new();
    let mut bytes = BytesMut::new();
    let mut left = BODY_TIMEOUT;
    loop {
        let since = Instant::now();
        let chunk = timeout(left.min(PROGRESS_TIMEOUT), payload.next()).await;
        left = left.saturating_sub(since.elapsed());
        let chunk = match chunk {
            Ok(None) => break,
            Ok(Some(Ok(chunk))) => chunk,
            Ok(Some(Err(error))) => {
                return Err(ApiError::bad_request(format!("the request body: {error}")));
            }
            Err(_) => {
                let (whole, some) = (BODY_TIMEOUT.as_secs(), PROGRESS_TIMEOUT.as_secs());
                return Err(ApiError::body_timeout(whole, some));
            }
        };
        let size = first.len() + bytes.len() + chunk.len();
        if size > limit {
            return Err(ApiError::body_too_large(limit));
        }
        // A declared size takes no memory before its bytes arrive.
        share.cover(size).await;
        if first.is_empty() && bytes.is_empty() {
            // Most bodies are one chunk, which is not copied.
            first = chunk;
        } else {
            if !first.is_empty() {
                bytes.extend_from_slice(&std::mem::take(&mut first));
            }
            bytes.extend_from_slice(&chunk);
        }
    }
    Ok(Body {
        bytes: match first.is_empty() {
            true => bytes.freeze(),
            false => first,
        },
        _share: share,
    })
}

/// Bodies are not decompressed: a small one could have any size.
fn check_encoding(request: &HttpRequest) -> Result<(), ApiError> {
    let mut encodings = request.headers().get_all(CONTENT_ENCODING);
    match encodings.find(|value| !value.as_bytes().eq_ignore_ascii_case(b"identity")) {
        Some(value) => Err(ApiError::media_type(
            "content-encoding",
            "identity or left out",
            &String::from_utf8_lossy(value.as_bytes()),
        )),
        None => Ok(()),
    }
}

fn check_content_type(request: &HttpRequest) -> Result<(), ApiError> {
    let Some(value) = request.headers().get(CONTENT_TYPE) else {
        // A browser sends a body without a content type to any server, but names the page's
        // origin.
        return match request.headers().contains_key(ORIGIN) {
            true => Err(ApiError::media_type("content-type", JSON, "none")),
            false => Ok(()),
        };
    };
    let given = String::from_utf8_lossy(value.as_bytes());
    let is_json = given.parse::<mime::Mime>().is_ok_and(|mime| {
        mime.subtype() == mime::JSON || mime.suffix().is_some_and(|s| s == mime::JSON)
    });
    if is_json {
        Ok(())
    } else {
        Err(ApiError::media_type("content-type", JSON, &given))
    }
}

/// Parses `bytes` as a `T`.
///
/// # Errors
/// 400 that says where the JSON is malformed, or which field has which wrong type.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    parse_any(bytes).map(|Object(value)| value)
}

/// [`parse`] for a `T` that need not be an object.
///
/// # Errors
/// As [`parse`].
pub fn parse_any<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let at = error.valid_up_to();
        ApiError::bad_request(format!("the request body is not valid UTF-8 at byte {at}"))
            .code("invalid_utf8")
    })?;
    let mut json = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        describe(error.inner(), &path)
    })?;
    json.end().map_err(|error| describe(&error, "."))?;
    Ok(value)
}

fn describe(error: &serde_json::Error, path: &str) -> ApiError {
    match error.classify() {
        Category::Data => {
            let message = plain(unplaced(&error.to_string(), error));
            if let Some(field) = named(&message, "missing field `") {
                return missing(path, field, &message);
            }
            match named(&message, "unknown field `") {
                Some(field) => unknown(path, field),
                None if path == "." => ApiError::bad_request(message),
                None => ApiError::field(path, format!("`{path}`: {message}")),
            }
        }
        Category::Syntax | Category::Eof | Category::Io => {
            ApiError::bad_request(format!("the request body is not valid JSON: {error}"))
                .code("invalid_json")
        }
    }
}

/// The message without the position that serde adds: the path of the field says where.
fn unplaced<'a>(message: &'a str, error: &serde_json::Error) -> &'a str {
    let position = format!(" at line {} column {}", error.line(), error.column());
    message.strip_suffix(&position).unwrap_or(message)
}

/// serde's messages name the types of Rust; these are put into the words of JSON.
fn plain(message: &str) -> String {
    let types = [
        ("expected i64", "expected an integer"),
        ("expected f64", "expected a number"),
        ("expected u32", "expected an integer"),
        ("expected a sequence", "expected a list"),
        ("type: sequence", "type: list"),
        ("type: map", "type: object"),
    ];
    let replace = |text: String, (from, to): (&str, &str)| text.replace(from, to);
    types.into_iter().fold(message.to_owned(), replace)
}

/// The name that follows `start`: serde tells the field only within its message.
fn named<'a>(message: &'a str, start: &str) -> Option<&'a str> {
    message
        .strip_prefix(start)?
        .split_once('`')
        .map(|(field, _)| field)
}

fn missing(path: &str, field: &str, message: &str) -> ApiError {
    let error = match path {
        "." => ApiError::field(field, message),
        path => ApiError::field(format!("{path}.{field}"), format!("`{path}`: {message}")),
    };
    error.code("missing_required_parameter")
}

fn unknown(path: &str, field: &str) -> ApiError {
    // Where the refused field is itself the key, the path ends in it already.
    let path = match path {
        "." => field.to_owned(),
        path if path == field || path.ends_with(&format!(".{field}")) => path.to_owned(),
        path => format!("{path}.{field}"),
    };
    let message = format!("`{path}` is not a field this server knows; nothing is ignored silently");
    ApiError::field(path, message).code("unknown_parameter")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Outer {
        #[allow(dead_code)]
        list: Vec<Inner>,
        #[allow(dead_code)]
        number: Option<f64>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        #[allow(dead_code)]
        name: String,
    }

    fn error(json: &str) -> ApiError {
        parse::<Outer>(json.as_bytes()).unwrap_err()
    }

    #[test]
    fn malformed_json_says_where() {
        let error = error(r#"{"list": [}"#);
        assert_eq!(error.code, Some("invalid_json"));
        assert!(error.message.contains("line 1 column 11"), "{error}");
    }

    #[test]
    fn truncated_and_trailing_json_are_malformed() {
        assert_eq!(error(r#"{"list": []"#).code, Some("invalid_json"));
        assert_eq!(error(r#"{"list": []} x"#).code, Some("invalid_json"));
        assert_eq!(error("").code, Some("invalid_json"));
    }

    #[test]
    fn a_wrong_type_names_the_path_what_was_expected_and_what_was_given() {
        let error = error(r#"{"list": [{"name": "a"}, {"name": 7}]}"#);
        assert_eq!(error.param.as_deref(), Some("list[1].name"));
        assert!(error.message.contains("integer `7`"), "{error}");
        assert!(error.message.ends_with("expected a string"), "{error}");
    }

    #[test]
    fn an_unknown_field_is_named_at_every_depth() {
        let outer = error(r#"{"list": [], "tempreature": 1}"#);
        assert_eq!(outer.param.as_deref(), Some("tempreature"));
        assert_eq!(outer.code, Some("unknown_parameter"));
        let inner = error(r#"{"list": [{"name": "a", "colour": 1}]}"#);
        assert_eq!(inner.param.as_deref(), Some("list[0].colour"));
    }

    #[test]
    fn a_missing_field_is_named() {
        let error = error(r#"{"number": 1}"#);
        assert!(error.message.contains("missing field `list`"), "{error}");
        assert_eq!(error.param.as_deref(), Some("list"));
        assert_eq!(error.code, Some("missing_required_parameter"));
        let inner = self::error(r#"{"list": [{}]}"#);
        assert_eq!(inner.param.as_deref(), Some("list[0].name"));
    }

    #[test]
    fn a_number_beyond_every_type_is_refused() {
        let error = error(r#"{"list": [], "number": 1e999}"#);
        assert!(error.message.contains("number out of range"), "{error}");
    }

    #[test]
    fn invalid_utf8_says_at_which_byte() {
        let error = parse::<Outer>(b"{\"list\": [\"\xff\"]}").unwrap_err();
        assert_eq!(
            error.message,
            "the request body is not valid UTF-8 at byte 11"
        );
    }

    #[test]
    fn deep_nesting_is_an_error_and_not_a_stack_overflow() {
        let error = error(&"[".repeat(100_000));
        assert_eq!(error.status, 400);
    }
}
