//! Tests how clients of other APIs than OpenAI's identify their users in traces.

use serde_json::{Value, json};

use super::harness::{Server, telemetry_python};
use super::traces::{Collector, SOON};

#[tokio::test]
async fn anthropics_user_id_is_the_user_of_the_trace() {
    let Some(python) = telemetry_python() else {
        return;
    };
    let mut collector = Collector::start(&python);
    let endpoint = format!("127.0.0.1:{}", collector.grpc);
    let flags = ["--otlp-endpoint", &endpoint, "--otlp-protocol", "grpc"];
    let server = Server::start_with(&flags, &SOON).await;
    let models = server.http.get(server.url("/v1/models")).send().await;
    let models: Value = models.unwrap().json().await.unwrap();
    let body = json!({
        "model": models["data"][0]["id"], "max_tokens": 3, "metadata": {"user_id": "ada"},
        "messages": [{"role": "user", "content": "Hello there"}],
    });
    let request = server.http.post(server.url("/v1/messages")).json(&body);
    assert_eq!(request.send().await.unwrap().status(), 200);
    collector.read_until(|collector| !collector.spans("llm_request").is_empty());
    let request = collector.spans("llm_request")[0];
    assert_eq!(request["attributes"]["user.id"], "ada");
}
