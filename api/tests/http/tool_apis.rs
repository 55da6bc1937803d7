//! Tools through Anthropic's and Ollama's APIs.

use hearth_api::reasoning;
use hearth_api::served::Formats;
use hearth_api::tools::Format;
use serde_json::{Value, json};

use super::fake::{MODEL, TestServer};
use super::tools::{calling, follows_schema, schema, server};
use super::{ok, post};

const MESSAGES: &str = "/v1/messages";
const OLLAMA: &str = "/api/chat";
const CALL: &str = "So: <tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\
                    </tool_call>";

fn with(mut body: Value, extra: Value) -> Value {
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

fn anthropic(text: &str, extra: Value) -> Value {
    let body = json!({
        "model": MODEL, "max_tokens": 200, "temperature": 0,
        "messages": [{"role": "user", "content": format!("say: {text}")}],
        "tools": [{"name": "weather", "description": "d", "input_schema": schema()}],
    });
    with(body, extra)
}

fn ollama(text: &str, extra: Value) -> Value {
    let function = json!({"name": "weather", "description": "d", "parameters": schema()});
    let body = json!({
        "model": MODEL, "stream": false, "options": {"temperature": 0},
        "messages": [{"role": "user", "content": format!("say: {text}")}],
        "tools": [{"type": "function", "function": function}],
    });
    with(body, extra)
}

/// The text of a stream.
async fn streamed(server: &TestServer, path: &str, mut body: Value) -> String {
    body["stream"] = json!(true);
    let request = reqwest::Client::new()
        .post(format!("{}{path}", server.url))
        .json(&body);
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 200);
    response.text().await.unwrap()
}

/// The content blocks of Anthropic's events, put together, and the stop reason.
async fn blocks(server: &TestServer, body: Value) -> (Vec<Value>, Value) {
    let text = streamed(server, MESSAGES, body).await;
    let events = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let (mut blocks, mut json, mut reason) = (Vec::<Value>::new(), String::new(), Value::Null);
    for event in events.map(|event| serde_json::from_str::<Value>(event).unwrap()) {
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                assert_eq!(event["index"], blocks.len());
                blocks.push(event["content_block"].clone());
            }
            "content_block_delta" => {
                let block = blocks.last_mut().unwrap();
                let delta = &event["delta"];
                for key in ["text", "thinking"] {
                    if let Some(more) = delta[key].as_str() {
                        let before = block[key].as_str().unwrap();
                        block[key] = json!(format!("{before}{more}"));
                    }
                }
                json += delta["partial_json"].as_str().unwrap_or_default();
            }
            "content_block_stop" if !json.is_empty() => {
                blocks.last_mut().unwrap()["input"] = serde_json::from_str(&json).unwrap();
                json.clear();
            }
            "message_delta" => reason = event["delta"]["stop_reason"].clone(),
            _ => {}
        }
    }
    (blocks, reason)
}

/// The blocks without their ids, which must have the prefix of calls.
fn without_ids(blocks: &Value) -> Value {
    let mut blocks = blocks.clone();
    for block in blocks.as_array_mut().unwrap() {
        if let Some(id) = block.as_object_mut().unwrap().remove("id") {
            assert!(id.as_str().unwrap().starts_with("toolu_"), "{id}");
        }
    }
    blocks
}

#[tokio::test]
async fn anthropics_tools_are_used_streamed_and_not() {
    let server = server(calling(Format::Hermes), true);
    let body = anthropic(CALL, json!({}));
    let answer = ok(&server, MESSAGES, &body).await;
    assert_eq!(answer["stop_reason"], "tool_use");
    let expected = json!([
        {"type": "text", "text": "So:"},
        {"type": "tool_use", "name": "weather", "input": {"city": "Oslo"}},
    ]);
    assert_eq!(without_ids(&answer["content"]), expected);
    let (content, reason) = blocks(&server, body).await;
    assert_eq!(
        (without_ids(&content.into()), reason),
        (expected, json!("tool_use"))
    );
    let plain = anthropic("hello", json!({}));
    assert_eq!(
        ok(&server, MESSAGES, &plain).await["stop_reason"],
        "end_turn"
    );
    let (content, reason) = blocks(&server, plain).await;
    assert_eq!((content.len(), reason), (1, json!("end_turn")));
}

