use serde_json::{Value, json};

use super::fake::{MODEL, TestServer};
use super::{CHAT, chunks, ok, text_of};

fn hello(extra: Value) -> Value {
    let mut body = json!({
        "model": MODEL,
        "messages": [{"role": "user", "content": "hello"}],
        "temperature": 0,
    });
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

const ALPHABET: &str = "abcdefghijklmnopqrstuvwxyz";
/// `user: hello\nassistant: `
const PROMPT_TOKENS: u64 = 23;

#[tokio::test]
async fn a_chat_is_answered_with_everything_openai_clients_read() {
    let server = TestServer::plain();
    let answer = ok(&server, CHAT, &hello(json!({}))).await;
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["model"], MODEL);
    assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert!(answer["created"].as_u64().unwrap() > 1_700_000_000);
    let choice = &answer["choices"][0];
    let message = json!({"role": "assistant", "content": ALPHABET, "refusal": null});
    assert_eq!(choice["message"], message);
    assert_eq!(choice["finish_reason"], "stop");
    assert_eq!(choice["logprobs"], Value::Null);
    let usage = &answer["usage"];
    assert_eq!(usage["prompt_tokens"], PROMPT_TOKENS);
    // 26 letters and the token that ended them.
    assert_eq!(usage["completion_tokens"], 27);
    assert_eq!(usage["total_tokens"], PROMPT_TOKENS + 27);
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 0);
}

#[tokio::test]
async fn the_second_of_two_equal_chats_finds_its_prompt_cached() {
    let server = TestServer::plain();
    ok(&server, CHAT, &hello(json!({}))).await;
    let answer = ok(&server, CHAT, &hello(json!({}))).await;
    // The last token is always computed: its logits are wanted.
    let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
    assert_eq!(*cached, PROMPT_TOKENS - 1);
    let salted = ok(&server, CHAT, &hello(json!({"cache_salt": "mine"}))).await;
    assert_eq!(salted["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
}

#[tokio::test]
async fn a_stream_has_the_role_first_the_reason_last_and_the_same_text() {
    let server = TestServer::plain();
    let chunks = chunks(&server, CHAT, &hello(json!({"stream": true}))).await;
    let delta = json!({"role": "assistant", "content": ""});
    assert_eq!(chunks[0]["choices"][0]["delta"], delta);
    assert_eq!(text_of(&chunks, 0), ALPHABET);
    let last = &chunks[chunks.len() - 1]["choices"][0];
    assert_eq!(
        (&last["finish_reason"], &last["delta"]),
        (&json!("stop"), &json!({}))
    );
    assert!(
        chunks
            .iter()
            .all(|chunk| chunk["object"] == "chat.completion.chunk")
    );
    assert!(chunks.iter().all(|chunk| chunk["id"] == chunks[0]["id"]));
    assert!(chunks.iter().all(|chunk| chunk.get("usage").is_none()));
    let unfinished = &chunks[..chunks.len() - 1];
    assert!(
        unfinished
            .iter()
            .all(|chunk| chunk["choices"][0]["finish_reason"].is_null())
    );
}

#[tokio::test]
async fn usage_comes_last_in_a_stream_that_asked_for_it() {
    let server = TestServer::plain();
    let options = json!({"stream": true, "stream_options": {"include_usage": true}});
    let chunks = chunks(&server, CHAT, &hello(options)).await;
    let (last, others) = chunks.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], 27);
    assert!(
        others
            .iter()
            .all(|chunk| chunk["usage"].is_null() && chunk.get("usage").is_some())
    );
}

#[tokio::test]
async fn usage_counts_up_in_every_chunk_that_asked_for_it() {
    let server = TestServer::plain();
    let usage = json!({"include_usage": true, "continuous_usage_stats": true});
    let options = json!({"stream": true, "stream_options": usage});
    let chunks = chunks(&server, CHAT, &hello(options)).await;
    let counts = chunks
        .iter()
        .map(|chunk| chunk["usage"]["completion_tokens"].as_u64().unwrap());
    let counts: Vec<u64> = counts.collect();
    assert!(
        counts.is_sorted() && counts.last() == Some(&27),
        "{counts:?}"
    );
    assert!(
        chunks
            .iter()
            .all(|chunk| chunk["usage"]["prompt_tokens"] == PROMPT_TOKENS)
    );
}

