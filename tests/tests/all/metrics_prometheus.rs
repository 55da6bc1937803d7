//! Prometheus itself scrapes a server under load, and every query of published dashboards has an
//! answer.

use std::fs;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use serde_json::{Value, json};

use super::disaggregation::Pair;
use super::harness::{CHAT, COMPLETIONS, MODEL, Prometheus, Server, prometheus, workspace};
use super::metrics::{PATIENCE, six_tokens};

/// Does `work` until Prometheus answers every query. Rates need a scrape before and one after it.
async fn all_answered(
    prometheus: &Prometheus,
    mut unanswered: Vec<String>,
    mut work: impl AsyncFnMut(),
) {
    let (all, deadline) = (unanswered.len(), Instant::now() + PATIENCE);
    while !unanswered.is_empty() {
        assert!(Instant::now() < deadline, "no answer to {unanswered:#?}");
        work().await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        unanswered = prometheus.unanswered(unanswered).await;
    }
    println!("{all} queries were answered");
}

/// The beginnings of metrics of features that are off by default.
const OF_SPECULATION: &str = "llm_speculation_";
const OF_HOST_CACHE: &str = "llm_host_cache_";
const OF_ADAPTERS: &str = "llm_lora_";
const OF_TRANSFERS: &str = "llm_kv_transfer_";

/// True if a query of our dashboard is about a feature that is off by default.
pub fn needs_a_feature(query: &str) -> bool {
    [OF_SPECULATION, OF_HOST_CACHE, OF_ADAPTERS, OF_TRANSFERS]
        .iter()
        .any(|start| query.contains(start))
}

/// The queries of our dashboard about some features.
fn queries_about(features: &[&str]) -> Vec<String> {
    let ours = our_queries().into_iter();
    let ours = ours.filter(|query| features.iter().any(|start| query.contains(start)));
    ours.map(|query| query.replace("$instance", ".*")).collect()
}

#[tokio::test]
async fn panels_of_speculation_host_memory_and_adapters_have_answers_in_prometheus() {
    let Some(binary) = prometheus() else {
        return;
    };
    let drafts =
        r#"{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_min":1,"adaptive":false}"#;
    let flags = [
        "--host-cache-tokens",
        "4096",
        "--enable-lora",
        "--speculative-config",
    ];
    let server = Server::start(&[&flags[..], &[drafts]].concat()).await;
    let prometheus = Prometheus::start(&binary, &[server.address()]).await;
    let queries = queries_about(&[OF_SPECULATION, OF_HOST_CACHE, OF_ADAPTERS]);
    assert!(queries.len() >= 9, "{queries:#?}");
    all_answered(&prometheus, queries, async || some_work(&server).await).await;
}

#[tokio::test]
async fn panels_of_transfers_have_answers_in_prometheus() {
    let Some(binary) = prometheus() else {
        return;
    };
    let mut pair = Pair::start(MODEL, &["--metrics-names", "vllm,sglang,otel"]).await;
    let targets = [pair.prefill.address(), pair.decode.address()];
    let prometheus = Prometheus::start(&binary, &targets).await;
    let mut queries = queries_about(&[OF_TRANSFERS]);
    assert!(queries.len() >= 7, "{queries:#?}");
    // The decode server counts prompt tokens that were computed elsewhere.
    queries.extend(
        [
            "vllm:prompt_tokens_cached_by_source_total{source=\"remote\"} > 0",
            "sum by (instance) (vllm:prompt_tokens_cached_total) \
             == sum by (instance) (vllm:prompt_tokens_cached_by_source_total) > 0",
            "vllm:prompt_tokens_by_source_total{source=\"external_kv_transfer\"} > 0",
            "sglang:cached_tokens_total{cache_source=\"remote\"} > 0",
        ]
        .map(str::to_owned),
    );
    let mut prompts = 0..;
    let work = async || {
        let prompt = format!("prompt {:?} that no cache has", prompts.next());
        pair.answer(COMPLETIONS, &six_tokens(&prompt), 1).await;
    };
    all_answered(&prometheus, queries, work).await;
}

