//! Speculative decoding in the whole server: it changes no byte of an answer.

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::doctor::has_vulkan;
use super::harness::{CHAT, COMPLETIONS, MODEL, Random, Server, assemble, enlarged, hearth};

const GENERATE: &str = "/generate";

/// Drafts wherever a single token occurred before, whether or not it pays.
const EAGER: [&str; 2] = [
    "--speculative-config",
    r#"{"method":"ngram","num_speculative_tokens":6,"prompt_lookup_min":1,"prompt_lookup_max":3,"adaptive":false}"#,
];
/// As a user would start it.
const ADAPTIVE: [&str; 4] = [
    "--speculative-algorithm",
    "NGRAM",
    "--speculative-num-draft-tokens",
    "4",
];

/// Kinds of requests: sampling, penalties, log-probabilities, stops, copies, grammars.
fn kinds() -> Vec<Value> {
    let schema = json!({"type": "object", "additionalProperties": false,
        "required": ["name", "grades"],
        "properties": {"name": {"type": "string", "maxLength": 9},
            "grades": {"type": "array", "minItems": 2, "maxItems": 4,
                "items": {"enum": ["good", "better", "best"]}}}});
    let strict = json!({"type": "json_schema",
        "json_schema": {"name": "answer", "strict": true, "schema": schema}});
    vec![
        json!({"temperature": 0}),
        json!({"temperature": 0, "logprobs": 3}),
        json!({"temperature": 1}),
        json!({"temperature": 0.8, "top_p": 0.9, "logprobs": 0}),
        json!({"temperature": 1.2, "top_k": 20, "min_p": 0.02, "n": 3}),
        json!({"temperature": 0, "repetition_penalty": 1.3, "presence_penalty": 0.5}),
        json!({"temperature": 0, "frequency_penalty": 0.3, "logprobs": 1}),
        json!({"temperature": 1, "logit_bias": {"70": 3, "80": -100}, "logprobs": 1}),
        json!({"temperature": 0, "stop": ["the", "a "]}),
        json!({"temperature": 1, "stop": [". "], "include_stop_str_in_output": true}),
        json!({"temperature": 0, "min_tokens": 12, "stop_token_ids": (60..90).collect::<Vec<_>>()}),
        json!({"temperature": 0, "response_format": strict, "jump_forward": true}),
        json!({"temperature": 1, "response_format": strict, "jump_forward": false, "logprobs": 1}),
        json!({"temperature": 0, "regex": "((ab|cd|[e-h]{2}) )+x"}),
    ]
}

/// Prompts of which parts are repeated; `HEARTH_PROMPTS` sets their number for recorded results.
fn prompts() -> Vec<String> {
    let known = [
        "Once upon a time there was a cat. The cat sat on the mat. Once upon a time there was a",
        "{\"name\": \"Tim\", \"grades\": [\"good\", \"best\"]}\n{\"name\": \"Tim\",",
        "What is 3 + 4? 3 + 4 = 7. What is 2 + 5? 2 + 5 =",
        "a a a a a a a a a a a a a a",
    ];
    let words = known
        .map(|prompt| prompt.split(' ').collect::<Vec<_>>())
        .concat();
    let mut random = Random::new(7);
    let mixed = std::iter::repeat_with(|| {
        let mut text: Vec<&str> = Vec::new();
        for _ in 0..random.within(2, 7) {
            let (from, length) = (random.within(0, words.len()), random.within(1, 12));
            let part = words.iter().cycle().skip(from).take(length);
            let times = random.within(1, 4);
            text.extend(part.cycle().take(length * times));
        }
        // The shortest context of the tests has 300 tokens.
        text.truncate(40);
        text.join(" ")
    });
    let count = enlarged("HEARTH_PROMPTS", known.len());
    known
        .map(str::to_owned)
        .into_iter()
        .chain(mixed)
        .take(count)
        .collect()
}

