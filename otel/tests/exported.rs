//! Tests the page of `/metrics` after every instrument was recorded to once.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use hearth_otel::rows::{PROCESS, SGLANG, VLLM};
use hearth_otel::{
    Ending, EngineFacts, EngineSnapshot, GrammarSnapshot, HttpOutcome, KvTransfer, RequestNumbers,
    StepRecord, Telemetry, TelemetryOptions, TextFormat, Vocabulary, catalog,
};

fn everything() -> Telemetry {
    let telemetry = Telemetry::start(TelemetryOptions {
        vocabularies: vec![
            Vocabulary::Vllm,
            Vocabulary::Sglang,
            Vocabulary::Otel,
            Vocabulary::Plain,
        ],
        show_hidden: Some((0, 1)),
        ..TelemetryOptions::default()
    })
    .unwrap();
    let facts = EngineFacts {
        context: 100,
        page_size: 1,
        kv_slots: 1000,
        window_slots: 100,
        host_slots: 500,
        prefix_cache: true,
        draft_positions: 2,
        draft_model: true,
        ..EngineFacts::default()
    };
    let snapshot = EngineSnapshot {
        kv_total: 1000,
        kv_free: 600,
        kv_evictable: 200,
        kv_protected: 50,
        kv_held: 150,
        window_total: 100,
        window_free: 70,
        window_evictable: 20,
        prompt_tokens: 40,
        cached_tokens: 30,
        host_tokens: 10,
        host_total: 500,
        host_used: 20,
        ..EngineSnapshot::default()
    };
    telemetry.serve_model("m", facts, move || snapshot).unwrap();
    telemetry.serve_grammars("m", GrammarSnapshot::default);
    telemetry.serve_adapters(2, || [vec!["a".to_owned()], Vec::new()]);
    let outcome = HttpOutcome {
        status: 200,
        error: None,
        duration: Duration::from_millis(20),
        request_bytes: 10,
        response_bytes: 20,
    };
    telemetry.http().unwrap().begin("POST", "/v1/completions");
    telemetry
        .http()
        .unwrap()
        .end("POST", "/v1/completions", &outcome, None);
    let engine = telemetry.engine().unwrap();
    engine.accepted(2);
    engine.tokenized(0.001);
    engine.started(true, 40);
    engine.first_token("chat", true, Some("rhymes"), 0.03, None);
    engine.token(true, None);
    engine.token(true, Some(0.01));
    engine.longest(2);
    engine.model_times(0.02, 0.03);
    let began = Instant::now();
    engine.transferred(&KvTransfer {
        sends: true,
        asked: began,
        met: Some(began),
        began: Some(began),
        ended: began + Duration::from_millis(4),
        tokens: 40,
        bytes: 6_000_000,
        error: None,
    });
    let numbers = RequestNumbers {
        operation: "chat",
        stream: true,
        adapter: Some("rhymes"),
        ending: Ending::Length,
        duration: 0.5,
        queue: Some(0.001),
        prefill: Some(0.02),
        decode: Some(0.01),
        inference: Some(0.03),
        latest: [Some(0.001), Some(0.02), Some(0.01), Some(0.03)],
        trace: None,
        prompt_tokens: 40,
        cached_tokens: 30,
        completion_tokens: 2,
        max_tokens: 2,
        preemptions: 0,
    };
    engine.ended(&numbers);
    engine.client_ended("ann", 40, 2);
    engine.client_refused("ann");
    let now = Instant::now();
    let step = StepRecord {
        tokens: 11,
        prefill_rows: 1,
        prefill_tokens: 10,
        started_requests: 1,
        queried_tokens: 40,
        cached_tokens: 30,
        running: 1,
        kv_used: 200,
        kv_usage: 0.2,
        requests: vec![(1, 10)],
        ..StepRecord::empty(now)
    };
    telemetry.steps().send([step].into_iter());
    let deadline = Instant::now() + Duration::from_secs(20);
    // The telemetry thread records the step, and its hit rate last.
    while !line(
        &telemetry.scrape(TextFormat::Prometheus).unwrap(),
        "sglang:cache_hit_rate{",
    )
    .ends_with("} 0.75")
    {
        assert!(
            Instant::now() < deadline,
            "{}",
            telemetry.scrape(TextFormat::Prometheus).unwrap()
        );
        std::thread::yield_now();
    }
    telemetry
}