#[tokio::test]
async fn a_stop_string_ends_the_text_and_never_leaks() {
    let server = TestServer::plain();
    let body = |stream| hello(json!({"stop": ["xyz", "def"], "stream": stream}));
    let answer = ok(&server, CHAT, &body(false)).await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["content"], "abc");
    assert_eq!(
        (&choice["finish_reason"], &choice["matched_stop"]),
        (&json!("stop"), &json!("def"))
    );
    let chunks = chunks(&server, CHAT, &body(true)).await;
    assert_eq!(text_of(&chunks, 0), "abc");
    let included = hello(json!({"stop": "def", "include_stop_str_in_output": true}));
    let answer = ok(&server, CHAT, &included).await;
    assert_eq!(answer["choices"][0]["message"]["content"], "abcdef");
    let matched = hello(json!({"stop_regex": "[c-e]{3}", "stream": true}));
    assert_eq!(
        text_of(&self::chunks(&server, CHAT, &matched).await, 0),
        "abcde"
    );
    server.wait_until_idle().await;
}

#[tokio::test]
async fn length_and_stop_tokens_say_what_ended_the_text() {
    let server = TestServer::plain();
    for field in ["max_tokens", "max_completion_tokens"] {
        let choice = ok(&server, CHAT, &hello(json!({field: 4}))).await["choices"][0].clone();
        assert_eq!(choice["message"]["content"], "abcd");
        assert_eq!(choice["finish_reason"], "length");
    }
    let choice = ok(&server, CHAT, &hello(json!({"stop_token_ids": [0x65]}))).await;
    let choice = &choice["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["matched_stop"]),
        (&json!("stop"), &json!(0x65))
    );
    assert_eq!(choice["message"]["content"], "abcd");
    let choice = ok(
        &server,
        CHAT,
        &hello(json!({"ignore_eos": true, "max_tokens": 30})),
    )
    .await;
    // After the end token comes 'a' again. The end token is special and is not part of the text.
    let expected = format!("{ALPHABET}abc");
    assert_eq!(choice["choices"][0]["message"]["content"], expected);
}

#[tokio::test]
async fn n_choices_are_told_apart_and_the_first_is_that_of_n_1() {
    let server = TestServer::plain();
    let hot = json!({"temperature": 2, "seed": 7, "max_tokens": 12});
    let one = ok(&server, CHAT, &hello(hot.clone())).await;
    let mut body = hello(hot);
    body["n"] = json!(3);
    let three = ok(&server, CHAT, &body).await;
    let texts: Vec<&str> = (0..3)
        .map(|index| {
            assert_eq!(three["choices"][index]["index"], index);
            three["choices"][index]["message"]["content"]
                .as_str()
                .unwrap()
        })
        .collect();
    assert_eq!(one["choices"][0]["message"]["content"], texts[0]);
    assert!(texts[0] != texts[1] && texts[1] != texts[2], "{texts:?}");
    assert_eq!(three["usage"]["prompt_tokens"], PROMPT_TOKENS);
    assert_eq!(three["usage"]["completion_tokens"], 36);
    body["stream"] = json!(true);
    let chunks = chunks(&server, CHAT, &body).await;
    for (index, text) in texts.iter().enumerate() {
        assert_eq!(text_of(&chunks, index as u64), *text);
    }
}

#[tokio::test]
async fn logprobs_come_with_alternatives_and_bytes_streamed_or_not() {
    let server = TestServer::plain();
    let extra =
        |stream| json!({"logprobs": true, "top_logprobs": 2, "max_tokens": 3, "stream": stream});
    let answer = ok(&server, CHAT, &hello(extra(false))).await;
    let content = answer["choices"][0]["logprobs"]["content"]
        .as_array()
        .unwrap();
    let tokens: Vec<&str> = content
        .iter()
        .map(|entry| entry["token"].as_str().unwrap())
        .collect();
    assert_eq!(tokens, ["a", "b", "c"]);
    assert_eq!(content[1]["bytes"], json!([0x62]));
    let logprob = content[0]["logprob"].as_f64().unwrap();
    assert!((-0.1..0.0).contains(&logprob), "{logprob}");
    let top = content[0]["top_logprobs"].as_array().unwrap();
    assert_eq!((top.len(), &top[0]["token"]), (2, &json!("a")));
    let chunks = chunks(&server, CHAT, &hello(extra(true))).await;
    let streamed: Vec<&Value> = chunks
        .iter()
        .flat_map(|chunk| {
            chunk["choices"][0]["logprobs"]["content"]
                .as_array()
                .into_iter()
                .flatten()
        })
        .collect();
    assert_eq!(streamed, content.iter().collect::<Vec<_>>());
}

