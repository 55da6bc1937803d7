//! `/v1/loads`, as SGLang 0.5.23 answers it and smg reads it.

use std::time::Duration;

use hearth_api::config::HttpConfig;
use hearth_api::served::{ModelInfo, Served};
use hearth_engine::EngineConfig;
use serde_json::{Value, json};

use super::fake::{Behaviour, TestServer, served};
use super::{COMPLETIONS, ok};

async fn loads(server: &TestServer, query: &str) -> Value {
    let answer = reqwest::get(format!("{}/v1/loads{query}", server.url)).await;
    let answer = answer.unwrap();
    assert_eq!(answer.status(), 200, "{query}");
    answer.json().await.unwrap()
}

fn keys(value: &Value) -> Vec<&str> {
    let keys = value.as_object().unwrap().keys().map(String::as_str);
    let mut keys: Vec<&str> = keys.collect();
    keys.sort_unstable();
    keys
}

/// The values of SGLang's `LoadSnapshot` that are there whatever is asked for.
const CORE: [&str; 17] = [
    "cache_hit_rate",
    "decode_moments",
    "dp_rank",
    "gen_throughput",
    "max_running_requests",
    "max_total_num_tokens",
    "num_active_tokens",
    "num_prealloc_ready_tokens",
    "num_running_reqs",
    "num_total_tokens",
    "num_used_tokens",
    "num_waiting_reqs",
    "num_waiting_uncached_tokens",
    "token_usage",
    "total_prefill_busy_us",
    "total_prefill_uncached_tokens",
    "utilization",
];

#[tokio::test]
async fn the_sections_are_those_that_are_asked_for() {
    let server = TestServer::start_loading(HttpConfig::default());
    server.state.set_ready(Served {
        info: ModelInfo {
            weight_bytes: 3 << 29,
            kv_bytes: 1 << 28,
            ..ModelInfo::default()
        },
        ..served(Behaviour::default(), EngineConfig::default())
    });
    let core = loads(&server, "?include=core").await;
    // ISO 8601 with a zone: smg reads a string.
    let timestamp = core["timestamp"].as_str().unwrap();
    assert!(
        timestamp.len() >= "2026-11-22T17:05:45Z".len() && timestamp.ends_with('Z'),
        "{timestamp}"
    );
    assert_eq!(&timestamp[10..11], "T", "{timestamp}");
    let load = &core["loads"][0];
    let mut expected = CORE.to_vec();
    expected.push("num_total_reqs");
    expected.sort_unstable();
    assert_eq!(keys(load), expected);
    assert_eq!(load["max_total_num_tokens"], 4096);
    assert_eq!(load["max_running_requests"], 256);

    // The query of smg.
    let load = &loads(&server, "?include=core,disagg,queues,memory").await["loads"][0];
    assert_eq!(
        (&load["memory"]["weight_gb"], &load["memory"]["kv_cache_gb"]),
        (&json!(1.5), &json!(0.25))
    );
    assert_eq!(load["memory"]["token_capacity"], 4096);
    assert_eq!(load["disaggregation"]["mode"], "null");
    assert_eq!(
        keys(&load["queues"]),
        [
            "grammar",
            "paused",
            "prealloc_ready",
            "retracted",
            "waiting"
        ]
    );
    for query in ["", "?include=all", "?include=queues,%20all"] {
        let all = loads(&server, query).await;
        assert_eq!(keys(&all["loads"][0]), keys(load), "{query}");
    }
    let some = &loads(&server, "?include=spec,lora,queues").await["loads"][0];
    assert!(some.get("queues").is_some() && some.get("memory").is_none());
}

#[tokio::test]
async fn the_load_is_what_runs_and_waits() {
    let behaviour = Behaviour {
        step: Duration::from_millis(2),
        max_model_len: 4096,
        endless: true,
        ..Behaviour::default()
    };
    let engine = EngineConfig {
        max_running: 1,
        ..EngineConfig::default()
    };
    let server = TestServer::start(behaviour, engine, HttpConfig::default());
    // With the token that begins a text, each prompt has three tokens.
    let long = json!({"prompt": ["ab", "ab", "cd"], "max_tokens": 3000, "rid": "job"});
    let watching = async {
        let running = loop {
            let load = loads(&server, "").await["loads"][0].clone();
            if load["num_running_reqs"] == 1 && load["num_waiting_uncached_tokens"] == 6 {
                break load;
            }
            assert_eq!(server.state.loaded().unwrap().engine.stats().finished, 0);
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        ok(&server, "/pause_generation", &json!({"mode": "in_place"})).await;
        let paused = loads(&server, "").await["loads"][0].clone();
        ok(&server, "/continue_generation", &json!({})).await;
        ok(&server, "/abort_request", &json!({"abort_all": true})).await;
        (running, paused)
    };
    let (_, (running, paused)) = tokio::join!(ok(&server, COMPLETIONS, &long), watching);
    assert_eq!(running["num_waiting_reqs"], 2, "{running}");
    assert_eq!(running["num_total_reqs"], 3, "{running}");
    let used = running["num_used_tokens"].as_u64().unwrap();
    assert!(used >= 3, "{running}");
    assert_eq!(running["num_total_tokens"], used + 6, "{running}");
    assert_eq!(running["total_prefill_uncached_tokens"], 3, "{running}");
    assert_eq!(running["queues"]["waiting"], 2, "{running}");
    assert_eq!(running["queues"]["paused"], 0, "{running}");
    assert_eq!(paused["queues"]["paused"], 1, "{paused}");
    server.wait_until_idle().await;
    let idle = loads(&server, "").await["loads"][0].clone();
    assert_eq!(idle["num_waiting_uncached_tokens"], 0, "{idle}");
    assert_eq!(idle["num_total_tokens"], idle["num_used_tokens"], "{idle}");
}