fn line<'a>(page: &'a str, start: &str) -> &'a str {
    let mut lines = page.lines().filter(|line| line.starts_with(start));
    let first = lines.next().unwrap_or_else(|| panic!("no {start}"));
    assert_eq!(lines.next(), None, "{start} occurs twice");
    first
}

#[test]
#[cfg(target_os = "linux")]
fn a_page_has_exactly_the_families_of_the_tables() {
    let page = everything().scrape(TextFormat::Prometheus).unwrap();
    let shown: BTreeSet<String> = page
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .map(|line| line.split(' ').next().unwrap().to_owned())
        .collect();
    let rows = VLLM.iter().chain(SGLANG).chain(PROCESS);
    let mut listed: BTreeSet<String> = rows.map(|row| row.name.to_owned()).collect();
    listed.extend(VLLM.iter().map(|row| row.name.replace(':', "_")));
    listed.extend(catalog::instruments().map(catalog::Instrument::exposed));
    assert_eq!(shown, listed);
}

#[test]
fn values_are_summed_over_labels_that_a_vocabulary_does_not_have() {
    let page = everything().scrape(TextFormat::Prometheus).unwrap();
    assert_eq!(
        line(&page, "vllm:generation_tokens_total{"),
        "vllm:generation_tokens_total{model_name=\"m\",engine=\"0\"} 2.0"
    );
    assert!(page.contains("vllm:prefix_cache_hits_total{model_name=\"m\",engine=\"0\"} 30.0\n"));
    for (tier, tokens) in [("device", 20), ("host", 10), ("remote", 0)] {
        let labels = format!("{{model_name=\"m\",engine=\"0\",source=\"{tier}\"}}");
        let start = format!("vllm:prompt_tokens_cached_by_source_total{labels}");
        assert_eq!(line(&page, &start), format!("{start} {tokens}.0"));
    }
    assert!(page.contains(
        "sglang:generation_tokens_total{model_name=\"m\",engine_type=\"unified\",is_streaming=\"true\"} 2.0\n"
    ));
    // Protected and held.
    assert!(line(&page, "sglang:num_used_tokens{").ends_with("} 200.0"));
    assert!(line(&page, "vllm:kv_cache_usage_perc{").ends_with("} 0.2"));
    assert!(line(&page, "vllm:gpu_prefix_cache_hit_rate{").ends_with("} 0.75"));
    assert!(line(&page, "sglang:cache_hit_rate{").ends_with("} 0.75"));
}

#[test]
fn opentelemetrys_names_tell_adapters_apart_and_other_vocabularies_add_them_up() {
    let page = everything().scrape(TextFormat::Prometheus).unwrap();
    let count = |name: &str, adapter: &str| {
        let lines = page.lines().filter(|line| line.starts_with(name));
        let mut lines = lines.filter(|line| line.contains(adapter));
        let value = lines.next().unwrap().rsplit(' ').next().unwrap();
        assert_eq!(lines.next(), None, "{name}");
        value.to_owned()
    };
    let adapter = "llm_lora_adapter=\"rhymes\"";
    for name in [
        "gen_ai_server_time_to_first_token_seconds_count{",
        "gen_ai_server_request_duration_seconds_count{",
        "gen_ai_server_time_per_output_token_seconds_count{",
        "llm_requests_total{",
    ] {
        assert_eq!(count(name, adapter), "1.0", "{name}");
    }
    let ended = "finished_reason=\"length\"";
    assert_eq!(count("vllm:request_success_total{", ended), "1.0");
    assert_eq!(count("vllm:e2e_request_latency_seconds_count{", "m"), "1.0");
}

