//! Tests what a scrape can choose, compression and OpenMetrics, and what the operator can
//! configure, bucket bounds.

use std::collections::BTreeMap;

use super::harness::{COMPLETIONS, Server, telemetry_python};
use super::metrics::{Page, has, page_with, six_tokens};

/// The samples of metrics that do not change while the server is idle, by name and labels.
fn stable_samples(page: &Page) -> BTreeMap<String, f64> {
    let changes = [
        "process_",
        "process.",
        "llm_engine_heartbeat",
        "llm_engine_generation",
    ];
    let rates = ["throughput", "llm_engine_prompt"];
    let samples = page.samples().filter(|(name, ..)| {
        !changes.iter().any(|start| name.starts_with(start))
            && !rates.iter().any(|part| name.contains(part))
    });
    let keyed = samples.map(|(name, labels, value)| (format!("{name}{labels}"), value));
    keyed.collect()
}

#[tokio::test]
async fn every_format_that_prometheus_asks_for_has_the_same_samples() {
    let Some(python) = telemetry_python() else {
        return;
    };
    let server = Server::start(&["--metrics-names", "vllm,sglang,otel,plain"]).await;
    server.ok(COMPLETIONS, &six_tokens("a")).await;
    server.wait_until_idle().await;
    let counted = |page: &str| has(page, "http_request_duration_highr_seconds_count", " 1.0");
    page_with(&server, counted).await;
    let plain = stable_samples(&Page::as_asked(&server, &python, &[]).await);
    assert!(plain.len() > 1000, "{}", plain.len());
    for how in [&["gzip"][..], &["openmetrics"], &["gzip", "openmetrics"]] {
        let other = stable_samples(&Page::as_asked(&server, &python, how).await);
        assert_eq!(plain, other, "{how:?}");
    }
}

#[tokio::test]
async fn a_server_without_metrics_records_none() {
    let server = Server::start(&["--disable-metrics"]).await;
    server.ok(COMPLETIONS, &six_tokens("a")).await;
    let page = server.http.get(server.url("/metrics")).send().await;
    let page = page.unwrap();
    assert_eq!(page.status(), 404);
    let error: serde_json::Value = page.json().await.unwrap();
    assert_eq!(error["error"]["code"], "metrics_disabled", "{error}");
    // The engine reports no steps either.
    let steps = server.http.get(server.url("/debug/trace")).send().await;
    assert_eq!(steps.unwrap().status(), 503);
    // vLLM's name of the flag.
    let server = Server::start(&["--disable-log-stats"]).await;
    let page = server.http.get(server.url("/metrics")).send().await;
    assert_eq!(page.unwrap().status(), 404);
}

#[tokio::test]
async fn a_scrape_gets_only_formats_that_it_accepts() {
    let server = Server::start(&[]).await;
    for (accept, encoding, kind, packed) in [
        ("*/*", "identity", "text/plain", false),
        ("text/plain", "gzip;q=0", "text/plain", false),
        ("text/plain", "br, gzip;q=0.5", "text/plain", true),
        (
            "application/openmetrics-text;q=0.1, text/plain",
            "deflate",
            "text/plain",
            false,
        ),
        (
            "application/openmetrics-text;version=2.0.0",
            "",
            "text/plain",
            false,
        ),
        (
            "application/openmetrics-text",
            "gzip",
            "application/openmetrics-text",
            true,
        ),
        ("nonsense;;;", "\u{1}", "text/plain", false),
    ] {
        let request = server.http.get(server.url("/metrics"));
        let request = request.header("accept", accept);
        let Ok(answer) = request.header("accept-encoding", encoding).send().await else {
            // The client refuses to send this header.
            assert_eq!(encoding, "\u{1}");
            continue;
        };
        assert_eq!(answer.status(), 200);
        let header = |name: &str| answer.headers().get(name).map(|v| v.to_str().unwrap());
        let content_type = header("content-type").unwrap();
        assert!(content_type.starts_with(kind), "{accept}: {content_type}");
        assert_eq!(
            header("content-encoding"),
            packed.then_some("gzip"),
            "{encoding}"
        );
    }
}

#[tokio::test]
async fn configured_bounds_are_shown_under_every_name_of_their_family() {
    let chosen = r#"{"time_to_first_token": [0.3, 600], "inter_token_latency": [5]}"#;
    let flags = [
        "--metrics-names",
        "vllm,sglang,plain",
        "--custom-histogram-buckets",
        chosen,
    ];
    let server = Server::start(&flags).await;
    server.ok(COMPLETIONS, &six_tokens("a")).await;
    let recorded = |page: &str| has(page, "vllm:time_to_first_token_seconds_count", " 1.0");
    let page = page_with(&server, recorded).await;
    let bounds = |name: &str| -> Vec<&str> {
        let lines = page.lines().filter(|line| line.starts_with(name));
        lines
            .map(|line| {
                line.split("le=\"")
                    .nth(1)
                    .unwrap()
                    .split('"')
                    .next()
                    .unwrap()
            })
            .collect()
    };
    for prefix in ["vllm:", "vllm_"] {
        let first = bounds(&format!("{prefix}time_to_first_token_seconds_bucket"));
        assert_eq!(first, ["0.3", "600.0", "+Inf"]);
        let between = bounds(&format!("{prefix}inter_token_latency_seconds_bucket"));
        assert_eq!(between, ["5.0", "+Inf"]);
    }
    assert_eq!(
        bounds("sglang:time_to_first_token_seconds_bucket").len(),
        19
    );
    assert!(has(
        &page,
        "vllm:time_to_first_token_seconds_bucket",
        "le=\"600.0\"} 1.0"
    ));
}
