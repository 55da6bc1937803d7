//! The answer to a request does not depend on what else the server does: not on the prefix cache,
//! the batch, or the chunks that its prompt is computed in.

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::harness::{COMPLETIONS, Random, Server};

/// Tokens per answer.
const LENGTH: u64 = 48;
/// Allowed difference: in f32 the order of summation may differ.
const LOGPROB_TOLERANCE: f64 = 1e-4;

/// Sixteen prompts in four families, each with a shared prefix. All prompts end with the same
/// tokens, so that only attention to earlier tokens tells them apart.
fn prompts() -> Vec<Vec<u32>> {
    let mut random = Random::new(4);
    let mut prompts = Vec::new();
    for shared in [70, 33, 16, 5] {
        let beginning = random.tokens(shared);
        for _ in 0..4 {
            let own = random.within(1, 60);
            let mut prompt = beginning.clone();
            prompt.extend(random.tokens(own));
            prompt.extend([7, 7]);
            prompts.push(prompt);
        }
    }
    prompts
}

#[derive(Clone, Debug, PartialEq)]
struct Output {
    /// Texts of the tokens, which are unique: each is a byte or a special token.
    tokens: Vec<String>,
    logprobs: Vec<f64>,
}

impl Output {
    fn of(choice: &Value) -> Self {
        let logprobs = &choice["logprobs"];
        let tokens = logprobs["tokens"].as_array().unwrap().iter();
        let values = logprobs["token_logprobs"].as_array().unwrap().iter();
        let output = Self {
            tokens: tokens
                .map(|token| token.as_str().unwrap().to_owned())
                .collect(),
            logprobs: values.map(|value| value.as_f64().unwrap()).collect(),
        };
        assert_eq!(output.tokens.len() as u64, LENGTH, "{choice}");
        output
    }
}

/// How the prompts are sent.
#[derive(Clone, Copy, Debug)]
enum Sent {
    OneByOne,
    AtOnce,
    InOneRequest,
}

struct Sampling {
    temperature: f64,
}

impl Sampling {
    fn body(&self, prompt: Value, seed: usize) -> Value {
        json!({
            "prompt": prompt, "max_tokens": LENGTH, "temperature": self.temperature, "seed": seed,
            "ignore_eos": true, "logprobs": 0,
        })
    }

    /// Returns the outputs, the number of cached prompt tokens and the number of forward passes.
    async fn outputs(&self, server: &Server, sent: Sent) -> (Vec<Output>, u64, u64) {
        let before = server.stat("steps").await;
        let bodies = prompts().into_iter().enumerate();
        let mut bodies = bodies.map(|(seed, prompt)| self.body(json!(prompt), seed));
        let mut answers = Vec::new();
        match sent {
            Sent::OneByOne => {
                for body in bodies {
                    answers.push(server.ok(COMPLETIONS, &body).await);
                }
            }
            Sent::AtOnce => {
                let answer = async |body| server.ok(COMPLETIONS, &body).await;
                answers = join_all(bodies.by_ref().map(answer)).await;
            }
            Sent::InOneRequest => {
                answers.push(
                    server
                        .ok(COMPLETIONS, &self.body(json!(prompts()), 0))
                        .await,
                );
            }
        }
        let cached = |answer: &Value| {
            answer["usage"]["prompt_tokens_details"]["cached_tokens"]
                .as_u64()
                .unwrap()
        };
        let choices = answers
            .iter()
            .flat_map(|answer| answer["choices"].as_array().unwrap());
        let outputs = choices.map(Output::of).collect();
        let steps = server.stat("steps").await - before;
        (outputs, answers.iter().map(cached).sum(), steps)
    }
}

fn assert_same(outputs: &[Output], reference: &[Output], when: &str) {
    assert_eq!(outputs.len(), reference.len());
    for (number, (output, reference)) in outputs.iter().zip(reference).enumerate() {
        assert_eq!(output.tokens, reference.tokens, "prompt {number}, {when}");
        for (a, b) in output.logprobs.iter().zip(&reference.logprobs) {
            assert!(
                (a - b).abs() < LOGPROB_TOLERANCE,
                "prompt {number}, {when}: {a} and {b}"
            );
        }
    }
}

