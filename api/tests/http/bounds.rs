//! Bounds on the memory that a request may take. A field beyond its bound is refused by name.

use hearth_api::config::HttpConfig;
use hearth_engine::EngineConfig;
use serde_json::{Map, Value, json};

use super::fake::{Behaviour, MODEL, TestServer};
use super::refusals::{chat, completion, refused};
use super::{CHAT, COMPLETIONS, chunks, ok, post};

#[tokio::test]
async fn lists_of_tokens_and_labels_have_a_longest_length() {
    let server = TestServer::plain();
    let biases = |count: u32| -> Map<String, Value> {
        let bias = |id: u32| (id.to_string(), json!(1));
        (0..count).map(bias).collect()
    };
    let labels: Map<String, Value> = (0..17).map(|i| (i.to_string(), json!("x"))).collect();
    let cases: [(&str, Value, &[&str]); 4] = [
        (
            "stop_token_ids",
            json!(vec![1; 1025]),
            &["at most 1024 entries", "1025"],
        ),
        (
            "logit_bias",
            json!(biases(1025)),
            &["at most 1024 entries", "1025"],
        ),
        (
            "logit_bias",
            json!(biases(200_000)),
            &["at most 1024 entries", "200000"],
        ),
        ("metadata", json!(labels), &["at most 16 entries", "17"]),
    ];
    for (field, value, words) in cases {
        let body = completion(field, value.clone());
        refused(&server, COMPLETIONS, body, field, words).await;
        refused(&server, CHAT, chat(field, value), field, words).await;
    }
    let most = json!(vec![1; 1024]);
    ok(&server, COMPLETIONS, &completion("stop_token_ids", most)).await;
}

#[tokio::test]
async fn a_bias_names_each_token_once_and_in_one_way() {
    let server = TestServer::plain();
    for (key, words) in [
        ("01", ["leading zeros", "\"01\""]),
        ("+1", ["without sign", "\"+1\""]),
        (" 1", ["token ids", "\" 1\""]),
    ] {
        let body = completion("logit_bias", json!({key: 1}));
        refused(&server, COMPLETIONS, body, "logit_bias", &words).await;
    }
    let body = r#"{"prompt": "a", "logit_bias": {"1": 2, "2": 1, "1": 3}}"#;
    let request = reqwest::Client::new()
        .post(format!("{}{COMPLETIONS}", server.url))
        .header("content-type", "application/json")
        .body(body);
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 400);
    let answer: Value = response.json().await.unwrap();
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("once, got \"1\""), "{message}");
}

#[tokio::test]
async fn a_cache_salt_is_neither_empty_nor_long() {
    let server = TestServer::plain();
    for (salt, given) in [(String::new(), "got 0"), ("s".repeat(257), "got 257")] {
        let words = ["between 1 and 256 bytes", given];
        let body = completion("cache_salt", json!(salt));
        refused(&server, COMPLETIONS, body, "cache_salt", &words).await;
        let body = chat("cache_salt", json!(salt));
        refused(&server, CHAT, body, "cache_salt", &words).await;
    }
    let longest = completion("cache_salt", json!("s".repeat(256)));
    ok(&server, COMPLETIONS, &longest).await;
}

#[tokio::test]
async fn more_prompts_than_the_queue_takes_are_refused_before_any_is_tokenised() {
    let engine = EngineConfig {
        max_queue: 8,
        ..EngineConfig::default()
    };
    let server = TestServer::start(Behaviour::default(), engine, HttpConfig::default());
    // The last prompt is too long, but the number of prompts is checked first.
    let mut prompts = vec!["a".to_owned(); 9];
    prompts.push("a".repeat(100_000));
    let body = completion("prompt", json!(prompts));
    let words = ["at most 8 prompts (--max-queue)", "got 10"];
    refused(&server, COMPLETIONS, body, "prompt", &words).await;
    let mut body = completion("prompt", json!(["a", "b", "c"]));
    body["n"] = json!(3);
    refused(&server, COMPLETIONS, body, "n", &["at most 8", "got 9"]).await;
    let many = completion("prompt", json!(vec!["a"; 40_000]));
    refused(&server, COMPLETIONS, many, "prompt", &["got 40000"]).await;
}

#[tokio::test]
async fn a_chat_without_a_limit_gets_the_one_that_the_model_suggests_where_it_fits() {
    let outputs = async |max_new_tokens, max_model_len, body: Value| {
        let behaviour = Behaviour {
            max_new_tokens,
            max_model_len,
            endless: true,
            ..Behaviour::default()
        };
        let server = TestServer::start(behaviour, EngineConfig::default(), HttpConfig::default());
        let answer = ok(&server, CHAT, &body).await;
        let prompt = answer["usage"]["prompt_tokens"].as_u64().unwrap();
        (
            answer["usage"]["completion_tokens"].as_u64().unwrap(),
            prompt,
        )
    };
    let silent = json!({"messages": [{"role": "user", "content": "a"}]});
    let mut asking = silent.clone();
    asking["max_tokens"] = json!(9);
    assert_eq!(outputs(Some(5), 64, silent.clone()).await.0, 5);
    assert_eq!(outputs(Some(5), 64, asking).await.0, 9);
    for suggested in [Some(1_000), None] {
        let (output, prompt) = outputs(suggested, 64, silent.clone()).await;
        assert_eq!(output + prompt, 64, "{suggested:?}");
    }
}