#[test]
fn clients_have_series_of_their_own_up_to_a_bound() {
    let telemetry = everything();
    let engine = telemetry.engine().unwrap();
    let of = |page: &str, client: &str| {
        let start = format!(
            "llm_client_generation_tokens_total{{gen_ai_request_model=\"m\",llm_client=\"{client}\"}} "
        );
        let line = page.lines().find_map(|line| line.strip_prefix(&start));
        line.map(str::to_owned)
    };
    let page = telemetry.scrape(TextFormat::Prometheus).unwrap();
    assert_eq!(of(&page, "ann").as_deref(), Some("2.0"));
    for client in 0..2000 {
        engine.client_ended(&format!("c{client}"), 1, 1);
    }
    engine.client_ended("ann", 1, 1);
    let page = telemetry.scrape(TextFormat::Prometheus).unwrap();
    assert_eq!(of(&page, "ann").as_deref(), Some("3.0"));
    assert_eq!(of(&page, "(others)").as_deref(), Some("977.0"));
    let series = page
        .lines()
        .filter(|line| line.starts_with("llm_client_requests_total{"));
    assert_eq!(series.count(), 1025);
}

#[test]
fn one_histogram_is_shown_with_each_vocabularys_bounds() {
    let page = everything().scrape(TextFormat::Prometheus).unwrap();
    let at = |name: &str, bound: &str| {
        let wanted = format!("le=\"{bound}\"}} ");
        let mut lines = page
            .lines()
            .filter(|l| l.starts_with(name) && l.contains(&wanted));
        lines
            .next()
            .map(|line| line.rsplit(' ').next().unwrap().to_owned())
    };
    let vllm = "vllm:time_to_first_token_seconds_bucket{";
    assert_eq!(at(vllm, "0.02").as_deref(), Some("0.0"));
    assert_eq!(at(vllm, "0.04").as_deref(), Some("1.0"));
    let sglang = "sglang:time_to_first_token_seconds_bucket{";
    assert_eq!(at(sglang, "0.04"), None);
    assert_eq!(at(sglang, "0.1").as_deref(), Some("1.0"));
    // Token bounds end at the context length; vLLM's old metrics are in milliseconds.
    assert_eq!(
        at("vllm:request_prompt_tokens_bucket{", "100.0").as_deref(),
        Some("1.0")
    );
    assert_eq!(at("vllm:request_prompt_tokens_bucket{", "200.0"), None);
    assert_eq!(
        at("vllm:model_forward_time_milliseconds_bucket{", "20.0").as_deref(),
        Some("1.0")
    );
}

#[test]
fn a_page_has_all_tokens_that_any_thread_has_recorded() {
    const THREADS: u64 = 20;
    const TOKENS: u64 = 1000;
    let telemetry = everything();
    let engine = telemetry.engine().unwrap();
    let numbers = || {
        let page = telemetry.scrape(TextFormat::Prometheus).unwrap();
        [
            "vllm:generation_tokens_total{",
            "vllm:inter_token_latency_seconds_count{",
            "vllm:inter_token_latency_seconds_sum{",
        ]
        .map(|name| {
            let line = line(&page, name);
            line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()
        })
    };
    let before = numbers();
    for tokens in 1..=3 {
        engine.token(true, Some(0.5));
        // No page is late, however few tokens there are.
        assert_eq!(numbers()[0] - before[0], f64::from(tokens));
        assert_eq!(numbers()[1] - before[1], f64::from(tokens));
    }
    let before = numbers();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| (0..TOKENS).for_each(|_| engine.token(true, Some(0.5))));
        }
        // Pages are rendered meanwhile.
        for _ in 0..20 {
            numbers();
        }
    });
    let [tokens, times, seconds] = numbers();
    let all = (THREADS * TOKENS) as f64;
    assert_eq!([tokens - before[0], times - before[1]], [all, all]);
    assert!((seconds - before[2] - all / 2.0).abs() < 1e-6, "{seconds}");
}

