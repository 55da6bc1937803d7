//! Tests a KV pool that is too small, with a second one in host memory.

use serde_json::{Value, json};

use super::harness::{COMPLETIONS, Random, Server, hearth};

/// Sends four prompts of 100 tokens one after another, three times. A pool of 160 slots holds one
/// and a half of them. Returns the answers and the number of cached prompt tokens.
async fn converse(server: &Server) -> (Vec<Value>, u64) {
    let mut random = Random::new(17);
    let prompts: Vec<_> = (0..4).map(|_| random.tokens(100)).collect();
    let (mut texts, mut cached) = (Vec::new(), 0);
    for prompt in prompts.iter().cycle().take(12) {
        let body = json!({
            "prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": true, "logprobs": 0,
        });
        let answer = server.ok(COMPLETIONS, &body).await;
        texts.push(answer["choices"][0]["text"].clone());
        cached += answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap();
    }
    server.wait_until_idle().await;
    (texts, cached)
}

/// Checks what other metrics say of the host's cache, whose `state` is that of `/server_info`.
fn other_names(page: &str, state: &Value, hits: f64) {
    let value = |name: &str, label: &str| {
        let start = format!("{name}{{");
        let mut lines = page.lines();
        let line = lines.find(|line| line.starts_with(&start) && line.contains(label));
        line.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap())
    };
    let stat = |name: &str| state[name].as_f64().unwrap();
    let (total, used) = (stat("total"), stat("total") - stat("free"));
    let by_source = "sglang:cached_tokens_total";
    assert_eq!(value(by_source, "cache_source=\"host\""), Some(hits));
    assert_eq!(value(by_source, "cache_source=\"remote\""), Some(0.0));
    let there = |value: f64| (total > 0.0).then_some(value);
    for (name, expected) in [
        ("sglang:hicache_host_used_tokens", there(used)),
        ("sglang:hicache_host_total_tokens", there(total)),
        (
            "sglang:hicache_backup_tokens_total",
            Some(stat("demoted_tokens")),
        ),
        ("sglang:load_back_tokens_total", Some(stat("loaded_tokens"))),
        (
            "vllm:kv_offload_cpu_cache_usage_perc",
            Some(used / total.max(1.0)),
        ),
        ("vllm:cpu_cache_usage_perc", Some(used / total.max(1.0))),
    ] {
        assert_eq!(value(name, ""), expected, "{name}");
    }
    let queries = value("vllm:external_prefix_cache_queries_total", "");
    let rate = value("vllm:cpu_prefix_cache_hit_rate", "");
    assert_eq!(queries.is_some(), total > 0.0);
    match queries {
        Some(queries) => assert_eq!(rate, Some(hits / queries)),
        None => assert!(rate.is_none_or(|rate| rate == 0.0), "{rate:?}"),
    }
}

#[tokio::test]
async fn the_host_cache_changes_no_answer_and_saves_computation() {
    let mut seen = Vec::new();
    for (host, policy) in [("0", None), ("2000", None), ("2000", Some("write_through"))] {
        let mut flags = vec!["--kv-tokens", "160", "--max-model-len", "160"];
        flags.extend(["--host-cache-tokens", host]);
        flags.extend(["--metrics-names", "vllm,sglang,otel"]);
        flags.extend(["--show-hidden-metrics-for-version", "0.8"]);
        flags.extend(
            policy
                .iter()
                .flat_map(|policy| ["--host-cache-write-policy", policy]),
        );
        let server = Server::of("qwen3", &flags).await;
        let (texts, cached) = converse(&server).await;
        let stats = server.stats().await;
        let state = &stats["host_kv"];
        assert_eq!(state["total"].to_string(), host);
        assert_eq!(
            state["free"].as_u64().unwrap() + state["cached"].as_u64().unwrap(),
            state["total"]
        );
        assert_eq!(
            state["loaded_tokens"].as_u64() > Some(0),
            host != "0",
            "{stats}"
        );
        let page = reqwest::get(server.url("/metrics")).await.unwrap();
        let page = page.text().await.unwrap();
        let loaded = page
            .lines()
            .find(|line| line.starts_with("llm_host_cache_loaded_tokens_total"));
        let loaded = loaded.and_then(|line| line.rsplit(' ').next()).unwrap();
        assert_eq!(
            loaded.parse::<f64>().unwrap(),
            state["loaded_tokens"].as_f64().unwrap()
        );
        let value = |line: &str| {
            let found = page.lines().find_map(|l| l.strip_prefix(line));
            found.map(|value| value.trim().parse::<f64>().unwrap())
        };
        let by_tier = |tier: &str| {
            let labels = format!("{{model_name=\"qwen3\",engine=\"0\",source=\"{tier}\"}}");
            value(&format!(
                "vllm:prompt_tokens_cached_by_source_total{labels}"
            ))
            .unwrap()
        };
        assert_eq!(by_tier("device") + by_tier("host"), cached as f64);
        assert_eq!(by_tier("host") > 0.0, host != "0");
        assert_eq!(by_tier("remote"), 0.0);
        let hits =
            value("vllm:external_prefix_cache_hits_total{model_name=\"qwen3\",engine=\"0\"}");
        assert_eq!(hits, (host != "0").then(|| by_tier("host")));
        other_names(&page, state, by_tier("host"));
        seen.push((texts, cached, server.stat("computed_tokens").await));
        let flushed = reqwest::Client::new().post(server.url("/flush_cache"));
        assert_eq!(flushed.send().await.unwrap().status(), 200);
        let state = &server.stats().await["host_kv"];
        assert_eq!(state["free"], state["total"]);
    }
    let (without, _, computed) = &seen[0];
    for (with, cached, computed_with_host) in &seen[1..] {
        assert_eq!(without, with);
        // Each prompt but its last token is cached, every time but the first.
        assert_eq!(*cached, 8 * 99);
        assert!(*computed - *computed_with_host > 600, "{seen:?}");
    }
}

#[tokio::test]
async fn invalid_host_cache_settings_are_refused_at_the_start() {
    for (flags, message) in [
        (
            &["--host-cache-tokens", "10", "--no-prefix-cache"][..],
            "host_cache_tokens",
        ),
        (
            &["--host-cache-write-policy", "write_through"][..],
            "host_cache_write_policy",
        ),
        (
            &["--host-cache-tokens", "2000000000"][..],
            "--host-cache-tokens must be at most",
        ),
    ] {
        let output = hearth()
            .args(["serve", "--port", "0", "--device", "cpu"])
            .args(flags)
            .output()
            .unwrap();
        assert!(!output.status.success());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(message), "{said}");
    }
}