fn bodies() -> Vec<Value> {
    let mut bodies = Vec::new();
    for (seed, prompt) in prompts().into_iter().enumerate() {
        for kind in kinds() {
            let mut body = kind;
            body["prompt"] = json!(prompt);
            body["max_tokens"] = json!(40);
            body["seed"] = json!(seed);
            bodies.push(body);
        }
    }
    bodies
}

/// The choices of all answers and the numbers of tokens, sent one by one or at once.
async fn answers(server: &Server, bodies: &[Value], at_once: bool) -> Vec<Value> {
    let ask = async |body: &Value| {
        let answer = server.ok(COMPLETIONS, body).await;
        json!([
            answer["choices"],
            answer["usage"]["prompt_tokens"],
            answer["usage"]["completion_tokens"]
        ])
    };
    let mut answers = Vec::new();
    match at_once {
        true => {
            for together in bodies.chunks(100) {
                answers.extend(join_all(together.iter().map(ask)).await);
            }
        }
        false => {
            for body in bodies {
                answers.push(ask(body).await);
            }
        }
    }
    server.wait_until_idle().await;
    answers
}

#[tokio::test]
async fn on_the_cpu_every_byte_is_the_same_with_and_without_drafts() {
    let bodies = bodies();
    let off = Server::embedded(&[]).await;
    let expected = answers(&off, &bodies, false).await;
    assert_eq!(off.stat("drafts").await, 0);
    drop(off);
    let small = ["--kv-tokens", "600", "--max-model-len", "300"];
    let cases: [(&[&str], &[&str]); 3] = [
        (&EAGER, &[]),
        (&EAGER, &small),
        (&ADAPTIVE, &["--prefill-chunk", "16"]),
    ];
    for (how, others) in cases {
        let flags = [how, others].concat();
        let server = Server::embedded(&flags).await;
        for at_once in [false, true] {
            let seen = answers(&server, &bodies, at_once).await;
            for ((seen, expected), body) in seen.iter().zip(&expected).zip(&bodies) {
                assert_eq!(seen, expected, "{flags:?}, at once: {at_once}, {body}");
            }
        }
        let (drafted, accepted) = (
            server.stat("drafted_tokens").await,
            server.stat("accepted_tokens").await,
        );
        println!("{flags:?}: {accepted} of {drafted} drafted tokens were accepted");
        assert!(accepted > 0 && accepted <= drafted);
    }
}

#[tokio::test]
async fn a_prediction_is_used_counted_and_can_be_refused() {
    let server = Server::embedded(&EAGER).await;
    let ask = |more: Value| {
        let mut body = json!({
            "messages": [{"role": "user", "content": "Tell me a story."}],
            "temperature": 0, "max_tokens": 60,
        });
        for (field, value) in more.as_object().unwrap() {
            body[field] = value.clone();
        }
        body
    };
    let content = |answer: &Value| answer["choices"][0]["message"]["content"].clone();
    let details = |answer: &Value| answer["usage"]["completion_tokens_details"].clone();
    // The salts keep the answers out of each other's cache.
    let plain = server
        .ok(CHAT, &ask(json!({"speculative": false, "cache_salt": "1"})))
        .await;
    assert_eq!(details(&plain), Value::Null);
    assert_eq!(server.stat("drafts").await, 0);
    let story = content(&plain);
    let steps = server.stat("steps").await;
    let prediction = json!({"type": "content", "content": [{"type": "text", "text": story}]});
    let body = ask(json!({"prediction": prediction, "cache_salt": "2"}));
    let predicted = server.ok(CHAT, &body).await;
    assert_eq!(content(&predicted), story);
    let accepted = details(&predicted)["accepted_prediction_tokens"]
        .as_u64()
        .unwrap();
    assert!(accepted >= 30, "{}", details(&predicted));
    let saved = steps - (server.stat("steps").await - steps);
    assert!(saved >= 30, "{saved} steps saved");
    let answer = server
        .post(
            CHAT,
            &ask(json!({"prediction": {"type": "other", "content": ""}})),
        )
        .await;
    assert_eq!(answer.status, 400);
    let page = server.http.get(server.url("/metrics")).send().await;
    let metrics = page.unwrap().text().await.unwrap();
    for name in [
        "vllm:spec_decode_num_drafts_total",
        "vllm:spec_decode_num_draft_tokens_total",
        "vllm:spec_decode_num_accepted_tokens_total",
        "vllm:spec_decode_num_accepted_tokens_per_pos_total",
    ] {
        assert!(metrics.contains(name), "{name} is missing");
    }
}