#[tokio::test]
async fn vllms_dashboard_of_engine_0_has_answers_with_one_flag() {
    let Some(binary) = prometheus() else {
        return;
    };
    let server = Server::start(&["--show-hidden-metrics-for-version", "0.8"]).await;
    let prometheus = Prometheus::start(&binary, &[server.address()]).await;
    let queries = queries("vllm-v0.promql");
    assert_eq!(queries.len(), 33, "{queries:#?}");
    all_answered(&prometheus, queries, async || some_work(&server).await).await;
}

#[tokio::test]
async fn a_slow_bucket_of_a_latency_has_the_trace_of_a_request() {
    let Some(binary) = prometheus() else {
        return;
    };
    // Nobody has to receive the traces.
    let server = Server::start(&["--otlp-endpoint", "http://127.0.0.1:9"]).await;
    let prometheus = Prometheus::start(&binary, &[server.address()]).await;
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let request = server
        .http
        .post(server.url(COMPLETIONS))
        .json(&six_tokens("a"));
    let parent = format!("00-{trace}-b7ad6b7169203331-01");
    request.header("traceparent", parent).send().await.unwrap();
    for metric in [
        "vllm:time_to_first_token_seconds_bucket",
        "vllm:e2e_request_latency_seconds_bucket",
        "vllm:request_queue_time_seconds_bucket",
        "gen_ai_server_time_per_output_token_seconds_bucket",
        "vllm:inter_token_latency_seconds_bucket",
        "http_server_request_duration_seconds_bucket",
    ] {
        let deadline = Instant::now() + PATIENCE;
        let query = [
            ("query", metric),
            ("start", "2020-01-01T00:00:00Z"),
            ("end", "2100-01-01T00:00:00Z"),
        ];
        let found = loop {
            let found = prometheus.get("query_exemplars", &query).await;
            if found.as_array().is_some_and(|series| !series.is_empty()) {
                break found;
            }
            assert!(Instant::now() < deadline, "{metric} has no exemplar");
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        let exemplar = &found[0]["exemplars"][0];
        assert_eq!(exemplar["labels"]["trace_id"], trace, "{found}");
        let seconds: f64 = exemplar["value"].as_str().unwrap().parse().unwrap();
        let bound: f64 = found[0]["seriesLabels"]["le"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap();
        assert!(seconds > 0.0 && seconds <= bound, "{found}");
    }
}

/// The queries of a file in `tests/dashboards`, with Grafana's variables substituted.
fn queries(file: &str) -> Vec<String> {
    let text = fs::read_to_string(workspace().join("tests/dashboards").join(file)).unwrap();
    let lines = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(substituted).collect()
}

/// The recording rules.
pub const RULES: [&str; 5] = [
    "hearth:prefix_cache_hit_rate:5m",
    "hearth:time_to_first_token_seconds:p99_5m",
    "hearth:inter_token_latency_seconds:p99_5m",
    "hearth:engine_busy:ratio_1m",
    "hearth:saturation:ratio",
];

/// The queries of our alerts without their bounds, so that they have answers where nothing is wrong. An
/// answer with a status of 5xx is needed for one, which is left out.
pub fn alert_queries() -> Vec<String> {
    let text = fs::read_to_string(workspace().join("otel/rules/alerts.yml")).unwrap();
    let lines = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("expr: "));
    let unbounded = lines.map(|line| {
        let words: Vec<&str> = line.trim_matches('\'').split(' ').collect();
        let is_bound = |i: usize| [">", "=="].contains(&words[i]);
        let kept = (0..words.len()).filter(|&i| !is_bound(i) && (i == 0 || !is_bound(i - 1)));
        kept.map(|i| words[i]).collect::<Vec<_>>().join(" ")
    });
    let queries: Vec<String> = unbounded.filter(|query| !query.contains("5..")).collect();
    assert_eq!(queries.len(), 8, "{queries:#?}");
    queries
}

/// The queries of our own dashboard, with `$instance` as it is.
pub fn our_queries() -> Vec<String> {
    fn collect(value: &Value, into: &mut Vec<String>) {
        match value {
            Value::Object(map) => {
                into.extend(map.get("expr").and_then(Value::as_str).map(substituted));
                map.values().for_each(|value| collect(value, into));
            }
            Value::Array(values) => values.iter().for_each(|value| collect(value, into)),
            _ => {}
        }
    }
    let text = fs::read_to_string(workspace().join("otel/dashboards/hearth.json")).unwrap();
    let mut found = Vec::new();
    collect(&serde_json::from_str(&text).unwrap(), &mut found);
    found
}

fn substituted(query: &str) -> String {
    let mut query = query.to_owned();
    for (variable, value) in [
        ("$__rate_interval", "1m"),
        ("$__interval", "1m"),
        ("$__range", "5m"),
        ("$model_name", "llama-llama3-tied"),
        ("$Deployment_id", "llama-llama3-tied"),
        ("$model", ".*"),
    ] {
        query = query.replace(variable, value);
    }
    query
}

/// Sends requests of several kinds: complete responses and streams, cached prompts, an error.
pub async fn some_work(server: &Server) {
    let prompt = "the same beginning of every one of these prompts";
    server.ok(COMPLETIONS, &six_tokens(prompt)).await;
    let mut copies = six_tokens(prompt);
    (copies["n"], copies["stream"]) = (json!(2), json!(true));
    let request = server.http.post(server.url(COMPLETIONS)).json(&copies);
    let mut stream = request.send().await.unwrap().bytes_stream();
    while let Some(bytes) = stream.next().await {
        bytes.unwrap();
    }
    let choice = json!({"prompt": "Yes or no?", "guided_choice": ["yes", "no"], "max_tokens": 5});
    server.ok(COMPLETIONS, &choice).await;
    let chat = json!({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3});
    server.ok(CHAT, &chat).await;
    assert_eq!(
        server.post(COMPLETIONS, &json!({"prompt": 7})).await.status,
        400
    );
}

#[tokio::test]
async fn every_query_of_the_published_dashboards_has_an_answer_in_prometheus() {
    let Some(binary) = prometheus() else {
        return;
    };
    let server = Server::start(&["--metrics-names", "vllm,sglang,otel,plain"]).await;
    let prometheus = Prometheus::start(&binary, &[server.address()]).await;
    let mut unanswered: Vec<String> = queries("vllm.promql");
    assert_eq!(unanswered.len(), 67, "{unanswered:#?}");
    unanswered.extend(queries("sglang.promql"));
    let ours = our_queries();
    assert!(ours.len() > 20, "{ours:#?}");
    let ours = ours.into_iter().filter(|query| !needs_a_feature(query));
    unanswered.extend(ours.map(|query| query.replace("$instance", ".*")));
    unanswered.extend(RULES.map(str::to_owned));
    unanswered.extend(alert_queries());
    all_answered(&prometheus, unanswered, async || some_work(&server).await).await;

    // The lists of models that dashboards offer.
    for metric in ["vllm:generation_tokens_total", "sglang:num_running_reqs"] {
        let data = prometheus
            .get("label/model_name/values", &[("match[]", metric)])
            .await;
        assert_eq!(data, json!(["llama-llama3-tied"]), "{metric}");
    }
    let targets = prometheus.get("targets", &[]).await;
    let target = &targets["activeTargets"][0];
    assert_eq!(
        (&target["health"], &target["lastError"]),
        (&json!("up"), &json!("")),
        "{target}"
    );
    // Prometheus asks for OpenMetrics by name, and checks that the page has its end mark.
    let scraped = server.http.get(server.url("/metrics"));
    let accept = "application/openmetrics-text;version=1.0.0";
    let page = scraped.header("accept", accept).send().await.unwrap();
    assert!(page.text().await.unwrap().ends_with("# EOF\n"));
}
