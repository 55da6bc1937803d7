//! Anthropic's Messages API.

use std::time::Duration;

use hearth_api::config::HttpConfig;
use hearth_engine::EngineConfig;
use serde_json::{Value, json};

use super::fake::{Behaviour, MODEL, TestServer};
use super::{ok, post};

const MESSAGES: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";

fn body(extra: Value) -> Value {
    let mut body = json!({
        "model": MODEL, "max_tokens": 100, "temperature": 0,
        "messages": [{"role": "user", "content": "hello"}],
    });
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

/// The events of a stream: name and data.
async fn events(server: &TestServer, body: &Value) -> Vec<(String, Value)> {
    let request = reqwest::Client::new()
        .post(format!("{}{MESSAGES}", server.url))
        .json(body);
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 200);
    let text = response.text().await.unwrap();
    let blocks = text.split_terminator("\n\n");
    blocks
        .map(|block| {
            let (event, data) = block.split_once('\n').unwrap();
            let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
            let name = event.strip_prefix("event: ").unwrap();
            assert_eq!(data["type"], name, "the name is in the data too");
            (name.to_owned(), data)
        })
        .collect()
}

#[tokio::test]
async fn a_message_is_answered_with_content_blocks_and_usage() {
    let server = TestServer::plain();
    let answer = ok(&server, MESSAGES, &body(json!({}))).await;
    assert_eq!(
        (&answer["type"], &answer["role"]),
        (&json!("message"), &json!("assistant"))
    );
    assert!(
        answer["id"].as_str().unwrap().starts_with("msg_"),
        "{answer}"
    );
    let alphabet = "abcdefghijklmnopqrstuvwxyz";
    assert_eq!(
        answer["content"],
        json!([{"type": "text", "text": alphabet}])
    );
    assert_eq!(
        (&answer["stop_reason"], &answer["stop_sequence"]),
        (&json!("end_turn"), &Value::Null)
    );
    let prompt = "user: hello\nassistant: ".len();
    assert_eq!(
        answer["usage"],
        json!({
            "input_tokens": prompt, "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0, "output_tokens": 27,
        })
    );
    // Cached tokens are counted separately.
    let usage = &ok(&server, MESSAGES, &body(json!({}))).await["usage"];
    assert_eq!(
        (&usage["input_tokens"], &usage["cache_read_input_tokens"]),
        (&json!(1), &json!(prompt - 1))
    );
    let short = ok(&server, MESSAGES, &body(json!({"max_tokens": 2}))).await;
    assert_eq!(
        (&short["stop_reason"], &short["content"][0]["text"]),
        (&json!("max_tokens"), &json!("ab"))
    );
    let stopped = ok(
        &server,
        MESSAGES,
        &body(json!({"stop_sequences": ["ef", "zz"]})),
    )
    .await;
    assert_eq!(stopped["content"][0]["text"], "abcd");
    assert_eq!(
        (&stopped["stop_reason"], &stopped["stop_sequence"]),
        (&json!("stop_sequence"), &json!("ef"))
    );
    let schema = json!({"output_config": {"format": {"type": "json_schema", "schema": {"type": "boolean"}}}});
    let answer = ok(&server, MESSAGES, &body(schema)).await;
    assert!(
        ["true", "false"].contains(&answer["content"][0]["text"].as_str().unwrap()),
        "{answer}"
    );
    let labelled =
        json!({"metadata": {"user_id": "u"}, "thinking": {"type": "disabled"}, "tools": []});
    ok(&server, MESSAGES, &body(labelled)).await;
    server.wait_until_idle().await;
}

