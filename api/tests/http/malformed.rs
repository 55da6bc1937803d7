//! Bodies that are not JSON, and their refusal in the dialect of each route.

use actix_web::http::Method;
use hearth_api::routes::ROUTES;
use serde_json::{Value, json};

use super::fake::{MODEL, TestServer};
use super::{CHAT, COMPLETIONS};

/// Posts `bytes` as they are.
async fn post_bytes(server: &TestServer, content_type: &str, bytes: &[u8]) -> (u16, Value) {
    let request = reqwest::Client::new()
        .post(format!("{}{CHAT}", server.url))
        .header("content-type", content_type)
        .body(bytes.to_vec());
    let response = request.send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

#[tokio::test]
async fn broken_json_broken_utf8_and_other_media_types_are_told_apart() {
    let server = TestServer::plain();
    let code = async |content_type, bytes: &[u8]| {
        let (status, answer) = post_bytes(&server, content_type, bytes).await;
        (
            status,
            answer["error"]["code"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
        )
    };
    let json = "application/json";
    assert_eq!(
        code(json, b"{\"model\": ").await,
        (400, "invalid_json".to_owned())
    );
    assert_eq!(code(json, b"").await, (400, "invalid_json".to_owned()));
    assert_eq!(
        code(json, b"{\"a\": \"\xff\"}").await,
        (400, "invalid_utf8".to_owned())
    );
    assert_eq!(
        code(json, b"{\"user\": \"\\ud800\"}").await,
        (400, "invalid_json".to_owned())
    );
    let deep = [b"{\"metadata\": ".repeat(50_000), b"[".repeat(50_000)].concat();
    assert_eq!(code(json, &deep).await.0, 400);
    assert_eq!(code(json, &b"[".repeat(50_000)).await.0, 400);
    assert_eq!(code(json, b"[]").await.0, 400);
    assert_eq!(
        code("text/plain", b"{}").await,
        (415, "unsupported_media_type".to_owned())
    );
    assert_eq!(code("application/json; charset=utf-8", b"{}").await.0, 400);
}

#[tokio::test]
async fn a_compressed_body_is_refused_by_its_encoding_and_not_by_its_bytes() {
    let server = TestServer::plain();
    for (encoding, status) in [("gzip", 415), ("identity, br", 415), ("Identity", 200)] {
        let request = reqwest::Client::new()
            .post(format!("{}{COMPLETIONS}", server.url))
            .header("content-encoding", encoding)
            .json(&json!({"model": MODEL, "prompt": "ab", "max_tokens": 1}));
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), status, "{encoding}");
        let answer: Value = response.json().await.unwrap();
        if status == 415 {
            let message = answer["error"]["message"].as_str().unwrap();
            let expected =
                format!("`content-encoding` must be identity or left out, got {encoding:?}");
            assert_eq!(message, expected);
        }
    }
}

#[tokio::test]
async fn a_malformed_body_is_refused_in_the_dialect_of_its_route() {
    let server = TestServer::plain();
    let mut refused = 0;
    let posts = ROUTES
        .iter()
        .filter(|route| route.methods.contains(&Method::POST));
    for route in posts {
        let request = reqwest::Client::new()
            .post(format!("{}{}", server.url, route.path))
            .header("content-type", "application/json")
            .body("{");
        let response = request.send().await.unwrap();
        // Some routes have no body.
        if response.status() == 200 {
            continue;
        }
        let answer: Value = response.json().await.unwrap();
        let message = match format!("{:?}", route.errors).as_str() {
            "OpenAi" => &answer["error"]["message"],
            "Sglang" if answer["object"] == "error" => &answer["message"],
            "Anthropic" if answer["type"] == "error" => &answer["error"]["message"],
            "Ollama" => &answer["error"],
            dialect => panic!("{}: {answer} is not {dialect}", route.path),
        };
        assert!(message.is_string(), "{}: {answer}", route.path);
        refused += 1;
    }
    assert!(refused > 15, "only {refused} routes refused it");
}
