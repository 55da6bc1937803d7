//! docs/METRICS.md is written from the tables, and this test keeps it equal to them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fmt::Write;

use hearth_otel::buckets::{Buckets, FAMILIES};
use hearth_otel::catalog::{self, Instrument, Kind};
use hearth_otel::rows::{self, Label, Row, Shape, Source};

/// Metrics of vLLM and SGLang that do not exist here, and the feature that each one needs.
const ABSENT: &[(&str, &str)] = &[
    ("`sglang:spec_*` but the two above", "draft trees"),
    (
        "`sglang:lora_*`",
        "SGLang's pool of adapters; `vllm:lora_requests_info` and the attribute `llm.lora.adapter` tell who uses them",
    ),
    (
        "the other `sglang:hicache_*` and `vllm:kv_offload_*`, `vllm:nixl_*`, `vllm:mooncake_*`",
        "storage beyond the host's memory, and the connectors of those names",
    ),
    ("`vllm:mm_cache_*`, `sglang:encoder_*`", "images and sound"),
    (
        "`vllm:engine_sleep_state`, `vllm:sleep_mode_*`, `vllm:rl_weight_update_*`",
        "sleeping and changing weights",
    ),
    (
        "`vllm:corrupted_requests_total`, `vllm:watermark_requests_total`, `vllm:diffusion_*`, `vllm:estimated_*`",
        "the features of those names",
    ),
    (
        "`vllm:kv_block_*_seconds`",
        "sampling the residency of KV blocks",
    ),
    (
        "`vllm:request_params_best_of`, `vllm:tokens_total`",
        "nothing: vLLM itself has removed them",
    ),
    (
        "`sglang:num_*_queue_reqs` of prefill and decode servers, `sglang:kv_transfer_alloc_ms`",
        "queues of their own for requests that transfer KV: `llm.num_requests_transferring` counts those that do, and slots are reserved when a request starts",
    ),
    (
        "`sglang:dp_*`, `sglang:eplb_*`",
        "several ranks in one server",
    ),
    (
        "`sglang:num_grammar_queue_reqs`, `sglang:grammar_*`, `sglang:num_so_requests_total`",
        "a queue of grammars: requests are queued when theirs are compiled, and `llm.grammar.*` has their counts and times",
    ),
    (
        "`<name>_created`",
        "nothing: they double the page, and no dashboard reads them",
    ),
];

/// How the metrics of a program in Rust differ from those of vLLM and SGLang.
const DIFFERENCES: &str = "
## Differences

- A server is one process. There is no directory for metrics of several processes (`PROMETHEUS_MULTIPROC_DIR`), and the `process_*`
  metrics, which vLLM loses with several processes, are always there.
- There are no `python_*` metrics, because there is no Python.
- vLLM's log line every 10 s and the metrics come from the same numbers; a line covers the last seconds, a counter the whole run.
- vLLM counts a beam search as many short requests. Here there is no beam search, and `n` continuations are one request with `n` observations in the
  histograms of requests.
- `--disable-metrics` (or vLLM's name for it, `--disable-log-stats`) records nothing. SGLang records nothing unless `--enable-metrics` is
  given.
";

#[test]
fn docs_metrics_md_is_equal_to_the_tables() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/METRICS.md");
    let page = metrics_page();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, &page).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        written == page,
        "docs/METRICS.md is out of date; UPDATE_DOCS=1 cargo test -p hearth-otel writes it"
    );
}

