//! On the CPU, the bits of an answer do not depend on the prefix cache, the batch, copies in the
//! host's memory or preemptions, whatever kind of layers a model has.

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::harness::{COMPLETIONS, Random, Server};

/// A model in which every second layer attends a window shorter than the prompts, one with experts,
/// one with both, and a plain one; and the KV cache in 8 bits.
const KINDS: [(&str, &str); 5] = [
    ("gemma2", "auto"),
    ("qwen3-moe", "auto"),
    ("gpt-oss", "auto"),
    ("gpt-oss", "int8"),
    ("llama-llama3-tied", "auto"),
];
/// Tokens per answer.
const LENGTH: usize = 96;
/// Slots for fewer tokens than the prompts have, so that prefixes are evicted, and for fewer than
/// the requests that start together generate, so that some of them are preempted.
const SMALL: [&str; 5] = [
    "--deterministic",
    "--kv-tokens",
    "320",
    "--max-model-len",
    "160",
];

/// Three groups of prompts, each with a shared prefix.
fn prompts() -> Vec<Vec<u32>> {
    let mut random = Random::new(24);
    let mut prompts = Vec::new();
    for _ in 0..3 {
        let shared = random.tokens(40);
        for _ in 0..4 {
            let own = random.within(1, 20);
            prompts.push([&shared[..], &random.tokens(own)].concat());
        }
    }
    prompts
}

/// The tokens and the log-probabilities of each prompt's answer.
async fn answers(server: &Server, at_once: bool) -> Vec<Value> {
    let answer = async |prompt: Vec<u32>| {
        let body = json!({
            "prompt": prompt, "max_tokens": LENGTH, "temperature": 0, "ignore_eos": true, "logprobs": 1,
        });
        let answer = server.ok(COMPLETIONS, &body).await;
        let logprobs = answer["choices"][0]["logprobs"].clone();
        let tokens = logprobs["tokens"].as_array().map(Vec::len);
        assert_eq!(tokens, Some(LENGTH), "{answer}");
        logprobs
    };
    let answers = prompts().into_iter().map(answer);
    if at_once {
        return join_all(answers).await;
    }
    let mut one_by_one = Vec::new();
    for answer in answers {
        one_by_one.push(answer.await);
    }
    one_by_one
}

/// Models with windows, in some layers or in all of them.
const WINDOWED: [&str; 4] = ["gemma2", "gemma3", "gpt-oss", "mistral-window"];

#[tokio::test]
async fn window_slots_that_are_given_up_change_no_bit() {
    for model in WINDOWED {
        let whole = [
            "--deterministic",
            "--no-prefix-cache",
            "--swa-full-tokens-ratio",
            "1",
        ];
        let server = Server::of(model, &whole).await;
        let reference = answers(&server, false).await;
        assert_eq!(server.stats().await["window_kv"]["total"], 0, "{model}");
        // Window slots for a third of what the requests compute together.
        let few = [
            "--deterministic",
            "--kv-tokens",
            "4000",
            "--swa-full-tokens-ratio",
            "0.01",
            "--metrics-names",
            "sglang",
        ];
        let eager = [
            "--speculative-config",
            r#"{"method":"ngram","num_speculative_tokens":4,"prompt_lookup_min":1}"#,
        ];
        for flags in [
            &["--prefill-chunk", "24"][..],
            &["--page-size", "16"],
            &["--no-prefix-cache"],
            &eager,
        ] {
            let server = Server::of(model, &[&few[..], flags].concat()).await;
            for at_once in [true, false, true] {
                let same = answers(&server, at_once).await == reference;
                assert!(same, "{model}, {flags:?}, at once: {at_once}");
            }
            server.wait_until_idle().await;
            let stats = server.stats().await;
            let count = |pool: &str, of: &str| stats[pool][of].as_u64().unwrap();
            let total = count("window_kv", "total");
            assert!((512..600).contains(&total), "{model}: {stats}");
            let held = ["held", "protected"].map(|of| count("window_kv", of));
            assert_eq!(held, [0, 0], "{model}: {stats}");
            let reuse = flags != ["--no-prefix-cache"];
            let fewer = count("window_kv", "cached") < count("kv", "cached");
            assert_eq!(fewer, reuse, "{model}: {stats}");
            let hits = stats["cached_tokens"].as_u64().unwrap();
            assert_eq!(hits > 0, reuse, "{model}: {stats}");
            let page = server.http.get(server.url("/metrics")).send().await;
            let page = page.unwrap().text().await.unwrap();
            let mut lines = page.lines();
            let line = lines.find(|line| line.starts_with("sglang:max_total_num_tokens_swa{"));
            let (_, capacity) = line.unwrap().rsplit_once(' ').unwrap();
            assert_eq!(capacity.parse(), Ok(total as f64));
        }
    }
}

#[tokio::test]
async fn hits_batches_host_copies_and_preemptions_change_no_bit_in_any_kind_of_model() {
    for (model, format) in KINDS {
        let format = ["--kv-cache-dtype", format];
        let alone = [&["--deterministic", "--no-prefix-cache"], &format[..]].concat();
        let server = Server::of(model, &alone).await;
        let reference = answers(&server, false).await;
        for (number, answer) in reference.iter().enumerate() {
            let earlier = &reference[..number];
            assert!(
                !earlier.contains(answer),
                "{model}: two prompts have the same answer"
            );
        }
        for host in ["0", "4000"] {
            let flags = [&SMALL[..], &["--host-cache-tokens", host], &format].concat();
            let server = Server::of(model, &flags).await;
            for at_once in [true, false, false, true] {
                let same = answers(&server, at_once).await == reference;
                assert!(
                    same,
                    "{model}, {format:?}, {host} tokens in the host, at once: {at_once}"
                );
            }
            server.wait_until_idle().await;
            let stats = server.stats().await;
            let count = |value: &Value| value.as_u64().unwrap();
            let loaded = count(&stats["host_kv"]["loaded_tokens"]);
            assert_eq!(loaded > 0, host != "0", "{model}: {stats}");
            assert!(count(&stats["cached_tokens"]) > 0, "{model}: {stats}");
            assert!(count(&stats["preemptions"]) > 0, "{model}: {stats}");
        }
    }
}
