//! Requests in the shapes that coding agents send, as their public sources show them: a streamed call
//! of a tool, then the turn with its result.

use hearth_api::reasoning;
use hearth_api::tools::Format;
use hearth_client::sse_data;
use reqwest::Client;
use serde_json::{Value, json};

use super::fake::{MODEL, TestServer};
use super::tools::{calling, reasoning as reasoner, server};

/// The text that the model writes: a call of `shell`, laid out as the grammar for a single call has it.
const CALL: &str =
    "<tool_call>\n{\"name\": \"shell\", \"arguments\": {\"command\": \"ls src\"}}\n</tool_call>";

/// The parameters of a tool as JavaScript's schema libraries write them.
fn parameters() -> Value {
    json!({
        "$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
        "properties": {"command": {"type": "string", "description": "the command line"},
                       "timeout_ms": {"type": "number", "description": "a bound in milliseconds"}},
        "required": ["command"], "additionalProperties": false,
    })
}

/// The names and the data of a stream's events.
async fn events(
    server: &TestServer,
    path: &str,
    headers: &[(&str, &str)],
    body: &Value,
) -> Vec<(String, Value)> {
    let mut request = Client::new().post(format!("{}{path}", server.url));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = request.json(body).send().await.unwrap();
    let status = response.status();
    let bytes = response.bytes().await.unwrap();
    let text = String::from_utf8_lossy(&bytes);
    assert_eq!(status, 200, "{text}");
    let names = text.lines().filter_map(|line| line.strip_prefix("event: "));
    let mut names = names.map(str::to_owned);
    let data = sse_data(&bytes);
    let data = data.iter().filter(|data| *data != "[DONE]");
    data.map(|data| {
        let name = names.next().unwrap_or_default();
        (name, serde_json::from_str(data).unwrap())
    })
    .collect()
}

/// The names without repetitions, one after another.
fn order(events: &[(String, Value)]) -> Vec<&str> {
    let mut names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    names.dedup();
    names
}

/// A request as Codex sends it to `/v1/responses`.
fn codex(input: Value) -> Value {
    json!({
        "model": MODEL,
        "instructions": "You change files in a repository.",
        "input": input,
        "tools": [
            {"type": "function", "name": "shell", "description": "Runs a command.", "strict": false,
             "parameters": parameters()},
            {"type": "function", "name": "update_plan", "description": "Tells the steps.", "strict": false,
             "parameters": {"type": "object", "properties": {"plan": {"type": "array", "items": {"type": "string"}}},
                            "required": ["plan"], "additionalProperties": false}},
            {"type": "web_search", "external_web_access": false},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": false,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": false,
        "stream": true,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0199a213-81c0-7800-8aa1-bbab2a035a53",
        "text": {"verbosity": "medium"},
        "client_metadata": {"x-codex-installation-id": "0199a213"},
        "temperature": 0,
    })
}

fn codex_user(text: &str) -> Value {
    json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]})
}

