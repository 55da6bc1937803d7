//! The operation that metrics name for requests to each route.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::fake::TestServer;
use super::ok;

/// Finished requests by `gen_ai.operation.name`.
async fn operations(server: &TestServer) -> BTreeMap<String, u64> {
    let page = reqwest::get(format!("{}/metrics", server.url))
        .await
        .unwrap();
    let page = page.text().await.unwrap();
    let counts = page
        .lines()
        .filter(|line| line.starts_with("gen_ai_server_request_duration_seconds_count{"));
    let mut found = BTreeMap::new();
    for line in counts {
        let (_, labels) = line.split_once("gen_ai_operation_name=\"").unwrap();
        let (operation, _) = labels.split_once('"').unwrap();
        let (_, count) = line.rsplit_once(' ').unwrap();
        *found.entry(operation.to_owned()).or_default() += count.parse::<f64>().unwrap() as u64;
    }
    found
}

#[tokio::test]
async fn each_route_that_runs_the_model_is_measured_under_its_operation() {
    let messages = json!([{"role": "user", "content": "hi"}]);
    let chat = json!({"messages": messages, "max_tokens": 1});
    let ollama = json!({"model": "fake", "messages": messages, "stream": false,
                        "options": {"num_predict": 1}});
    let prompt = json!({"model": "fake", "prompt": "a", "stream": false,
                        "options": {"num_predict": 1}});
    let program = json!({"nodes": [{"op": "text", "text": "a"},
                                    {"op": "gen", "name": "x", "max_tokens": 1}]});
    let routes: [(&str, Value, &str); 11] = [
        ("/v1/chat/completions", chat, "chat"),
        (
            "/v1/responses",
            json!({"input": "hi", "max_output_tokens": 1}),
            "chat",
        ),
        (
            "/v1/messages",
            json!({"model": "fake", "messages": messages, "max_tokens": 1}),
            "chat",
        ),
        ("/api/chat", ollama, "chat"),
        (
            "/v1/completions",
            json!({"prompt": "a", "max_tokens": 1}),
            "text_completion",
        ),
        (
            "/generate",
            json!({"text": "a", "sampling_params": {"max_new_tokens": 1}}),
            "text_completion",
        ),
        ("/api/generate", prompt, "text_completion"),
        (
            "/completion",
            json!({"prompt": "a", "n_predict": 1}),
            "text_completion",
        ),
        ("/v1/programs", program, "text_completion"),
        (
            "/v1/embeddings",
            json!({"model": "fake", "input": "a"}),
            "embeddings",
        ),
        ("/encode", json!({"text": "a"}), "embeddings"),
    ];
    for (path, body, operation) in routes {
        let server = TestServer::plain();
        ok(&server, path, &body).await;
        let expected = BTreeMap::from([(operation.to_owned(), 1)]);
        assert_eq!(operations(&server).await, expected, "{path}");
    }
}