/// The reference that all other outputs must equal: without reuse, unchunked and one by one.
async fn reference(model: &str, sampling: &Sampling) -> Vec<Output> {
    let server = Server::of(model, &["--no-prefix-cache"]).await;
    let (outputs, cached, steps) = sampling.outputs(&server, Sent::OneByOne).await;
    assert_eq!((cached, steps), (0, 16 * LENGTH));
    for (number, output) in outputs.iter().enumerate() {
        assert!(
            !outputs[..number].contains(output),
            "prompt {number} has the same answer as an earlier one, so attention has no effect"
        );
    }
    outputs
}

async fn greedy_outputs_are_identical(model: &str) {
    let greedy = Sampling { temperature: 0.0 };
    let reference = reference(model, &greedy).await;
    let variants: [&[&str]; 4] = [
        &[],
        &["--no-prefix-cache"],
        &["--prefill-chunk", "16"],
        &["--prefill-chunk", "16", "--no-prefix-cache"],
    ];
    for flags in variants {
        let server = Server::of(model, flags).await;
        let reuse = !flags.contains(&"--no-prefix-cache");
        for sent in [
            Sent::OneByOne,
            Sent::OneByOne,
            Sent::AtOnce,
            Sent::InOneRequest,
        ] {
            let when = format!("{model} {flags:?} {sent:?}");
            let (outputs, cached, steps) = greedy.outputs(&server, sent).await;
            assert_same(&outputs, &reference, &when);
            assert_eq!(cached > 0, reuse, "{when}: {cached} tokens cached");
            let batched = steps < 16 * LENGTH / 2;
            assert_eq!(
                batched,
                !matches!(sent, Sent::OneByOne),
                "{when}: {steps} steps"
            );
        }
        server.wait_until_idle().await;
    }
}

#[tokio::test]
async fn greedy_outputs_are_identical_cached_batched_and_chunked_on_llama() {
    greedy_outputs_are_identical("llama-llama3-tied").await;
}

#[tokio::test]
async fn greedy_outputs_are_identical_cached_batched_and_chunked_on_qwen3() {
    greedy_outputs_are_identical("qwen3").await;
}

#[tokio::test]
async fn greedy_outputs_are_identical_cached_batched_and_chunked_on_mistral_with_a_window() {
    greedy_outputs_are_identical("mistral-window").await;
}

#[tokio::test]
async fn greedy_outputs_are_identical_cached_batched_and_chunked_on_qwen2_with_a_window() {
    greedy_outputs_are_identical("qwen2-window").await;
}

#[tokio::test]
async fn greedy_outputs_are_identical_cached_batched_and_chunked_on_qwen2_with_experts() {
    greedy_outputs_are_identical("qwen2-moe").await;
}

#[tokio::test]
async fn greedy_outputs_are_identical_under_every_policy_and_page_size() {
    let greedy = Sampling { temperature: 0.0 };
    let reference = reference("qwen3", &greedy).await;
    let policies = ["fcfs", "lpm", "dfs-weight", "lof", "priority", "random"];
    let evictions = ["lru", "lfu", "fifo", "slru", "priority", "lru"];
    for (index, (policy, eviction)) in policies.into_iter().zip(evictions).enumerate() {
        // Slots for only a few prompts at a time, so that prefixes are evicted.
        let room = ["--kv-tokens", "900", "--max-model-len", "256"];
        let how = [
            "--schedule-policy",
            policy,
            "--radix-eviction-policy",
            eviction,
        ];
        let page_size = ["1", "16", "64"][index % 3];
        let steps = ["--max-batch-tokens", "128", "--prefill-chunk", "48"];
        let flags = [&room[..], &how, &steps, &["--page-size", page_size]].concat();
        let server = Server::of("qwen3", &flags).await;
        for sent in [Sent::AtOnce, Sent::InOneRequest] {
            let (outputs, ..) = greedy.outputs(&server, sent).await;
            assert_same(&outputs, &reference, &format!("{flags:?} {sent:?}"));
        }
        server.wait_until_idle().await;
    }
}

