//! docs/METRICS.md has the names, kinds and labels of a page that a server shows.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde_json::json;

use super::harness::{COMPLETIONS, Server, workspace};
use super::metrics_prometheus::some_work;

/// A documented family: its kind, and the labels of each of its rows.
type Documented = BTreeMap<String, (String, Vec<BTreeSet<String>>)>;

/// The text between backticks.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// The tables of docs/METRICS.md. Attributes of OpenTelemetry's names are labels with `_` for `.`.
fn documented() -> Documented {
    let text = fs::read_to_string(workspace().join("docs/METRICS.md")).unwrap();
    let mut found = Documented::new();
    let mut section = "";
    for line in text.lines() {
        section = line.strip_prefix("## ").unwrap_or(section);
        let cells: Vec<&str> = line.split(" | ").collect();
        let (name, kind, labels) = match section {
            "Instruments" if line.starts_with("| `") => (cells[1], cells[2], cells[4]),
            "vllm" | "sglang" | "Always" | "Deprecated" if line.starts_with("| `") => {
                (cells[0], cells[1], cells[2])
            }
            _ => continue,
        };
        let name = quoted(name).next().unwrap().to_owned();
        let kind = if kind == "up-down counter" {
            "gauge"
        } else {
            kind
        };
        let label = |label: &str| label.split('=').next().unwrap().replace('.', "_");
        let labels = quoted(labels).map(label).collect();
        let family = found.entry(name).or_insert((kind.to_owned(), Vec::new()));
        family.1.push(labels);
    }
    found
}

/// The names of labels, but for the bounds of buckets.
fn label_names(series: &str) -> BTreeSet<String> {
    let Some((_, labels)) = series.split_once('{') else {
        return BTreeSet::new();
    };
    let labels = labels.trim_end_matches('}').split("\",");
    let names = labels.map(|pair| pair.split('=').next().unwrap().to_owned());
    names.filter(|name| name != "le").collect()
}

#[tokio::test]
async fn what_a_server_shows_is_what_is_documented() {
    let flags = [
        "--metrics-names",
        "vllm,sglang,otel",
        "--show-hidden-metrics-for-version",
        "0.1",
        "--host-cache-tokens",
        "4096",
        "--enable-lora",
        "--speculative-config",
        r#"{"method":"ngram","num_speculative_tokens":3}"#,
    ];
    let server = Server::start(&flags).await;
    some_work(&server).await;
    // It has no time per output token.
    let short = json!({"prompt": "a", "max_tokens": 1});
    server.ok(COMPLETIONS, &short).await;
    server.wait_until_idle().await;
    let page = server.http.get(server.url("/metrics")).send().await;
    let page = page.unwrap().text().await.unwrap();
    let documented = documented();
    assert!(documented.len() > 150, "{}", documented.len());
    let (mut family, mut shown) = ("", BTreeSet::new());
    for line in page.lines() {
        if let Some(head) = line.strip_prefix("# TYPE ") {
            let (name, kind) = head.split_once(' ').unwrap();
            let known = documented.get(name);
            assert_eq!(known.map(|known| &*known.0), Some(kind), "{name}");
            family = name;
            shown.insert(name);
        } else if !line.starts_with('#') {
            let (series, _) = line.rsplit_once(' ').unwrap();
            let labels = label_names(series);
            // An instrument leaves out attributes that do not apply, as OpenTelemetry says.
            let own = !family.contains(':') && !family.starts_with("http_re");
            let fits = |row: &BTreeSet<String>| *row == labels || own && labels.is_subset(row);
            assert!(documented[family].1.iter().any(fits), "{line}");
        }
    }
    let absent = documented.keys().filter(|name| !shown.contains(&***name));
    // They need a model with windows, a draft model, transfers, keys, full queues, or a refused grammar.
    let needs = |name: &&String| {
        [
            "window_kv",
            "swa",
            "draft_model",
            "transfer",
            "llm_client_",
            "rejections",
            "refusals",
            "model_forward",
            "model_execute",
        ]
        .iter()
        .any(|part| name.contains(part))
    };
    let absent: Vec<_> = absent.filter(|name| !needs(name)).collect();
    assert!(absent.is_empty(), "{absent:?} are documented and not shown");
}
