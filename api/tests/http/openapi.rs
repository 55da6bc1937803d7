//! The API's own description.

use hearth_api::config::HttpConfig;
use hearth_engine::EngineConfig;
use serde_json::Value;

use super::fake::{Behaviour, TestServer};

async fn fetched(server: &TestServer, path: &str) -> (String, String) {
    let response = reqwest::get(format!("{}{path}", server.url)).await.unwrap();
    assert_eq!(response.status(), 200, "{path}");
    let kind = response.headers()["content-type"].to_str().unwrap();
    (kind.to_owned(), response.text().await.unwrap())
}

#[tokio::test]
async fn the_description_is_there_for_anybody_and_before_the_model() {
    let config = HttpConfig {
        api_key: serde_json::from_str("\"secret\"").unwrap(),
        ..HttpConfig::default()
    };
    let server = TestServer::start_loading(config);
    let (kind, text) = fetched(&server, "/openapi.json").await;
    assert_eq!(kind, "application/json");
    let document: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(document["openapi"], "3.1.0");
    let chat = &document["paths"]["/v1/chat/completions"]["post"];
    let body = &chat["requestBody"]["content"]["application/json"]["schema"];
    assert_eq!(body["$ref"], "#/components/schemas/ChatRequest");
    let request = &document["components"]["schemas"]["ChatRequest"];
    assert_eq!(request["required"], serde_json::json!(["messages"]));
    assert!(!text.contains("secret"));
}

#[tokio::test]
async fn the_page_for_people_fetches_nothing_from_elsewhere() {
    let server = TestServer::start(
        Behaviour::default(),
        EngineConfig::default(),
        HttpConfig::default(),
    );
    let response = reqwest::get(format!("{}/docs", server.url)).await.unwrap();
    let policy = response.headers()["content-security-policy"]
        .to_str()
        .unwrap();
    assert!(policy.contains("script-src 'self'"), "{policy}");
    for path in ["/docs", "/ui/docs.js", "/ui/docs.css", "/ui/keys.js"] {
        let (kind, text) = fetched(&server, path).await;
        assert!(kind.starts_with("text/"), "{path}: {kind}");
        assert!(!text.contains("//cdn") && !text.contains("http://") && !text.contains("https://"));
    }
    let (_, script) = fetched(&server, "/ui/docs.js").await;
    assert!(script.contains("fetch(\"openapi.json\")"));
}