#[tokio::test]
async fn without_speculation_a_prediction_is_a_hint_and_a_demand_is_refused() {
    let server = Server::embedded(&[]).await;
    let ask = |more: Value| {
        json!({
            "messages": [{"role": "user", "content": "Tell me a story."}],
            "temperature": 0, "max_tokens": 20,
            "prediction": {"type": "content", "content": "Once upon a time"},
            "speculative": more,
        })
    };
    server.ok(CHAT, &ask(Value::Null)).await;
    server.ok(CHAT, &ask(json!(false))).await;
    let answer = server.post(CHAT, &ask(json!(true))).await;
    assert_eq!(answer.status, 400);
    assert_eq!(server.stat("drafts").await, 0);
}

#[tokio::test]
async fn a_gpu_drafts_nothing_and_answers_the_same() {
    if !has_vulkan() {
        return;
    }
    let cache = format!("hearth-speculation-test-{}", std::process::id());
    let cache = std::env::temp_dir().join(cache);
    let small = ["--prefill-chunk", "24", "--max-running-requests", "3"];
    let deterministic = ["--deterministic", "--kv-tokens", "2048"];
    let bodies: Vec<Value> = bodies().into_iter().step_by(5).collect();
    let mut seen = Vec::new();
    for how in [&[][..], &EAGER] {
        let flags = [&small[..], &deterministic, how].concat();
        let server = Server::embedded_on("vulkan", &flags, &cache).await;
        // The lines of many requests would push it out of the log's last lines.
        assert_eq!(
            server.has_logged("speculative decoding is off: this device samples tokens itself"),
            !how.is_empty()
        );
        seen.push(answers(&server, &bodies, true).await);
        assert_eq!(server.stat("drafts").await, 0);
    }
    assert_eq!(seen[0], seen[1]);
    let _ = std::fs::remove_dir_all(&cache);
}

/// The flags for a draft model in vLLM's spelling.
pub fn drafted_by(model: &str, tokens: usize, adaptive: bool) -> [String; 2] {
    let config = json!({
        "method": "draft_model",
        "model": assemble(model),
        "num_speculative_tokens": tokens,
        "adaptive": adaptive,
    });
    ["--speculative-config".to_owned(), config.to_string()]
}

#[tokio::test]
async fn a_draft_model_changes_no_byte_on_the_cpu() {
    let bodies: Vec<Value> = bodies().into_iter().step_by(2).collect();
    let off = Server::start(&[]).await;
    let expected = answers(&off, &bodies, false).await;
    drop(off);
    let path = assemble("qwen3");
    let of_sglang = [
        "--speculative-algorithm",
        "STANDALONE",
        "--speculative-draft-model-path",
        path.to_str().unwrap(),
    ];
    let small = ["--kv-tokens", "600", "--max-model-len", "300"];
    let [own, other] = [MODEL, "qwen3"].map(|model| drafted_by(model, 5, false));
    let cases: [(Vec<&str>, &[&str]); 3] = [
        (own.iter().map(String::as_str).collect(), &[]),
        (other.iter().map(String::as_str).collect(), &small),
        (of_sglang.to_vec(), &["--prefill-chunk", "16"]),
    ];
    for (how, others) in cases {
        let flags = [&how[..], others].concat();
        let server = Server::start(&flags).await;
        for at_once in [false, true] {
            let seen = answers(&server, &bodies, at_once).await;
            for ((seen, expected), body) in seen.iter().zip(&expected).zip(&bodies) {
                assert_eq!(seen, expected, "{flags:?}, at once: {at_once}, {body}");
            }
        }
        let stats = server.stats().await;
        let model = &stats["draft_model"];
        println!(
            "{flags:?}: {} of {} drafted tokens were accepted, {model}",
            stats["accepted_tokens"], stats["drafted_tokens"]
        );
        assert!(model["forwards"].as_u64().unwrap() > 0, "{stats}");
        assert_eq!(model["failures"], 0, "{stats}");
        assert_eq!(model["kv"]["held"], 0, "{stats}");
    }
}