#[test]
fn an_invalid_duration_neither_panics_nor_spoils_a_sum() {
    let telemetry = everything();
    let engine = telemetry.engine().unwrap();
    for invalid in [f64::NAN, f64::NEG_INFINITY, f64::INFINITY, -1.0] {
        engine.token(true, Some(invalid));
    }
    let page = telemetry.scrape(TextFormat::Prometheus).unwrap();
    let sum = line(&page, "vllm:inter_token_latency_seconds_sum{");
    assert!(sum.ends_with("} 0.01"), "{sum}");
}

#[test]
fn before_a_model_is_served_the_page_has_no_metrics_of_it() {
    let page = Telemetry::local().scrape(TextFormat::Prometheus).unwrap();
    assert!(
        page.contains("process_start_time_seconds") && !page.contains("vllm:"),
        "{page}"
    );
}

/// Metrics that the published dashboards of vLLM 0.33 and SGLang 0.5.23 query.
const QUERIED: &[&str] = &[
    "vllm:e2e_request_latency_seconds_bucket",
    "vllm:e2e_request_latency_seconds_sum",
    "vllm:inter_token_latency_seconds_bucket",
    "vllm:request_time_per_output_token_seconds_bucket",
    "vllm:time_to_first_token_seconds_bucket",
    "vllm:time_to_first_token_seconds_count",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:request_prompt_tokens_bucket",
    "vllm:request_generation_tokens_bucket",
    "vllm:request_success_total",
    "vllm:request_queue_time_seconds_sum",
    "vllm:request_prefill_time_seconds_sum",
    "vllm:request_decode_time_seconds_sum",
    "vllm:request_max_num_generation_tokens_sum",
    "vllm:iteration_tokens_total_count",
    "vllm:prefix_cache_hits_total",
    "vllm:prefix_cache_queries_total",
    "sglang:e2e_request_latency_seconds_bucket",
    "sglang:e2e_request_latency_seconds_sum",
    "sglang:time_to_first_token_seconds_bucket",
    "sglang:time_to_first_token_seconds_count",
    "sglang:num_running_reqs",
    "sglang:gen_throughput",
    "sglang:cache_hit_rate",
    "sglang:num_queue_reqs",
];

#[test]
fn metrics_of_the_published_dashboards_exist_with_the_label_that_they_select_by() {
    let page = everything().scrape(TextFormat::Prometheus).unwrap();
    for name in QUERIED {
        let start = format!("{name}{{");
        let found = page
            .lines()
            .any(|line| line.starts_with(&start) && line.contains("model_name=\"m\""));
        assert!(found, "{name}");
    }
}

#[test]
fn our_dashboard_and_rules_query_only_existing_metrics() {
    let page = everything().scrape(TextFormat::Prometheus).unwrap();
    let files = [
        include_str!("../dashboards/hearth.json"),
        include_str!("../rules/alerts.yml"),
        include_str!("../rules/recording.yml"),
    ];
    let mut asked = BTreeSet::new();
    for file in files {
        let words = file.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let own = [
            "llm_",
            "gen_ai_server_",
            "http_server_",
            "process_",
            "hearth_telemetry_",
        ];
        let attribute = |word: &str| {
            let attributes = catalog::instruments().flat_map(|i| i.attributes);
            attributes
                .into_iter()
                .any(|name| name.replace('.', "_") == word)
        };
        let metrics = words.filter(|w| own.iter().any(|o| w.starts_with(o)) && !attribute(w));
        asked.extend(metrics);
    }
    assert!(asked.len() > 25, "{asked:?}");
    for name in asked {
        let found = page.lines().any(|line| {
            line.strip_prefix(name)
                .is_some_and(|rest| rest.starts_with(['{', ' ']))
        });
        assert!(found, "{name}");
    }
}