#[tokio::test]
async fn anthropics_choices_and_results_are_understood() {
    let server = server(calling(Format::Hermes), true);
    for choice in [
        json!({"type": "any", "disable_parallel_tool_use": true}),
        json!({"type": "tool", "name": "weather"}),
    ] {
        let body = anthropic("nothing", json!({ "tool_choice": choice }));
        let answer = ok(&server, MESSAGES, &body).await;
        assert_eq!(answer["content"][0]["name"], "weather", "{answer}");
        let days = answer["content"][0]["input"]["days"].as_i64().unwrap();
        assert!((1..=9).contains(&days), "{answer}");
        let (content, reason) = blocks(&server, body).await;
        let streamed = without_ids(&content.into());
        assert_eq!(streamed, without_ids(&answer["content"]));
        assert_eq!(reason, "tool_use");
    }
    let none = anthropic(CALL, json!({"tool_choice": {"type": "none"}}));
    assert_eq!(
        ok(&server, MESSAGES, &none).await["content"][0]["text"],
        CALL
    );
    let messages = json!([
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "content": [
            {"type": "text", "text": "So:"},
            {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": "say: 7"}]},
    ]);
    let results = anthropic("", json!({ "messages": messages }));
    let answer = ok(&server, MESSAGES, &results).await;
    assert_eq!(answer["content"][0]["text"], "7");
    let mut counted = results;
    for key in ["max_tokens", "temperature"] {
        counted.as_object_mut().unwrap().remove(key);
    }
    let count = ok(&server, "/v1/messages/count_tokens", &counted).await;
    let usage = |key: &str| answer["usage"][key].as_u64().unwrap();
    let prompt = usage("input_tokens") + usage("cache_read_input_tokens");
    assert_eq!(count["input_tokens"], prompt);
}

#[tokio::test]
async fn anthropics_tools_are_refused_by_name() {
    let server = server(calling(Format::Hermes), true);
    let server_tool = json!([{"type": "web_search_20250305", "name": "web_search"}]);
    for (extra, words) in [
        (
            json!({"tool_choice": {"type": "all"}}),
            ["`tool_choice.type`", "all"],
        ),
        (
            json!({"tool_choice": {"type": "tool"}}),
            ["`tool_choice.name`", "none"],
        ),
        (
            json!({ "tools": server_tool }),
            ["`tools[0].type`", "custom"],
        ),
        (
            json!({"tools": [{"name": "a b"}]}),
            ["`tools[0].name`", "a b"],
        ),
        (
            json!({"tool_choice": {"type": "any"}, "output_config":
                {"format": {"type": "json_schema", "schema": {"type": "boolean"}}}}),
            ["`output_config.format`", "`tools`"],
        ),
        (
            json!({"messages": [{"role": "assistant", "content":
                [{"type": "tool_result", "tool_use_id": "t"}]}]}),
            ["`messages[0].content`", "tool_result"],
        ),
    ] {
        let (status, answer) = post(&server, MESSAGES, &anthropic("", extra.clone())).await;
        let message = answer["error"]["message"].as_str().unwrap();
        assert_eq!(status, 400, "{extra}");
        assert!(
            words.iter().all(|word| message.contains(word)),
            "{extra}: {message}"
        );
    }
}

#[tokio::test]
async fn ollamas_tools_are_called_streamed_and_not() {
    let server = server(calling(Format::Hermes), true);
    let answer = ok(&server, OLLAMA, &ollama(CALL, json!({}))).await;
    let calls = json!([{"function": {"name": "weather", "arguments": {"city": "Oslo"}}}]);
    let message = json!({"role": "assistant", "content": "So:", "tool_calls": calls});
    assert_eq!(answer["message"], message);
    let lines = streamed(&server, OLLAMA, ollama(CALL, json!({}))).await;
    let lines: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let text: String = lines
        .iter()
        .filter_map(|line| line["message"]["content"].as_str())
        .collect();
    assert_eq!(text, "So:");
    let given: Vec<&Value> = lines
        .iter()
        .filter_map(|line| line["message"].get("tool_calls"))
        .collect();
    assert_eq!(given, [&calls]);
    assert_eq!(lines.last().unwrap()["done_reason"], "stop");
    let messages = json!([
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "tool_name": "weather", "content": "say: 7"},
    ]);
    let answer = ok(
        &server,
        OLLAMA,
        &ollama("", json!({ "messages": messages })),
    )
    .await;
    assert_eq!(answer["message"]["content"], "7");
    let both = ollama("", json!({"format": "json"}));
    let (status, answer) = post(&server, OLLAMA, &both).await;
    let message = answer["error"].as_str().unwrap();
    assert_eq!(status, 400);
    assert!(message.contains("`tools` and `format`"), "{message}");
}

#[tokio::test]
async fn reasoning_is_thinking_to_anthropics_and_ollamas_clients() {
    let formats = Formats {
        tools: Some(Format::Hermes),
        reasoning: Some(reasoning::Format::Qwen3),
    };
    let server = server(formats, true);
    let text = format!("<think>hm</think>{CALL}");
    let answer = ok(&server, MESSAGES, &anthropic(&text, json!({}))).await;
    let kinds = |content: &Value| -> Vec<String> {
        let blocks = content.as_array().unwrap().iter();
        blocks
            .map(|block| block["type"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(kinds(&answer["content"]), ["thinking", "text", "tool_use"]);
    assert_eq!(answer["content"][0]["thinking"], "hm");
    let (content, _) = blocks(&server, anthropic(&text, json!({}))).await;
    assert_eq!(content[0]["thinking"], "hm");
    assert_eq!(kinds(&content.into()), ["thinking", "text", "tool_use"]);
    let answer = ok(&server, OLLAMA, &ollama(&text, json!({}))).await;
    assert_eq!(answer["message"]["thinking"], "hm");
    assert_eq!(answer["message"]["content"], "So:");
}

/// `body` without its tools.
fn without_tools(mut body: Value) -> Value {
    body.as_object_mut().unwrap().remove("tools");
    body
}

#[tokio::test]
async fn a_schema_begins_where_the_reasoning_ends_for_anthropics_and_ollamas_clients() {
    let formats = Formats {
        tools: Some(Format::Hermes),
        reasoning: Some(reasoning::Format::DeepseekR1),
    };
    let server = server(formats, true);
    let follows = |text: &Value| follows_schema(text.as_str().unwrap());
    let format = json!({"output_config": {"format": {"type": "json_schema", "schema": schema()}}});
    let body = without_tools(anthropic("{so}</think>maybe", format.clone()));
    let answer = ok(&server, MESSAGES, &body).await;
    assert_eq!(answer["content"][0]["thinking"], "{so}", "{answer}");
    follows(&answer["content"][1]["text"]);
    let (content, reason) = blocks(&server, body).await;
    assert_eq!(
        (&content[0]["thinking"], reason),
        (&json!("{so}"), json!("end_turn"))
    );
    follows(&content[1]["text"]);
    let body = without_tools(ollama("{so}</think>maybe", json!({"format": schema()})));
    let answer = ok(&server, OLLAMA, &body).await;
    assert_eq!(answer["message"]["thinking"], "{so}", "{answer}");
    follows(&answer["message"]["content"]);
    // A call that must come follows the reasoning, too.
    let any = json!({"tool_choice": {"type": "any"}});
    let answer = ok(&server, MESSAGES, &anthropic("{so}</think>maybe", any)).await;
    assert_eq!(answer["content"][0]["thinking"], "{so}", "{answer}");
    let call = answer["content"].as_array().unwrap().last().unwrap();
    follows_schema(&call["input"].to_string());
    // Reasoning that would go on for ever leaves room for the answer, if that is to be complete.
    let endless = "hm ".repeat(200);
    let complete = with(format, json!({"complete": true, "max_tokens": 120}));
    let body = without_tools(anthropic(&endless, complete));
    let answer = ok(&server, MESSAGES, &body).await;
    assert_eq!(answer["stop_reason"], "end_turn", "{answer}");
    follows(&answer["content"][1]["text"]);
    let complete = json!({"format": schema(), "complete": true, "options": {"temperature": 0, "num_predict": 120}});
    let answer = ok(&server, OLLAMA, &without_tools(ollama(&endless, complete))).await;
    assert_eq!(answer["done_reason"], "stop", "{answer}");
    follows(&answer["message"]["content"]);
    server.wait_until_idle().await;
}