#[tokio::test]
async fn greedy_outputs_are_identical_when_slots_are_short_and_prefixes_are_evicted() {
    let greedy = Sampling { temperature: 0.0 };
    for model in ["qwen3", "qwen2-moe"] {
        let reference = reference(model, &greedy).await;
        for flags in [
            ["--kv-tokens", "400", "--max-model-len", "256"],
            ["--kv-tokens", "900", "--max-model-len", "256"],
        ] {
            let server = Server::of(model, &flags).await;
            for sent in [Sent::AtOnce, Sent::OneByOne, Sent::AtOnce] {
                let (outputs, ..) = greedy.outputs(&server, sent).await;
                assert_same(&outputs, &reference, &format!("{model} {flags:?} {sent:?}"));
            }
            server.wait_until_idle().await;
        }
    }
}

#[tokio::test]
async fn a_seed_gives_the_same_tokens_alone_and_in_a_batch() {
    let sampled = Sampling { temperature: 1.0 };
    let reference = reference("llama-yarn", &sampled).await;
    let server = Server::of("llama-yarn", &["--prefill-chunk", "32"]).await;
    for sent in [Sent::OneByOne, Sent::AtOnce] {
        let (outputs, ..) = sampled.outputs(&server, sent).await;
        assert_same(&outputs, &reference, &format!("{sent:?}"));
    }
    server.wait_until_idle().await;
}

#[tokio::test]
async fn on_the_cpu_a_hit_and_a_miss_give_the_same_bits_alone_and_in_a_batch() {
    let greedy = Sampling { temperature: 0.0 };
    let how = ["--deterministic", "--prefill-chunk", "48"];
    for model in ["qwen3", "gpt-oss"] {
        let mut seen = Vec::new();
        for reuse in [&["--no-prefix-cache"][..], &[]] {
            let server = Server::of(model, &[&how[..], reuse].concat()).await;
            for sent in [Sent::OneByOne, Sent::OneByOne, Sent::AtOnce] {
                seen.push(greedy.outputs(&server, sent).await.0);
            }
        }
        for outputs in &seen {
            // The log-probabilities are equal to the last bit, too.
            assert_eq!(*outputs, seen[0], "{model}");
        }
    }
}

#[tokio::test]
async fn the_score_of_a_prompt_is_the_same_when_the_prompt_is_cached() {
    let prompt = prompts().swap_remove(0);
    let generate = json!({"prompt": prompt, "max_tokens": 4, "ignore_eos": true});
    let score = json!({"prompt": prompt, "max_tokens": 0, "echo": true, "logprobs": 2});
    let mut scores = Vec::new();
    for flags in [&["--no-prefix-cache"][..], &[], &["--prefill-chunk", "16"]] {
        let server = Server::of("qwen3", flags).await;
        // Sent first, so that the prompt is cached when it is scored.
        server.ok(COMPLETIONS, &generate).await;
        for _ in 0..2 {
            let answer = server.ok(COMPLETIONS, &score).await;
            let logprobs = answer["choices"][0]["logprobs"]["token_logprobs"].clone();
            let logprobs = logprobs.as_array().unwrap().clone();
            assert_eq!((logprobs.len(), &logprobs[0]), (prompt.len(), &Value::Null));
            let rest = logprobs[1..].iter().map(|value| value.as_f64().unwrap());
            scores.push(rest.collect::<Vec<f64>>());
        }
        server.wait_until_idle().await;
    }
    let (first, others) = scores.split_first().unwrap();
    for other in others {
        for (a, b) in first.iter().zip(other) {
            assert!((a - b).abs() < LOGPROB_TOLERANCE, "{a} and {b}");
        }
    }
}