#[tokio::test]
async fn the_model_as_its_own_draft_model_is_always_right() {
    let [flag, config] = drafted_by(MODEL, 4, false);
    let server = Server::start(&[&flag, &config]).await;
    let body = json!({"text": "Once upon a time", "sampling_params":
        {"max_new_tokens": 61, "temperature": 0, "ignore_eos": true}});
    let answer = server.ok(GENERATE, &body).await;
    let meta = &answer["meta_info"];
    assert_eq!(meta["spec_verify_ct"], 12, "{meta}");
    assert_eq!(meta["spec_num_proposed_drafts"], 48);
    assert_eq!(meta["spec_num_correct_drafts"], 48);
    assert_eq!(
        (&meta["spec_accept_rate"], &meta["spec_accept_length"]),
        (&json!(1.0), &json!(5.0))
    );
    // SGLang has the fields in every answer of a server that speculates.
    let mut off = body.clone();
    off["speculative"] = json!(false);
    let undrafted = server.ok(GENERATE, &off).await;
    assert_eq!(undrafted["text"], answer["text"]);
    assert_eq!(undrafted["meta_info"]["spec_verify_ct"], 0);
    let info = server.client.get("/server_info").await.unwrap();
    let draft = &info["model_info"]["draft_model"];
    assert!(draft["weight_bytes"].as_u64().unwrap() > 0, "{info}");
    drop(server);
    let plain = Server::start(&[]).await.ok(GENERATE, &body).await;
    assert_eq!(plain["text"], answer["text"]);
    assert_eq!(plain["meta_info"].get("spec_verify_ct"), None);
}

#[test]
fn a_draft_model_with_another_vocabulary_is_refused_at_the_start() {
    let [flag, config] = drafted_by(MODEL, 4, true);
    // The embedded model has more tokens.
    let output = hearth()
        .args(["serve", "--port", "0", "--device", "cpu", &flag, &config])
        .output()
        .unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("a vocabulary of 256 tokens, and the model"),
        "{said}"
    );
}

#[tokio::test]
async fn drafts_change_no_answer_where_prefixes_come_from_the_host() {
    for format in ["auto", "int8"] {
        drafts_change_no_answer_over(format).await;
    }
}

/// The number format of the KV cache of both models is `format`.
async fn drafts_change_no_answer_over(format: &str) {
    let mut random = Random::new(18);
    let prompts: Vec<_> = (0..4).map(|_| random.tokens(100)).collect();
    let mut seen = Vec::new();
    let by_model = drafted_by("qwen3", 4, false);
    let by_model = [by_model[0].as_str(), by_model[1].as_str()];
    for how in [&[][..], &EAGER, &by_model] {
        let small = ["--kv-tokens", "170", "--max-model-len", "160"];
        let more = ["--host-cache-tokens", "2000", "--kv-cache-dtype", format];
        let flags = [&small[..], &more, how].concat();
        let server = Server::of("qwen3", &flags).await;
        let mut texts = Vec::new();
        for prompt in prompts.iter().cycle().take(12) {
            let body = json!({"prompt": prompt, "max_tokens": 24, "temperature": 0,
                "ignore_eos": true, "logprobs": 0});
            texts.push(server.ok(COMPLETIONS, &body).await["choices"].clone());
        }
        server.wait_until_idle().await;
        let stats = server.stats().await;
        assert!(stats["host_kv"]["loaded_tokens"].as_u64().unwrap() > 0);
        assert_eq!(stats["accepted_tokens"].as_u64() > Some(0), !how.is_empty());
        seen.push(texts);
    }
    assert_eq!(seen[0], seen[1]);
    assert_eq!(seen[0], seen[2]);
}
