//! The HTTP server with a made-up model behind it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod adapters;
mod agents;
mod anthropic;
mod auth;
mod bodies;
mod bounds;
mod chat;
mod completions;
mod embeddings;
mod fake;
mod fuzz;
mod grammars;
mod hang;
#[path = "../../../tests/fuzz/json.rs"]
mod json;
mod keys;
mod lifecycle;
mod live;
mod llama_server;
mod loads;
mod malformed;
mod metrics;
#[path = "../../../tests/fuzz/mutate.rs"]
mod mutate;
mod ollama;
mod openapi;
mod operations;
mod programs;
#[path = "../../../client/tests/language/random.rs"]
mod random;
mod refusals;
mod response_tools;
mod responses;
mod routers;
mod sglang;
mod sglang_routes;
mod stall;
mod tls;
mod tool_apis;
mod tools;

use fake::TestServer;
use hearth_client::sse_data;
use serde_json::Value;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// Posts JSON; gives the status and the JSON that came back.
async fn post(server: &TestServer, path: &str, body: &Value) -> (u16, Value) {
    let request = reqwest::Client::new()
        .post(format!("{}{path}", server.url))
        .json(body);
    let response = request.send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

/// Posts JSON that must be answered with 200.
async fn ok(server: &TestServer, path: &str, body: &Value) -> Value {
    let (status, answer) = post(server, path, body).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

/// The chunks of a stream; checks that it ends in `[DONE]`.
async fn chunks(server: &TestServer, path: &str, body: &Value) -> Vec<Value> {
    let request = reqwest::Client::new()
        .post(format!("{}{path}", server.url))
        .json(body);
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 200);
    let content_type = response.headers()["content-type"]
        .to_str()
        .unwrap()
        .to_owned();
    assert!(
        content_type.starts_with("text/event-stream"),
        "{content_type}"
    );
    let mut events = sse_data(&response.bytes().await.unwrap());
    assert_eq!(events.pop().as_deref(), Some("[DONE]"));
    events
        .iter()
        .map(|event| serde_json::from_str(event).unwrap())
        .collect()
}

/// The texts of the choice's chunks, put together.
fn text_of(chunks: &[Value], index: u64) -> String {
    let choices = chunks
        .iter()
        .flat_map(|chunk| chunk["choices"].as_array().unwrap());
    let own = choices.filter(|choice| choice["index"] == index);
    own.map(|choice| {
        let text = choice
            .get("text")
            .or_else(|| choice["delta"].get("content"));
        text.and_then(Value::as_str).unwrap_or_default()
    })
    .collect()
}