#[tokio::test]
async fn a_turn_with_a_tool_in_the_shape_of_codex() {
    let server = server(calling(Format::Hermes), true);
    let path = "/v1/responses";
    let headers = [
        ("accept", "text/event-stream"),
        ("originator", "codex_cli_rs"),
        ("session_id", "0199a213-81c0-7800-8aa1-bbab2a035a53"),
    ];
    let context = json!({"type": "message", "role": "developer",
                         "content": [{"type": "input_text", "text": "The sandbox is read-only."}]});
    let ask = codex_user(&format!("say: {CALL}"));
    let first = codex(json!([context, ask]));
    let told = events(&server, path, &headers, &first).await;
    assert_eq!(
        order(&told),
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
    let numbers = told
        .iter()
        .map(|(_, event)| event["sequence_number"].as_u64());
    assert!(numbers.eq((0..told.len() as u64).map(Some)));
    let done = told
        .iter()
        .find(|(name, _)| name == "response.output_item.done");
    let call = &done.unwrap().1["item"];
    assert_eq!(
        (&call["type"], &call["name"]),
        (&json!("function_call"), &json!("shell"))
    );
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments, json!({"command": "ls src"}));
    let response = &told.last().unwrap().1["response"];
    assert!(response["id"].is_string());
    let usage = &response["usage"];
    for count in ["input_tokens", "output_tokens", "total_tokens"] {
        assert!(usage[count].as_u64().unwrap() > 0, "{usage}");
    }
    assert!(usage["input_tokens_details"]["cached_tokens"].is_u64());
    assert!(usage["output_tokens_details"]["reasoning_tokens"].is_u64());
    // The client keeps the conversation, and sends the items back without their ids.
    let sent = json!({"type": "function_call", "name": call["name"], "arguments": call["arguments"],
                      "call_id": call["call_id"]});
    let result = json!({"type": "function_call_output", "call_id": call["call_id"],
                        "output": "{\"output\":\"main.rs\",\"metadata\":{\"exit_code\":0}}"});
    let input = json!([context, ask, sent, result, codex_user("say: One file.")]);
    let told = events(&server, path, &headers, &codex(input)).await;
    let text = told
        .iter()
        .filter(|(name, _)| name == "response.output_text.delta");
    let text: String = text
        .map(|(_, event)| event["delta"].as_str().unwrap())
        .collect();
    assert_eq!(text, "One file.");
    let (last, event) = told.last().unwrap();
    assert_eq!(last, "response.completed");
    // The turn before it is in the cache.
    let cached = &event["response"]["usage"]["input_tokens_details"]["cached_tokens"];
    assert!(cached.as_u64().unwrap() > 100, "{cached}");
}

#[tokio::test]
async fn a_reasoning_item_comes_back_in_the_shape_of_codex() {
    let server = server(
        reasoner(reasoning::Format::Qwen3, Some(Format::Hermes)),
        true,
    );
    let first = codex(json!([codex_user("say: <think>\nHm.\n</think>\n\nSo.")]));
    let told = events(&server, "/v1/responses", &[], &first).await;
    let done = told
        .iter()
        .filter(|(name, _)| name == "response.output_item.done");
    let mut items: Vec<Value> = done.map(|(_, event)| event["item"].clone()).collect();
    assert_eq!(items[0]["type"], "reasoning");
    // `store` is false, so that there are no ids to refer to.
    for item in &mut items {
        item.as_object_mut().unwrap().remove("id");
    }
    let mut input = vec![codex_user("Why?")];
    input.extend(items);
    input.push(codex_user("say: <think>\n\n</think>\n\nYes."));
    let told = events(&server, "/v1/responses", &[], &codex(input.into())).await;
    assert_eq!(told.last().unwrap().0, "response.completed");
}

/// A request as Claude Code sends it to `/v1/messages`.
fn claude(messages: Value, extra: Value) -> Value {
    let cached = json!({"type": "ephemeral", "ttl": "1h"});
    let mut body = json!({
        "model": MODEL,
        "max_tokens": 1500,
        "messages": messages,
        "system": [
            {"type": "text", "text": "You work in a terminal."},
            {"type": "text", "text": "The working directory is /srv/app.", "cache_control": cached},
        ],
        "tools": [
            {"name": "shell", "description": "Runs a command.", "input_schema": parameters(),
             "eager_input_streaming": true},
            {"name": "Read", "description": "Reads a file.",
             "input_schema": {"type": "object", "properties": {"file_path": {"type": "string"}},
                              "required": ["file_path"], "additionalProperties": false},
             "cache_control": cached},
        ],
        "metadata": {"user_id": "user_0784b260_account__session_b4e5aaaa"},
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "medium"},
        "stream": true,
        "temperature": 0,
    });
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

const CLAUDE_PATH: &str = "/v1/messages?beta=true";
const CLAUDE_HEADERS: [(&str, &str); 4] = [
    ("anthropic-version", "2023-06-01"),
    (
        "anthropic-beta",
        "claude-code-20250219,context-management-2025-06-27,effort-2025-11-24",
    ),
    ("x-app", "cli"),
    ("x-stainless-helper-method", "stream"),
];