#[test]
fn the_changelog_lists_the_names_that_are_deprecated() {
    let changelog = include_str!("../../CHANGELOG.md");
    let (_, deprecated) = changelog.split_once("### Deprecated").unwrap();
    let deprecated = deprecated.split("\n### ").next().unwrap();
    let hidden = rows::VLLM.iter().filter(|row| row.hidden.is_some());
    let missing: Vec<_> = hidden
        .map(|row| row.name)
        .filter(|name| !deprecated.contains(&format!("`{name}`")))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// The text of docs/METRICS.md.
fn metrics_page() -> String {
    let mut out = String::from(
        "# Metrics\n\n\
         <!-- Written from the tables in otel/src; `UPDATE_DOCS=1 cargo test -p hearth-otel` writes it again. -->\n\n\
         `/metrics` shows what is measured under the names asked for with `--metrics-names`, a list \
         of `vllm`, `sglang`, `otel` and `plain` (`vllm,otel` where nothing is given); OTLP carries \
         the instruments under their own names. `plain` is `vllm` with `_` for `:`, for those who \
         keep colons for recording rules. Each is recorded once, whatever it is called.\n\n\
         ## Instruments\n\n\
         | instrument (OTLP) | in `/metrics` with `otel` | kind | unit | attributes | meaning |\n\
         |---|---|---|---|---|---|\n",
    );
    for instrument in catalog::instruments() {
        canonical(&mut out, instrument);
    }
    let families = [
        (
            "vllm",
            "`vllm:*` and the `http_*` metrics of the instrumentator that vLLM mounts.",
            rows::VLLM,
        ),
        ("sglang", "`sglang:*`.", rows::SGLANG),
        (
            "Always",
            "The process, under the names of Prometheus' own client libraries.",
            rows::PROCESS,
        ),
    ];
    for (title, text, rows) in families {
        let _ = write!(
            out,
            "\n## {title}\n\n{text}\n\n| metric | kind | labels | from | meaning |\n|---|---|---|---|---|\n"
        );
        for row in rows.iter().filter(|row| row.hidden.is_none()) {
            projected(&mut out, row);
        }
    }
    out.push_str(
        "\n## Deprecated\n\nNames that vLLM has given up, shown with \
         `--show-hidden-metrics-for-version X.Y` where that version still had them.\n\n\
         | metric | kind | labels | from | meaning | hidden since |\n|---|---|---|---|---|---|\n",
    );
    for row in rows::VLLM {
        if let Some(((major, minor), _)) = row.hidden {
            projected(&mut out, row);
            out.truncate(out.trim_end().len());
            let _ = writeln!(out, " {major}.{minor} |");
        }
    }
    families_of_bounds(&mut out);
    out.push_str(
        "\n## Not here\n\nA metric of a feature that does not exist is absent; none is a made-up zero.\n\n\
         | metric | needs |\n|---|---|\n",
    );
    for (names, needs) in ABSENT {
        let _ = writeln!(out, "| {names} | {needs} |");
    }
    out.push_str(DIFFERENCES);
    out
}

/// The section on bucket bounds.
fn families_of_bounds(out: &mut String) {
    out.push_str(
        "\n## Buckets\n\nThe bounds of histograms, by the family that their origin gives them. \
         `--custom-histogram-buckets '{\"time_to_first_token\": [0.1, 0.5, 1, 5]}'` puts others in \
         the place of a family's, wherever it is shown; OTLP has the union of an instrument's \
         families.\n\n| family | bounds | histograms |\n|---|---|---|\n",
    );
    for (name, family) in FAMILIES {
        let rows = rows::VLLM.iter().chain(rows::SGLANG);
        let rows = rows.filter(|row| row.buckets == Some(family));
        let mut shown: Vec<String> = rows.map(|row| format!("`{}`", row.name)).collect();
        shown.dedup();
        let own = catalog::instruments().filter(|i| i.buckets.contains(&family));
        shown.extend(own.map(|instrument| format!("`{}`", instrument.exposed())));
        let bounds = match family {
            Buckets::RequestTokens => "1 2 5 10 20 ... as far as the context".to_owned(),
            family => {
                let bounds = family.standard(0).into_iter();
                bounds.map(|b| b.to_string()).collect::<Vec<_>>().join(" ")
            }
        };
        let _ = writeln!(out, "| `{name}` | {bounds} | {} |", shown.join(", "));
    }
}

/// The table row of an instrument.
fn canonical(out: &mut String, instrument: &Instrument) {
    let kind = match instrument.kind {
        Kind::Counter | Kind::Seconds => "counter",
        Kind::Level => "up-down counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
    };
    let attributes = instrument.attributes.iter().map(|name| format!("`{name}`"));
    let _ = writeln!(
        out,
        "| `{}` | `{}` | {kind} | {} | {} | {} |",
        instrument.name,
        instrument.exposed(),
        instrument.unit,
        attributes.collect::<Vec<_>>().join(", "),
        instrument.help
    );
}

/// The table row of a metric of another vocabulary.
fn projected(out: &mut String, row: &Row) {
    let kind = match row.shape {
        Shape::Counter => "counter",
        Shape::Gauge => "gauge",
        Shape::Histogram => "histogram",
        Shape::Summary => "summary",
    };
    let label = |label: &Label| match label {
        Label::Model => "`model_name`".to_owned(),
        Label::Fixed(name, value) => format!("`{name}=\"{value}\"`"),
        Label::From(name, _) | Label::StatusClass(name) => format!("`{name}`"),
    };
    let from = match row.source {
        Source::Of(name) => format!("`{name}`"),
        Source::Where(name, _, values) => format!("`{name}`, {}", values.join(" + ")),
        Source::Sum(a, b) => format!("`{a}` + `{b}`"),
        Source::CountOf(name) => format!("count of `{name}`"),
        Source::WithZeros(name, zeros) => format!("`{name}`, and `{zeros}` as zeros"),
        Source::Ratio(a, b) => format!("`{a}` / `{b}`"),
        Source::Always(value) => format!("always {value}"),
    };
    let labels: Vec<String> = row.labels.iter().map(label).collect();
    let _ = writeln!(
        out,
        "| `{}` | {kind} | {} | {from} | {} |",
        row.name,
        labels.join(", "),
        row.help_text()
    );
}
