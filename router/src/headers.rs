//! Which headers pass the router. actix and reqwest have different versions of the header types, so
//! headers are copied as bytes.

use actix_web::HttpResponseBuilder;
use actix_web::http::header::HeaderMap as ClientHeaders;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

/// Headers of clients that workers get. The list is sglang-router's, and what Anthropic's clients
/// send.
const TO_WORKERS: [&str; 9] = [
    "authorization",
    "x-request-id",
    "x-correlation-id",
    "traceparent",
    "tracestate",
    "content-type",
    "x-api-key",
    "anthropic-version",
    "anthropic-beta",
];

/// Headers of responses that are about one connection, or that the server here writes itself.
const NOT_TO_CLIENTS: [&str; 10] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "content-length",
];

/// The headers of a request to a worker.
pub fn to_worker(client: &ClientHeaders) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for name in TO_WORKERS {
        for value in client.get_all(name) {
            if let Ok(value) = HeaderValue::from_bytes(value.as_bytes()) {
                headers.append(HeaderName::from_static(name), value);
            }
        }
    }
    headers
}

/// Copies the headers of a worker's response to the client's. `date` is the worker's.
pub fn to_client(worker: &HeaderMap, response: &mut HttpResponseBuilder) {
    for (name, value) in worker {
        if !NOT_TO_CLIENTS.contains(&name.as_str()) {
            response.append_header((name.as_str(), value.as_bytes()));
        }
    }
}