#[tokio::test]
async fn a_turn_with_a_tool_in_the_shape_of_claude_code() {
    let server = server(calling(Format::Hermes), true);
    let cached = json!({"type": "ephemeral"});
    let ask = json!({"role": "user", "content": [
        {"type": "text", "text": "<system-reminder>\nThe date is known.\n</system-reminder>"},
        {"type": "text", "text": format!("say: I look.\n{CALL}"), "cache_control": cached},
    ]});
    let first = claude(json!([ask]), json!({}));
    let told = events(&server, CLAUDE_PATH, &CLAUDE_HEADERS, &first).await;
    assert_eq!(
        order(&told),
        [
            "message_start",
            "ping",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
    );
    for (name, event) in &told {
        assert_eq!(event["type"], **name);
    }
    let message = &told[0].1["message"];
    assert_eq!(
        (&message["role"], &message["content"]),
        (&json!("assistant"), &json!([]))
    );
    let starts: Vec<&Value> = told
        .iter()
        .filter(|(name, _)| name == "content_block_start")
        .map(|(_, event)| event)
        .collect();
    assert_eq!(
        (&starts[0]["index"], &starts[1]["index"]),
        (&json!(0), &json!(1))
    );
    let block = &starts[1]["content_block"];
    assert_eq!(
        (&block["type"], &block["name"]),
        (&json!("tool_use"), &json!("shell"))
    );
    let pieces = told
        .iter()
        .filter_map(|(_, event)| event["delta"]["partial_json"].as_str());
    let input: Value = serde_json::from_str(&pieces.collect::<String>()).unwrap();
    assert_eq!(input, json!({"command": "ls src"}));
    let delta = &told[told.len() - 2].1;
    assert_eq!(delta["delta"]["stop_reason"], "tool_use");
    assert!(delta["usage"]["output_tokens"].as_u64().unwrap() > 0);
    let said = json!({"role": "assistant", "content": [
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": block["id"], "name": "shell", "input": input},
    ]});
    let result = json!({"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": block["id"], "is_error": false, "cache_control": cached,
         "content": [{"type": "text", "text": "main.rs"}]},
        {"type": "text", "text": "say: One file."},
    ]});
    let next = claude(json!([ask, said, result]), json!({}));
    let told = events(&server, CLAUDE_PATH, &CLAUDE_HEADERS, &next).await;
    let text = told
        .iter()
        .filter_map(|(_, event)| event["delta"]["text"].as_str());
    assert_eq!(text.collect::<String>(), "One file.");
    let usage = &told[told.len() - 2].1["usage"];
    assert!(
        usage["cache_read_input_tokens"].as_u64().unwrap() > 100,
        "{usage}"
    );
    // The client asks how long a conversation is before it sends it.
    let mut counted = next;
    for key in [
        "max_tokens",
        "stream",
        "temperature",
        "metadata",
        "context_management",
        "output_config",
    ] {
        counted.as_object_mut().unwrap().remove(key);
    }
    let url = format!("{}/v1/messages/count_tokens?beta=true", server.url);
    let answer = Client::new().post(url).json(&counted).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let counted: Value = answer.json().await.unwrap();
    assert!(counted["input_tokens"].as_u64().unwrap() > 100, "{counted}");
}

