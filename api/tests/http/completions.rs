use serde_json::{Value, json};

use super::fake::{MODEL, TestServer};
use super::{COMPLETIONS, chunks, ok, text_of};

fn body(extra: Value) -> Value {
    let mut body = json!({"model": MODEL, "prompt": "w", "temperature": 0});
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

#[tokio::test]
async fn a_completion_goes_on_from_the_prompt_and_is_16_tokens_by_default() {
    let server = TestServer::plain();
    let answer = ok(&server, COMPLETIONS, &body(json!({}))).await;
    assert_eq!(answer["object"], "text_completion");
    assert_eq!(answer["choices"][0]["text"], "xyz");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    // "w" and the token that begins a document.
    assert_eq!(answer["usage"]["prompt_tokens"], 2);
    let answer = ok(&server, COMPLETIONS, &body(json!({"prompt": "A"}))).await;
    assert_eq!(answer["choices"][0]["text"], "abcdefghijklmnop");
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn prompts_may_be_text_texts_ids_or_lists_of_ids() {
    let server = TestServer::plain();
    let texts = async |prompt: Value| {
        let answer = ok(&server, COMPLETIONS, &body(json!({"prompt": prompt}))).await;
        let choices = answer["choices"].as_array().unwrap().clone();
        choices
            .iter()
            .map(|c| c["text"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(texts(json!("w")).await, ["xyz"]);
    assert_eq!(texts(json!(["w", "x", "y"])).await, ["xyz", "yz", "z"]);
    assert_eq!(texts(json!([0x76, 0x77])).await, ["xyz"]);
    assert_eq!(texts(json!([[0x77], [0x78, 0x79]])).await, ["xyz", "z"]);
}

#[tokio::test]
async fn choices_of_several_prompts_come_prompt_by_prompt() {
    let server = TestServer::plain();
    let answer = ok(
        &server,
        COMPLETIONS,
        &body(json!({"prompt": ["w", "x"], "n": 2})),
    )
    .await;
    let texts: Vec<&Value> = answer["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|choice| &choice["text"])
        .collect();
    assert_eq!(texts, ["xyz", "xyz", "yz", "yz"]);
    assert_eq!(answer["usage"]["prompt_tokens"], 4);
}

#[tokio::test]
async fn echo_begins_with_the_prompt_streamed_or_not() {
    let server = TestServer::plain();
    let answer = ok(
        &server,
        COMPLETIONS,
        &body(json!({"prompt": "vw", "echo": true})),
    )
    .await;
    assert_eq!(answer["choices"][0]["text"], "vwxyz");
    let chunks = chunks(
        &server,
        COMPLETIONS,
        &body(json!({"echo": true, "stream": true})),
    )
    .await;
    assert_eq!(text_of(&chunks, 0), "wxyz");
}

#[tokio::test]
async fn echo_with_logprobs_scores_the_prompt() {
    let server = TestServer::plain();
    let extra = json!({"prompt": [0x76, 0x77], "echo": true, "logprobs": 1, "max_tokens": 0});
    let answer = ok(&server, COMPLETIONS, &body(extra)).await;
    let logprobs = &answer["choices"][0]["logprobs"];
    assert_eq!(answer["choices"][0]["text"], "vw");
    assert_eq!(logprobs["tokens"], json!(["v", "w"]));
    assert_eq!(logprobs["token_logprobs"][0], Value::Null);
    assert!(
        logprobs["token_logprobs"][1].as_f64().unwrap() > -0.1,
        "{logprobs}"
    );
    assert_eq!(logprobs["text_offset"], json!([0, 1]));
    assert_eq!(answer["usage"]["completion_tokens"], 0);
    server.wait_until_idle().await;
}

#[tokio::test]
async fn logprobs_have_offsets_into_the_text_and_the_chosen_token() {
    let server = TestServer::plain();
    let extra = json!({"prompt": "é#", "echo": true, "logprobs": 2, "max_tokens": 4});
    let answer = ok(&server, COMPLETIONS, &body(extra)).await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["text"], "é#€a");
    let logprobs = &choice["logprobs"];
    // <start>, two bytes of é, #, three bytes of €, a.
    assert_eq!(logprobs["text_offset"], json!([0, 0, 0, 1, 2, 2, 2, 3]));
    assert_eq!(logprobs["tokens"][4], "bytes:\\xe2");
    assert!(logprobs["top_logprobs"][7]["a"].is_number(), "{logprobs}");
    assert_eq!(logprobs["top_logprobs"][7].as_object().unwrap().len(), 2);
}

#[tokio::test]
async fn a_bias_changes_the_token_and_a_penalty_the_repetition() {
    let server = TestServer::plain();
    let extra = json!({"logit_bias": {"81": 100}, "max_tokens": 2});
    let answer = ok(&server, COMPLETIONS, &body(extra)).await;
    assert_eq!(answer["choices"][0]["text"], "QQ");
    let min = json!({"prompt": "y", "min_tokens": 3, "max_tokens": 3});
    let answer = ok(&server, COMPLETIONS, &body(min)).await;
    assert_eq!(
        answer["usage"]["completion_tokens"], 3,
        "the end came too early"
    );
}

#[tokio::test]
async fn the_same_seed_gives_the_same_text_and_another_seed_another() {
    let server = TestServer::plain();
    let text = async |seed: i64| {
        let extra = json!({"temperature": 2, "seed": seed, "prompt": "A"});
        ok(&server, COMPLETIONS, &body(extra)).await["choices"][0]["text"].clone()
    };
    assert_eq!(text(-5).await, text(-5).await);
    assert_ne!(text(-5).await, text(5).await);
}

#[tokio::test]
async fn skip_special_tokens_false_shows_them() {
    let server = TestServer::plain();
    let extra = json!({"ignore_eos": true, "max_tokens": 5, "skip_special_tokens": false});
    let answer = ok(&server, COMPLETIONS, &body(extra)).await;
    assert_eq!(answer["choices"][0]["text"], "xyz<eos>a");
}