#[tokio::test]
async fn a_conversation_may_have_a_system_text_blocks_and_a_beginning_of_the_answer() {
    let server = TestServer::plain();
    let count = async |extra: Value| {
        let mut body = body(extra);
        for key in ["max_tokens", "temperature"] {
            body.as_object_mut().unwrap().remove(key);
        }
        ok(&server, COUNT, &body).await["input_tokens"]
            .as_u64()
            .unwrap()
    };
    let plain = "user: hello\nassistant: ".len() as u64;
    assert_eq!(count(json!({})).await, plain);
    let blocks = json!({"messages": [{"role": "user", "content": [
        {"type": "text", "text": "hello", "cache_control": {"type": "ephemeral"}},
    ]}]});
    assert_eq!(count(blocks).await, plain);
    let system = "system: Be brief.\n".len() as u64;
    assert_eq!(count(json!({"system": "Be brief."})).await, plain + system);
    let parts = json!({"system": [{"type": "text", "text": "Be brief."}]});
    assert_eq!(count(parts).await, plain + system);
    let begun = json!({"messages": [
        {"role": "user", "content": "hello"}, {"role": "assistant", "content": "Well: v"},
    ]});
    assert_eq!(count(begun.clone()).await, plain + "Well: v".len() as u64);
    // The answer continues that text and does not repeat it.
    let answer = ok(&server, MESSAGES, &body(begun)).await;
    assert_eq!(answer["content"][0]["text"], "wxyz");
}

#[tokio::test]
async fn a_stream_is_anthropics_events_in_their_order() {
    let behaviour = Behaviour {
        step: Duration::from_millis(2),
        ..Behaviour::default()
    };
    let server = TestServer::start(behaviour, EngineConfig::default(), HttpConfig::default());
    let events = events(
        &server,
        &body(json!({"stream": true, "stop_sequences": ["kl"]})),
    )
    .await;
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names[..3], ["message_start", "content_block_start", "ping"]);
    let (deltas, end) = names[3..].split_at(names.len() - 6);
    assert!(
        deltas.len() > 3 && deltas.iter().all(|name| *name == "content_block_delta"),
        "{names:?}"
    );
    assert_eq!(end, ["content_block_stop", "message_delta", "message_stop"]);
    let message = &events[0].1["message"];
    assert_eq!(
        (&message["model"], &message["content"]),
        (&json!(MODEL), &json!([]))
    );
    assert_eq!(
        message["usage"]["input_tokens"],
        "user: hello\nassistant: ".len()
    );
    let text: String = events
        .iter()
        .filter_map(|(_, data)| data["delta"]["text"].as_str())
        .collect();
    assert_eq!(text, "abcdefghij");
    let delta = &events[events.len() - 2].1;
    assert_eq!(
        delta["delta"],
        json!({"stop_reason": "stop_sequence", "stop_sequence": "kl"})
    );
    assert_eq!(delta["usage"]["output_tokens"], 12);
    server.wait_until_idle().await;
}