#[tokio::test]
async fn thinking_is_turned_on_where_the_model_reasons_and_refused_elsewhere() {
    let asked = json!({"type": "enabled", "budget_tokens": 1024});
    let ask = json!([{"role": "user", "content": "say: <think>\nHm.\n</think>\n\nSo."}]);
    let body = claude(ask, json!({"thinking": asked}));
    let reasoning = server(
        reasoner(reasoning::Format::Qwen3, Some(Format::Hermes)),
        true,
    );
    let told = events(&reasoning, CLAUDE_PATH, &CLAUDE_HEADERS, &body).await;
    let kinds = told
        .iter()
        .filter_map(|(_, event)| event["content_block"]["type"].as_str());
    assert_eq!(kinds.collect::<Vec<_>>(), ["thinking", "text"]);
    let plain = server(calling(Format::Hermes), true);
    let (status, answer) = super::post(&plain, "/v1/messages", &body).await;
    assert_eq!(status, 400);
    let message = answer["error"]["message"].as_str().unwrap();
    for words in [
        "`thinking.type`",
        "adaptive",
        "--reasoning-parser",
        "got enabled",
    ] {
        assert!(message.contains(words), "{message}");
    }
    // The client can go on without it.
    let mut body = body;
    for thinking in [json!({"type": "disabled"}), json!({"type": "adaptive"})] {
        body["thinking"] = thinking;
        let told = events(&plain, CLAUDE_PATH, &CLAUDE_HEADERS, &body).await;
        assert_eq!(told.last().unwrap().0, "message_stop");
    }
}

/// A request as agents built on OpenAI-compatible client libraries (opencode, Cline) send it to
/// `/v1/chat/completions`.
fn chat(messages: Value) -> Value {
    json!({
        "model": MODEL,
        "messages": messages,
        "tools": [{"type": "function", "function":
            {"name": "shell", "description": "Runs a command.", "parameters": parameters()}}],
        "tool_choice": "auto",
        "parallel_tool_calls": true,
        "max_tokens": 1500,
        "temperature": 0,
        "top_p": 1,
        "reasoning_effort": "medium",
        "stream": true,
        "stream_options": {"include_usage": true},
    })
}

#[tokio::test]
async fn a_turn_with_a_tool_in_the_shape_of_chat_agents() {
    let server = server(calling(Format::Hermes), true);
    let path = "/v1/chat/completions";
    let system = json!({"role": "system", "content": "You change files."});
    let ask = json!({"role": "user", "content": [
        {"type": "text", "text": "<task>list the sources</task>"},
        {"type": "text", "text": format!("say: {CALL}")},
    ]});
    let told = events(&server, path, &[], &chat(json!([system, ask]))).await;
    let chunks: Vec<&Value> = told.iter().map(|(_, chunk)| chunk).collect();
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    let calls: Vec<&Value> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["tool_calls"].as_array())
        .flatten()
        .collect();
    assert_eq!(
        (&calls[0]["index"], &calls[0]["type"]),
        (&json!(0), &json!("function"))
    );
    assert_eq!(calls[0]["function"]["name"], "shell");
    let id = calls[0]["id"].as_str().unwrap();
    assert!(
        calls[1..]
            .iter()
            .all(|call| call["id"].is_null() && call["index"] == 0)
    );
    let pieces = calls
        .iter()
        .filter_map(|call| call["function"]["arguments"].as_str());
    let arguments: String = pieces.collect();
    assert_eq!(
        serde_json::from_str::<Value>(&arguments).unwrap(),
        json!({"command": "ls src"})
    );
    let [.., end, usage] = chunks.as_slice() else {
        panic!("{chunks:?}")
    };
    assert_eq!(end["choices"][0]["finish_reason"], "tool_calls");
    assert_eq!(usage["choices"], json!([]));
    assert!(usage["usage"]["completion_tokens"].as_u64().unwrap() > 0);
    let said = json!({"role": "assistant", "content": "", "tool_calls": [
        {"id": id, "type": "function", "function": {"name": "shell", "arguments": arguments}}]});
    let result = json!({"role": "tool", "tool_call_id": id, "content": "main.rs"});
    let next = json!({"role": "user", "content": "say: One file."});
    let told = events(
        &server,
        path,
        &[],
        &chat(json!([system, ask, said, result, next])),
    )
    .await;
    let text = told
        .iter()
        .filter_map(|(_, c)| c["choices"][0]["delta"]["content"].as_str());
    assert_eq!(text.collect::<String>(), "One file.");
}
