//! Tests the page of `/metrics` after a known workload, read with Prometheus' own parser.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::process::Command;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use serde_json::{Value, json};

use super::harness::{CHAT, COMPLETIONS, Random, Server, raw_socket, telemetry_python, workspace};

/// Time limit for actions that take milliseconds on an idle machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A page of metrics.
pub struct Page(Value);

impl Page {
    async fn of(server: &Server, python: &std::path::Path) -> Self {
        Self::as_asked(server, python, &[]).await
    }

    /// Scrapes the page in a format of `scrape.py`.
    pub async fn as_asked(server: &Server, python: &std::path::Path, how: &[&str]) -> Self {
        let mut command = Command::new(python);
        command
            .arg(workspace().join("tests/python/scrape.py"))
            .arg(server.url("/metrics"))
            .args(how);
        let output = tokio::task::spawn_blocking(move || command.output());
        let output = output.await.unwrap().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "scrape.py: {error}");
        Self(serde_json::from_slice(&output.stdout).unwrap())
    }

    fn names(&self) -> Vec<&str> {
        self.0
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect()
    }

    pub fn samples(&self) -> impl Iterator<Item = (&str, &Value, f64)> {
        let families = self.0.as_object().unwrap().values();
        families.flat_map(|family| {
            family["samples"].as_array().unwrap().iter().map(|sample| {
                let name = sample[0].as_str().unwrap();
                (
                    name,
                    &sample[1],
                    sample[2].as_f64().unwrap_or(f64::INFINITY),
                )
            })
        })
    }

    /// The value of the only sample that has this name and at least these labels.
    fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let found: Vec<f64> = self
            .samples()
            .filter(|(n, l, _)| *n == name && labels.iter().all(|(key, value)| l[key] == *value))
            .map(|(_, _, value)| value)
            .collect();
        assert_eq!(found.len(), 1, "{name} {labels:?}: {found:?}");
        found[0]
    }

    fn labels(&self, name: &str) -> Vec<String> {
        let (_, labels, _) = self.samples().find(|(n, ..)| *n == name).unwrap();
        let mut labels: Vec<String> = labels.as_object().unwrap().keys().cloned().collect();
        labels.sort();
        labels
    }
}