#[tokio::test]
async fn every_refusal_is_in_anthropics_shape_and_names_the_field() {
    let server = TestServer::plain();
    let messages = |messages: Value| json!({"messages": messages});
    let cases: Vec<(Value, &[&str])> = vec![
        (
            json!({"max_tokens": 0}),
            &["`max_tokens`", "at least 1", "0"],
        ),
        (json!({"max_tokens": null}), &["`max_tokens`"]),
        (json!({"max_tokens": 9999}), &["`max_tokens`", "context"]),
        (
            json!({"max_tokens": "many"}),
            &["`max_tokens`", "an integer"],
        ),
        (
            json!({"temperature": 3}),
            &["`temperature`", "between 0 and 2"],
        ),
        (json!({"top_p": 0}), &["`top_p`", "above 0"]),
        (json!({"top_k": -2}), &["`top_k`", "-2"]),
        (
            json!({"stop_sequences": "a"}),
            &["`stop_sequences`", "a list"],
        ),
        (
            json!({"stop_sequences": [""]}),
            &["`stop_sequences[0]`", "0 bytes"],
        ),
        (
            json!({"stop_sequences": vec!["a"; 17]}),
            &["`stop_sequences`", "at most 16"],
        ),
        (json!({"stream": "yes"}), &["`stream`", "boolean"]),
        (json!({"system": 7}), &["`system`", "a string"]),
        (
            json!({"tools": [{"name": "f"}]}),
            &["`tools`", "--tool-call-parser"],
        ),
        (
            json!({"tool_choice": {"type": "any"}}),
            &["`tool_choice`", "without `tools`"],
        ),
        (
            json!({"thinking": {"type": "enabled", "budget_tokens": 9}}),
            &["`thinking`"],
        ),
        (json!({"thinking": {"type": "deep"}}), &["`thinking.type`"]),
        (
            json!({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}),
            &["`context_management`"],
        ),
        (json!({"metadata": {"colour": 1}}), &["`metadata.colour`"]),
        (
            json!({"output_config": {"effort": "extreme"}}),
            &["`output_config.effort`", "extreme"],
        ),
        (
            json!({"output_config": {"format": {"type": "xml"}}}),
            &["`output_config.format.type`"],
        ),
        (
            json!({"output_format": {"type": "json_schema"}}),
            &["`output_format.schema`"],
        ),
        (json!({"speed": "fast"}), &["`speed`", "not supported"]),
        (json!({"colour": 1}), &["`colour`", "not a field"]),
        (messages(json!([])), &["`messages`", "at least 1"]),
        (
            messages(json!([{"role": "system", "content": "a"}])),
            &["`messages[0].role`", "user or assistant"],
        ),
        (
            messages(json!([{"role": "user"}])),
            &["messages[0]", "content"],
        ),
        (
            messages(json!([{"role": "user", "content": ""}])),
            &["`messages[0].content`", "not empty"],
        ),
        (
            messages(json!([{"role": "user", "content": [{"type": "image", "source": {}}]}])),
            &["messages[0].content", "image"],
        ),
        (
            messages(json!([{"role": "user", "content": "unspeakable"}])),
            &["unspeakable"],
        ),
    ];
    for (extra, words) in cases {
        let (status, answer) = post(&server, MESSAGES, &body(extra.clone())).await;
        assert_eq!(
            (status, &answer["type"]),
            (400, &json!("error")),
            "{extra}: {answer}"
        );
        assert_eq!(answer["error"]["type"], "invalid_request_error", "{answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        for word in words {
            assert!(
                message.contains(word),
                "{extra}: {message:?} lacks {word:?}"
            );
        }
    }
    let (status, answer) = post(&server, MESSAGES, &body(json!({"model": "claude"}))).await;
    assert_eq!(
        (status, &answer["error"]["type"]),
        (404, &json!("not_found_error"))
    );
    let (status, answer) = post(&server, COUNT, &json!({"model": MODEL})).await;
    assert_eq!(
        (status, &answer["type"]),
        (400, &json!("error")),
        "{answer}"
    );
    let (status, answer) = post(&server, "/v1/messages/nothing", &json!({})).await;
    assert_eq!(
        (status, &answer["error"]["type"]),
        (404, &json!("not_found_error"))
    );
    let answer = reqwest::get(format!("{}{MESSAGES}", server.url))
        .await
        .unwrap();
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()["allow"]),
        (405, &"POST".parse().unwrap())
    );
    let loading = TestServer::start_loading(HttpConfig::default());
    let (status, answer) = post(&loading, MESSAGES, &body(json!({}))).await;
    assert_eq!(
        (status, &answer["error"]["type"]),
        (503, &json!("overloaded_error"))
    );
    server.wait_until_idle().await;
}

#[tokio::test]
async fn a_stream_that_breaks_off_says_so_in_an_event() {
    let behaviour = Behaviour {
        step: Duration::from_millis(3),
        max_model_len: 100_000,
        kv_slots: 100_000,
        endless: true,
        ..Behaviour::default()
    };
    let server = TestServer::start(behaviour, EngineConfig::default(), HttpConfig::default());
    let long = body(json!({"stream": true, "max_tokens": 50_000}));
    let (events, ()) = tokio::join!(events(&server, &long), async {
        let engine = &server.state.loaded().unwrap().engine;
        while engine.stats().generated_tokens < 3 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        ok(&server, "/abort_request", &json!({"abort_all": true})).await;
    });
    let (name, data) = events.last().unwrap();
    assert_eq!(name, "error");
    assert_eq!(data["error"]["message"], "the request was aborted");
    server.wait_until_idle().await;
}
