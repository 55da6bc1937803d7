//! Tests scheduling policies over HTTP.

use futures_util::stream::{self, StreamExt};
use serde_json::{Value, json};

use super::harness::{COMPLETIONS, Random, Server};

fn completion(prompt: Value, max_tokens: u64) -> Value {
    json!({"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": true})
}

#[tokio::test]
async fn a_prefix_of_many_concurrent_prompts_is_computed_once_under_every_policy() {
    let mut random = Random::new(11);
    let shared = random.tokens(192);
    // The prompts differ only in the token after the shared prefix.
    let prompts: Vec<_> = (0..16)
        .map(|i| [&shared[..], &[i], &[7; 7]].concat())
        .collect();
    let all = completion(json!(prompts), 4);
    for policy in ["fcfs", "lpm", "dfs-weight", "lof", "priority", "random"] {
        for page_size in ["1", "64"] {
            let flags = ["--schedule-policy", policy, "--page-size", page_size];
            let small_chunks = ["--prefill-chunk", "32", "--max-running-requests", "4"];
            let server = Server::of("qwen3", &[&flags[..], &small_chunks].concat()).await;
            let answer = server.ok(COMPLETIONS, &all).await;
            let decoded = 16 * 3;
            assert_eq!(
                server.stat("computed_tokens").await - decoded,
                192 + 16 * 8,
                "{policy}, pages of {page_size}"
            );
            let details = &answer["usage"]["prompt_tokens_details"];
            assert_eq!(details["cached_tokens"], 15 * 192);
            server.wait_until_idle().await;
        }
    }
}

/// The workload that other servers are measured with: 32 requests, 8 at a time, with 512 shared
/// tokens followed by 32 of their own.
#[tokio::test]
async fn the_shared_prefix_of_a_stream_of_requests_is_computed_once_by_every_counter() {
    let mut random = Random::new(12);
    let shared = random.tokens(512);
    let bodies: Vec<_> = (0..32)
        .map(|i| {
            let prompt = [&shared[..], &[i], &random.tokens(31)].concat();
            completion(json!(prompt), 16)
        })
        .collect();
    let server = Server::of("qwen3", &[]).await;
    let answers = stream::iter(&bodies).map(|body| server.ok(COMPLETIONS, body));
    let answers: Vec<_> = answers.buffer_unordered(8).collect().await;
    server.wait_until_idle().await;
    let expected = 512 + 32 * 32;
    let count = |value: &Value| value.as_u64().unwrap();
    let usage = answers.iter().map(|answer| {
        let usage = &answer["usage"];
        count(&usage["prompt_tokens"]) - count(&usage["prompt_tokens_details"]["cached_tokens"])
    });
    assert_eq!(usage.sum::<u64>(), expected);
    // All tokens of an output but the last are computed, too.
    let decoded = 32 * 15;
    assert_eq!(server.stat("computed_tokens").await, expected + decoded);
    let page = reqwest::get(server.url("/metrics")).await.unwrap();
    let page = page.text().await.unwrap();
    let computed = page
        .lines()
        .find(|line| {
            line.starts_with("llm_prompt_tokens_by_source_total") && line.contains("local_compute")
        })
        .and_then(|line| line.rsplit(' ').next())
        .unwrap();
    assert_eq!(computed.parse::<f64>().unwrap(), expected as f64);
}

#[tokio::test]
async fn a_priority_is_honoured_or_refused() {
    let urgent = |priority: i64| {
        let mut body = completion(json!([5, 6, 7]), 2);
        body["priority"] = json!(priority);
        body
    };
    let server = Server::start(&[]).await;
    let answer = server.post(COMPLETIONS, &urgent(1)).await;
    assert_eq!(answer.status, 400, "{}", answer.body);
    let error = &answer.body["error"];
    assert_eq!(error["param"], "priority");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("--schedule-policy priority"), "{message}");

    let flags = [
        "--schedule-policy",
        "priority",
        "--max-running-requests",
        "1",
    ];
    let server = Server::start(&flags).await;
    let answer = server.post(COMPLETIONS, &urgent(1 << 40)).await;
    assert_eq!(answer.status, 400, "{}", answer.body);
    // A request that would run for ever is preempted, and runs again afterwards.
    let mut endless = completion(json!([1, 2]), 130_000);
    endless["stream"] = json!(true);
    let held = server.client.stream(COMPLETIONS, &endless).await.unwrap();
    server.wait_until_running(1).await;
    let answer = server.ok(COMPLETIONS, &urgent(1)).await;
    assert_eq!(answer["usage"]["completion_tokens"], 2);
    assert_eq!(server.stat("preemptions").await, 1);
    server.wait_until_running(1).await;
    drop(held);
    server.wait_until_idle().await;
}
