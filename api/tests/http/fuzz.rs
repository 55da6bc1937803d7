//! Damaged bodies for every API: each is answered in good time, and the server goes on.

use std::time::Duration;

use reqwest::Client;
use serde_json::{Value, json};

use super::fake::{MODEL, TestServer};
use super::json::damaged;
use super::mutate::{Random, cases};

/// Damaged bodies for each route, if no variable says otherwise.
const CASES: u64 = 60;

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

#[tokio::test]
async fn damaged_bodies_are_answered_and_the_server_goes_on() {
    let server = TestServer::plain();
    let client = Client::new();
    let mut statuses = std::collections::BTreeMap::<u16, u64>::new();
    for (index, (path, body)) in bodies().into_iter().enumerate() {
        for case in cases(CASES) {
            let mut random = Random(case << 8 | index as u64);
            let bytes = damaged(&body, &mut random);
            let shown = String::from_utf8_lossy(&bytes)
                .chars()
                .take(400)
                .collect::<String>();
            let request = client
                .post(format!("{}{path}", server.url))
                .header("content-type", "application/json")
                .timeout(Duration::from_secs(20))
                .body(bytes);
            let response = request.send().await;
            let response = response.unwrap_or_else(|error| panic!("{path} {shown}: {error}"));
            let status = response.status().as_u16();
            let text = response.text().await;
            let text = text.unwrap_or_else(|error| panic!("{path} {shown}: {error}"));
            assert!(
                matches!(status, 200 | 400..=499 | 503),
                "{path} {shown}: {status} {text}"
            );
            *statuses.entry(status).or_default() += 1;
        }
        let (status, answer) = super::post(&server, path, &body).await;
        assert_ne!(status / 100, 5, "{path} afterwards: {answer}");
    }
    server.wait_until_idle().await;
    println!("answers: {statuses:?}");
    assert!(
        statuses.get(&200).is_some_and(|n| *n > 0) && statuses.get(&400).is_some_and(|n| *n > 0)
    );
}
