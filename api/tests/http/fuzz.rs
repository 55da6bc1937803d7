//! Damaged bodies for every API: each is answered in good time, and the server goes on.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use reqwest::Client;
use serde_json::{Value, json};

use super::fake::{MODEL, TestServer};
use super::json::damaged;
use super::mutate::{Random, cases};

/// Damaged bodies for each route, if no variable says otherwise.
const CASES: u64 = 40;
/// All routes are sent bodies at once, some of them with grammars that take seconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// Routes with streams.
const STREAMS: [&str; 8] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/generate",
    "/v1/messages",
    "/api/chat",
    "/api/generate",
    "/completion",
];

fn bodies() -> Vec<(&'static str, Value)> {
    let messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "abc"}]},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function",
            "function": {"name": "f", "arguments": "{\"a\": 1}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "2"},
        {"role": "user", "content": "abc"},
    ]);
    let schema = json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "^[a-c]{1,3}$"},
        "b": {"type": "array", "items": {"enum": [1, "x", null]}, "maxItems": 3}}, "required": ["a"]});
    let format = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
    let plain = json!([{"role": "user", "content": "abc"}]);
    let params = json!({"max_new_tokens": 3, "temperature": 0.5, "top_p": 0.9, "stop": ["x"], "regex": "[a-z]{1,4}"});
    vec![
        (
            "/v1/chat/completions",
            json!({"model": MODEL, "messages": messages, "max_tokens": 3, "n": 2,
            "logit_bias": {"97": 1.5}, "stop": ["q"], "logprobs": true, "top_logprobs": 2}),
        ),
        (
            "/v1/chat/completions",
            json!({"model": MODEL, "messages": plain, "max_tokens": 3, "response_format": format}),
        ),
        (
            "/v1/completions",
            json!({"model": MODEL, "prompt": ["ab", "cd"], "max_tokens": 3, "seed": 1,
            "guided_grammar": "root ::= \"a\" [b-d]+", "echo": false}),
        ),
        (
            "/v1/embeddings",
            json!({"model": MODEL, "input": [[97, 98], [99]], "encoding_format": "base64"}),
        ),
        (
            "/v1/responses",
            json!({"model": MODEL, "input": [{"role": "user", "content": "abc"}], "max_output_tokens": 3,
            "store": false, "text": {"format": {"type": "json_schema", "name": "n", "schema": schema}}}),
        ),
        (
            "/v1/programs",
            json!({"model": MODEL, "nodes": [{"op": "text", "text": "abc"}, {"op": "gen", "name": "x", "max_tokens": 3}]}),
        ),
        (
            "/generate",
            json!({"text": ["ab", "cd"], "rid": ["1", "2"], "sampling_params": params, "return_logprob": true}),
        ),
        ("/encode", json!({"text": "abc"})),
        (
            "/v1/score",
            json!({"model": MODEL, "query": "ab", "items": ["c", "d"], "label_token_ids": [97, 98], "apply_softmax": true}),
        ),
        (
            "/tokenize",
            json!({"prompt": "abc", "add_special_tokens": true}),
        ),
        ("/detokenize", json!({"tokens": [97, 98]})),
        ("/abort_request", json!({"rid": "nothing"})),
        (
            "/v1/messages",
            json!({"model": MODEL, "messages": plain, "max_tokens": 3, "stop_sequences": ["q"],
            "tools": [{"name": "f", "input_schema": schema}], "tool_choice": {"type": "none"}}),
        ),
        (
            "/v1/messages/count_tokens",
            json!({"model": MODEL, "messages": plain}),
        ),
        (
            "/api/chat",
            json!({"model": MODEL, "messages": plain, "stream": false, "options": {"num_predict": 3}, "format": schema}),
        ),
        (
            "/api/generate",
            json!({"model": MODEL, "prompt": "abc", "stream": false, "options": {"num_predict": 3, "stop": ["q"]}}),
        ),
        ("/api/show", json!({"model": MODEL})),
        (
            "/completion",
            json!({"prompt": ["ab", 99], "n_predict": 3, "n_probs": 2, "stop": ["q"], "logit_bias": [[97, 1.0], ["b", false]],
            "json_schema": schema, "response_fields": ["content", "timings/prompt_n"]}),
        ),
    ]
}

/// All [`bodies`], their copies as streams for the routes that have streams, and bodies of routes that take no schema.
fn all_bodies() -> Vec<(&'static str, Value)> {
    let mut all = bodies();
    let streams: Vec<_> = all
        .iter()
        .filter(|(path, _)| STREAMS.contains(path))
        .map(|(path, body)| {
            let mut body = body.clone();
            body["stream"] = json!(true);
            (*path, body)
        })
        .collect();
    all.extend(streams);
    let adapter = json!({"lora_name": "a", "lora_path": "adapters/a"});
    all.extend([
        ("/api/embed", json!({"model": MODEL, "input": ["abc", "d"]})),
        ("/v1/load_lora_adapter", adapter.clone()),
        ("/v1/unload_lora_adapter", json!({"lora_name": "a"})),
        ("/load_lora_adapter", adapter),
        ("/unload_lora_adapter", json!({"lora_name": "a"})),
        ("/lora-adapters", json!([{"id": 0, "scale": 0.5}])),
        ("/flush_cache", json!({})),
        ("/continue_generation", json!({})),
    ]);
    all
}

/// Sends damaged copies of `body`, and counts the answers by their status.
async fn damage(server: &TestServer, index: usize, path: &str, body: &Value) -> BTreeMap<u16, u64> {
    let client = Client::new();
    let mut statuses = BTreeMap::new();
    for case in cases(CASES) {
        let mut random = Random(case << 8 | index as u64);
        let bytes = damaged(body, &mut random);
        let shown = String::from_utf8_lossy(&bytes)
            .chars()
            .take(400)
            .collect::<String>();
        let request = client
            .post(format!("{}{path}", server.url))
            .header("content-type", "application/json")
            .timeout(PATIENCE)
            .body(bytes);
        let response = request.send().await;
        let response = response.unwrap_or_else(|error| panic!("{path} {shown}: {error}"));
        let status = response.status().as_u16();
        let text = response.text().await;
        let text = text.unwrap_or_else(|error| panic!("{path} {shown}: {error}"));
        // The made-up model fails at one of its tokens, which a damaged prompt may have.
        let is_poisoned = status == 500 && text.contains("it was poisoned");
        assert!(
            is_poisoned || matches!(status, 200 | 400..=499 | 503),
            "{path} {shown}: {status} {text}"
        );
        *statuses.entry(status).or_default() += 1;
    }
    statuses
}

#[tokio::test]
async fn damaged_bodies_are_answered_and_the_server_goes_on() {
    let server = TestServer::plain();
    let targets = all_bodies();
    let damaging = targets.iter().enumerate();
    let damaging = damaging.map(|(index, (path, body))| damage(&server, index, path, body));
    let answers = join_all(damaging).await;
    let mut all = BTreeMap::<u16, u64>::new();
    for ((path, _), statuses) in targets.iter().zip(answers) {
        println!("{path}: {statuses:?}");
        for (status, count) in statuses {
            *all.entry(status).or_default() += count;
        }
    }
    for (path, body) in bodies() {
        let (status, answer) = super::post(&server, path, &body).await;
        assert_ne!(status / 100, 5, "{path} afterwards: {answer}");
    }
    server.wait_until_idle().await;
    println!("{} damaged bodies: {all:?}", all.values().sum::<u64>());
    assert!(all.get(&200).is_some_and(|n| *n > 0) && all.get(&400).is_some_and(|n| *n > 0));
}
