//! Metrics that a server pushes through a collector into Prometheus are those that Prometheus
//! scrapes from it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::harness::{Collector, Prometheus, Server, free_port, prometheus};
use super::metrics::PATIENCE;
use super::metrics_prometheus::{RULES, alert_queries, needs_a_feature, our_queries, some_work};

/// The `service.instance.id` of the server.
const PUSHED: &str = "pushed-1";

/// Series by name and labels. Where a series comes from is left out, and bounds are numbers:
/// OTLP has `le="1"`, a scraped page `le="1.0"`.
type Samples = BTreeMap<String, f64>;

fn samples(series: &[Value]) -> Samples {
    let keyed = series.iter().map(|one| {
        let mut labels = one["metric"].as_object().unwrap().clone();
        labels.retain(|label, _| label != "instance" && label != "job");
        if let Some(bound) = labels.get_mut("le") {
            let number: f64 = bound.as_str().unwrap().parse().unwrap();
            *bound = number.to_string().into();
        }
        let value = one["value"][1].as_str().unwrap().parse().unwrap();
        (Value::from(labels).to_string(), value)
    });
    keyed.collect()
}

/// Series that are not there, or not equal, on the other path.
fn differences(scraped: &Samples, pushed: &Samples) -> Vec<String> {
    let moves = |key: &str| key.contains("\"process_");
    let unequal = scraped.iter().filter_map(|(key, value)| {
        let other = pushed.get(key);
        let equal = other.is_some_and(|other| moves(key) || value == other);
        (!equal).then(|| format!("{key}: {value} scraped, {other:?} pushed"))
    });
    // A page has the bounds that are asked for, and OTLP has all that are recorded.
    let only_pushed = pushed.keys().filter(|key| !scraped.contains_key(*key));
    let only_pushed = only_pushed.filter(|key| !key.contains("\"le\""));
    unequal
        .chain(only_pushed.map(|key| format!("{key}: pushed only")))
        .collect()
}

#[tokio::test]
async fn pushed_metrics_are_equal_to_scraped_ones_in_prometheus() {
    let Some(binary) = prometheus() else {
        return;
    };
    if !Collector::exists() {
        return;
    }
    let port = free_port();
    let endpoint = Collector::endpoint(port);
    let instance = format!("service.instance.id={PUSHED}");
    let server = Server::start_with(
        &["--metrics-names", "otel", "--otlp-endpoint", &endpoint],
        &[
            ("OTEL_METRIC_EXPORT_INTERVAL", "250"),
            ("OTEL_TRACES_EXPORTER", "none"),
            ("OTEL_RESOURCE_ATTRIBUTES", &instance),
        ],
    )
    .await;
    let prometheus = Prometheus::start(&binary, &[server.address()]).await;
    let _collector = Collector::start(port, &prometheus).await;

    // Dashboards and rules have answers from what is pushed alone.
    let pushed_only = |query: String| query.replace("$instance", PUSHED);
    let ours = our_queries()
        .into_iter()
        .filter(|query| !needs_a_feature(query));
    let mut unanswered: Vec<String> = ours.map(pushed_only).collect();
    unanswered.extend(RULES.map(|rule| format!("{rule}{{instance=\"{PUSHED}\"}}")));
    // Only a target that is scraped has an `up`.
    let alerts = alert_queries().into_iter();
    let alerts = alerts.filter(|query| !query.starts_with("up"));
    unanswered.extend(alerts.map(|query| {
        format!("({query}) and on (instance) llm_context_length{{instance=\"{PUSHED}\"}}")
    }));
    let deadline = Instant::now() + PATIENCE;
    while !unanswered.is_empty() {
        assert!(Instant::now() < deadline, "no answer to {unanswered:#?}");
        some_work(&server).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        unanswered = prometheus.unanswered(unanswered).await;
    }

    server.wait_until_idle().await;
    let of = |instance: &str| {
        // The client libraries' names of the process, which a page has besides.
        let besides = "process_(cpu_seconds_total|resident_memory_bytes|virtual_memory_bytes|\
                       open_fds|max_fds|threads|start_time_seconds)";
        format!(
            "{{instance=\"{instance}\",__name__=~\"(gen_ai|llm|http|process|hearth)_.*\",\
             __name__!~\"{besides}\"}}"
        )
    };
    // Until then, throughputs fall to zero with their window.
    let deadline = Instant::now() + PATIENCE;
    loop {
        let scraped = samples(&prometheus.series(&of(server.address())).await);
        let pushed = samples(&prometheus.series(&of(PUSHED)).await);
        let differ = differences(&scraped, &pushed);
        if differ.is_empty() && scraped.len() > 300 {
            println!("{} series are equal", scraped.len());
            return;
        }
        assert!(Instant::now() < deadline, "{}: {differ:#?}", scraped.len());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