/// Scrapes until the page is as `wanted`, or until [`PATIENCE`] is over.
pub async fn page_with(server: &Server, wanted: impl Fn(&str) -> bool) -> String {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let page = server.http.get(server.url("/metrics")).send().await;
        let page = page.unwrap().text().await.unwrap();
        if wanted(&page) || Instant::now() > deadline {
            return page;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Whether a line of `page` starts with `start` and ends with `end`.
pub fn has(page: &str, start: &str, end: &str) -> bool {
    let mut lines = page.lines();
    lines.any(|line| line.starts_with(start) && line.ends_with(end))
}

/// A request that generates exactly six tokens, whatever the model's logits are.
pub fn six_tokens(prompt: &str) -> Value {
    json!({
        "prompt": prompt, "max_tokens": 6, "temperature": 0, "ignore_eos": true,
        "logit_bias": {"250": -100, "251": -100, "252": -100},
    })
}

#[tokio::test]
async fn a_known_workload_has_the_right_numbers_under_every_name() {
    let Some(python) = telemetry_python() else {
        return;
    };
    let names = ["--metrics-names", "vllm,sglang,otel,plain"];
    let server = Server::start(&[&names[..], &["--max-model-len", "2048"]].concat()).await;
    // The 40 tokens of the prompt are cached when the second request arrives.
    let prompt = "x".repeat(40);
    let first = server.ok(COMPLETIONS, &six_tokens(&prompt)).await;
    let prompt_tokens = first["usage"]["prompt_tokens"].as_f64().unwrap();
    let mut second = six_tokens(&prompt);
    second["n"] = json!(2);
    second["stream"] = json!(true);
    let mut stream = server
        .http
        .post(server.url(COMPLETIONS))
        .json(&second)
        .send()
        .await
        .unwrap()
        .bytes_stream();
    while let Some(bytes) = stream.next().await {
        bytes.unwrap();
    }
    let refused = server.post(COMPLETIONS, &json!({"prompt": 7})).await;
    assert_eq!(refused.status, 400);
    server.wait_until_idle().await;
    // The last step and the last HTTP exchange are recorded shortly after their end.
    let stats = server.stats().await;
    let steps = format!("{:?}", stats["steps"].as_f64().unwrap());
    let recorded = |page: &str| {
        has(page, "vllm:iteration_tokens_total_count", &steps)
            && has(page, "http_request_duration_highr_seconds_count", "3.0")
    };
    page_with(&server, recorded).await;
    let page = Page::of(&server, &python).await;

    let vllm = [("engine", "0")];
    let stat = |name: &str| stats[name].as_f64().unwrap();
    assert_eq!(
        page.value("vllm:prompt_tokens_total", &vllm),
        3.0 * prompt_tokens
    );
    assert_eq!(page.value("vllm:generation_tokens_total", &vllm), 18.0);
    assert_eq!(stat("generated_tokens"), 18.0);
    assert_eq!(
        page.value("vllm:prefix_cache_queries_total", &vllm),
        stat("prompt_tokens")
    );
    assert_eq!(
        page.value("vllm:prefix_cache_hits_total", &vllm),
        stat("cached_tokens")
    );
    assert!(
        stat("cached_tokens") > 0.0,
        "the second request shares the first's prompt"
    );
    for (reason, count) in [
        ("length", 3.0),
        ("stop", 0.0),
        ("abort", 0.0),
        ("error", 0.0),
        ("repetition", 0.0),
    ] {
        let labels = [("finished_reason", reason)];
        assert_eq!(
            page.value("vllm:request_success_total", &labels),
            count,
            "{reason}"
        );
    }
    for histogram in [
        "vllm:time_to_first_token_seconds",
        "vllm:e2e_request_latency_seconds",
        "vllm:request_queue_time_seconds",
        "vllm:request_prefill_time_seconds",
        "vllm:request_decode_time_seconds",
        "vllm:request_inference_time_seconds",
        "vllm:request_time_per_output_token_seconds",
        "vllm:request_prompt_tokens",
        "vllm:request_num_preemptions",
        "sglang:queue_time_seconds",
    ] {
        assert_eq!(
            page.value(&format!("{histogram}_count"), &[]),
            3.0,
            "{histogram}"
        );
    }
    assert_eq!(
        page.value("vllm:inter_token_latency_seconds_count", &vllm),
        15.0
    );
    assert_eq!(
        page.value("vllm:request_generation_tokens_sum", &vllm),
        18.0
    );
    assert_eq!(page.value("vllm:request_params_n_sum", &vllm), 3.0);
    assert_eq!(page.value("vllm:request_params_n_count", &vllm), 2.0);
    assert_eq!(
        page.value("vllm:request_max_num_generation_tokens_count", &vllm),
        2.0
    );
    let computed = 3.0 * prompt_tokens - stat("cached_tokens") + 18.0;
    let iterations = page.value("vllm:iteration_tokens_total_sum", &vllm);
    // A prompt with a single uncached token counts as a decode row.
    assert!(
        (computed - 3.0..=computed).contains(&iterations),
        "{iterations} of {computed}"
    );
    assert_eq!(
        page.value("vllm:iteration_tokens_total_count", &vllm),
        stat("steps")
    );
    for idle in [
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:num_preemptions_total",
    ] {
        assert_eq!(page.value(idle, &vllm), 0.0, "{idle}");
    }
    let config = [
        ("block_size", "1"),
        ("enable_prefix_caching", "True"),
        ("gpu_memory_utilization", "None"),
        ("cpu_offload_gb", "0"),
        ("calculate_kv_scales", "False"),
    ];
    assert_eq!(page.value("vllm:cache_config_info", &config), 1.0);

    // The same values under the other names, with the labels and bounds of those names.
    assert_eq!(page.value("vllm_generation_tokens_total", &vllm), 18.0);
    assert_eq!(
        page.value(
            "sglang:generation_tokens_total",
            &[("is_streaming", "true")]
        ),
        12.0
    );
    assert_eq!(
        page.value(
            "sglang:generation_tokens_total",
            &[("is_streaming", "false")]
        ),
        6.0
    );
    for first_token in ["sglang:time_to_first_token_seconds", "sglang:ttft_seconds"] {
        let count = format!("{first_token}_count");
        assert_eq!(page.value(&count, &[("is_streaming", "true")]), 2.0);
    }
    assert_eq!(
        page.value("sglang:num_running_reqs", &[("tp_rank", "0")]),
        0.0
    );
    let streamed = [("gen_ai_request_stream", "true")];
    assert_eq!(
        page.value("gen_ai_server_time_to_first_token_seconds_count", &streamed),
        2.0
    );
    let bounds = |name: &str| -> Vec<String> {
        let buckets = page
            .samples()
            .filter(|(n, ..)| *n == format!("{name}_bucket"));
        let bounds: BTreeMap<String, ()> = buckets
            .map(|(_, labels, _)| (labels["le"].as_str().unwrap().to_owned(), ()))
            .collect();
        bounds.into_keys().collect()
    };
    assert_eq!(bounds("vllm:time_to_first_token_seconds").len(), 23);
    assert_eq!(bounds("sglang:time_to_first_token_seconds").len(), 19);
    assert_eq!(
        bounds("gen_ai_server_time_to_first_token_seconds").len(),
        17
    );
    // To Prometheus 2, `1` and `1.0` are two series.
    assert!(bounds("vllm:time_to_first_token_seconds").contains(&"1.0".to_owned()));
    assert!(bounds("vllm:request_prompt_tokens").contains(&"2000.0".to_owned()));
    assert!(!bounds("vllm:request_prompt_tokens").contains(&"5000.0".to_owned()));
    assert_eq!(
        page.labels("vllm:num_requests_running"),
        ["engine", "model_name"]
    );
    assert_eq!(
        page.labels("sglang:num_running_reqs"),
        [
            "engine_type",
            "model_name",
            "moe_ep_rank",
            "pp_rank",
            "tp_rank"
        ]
    );

    // HTTP: two requests were served and one was refused.
    let route = ("handler", COMPLETIONS);
    assert_eq!(
        page.value("http_requests_total", &[route, ("status", "2xx")]),
        2.0
    );
    assert_eq!(
        page.value("http_requests_total", &[route, ("status", "4xx")]),
        1.0
    );
    assert_eq!(
        page.value("http_request_duration_highr_seconds_count", &[]),
        3.0
    );
    assert!(page.value("process_resident_memory_bytes", &[]) > 1e6);
}

#[tokio::test]
async fn each_vocabulary_shows_its_names_and_no_others() {
    let Some(python) = telemetry_python() else {
        return;
    };
    let names = async |flags: &[&str]| {
        let server = Server::start(flags).await;
        server.ok(COMPLETIONS, &six_tokens("a")).await;
        let page = Page::of(&server, &python).await;
        let names = page.names().into_iter().map(str::to_owned);
        names.collect::<Vec<_>>()
    };
    let has = |names: &[String], prefix: &str| names.iter().any(|name| name.starts_with(prefix));
    let default = names(&[]).await;
    assert!(
        has(&default, "vllm:") && has(&default, "gen_ai_server_"),
        "{default:?}"
    );
    assert!(
        !has(&default, "sglang:") && !has(&default, "vllm_"),
        "{default:?}"
    );
    assert!(
        !has(&default, "vllm:gpu_cache_usage_perc"),
        "it is deprecated"
    );
    let old = names(&["--show-hidden-metrics-for-version", "0.8"]).await;
    for name in [
        "vllm:gpu_cache_usage_perc",
        "vllm:time_per_output_token_seconds",
        "vllm:num_requests_swapped",
    ] {
        assert!(has(&old, name), "{name}");
    }
    let newer = names(&["--show-hidden-metrics-for-version", "0.11"]).await;
    assert!(has(&newer, "vllm:gpu_cache_usage_perc") && !has(&newer, "vllm:num_requests_swapped"));
    let plain = names(&["--metrics-names", "plain"]).await;
    assert!(has(&plain, "vllm_num_requests_running"), "{plain:?}");
    assert!(plain.iter().all(|name| !name.contains(':')), "{plain:?}");
    let sglang = names(&["--metrics-names", "sglang"]).await;
    let own = |name: &String| name.starts_with("sglang:") || name.starts_with("process_");
    assert!(sglang.iter().all(own), "{sglang:?}");
}

#[tokio::test]
async fn invented_methods_paths_and_headers_create_no_series() {
    let server = Server::start(&["--metrics-names", "vllm,sglang,otel,plain"]).await;
    let series = |page: &str| page.lines().filter(|line| !line.starts_with('#')).count();
    let mut random = Random::new(7);
    let mut strange = |count: usize| {
        for _ in 0..count {
            let mut socket = raw_socket(&server, PATIENCE);
            let (method, path, host) = (random.next(), random.next(), random.next());
            let request = format!(
                "M{method} /{path}/{host} HTTP/1.1\r\nhost: h{host}.localhost\r\nuser-agent: a{path}\r\n\
                 traceparent: {method}\r\nx-user: {host}\r\nconnection: close\r\n\r\n"
            );
            socket.write_all(request.as_bytes()).unwrap();
            let mut answer = String::new();
            socket.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
        }
    };
    // An HTTP exchange is counted when its connection is finished with it.
    let line = r#"http_requests_total{handler="none",method="_OTHER",status="4xx"} "#;
    let counted = async |count: &str| page_with(&server, |page| has(page, line, count)).await;
    strange(1);
    let before = series(&counted(" 1.0").await);
    strange(3000);
    let after = counted(" 3001.0").await;
    assert_eq!(series(&after), before);
    assert!(has(&after, line, " 3001.0"), "{after}");
}

#[tokio::test]
async fn a_client_that_goes_away_is_an_abort_and_a_499() {
    let server = Server::start(&["--metrics-names", "vllm,otel"]).await;
    let body = json!({
        "messages": [{"role": "user", "content": "Hello"}], "stream": true,
        "max_tokens": 100_000, "ignore_eos": true,
    });
    let response = server
        .http
        .post(server.url(CHAT))
        .json(&body)
        .send()
        .await
        .unwrap();
    let mut stream = response.bytes_stream();
    stream.next().await.unwrap().unwrap();
    drop(stream);
    server.wait_until_idle().await;
    let aborted = |page: &str| {
        let gone = |line: &str| {
            line.starts_with("http_server_request_duration_seconds_count")
                && line.contains(r#"http_response_status_code="499""#)
        };
        let abort = r#"finished_reason="abort"} 1.0"#;
        has(page, "vllm:request_success_total", abort)
            && page.lines().any(gone)
            && has(page, "http_server_active_requests", "} 0.0")
            && has(page, "vllm:e2e_request_latency_seconds_count", "} 1.0")
    };
    let page = page_with(&server, aborted).await;
    assert!(aborted(&page), "{page}");
}

#[tokio::test]
async fn invalid_telemetry_settings_are_refused_at_the_start() {
    for (flags, wanted) in [
        (["--metrics-names", "vllm,prom"], "`metrics_names` must be"),
        (
            ["--show-hidden-metrics-for-version", "old"],
            "a version of vLLM",
        ),
        (
            ["--collect-detailed-traces", "everything"],
            "`collect_detailed_traces` must be",
        ),
        (
            ["--collect-detailed-traces", "all"],
            "needs somewhere to send them",
        ),
        (["--otlp-endpoint", "ftp://x"], "otlp_endpoint must be"),
        (
            ["--log-stats-interval", "0"],
            "`log_stats_interval` must be at least 1",
        ),
        (
            ["--custom-histogram-buckets", "{\"latency\": [1]}"],
            "there is no family \"latency\"",
        ),
        (
            [
                "--custom-histogram-buckets",
                "{\"request_latency\": [2, 1]}",
            ],
            "must be 1 to 200 ascending numbers",
        ),
        (
            ["--custom-histogram-buckets", "[1]"],
            "`custom_histogram_buckets` must be JSON",
        ),
    ] {
        let output = super::harness::hearth().args(flags).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && error.contains(wanted),
            "{flags:?}: {error}"
        );
    }
}

/// Runs `HEARTH_PROMTOOL`, which test.sh unpacks from Debian's package, or the `promtool` on the
/// PATH. Returns whether it succeeded, and its output; `None` if there is no promtool.
fn promtool(arguments: &[&str], input: &str) -> Option<(bool, String)> {
    let tool = std::env::var("HEARTH_PROMTOOL").unwrap_or_else(|_| "promtool".to_owned());
    let child = Command::new(&tool)
        .args(arguments)
        .current_dir(workspace())
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => {
            assert!(
                std::env::var_os("HEARTH_PROMTOOL").is_none(),
                "{tool}: {error}"
            );
            eprintln!("SKIPPED: there is no promtool: {error}");
            return None;
        }
    };
    child.stdin.take()?.write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    Some((output.status.success(), text))
}

#[test]
fn promtool_finds_no_fault_in_the_rules() {
    let files = ["otel/rules/alerts.yml", "otel/rules/recording.yml"];
    if let Some((ok, said)) = promtool(&[&["check", "rules"], &files[..]].concat(), "") {
        assert!(ok && said.contains("9 rules found"), "{said}");
    }
}

#[tokio::test]
async fn promtool_finds_no_fault_in_the_page_except_in_names_defined_elsewhere() {
    let server = Server::start(&["--metrics-names", "vllm,sglang,otel,plain"]).await;
    server.ok(COMPLETIONS, &six_tokens("a")).await;
    let page = server.http.get(server.url("/metrics")).send().await;
    let page = page.unwrap().text().await.unwrap();
    let Some((_, said)) = promtool(&["check", "metrics"], &page) else {
        return;
    };
    let others = [
        "metric names should not contain ':'",
        "iteration_tokens_total non-counter metrics should not have \"_total\" suffix",
        "tokens_histogram metric name should not include type 'histogram'",
        "_ms metric names should not contain abbreviated units",
        "_mb metric names should not contain abbreviated units",
        "_gb_s metric names should not contain abbreviated units",
        "process_unix_file_descriptor_count non-histogram and non-summary metrics should not",
        "process_thread_count non-histogram and non-summary metrics should not",
    ];
    let known = |line: &&str| others.iter().any(|other| line.contains(other));
    let faults: Vec<_> = said.lines().filter(|line| !known(line)).collect();
    assert!(faults.is_empty(), "{faults:#?}");
}
