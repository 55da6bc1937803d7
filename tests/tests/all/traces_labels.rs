//! Tests attributes of traces: how clients of other APIs than OpenAI's identify their users, and the
//! adapter of a request.

use serde_json::{Value, json};

use super::harness::{COMPLETIONS, Server, telemetry_python, workspace};
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

#[tokio::test]
async fn a_server_without_metrics_sends_traces_alone() {
    let Some(python) = telemetry_python() else {
        return;
    };
    let mut collector = Collector::start(&python);
    let endpoint = format!("127.0.0.1:{}", collector.grpc);
    let flags = [
        "--otlp-endpoint",
        &endpoint,
        "--otlp-protocol",
        "grpc",
        "--disable-metrics",
    ];
    let server = Server::start_with(&flags, &SOON).await;
    let ask = async || {
        server
            .ok(COMPLETIONS, &json!({"prompt": [1, 2], "max_tokens": 2}))
            .await
    };
    ask().await;
    collector.read_until(|collector| !collector.spans("llm_request").is_empty());
    // Several intervals of metrics pass until the second trace.
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    ask().await;
    collector.read_until(|collector| collector.spans("llm_request").len() == 2);
    let mut metrics = collector
        .got
        .iter()
        .filter(|line| line["signal"] == "metric");
    assert_eq!(metrics.next(), None);
}

#[tokio::test]
async fn the_adapter_of_a_request_is_in_its_trace_and_in_its_metrics() {
    let Some(python) = telemetry_python() else {
        return;
    };
    let mut collector = Collector::start(&python);
    let endpoint = format!("127.0.0.1:{}", collector.grpc);
    let module = workspace().join("model/goldens/adapters/list");
    let module = format!("rhymes={}", module.display());
    let otlp = ["--otlp-endpoint", &endpoint, "--otlp-protocol", "grpc"];
    let flags = [&otlp[..], &["--lora-modules", &module]].concat();
    let server = Server::start_with(&flags, &SOON).await;
    let body = json!({"prompt": [1, 2], "max_tokens": 2});
    server.ok(COMPLETIONS, &body).await;
    let mut adapted = body.clone();
    adapted["model"] = "rhymes".into();
    server.ok(COMPLETIONS, &adapted).await;
    collector.read_until(|collector| collector.spans("llm_request").len() == 2);
    let spans = collector.spans("llm_request");
    let mut names: Vec<&Value> = spans
        .iter()
        .map(|span| &span["attributes"]["llm.lora.adapter"])
        .collect();
    names.sort_by_key(|name| name.is_null());
    assert_eq!(names, [&json!("rhymes"), &Value::Null]);
    let page = server
        .http
        .get(server.url("/metrics"))
        .send()
        .await
        .unwrap();
    let page = page.text().await.unwrap();
    let of_adapter = page.lines().filter(|line| {
        line.starts_with("gen_ai_server_request_duration_seconds_count{")
            && line.contains("llm_lora_adapter=\"rhymes\"")
    });
    assert_eq!(of_adapter.count(), 1, "{page}");
}