#[tokio::test]
async fn more_messages_than_any_conversation_has_are_only_counted() {
    let server = TestServer::plain();
    let messages = vec![json!({"role": "user", "content": "a"}); 20_000];
    let body = chat("messages", json!(messages));
    let words = ["at most 16384 messages", "20000"];
    refused(&server, CHAT, body, "messages", &words).await;
}

#[tokio::test]
async fn an_answer_with_logprobs_has_a_largest_size() {
    let behaviour = Behaviour {
        max_model_len: 100_000,
        kv_slots: 100_000,
        ..Behaviour::default()
    };
    let server = TestServer::start(behaviour, EngineConfig::default(), HttpConfig::default());
    let mut body = json!({
        "model": MODEL, "prompt": "a", "n": 8, "max_tokens": 50_000, "logprobs": 20,
    });
    let words = [
        "`n`",
        "`max_tokens`",
        "`logprobs`",
        "at most 4194304",
        "8400000",
    ];
    refused(&server, COMPLETIONS, body.clone(), "max_tokens", &words).await;
    body["max_tokens"] = json!(10);
    ok(&server, COMPLETIONS, &body).await;
    let echoed = json!({
        "model": MODEL, "prompt": "a".repeat(50_000), "n": 8, "max_tokens": 1, "logprobs": 20,
        "echo": true,
    });
    refused(&server, COMPLETIONS, echoed, "max_tokens", &["`echo`"]).await;
    let body = json!({
        "model": MODEL, "messages": [{"role": "user", "content": "a"}], "n": 8,
        "max_completion_tokens": 50_000, "logprobs": true, "top_logprobs": 20,
    });
    let words = [
        "`n`",
        "`max_completion_tokens`",
        "`top_logprobs`",
        "8400000",
    ];
    refused(&server, CHAT, body, "max_completion_tokens", &words).await;
}

#[tokio::test]
async fn a_key_that_a_text_part_does_not_have_is_refused() {
    let server = TestServer::plain();
    let parts = |part: Value| json!([{"role": "user", "content": [part]}]);
    let body = chat(
        "messages",
        parts(json!({"type": "text", "text": "a", "colour": 1})),
    );
    let (_, answer) = post(&server, CHAT, &body).await;
    assert_eq!(answer["error"]["code"], "unknown_parameter", "{answer}");
    let param = "messages[0].content[0].colour";
    refused(&server, CHAT, body, param, &["colour"]).await;
    let picture = json!({"type": "image_url", "image_url": {"url": "x"}});
    let body = chat("messages", parts(picture));
    let words = ["\"image_url\"", "text only"];
    refused(&server, CHAT, body, "messages[0].content[0]", &words).await;
    let body = chat("messages", parts(json!({"type": "text"})));
    let param = "messages[0].content[0].text";
    refused(&server, CHAT, body, param, &["missing field `text`"]).await;
}

#[tokio::test]
async fn template_variables_have_a_largest_number() {
    let server = TestServer::plain();
    let body = chat("chat_template_kwargs", json!({"list": vec![0; 5000]}));
    let (status, answer) = post(&server, CHAT, &body).await;
    assert_eq!(status, 400, "{answer}");
    let error = &answer["error"];
    assert!(
        error["param"]
            .as_str()
            .unwrap()
            .starts_with("chat_template_kwargs"),
        "{answer}"
    );
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("at most 4096 values"), "{message}");
}

#[tokio::test]
async fn refused_fields_of_megabytes_are_refused_by_name() {
    let server = TestServer::plain();
    let large = json!([vec![0; 1 << 20]]);
    for field in ["functions", "audio"] {
        let body = chat(field, large.clone());
        refused(&server, CHAT, body, field, &["not supported"]).await;
    }
    let body = chat("prediction", large.clone());
    refused(&server, CHAT, body, "prediction", &["list", "an object"]).await;
    let words = ["at most 20000 values", "1048578"];
    refused(&server, CHAT, chat("tools", large), "tools", &words).await;
}

#[tokio::test]
async fn every_copy_of_an_echoed_prompt_has_its_logprobs() {
    let server = TestServer::plain();
    let mut body = json!({
        "model": MODEL, "prompt": ["vw", "vx"], "echo": true, "logprobs": 1, "n": 3,
        "max_tokens": 1, "temperature": 0,
    });
    let answer = ok(&server, COMPLETIONS, &body).await;
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 6);
    for (index, choice) in choices.iter().enumerate() {
        let (last, next) = if index < 3 { ("w", "x") } else { ("x", "y") };
        let tokens = json!(["<start>", "v", last, next]);
        assert_eq!(choice["logprobs"]["tokens"], tokens, "{choice}");
        assert!(choice["logprobs"]["token_logprobs"][2].is_number());
    }
    body["stream"] = json!(true);
    let streamed = chunks(&server, COMPLETIONS, &body).await;
    for (index, choice) in choices.iter().enumerate() {
        let own = streamed.iter().map(|chunk| &chunk["choices"][0]);
        let own = own.filter(|choice| choice["index"] == index);
        let tokens: Vec<&Value> = own
            .flat_map(|choice| {
                choice["logprobs"]["tokens"]
                    .as_array()
                    .into_iter()
                    .flatten()
            })
            .collect();
        let whole: Vec<&Value> = choice["logprobs"]["tokens"]
            .as_array()
            .unwrap()
            .iter()
            .collect();
        assert_eq!(tokens, whole);
    }
}