#[tokio::test]
async fn a_character_of_three_tokens_arrives_whole() {
    let server = TestServer::plain();
    let body = json!({
        "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "#"}],
        "add_generation_prompt": false,
        "stop": "\n",
        "temperature": 0,
        "max_tokens": 3,
        "stream": true,
    });
    // The template ends messages with a line break: 'a' follows, and no euro sign.
    assert_eq!(text_of(&chunks(&server, CHAT, &body).await, 0), "abc");
    let body = json!({"prompt": "#", "temperature": 0, "max_tokens": 4, "stream": true});
    let chunks = chunks(&server, super::COMPLETIONS, &body).await;
    assert_eq!(text_of(&chunks, 0), "€a");
    assert!(
        chunks
            .iter()
            .all(|chunk| !chunk.to_string().contains('\u{FFFD}'))
    );
}

#[tokio::test]
async fn parts_names_and_template_variables_reach_the_template() {
    let server = TestServer::plain();
    let tokens = async |body: Value| {
        ok(&server, CHAT, &body).await["usage"]["prompt_tokens"]
            .as_u64()
            .unwrap()
    };
    let parts = json!([{"type": "text", "text": "he"}, {"type": "text", "text": "lo"}]);
    let body = hello(json!({"messages": [{"role": "user", "content": parts}]}));
    assert_eq!(tokens(body).await, PROMPT_TOKENS, "joined by a line break");
    let body = hello(json!({"chat_template_kwargs": {"mood": "good"}}));
    assert_eq!(
        tokens(body).await,
        PROMPT_TOKENS + "mood: good\n".len() as u64
    );
    let body = hello(json!({"messages": [{"role": "developer", "content": "hello"}]}));
    assert_eq!(
        tokens(body).await,
        PROMPT_TOKENS + 2,
        "the developer is the system"
    );
}

#[tokio::test]
async fn fields_that_ask_for_nothing_are_accepted() {
    let server = TestServer::plain();
    let harmless = json!({
        "tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "store": false,
        "service_tier": "auto", "modalities": ["text"], "user": "u", "metadata": {"k": "v"},
        "stop": null, "n": null, "logit_bias": {}, "audio": null, "top_k": -1,
    });
    ok(&server, CHAT, &hello(harmless)).await;
}

#[tokio::test]
async fn words_of_a_schema_without_effect_are_named_in_a_header() {
    let server = TestServer::plain();
    let schema = |schema: Value| {
        hello(json!({"max_tokens": 4, "response_format":
            {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}))
    };
    let given = schema(
        json!({"type": "boolean", "javaType": "b", "title": "t", "a b": 1,
        "items": {"type": "string", "format": "topic"}}),
    );
    let url = format!("{}{CHAT}", server.url);
    let send = async |body: &Value| {
        reqwest::Client::new()
            .post(&url)
            .json(body)
            .send()
            .await
            .unwrap()
    };
    let response = send(&given).await;
    assert_eq!(response.status(), 200);
    let named = &response.headers()["x-hearth-schema-ignored"];
    assert_eq!(named, "javaType, a?b, format:topic");
    let response = send(&schema(json!({"type": "boolean"}))).await;
    assert!(response.headers().get("x-hearth-schema-ignored").is_none());
    let given = schema(json!({"type": "array", "items": {"not": {"multipleOf": 2}}}));
    let response = send(&given).await;
    assert_eq!(response.status(), 400);
    let body: Value = response.json().await.unwrap();
    let message = body["error"]["message"].as_str().unwrap();
    assert!(message.contains("#/items/not/multipleOf"), "{message}");
}
