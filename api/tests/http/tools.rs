//! Tools and reasoning through OpenAI's API. The model writes the text that a test asks for.

use std::collections::BTreeMap;

use hearth_api::config::HttpConfig;
use hearth_api::reasoning;
use hearth_api::served::Formats;
use hearth_api::tools::Format;
use hearth_engine::EngineConfig;
use serde_json::{Value, json};

use super::fake::{Behaviour, MODEL, TestServer};
use super::{CHAT, chunks, ok, post};

/// A server whose model repeats the text that it is asked for if `echoes`, and otherwise writes
/// letters in the order of the alphabet.
pub fn server(formats: Formats, echoes: bool) -> TestServer {
    let behaviour = Behaviour {
        formats,
        echoes,
        max_model_len: 4096,
        kv_slots: 16_384,
        ..Behaviour::default()
    };
    TestServer::start(behaviour, EngineConfig::default(), HttpConfig::default())
}

pub fn calling(format: Format) -> Formats {
    Formats {
        tools: Some(format),
        reasoning: None,
    }
}

pub fn reasoning(format: reasoning::Format, tools: Option<Format>) -> Formats {
    Formats {
        tools,
        reasoning: Some(format),
    }
}

/// The schema of both tools. Every model can follow it, because it has few values.
pub fn schema() -> Value {
    json!({
        "type": "object", "additionalProperties": false, "required": ["city", "days"],
        "properties": {"city": {"enum": ["Oslo", "Rome"]},
                       "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    })
}

fn tool(name: &str, strict: bool) -> Value {
    json!({"type": "function", "function":
        {"name": name, "description": "d", "parameters": schema(), "strict": strict}})
}

/// A chat with both tools in which the model is asked to write `text`.
fn say(text: &str, extra: Value) -> Value {
    let mut body = json!({
        "model": MODEL, "temperature": 0, "max_tokens": 400,
        "messages": [{"role": "user", "content": format!("say: {text}")}],
        "tools": [tool("weather", false), tool("news", false)],
    });
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

#[derive(Debug, Default, PartialEq)]
struct Answer {
    content: String,
    reasoning: String,
    calls: Vec<(String, String)>,
    finish: String,
}

fn whole(answer: &Value) -> Answer {
    let choice = &answer["choices"][0];
    let message = &choice["message"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let calls = message["tool_calls"].as_array().into_iter().flatten();
    Answer {
        content: text(&message["content"]),
        reasoning: text(&message["reasoning_content"]),
        calls: calls
            .map(|call| {
                assert!(call["id"].as_str().unwrap().len() >= 9, "{call}");
                assert_eq!(call["type"], "function");
                let function = &call["function"];
                (text(&function["name"]), text(&function["arguments"]))
            })
            .collect(),
        finish: text(&choice["finish_reason"]),
    }
}

/// The answer that the chunks of a stream make, put together as OpenAI's clients do it.
fn streamed(chunks: &[Value]) -> Answer {
    let mut answer = Answer::default();
    let mut calls = BTreeMap::<u64, (String, String)>::new();
    for chunk in chunks {
        let choice = &chunk["choices"][0];
        let delta = &choice["delta"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        answer.content += &text(&delta["content"]);
        answer.reasoning += &text(&delta["reasoning_content"]);
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().unwrap();
            let is_first = !calls.contains_key(&index);
            assert_eq!(call["id"].is_string(), is_first, "{call}");
            let known = calls.entry(index).or_default();
            known.0 += &text(&call["function"]["name"]);
            known.1 += &text(&call["function"]["arguments"]);
        }
        answer.finish += &text(&choice["finish_reason"]);
    }
    answer.calls = calls.into_values().collect();
    answer
}

/// The answer to `body`, which must be the same streamed and not.
async fn answer(server: &TestServer, body: &Value) -> Answer {
    let at_once = whole(&ok(server, CHAT, body).await);
    let mut body = body.clone();
    body["stream"] = json!(true);
    assert_eq!(streamed(&chunks(server, CHAT, &body).await), at_once);
    at_once
}

pub fn follows_schema(arguments: &str) {
    let arguments: Value = serde_json::from_str(arguments).unwrap();
    assert_eq!(arguments.as_object().unwrap().len(), 2, "{arguments}");
    let city = arguments["city"].as_str().unwrap();
    assert!(["Oslo", "Rome"].contains(&city), "{arguments}");
    let days = arguments["days"].as_i64().unwrap();
    assert!((1..=9).contains(&days), "{arguments}");
}

#[tokio::test]
async fn calls_are_found_in_the_text_of_every_format() {
    let arguments = r#"{"city": "Oslo", "days": 2}"#;
    for (format, text) in [
        (
            Format::Hermes,
            format!(
                "Let me see. <tool_call>\n{{\"name\": \"weather\", \"arguments\": {arguments}}}\n\
                 </tool_call><tool_call>{{\"name\": \"news\"}}</tool_call>"
            ),
        ),
        (
            Format::Llama3,
            format!(
                "Let me see. <|python_tag|>{{\"name\": \"weather\", \"parameters\": {arguments}}}; \
                 {{\"name\": \"news\", \"parameters\": {{}}}}"
            ),
        ),
        (
            Format::Mistral,
            format!(
                "Let me see. [TOOL_CALLS] [{{\"name\": \"weather\", \"arguments\": {arguments}}}, \
                 {{\"name\": \"news\", \"arguments\": {{}}}}]"
            ),
        ),
        (
            Format::Pythonic,
            "[weather(city='Oslo', days=2), news()]".to_owned(),
        ),
    ] {
        let server = server(calling(format), true);
        let said = answer(&server, &say(&text, json!({}))).await;
        let expected = [("weather", arguments), ("news", "{}")];
        let expected = expected.map(|(name, json)| (name.to_owned(), json.to_owned()));
        assert_eq!(said.calls, expected, "{format:?}");
        assert_eq!(said.finish, "tool_calls");
        let content = match format {
            Format::Pythonic => "",
            _ => "Let me see.",
        };
        assert_eq!(said.content, content);
    }
}

#[tokio::test]
async fn what_is_no_call_stays_text_and_tools_that_may_not_be_called_are_not() {
    let server = server(calling(Format::Hermes), true);
    let broken = "<tool_call>{\"name\": \"weather\", \"arguments\": {</tool_call>";
    let said = answer(&server, &say(broken, json!({}))).await;
    assert_eq!((said.content.as_str(), said.calls.len()), (broken, 0));
    assert_eq!(said.finish, "stop");
    let call = "<tool_call>{\"name\": \"weather\"}</tool_call>";
    let said = answer(&server, &say(call, json!({"tool_choice": "none"}))).await;
    assert_eq!((said.content.as_str(), said.calls.len()), (call, 0));
    let message = ok(&server, CHAT, &say(call, json!({}))).await["choices"][0]["message"].clone();
    assert_eq!(message["content"], Value::Null);
}

#[tokio::test]
async fn a_call_that_must_come_comes_and_follows_its_schema() {
    let formats = Format::ALL.map(Some).into_iter().chain([None]);
    for tools in formats {
        let formats = Formats {
            tools,
            reasoning: None,
        };
        let server = server(formats, false);
        let one = json!({"tool_choice": "required", "parallel_tool_calls": false});
        let said = answer(&server, &say("", one)).await;
        assert_eq!(said.calls.len(), 1, "{tools:?}: {said:?}");
        follows_schema(&said.calls[0].1);
        assert_eq!(
            (said.content.as_str(), said.finish.as_str()),
            ("", "tool_calls")
        );
        let named = json!({"tool_choice": {"type": "function", "function": {"name": "news"}}});
        let mut body = say("", named);
        let said = answer(&server, &body).await;
        assert_eq!((said.calls.len(), said.calls[0].0.as_str()), (1, "news"));
        follows_schema(&said.calls[0].1);
        body["json_whitespace"] = json!("compact");
        let said = answer(&server, &body).await;
        follows_schema(&said.calls[0].1);
        if tools != Some(Format::Pythonic) {
            assert!(!said.calls[0].1.contains(' '), "{said:?}");
            body["jump_forward"] = json!(false);
            body["stream"] = json!(true);
            let chunks = chunks(&server, CHAT, &body).await;
            let pieces = chunks.iter().filter(|chunk| {
                let call = &chunk["choices"][0]["delta"]["tool_calls"][0];
                call["function"]["arguments"]
                    .as_str()
                    .is_some_and(|json| !json.is_empty())
            });
            // A message to a function is a call only if it is whole.
            match tools {
                Some(Format::Harmony) => assert_eq!(pieces.count(), 1, "the arguments are whole"),
                _ => assert!(pieces.count() > 3, "arguments come as they are made"),
            }
        }
        server.wait_until_idle().await;
    }
}

#[tokio::test]
async fn several_calls_may_come_where_one_must() {
    let server = server(calling(Format::Hermes), false);
    // The model does not know when to end.
    let said = answer(&server, &say("", json!({"tool_choice": "required"}))).await;
    assert_eq!(said.finish, "length");
    // The last one is cut.
    let (_, whole) = said.calls.split_last().unwrap();
    assert!(whole.len() > 1);
    whole
        .iter()
        .for_each(|(_, arguments)| follows_schema(arguments));
}

#[tokio::test]
async fn strict_tools_are_enforced_though_nothing_must_be_called() {
    let wants = r#"{"city": "Paris", "days": 0}"#;
    for (format, text) in [
        (
            Format::Hermes,
            format!(
                "Hm. <tool_call>\n{{\"name\": \"weather\", \"arguments\": {wants}}}\n</tool_call>"
            ),
        ),
        (
            Format::Llama3,
            format!("{{\"name\": \"weather\", \"parameters\": {wants}}}"),
        ),
        (
            Format::Mistral,
            format!("Hm. [TOOL_CALLS] [{{\"name\": \"weather\", \"arguments\": {wants}}}]"),
        ),
        (
            Format::Pythonic,
            "[weather(city=\"Paris\", days=0)]".to_owned(),
        ),
    ] {
        let server = server(calling(format), true);
        let strict = json!({"tools": [tool("weather", true)], "parallel_tool_calls": false});
        let said = answer(&server, &say(&text, strict.clone())).await;
        assert_eq!(said.calls.len(), 1, "{format:?}: {said:?}");
        follows_schema(&said.calls[0].1);
        let said = answer(&server, &say("Hello.", strict)).await;
        assert_eq!((said.content.as_str(), said.calls.len()), ("Hello.", 0));
    }
}

#[tokio::test]
async fn tools_and_earlier_calls_reach_the_template() {
    let server = server(calling(Format::Hermes), true);
    let call = json!({"id": "call_1", "type": "function",
                      "function": {"name": "weather", "arguments": "{\"city\": \"Oslo\"}"}});
    let mut body = say("", json!({}));
    body["messages"] = json!([
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "say: 7"},
    ]);
    let answer = ok(&server, CHAT, &body).await;
    assert_eq!(answer["choices"][0]["message"]["content"], "7");
    let without = |name: &str| {
        let mut tool = tool(name, false);
        tool["function"].as_object_mut().unwrap().remove("strict");
        tool
    };
    let (weather, news) = (without("weather"), without("news"));
    let prompt = format!(
        "tools: {}\nuser: Where?\nassistant: \ncalls: {}\ntool: say: 7\nassistant: ",
        json!([weather, news]),
        json!([{"type": "function", "function": call["function"], "id": "call_1"}]),
    );
    assert_eq!(answer["usage"]["prompt_tokens"], prompt.len());
}

#[tokio::test]
async fn what_is_wrong_with_tools_is_refused_at_its_field() {
    let plain = server(Formats::default(), false);
    let hermes = server(calling(Format::Hermes), false);
    let named = |name: &str| json!({"type": "function", "function": {"name": name}});
    let with = |key: &str, value: Value| json!({ key: value });
    let mut bad = tool("weather", true);
    bad["function"]["parameters"]["properties"]["city"] = json!({"not": {"multipleOf": 2}});
    let mut both = with("tool_choice", json!("required"));
    both["response_format"] = json!({"type": "json_object"});
    let messages = |messages: Value| json!({"messages": messages});
    let cases: Vec<(&TestServer, Value, &str, &[&str])> = vec![
        (
            &plain,
            json!({}),
            "tools",
            &["--tool-call-parser", "tool_choice"],
        ),
        (
            &hermes,
            with("tool_choice", named("x")),
            "tool_choice",
            &["one of `tools`", "x"],
        ),
        (
            &hermes,
            with("tool_choice", json!("any")),
            "tool_choice",
            &["any", "required"],
        ),
        (
            &hermes,
            with("tool_choice", json!([])),
            "tool_choice",
            &["auto, none"],
        ),
        (
            &hermes,
            with("tools", json!([{}])),
            "tools[0].type",
            &["function", "none"],
        ),
        (
            &hermes,
            json!({"tools": [], "tool_choice": "required"}),
            "tool_choice",
            &["without `tools`"],
        ),
        (
            &hermes,
            json!({"tools": null, "parallel_tool_calls": true}),
            "parallel_tool_calls",
            &["without `tools`"],
        ),
        (&hermes, both, "tools", &["`response_format` and `tools`"]),
        (
            &hermes,
            with("regex", json!("a")),
            "tools",
            &["`tools` and `regex`", "none"],
        ),
        (
            &hermes,
            json!({"tools": [bad], "tool_choice": "required"}),
            "tools[0].function.parameters",
            &["not", "#/properties/city"],
        ),
        (
            &hermes,
            messages(json!([{"role": "tool", "content": "7"}])),
            "messages[0].tool_call_id",
            &["none"],
        ),
        (
            &hermes,
            messages(json!([{"role": "user", "content": "7", "tool_call_id": "a"}])),
            "messages[0].tool_call_id",
            &["role is tool"],
        ),
        (
            &hermes,
            messages(json!([{"role": "user", "content": "7", "tool_calls":
                [{"function": {"name": "f"}}]}])),
            "messages[0].tool_calls",
            &["assistant"],
        ),
        (
            &hermes,
            messages(json!([{"role": "assistant", "tool_calls":
                [{"type": "code", "function": {"name": "f"}}]}])),
            "messages[0].tool_calls[0].type",
            &["function", "code"],
        ),
    ];
    for (server, extra, param, words) in cases {
        let (status, answer) = post(server, CHAT, &say("", extra.clone())).await;
        assert_eq!(
            (status, &answer["error"]["param"]),
            (400, &json!(param)),
            "{extra}: {answer}"
        );
        let message = answer["error"]["message"].as_str().unwrap();
        for word in words {
            assert!(
                message.contains(word),
                "{extra}: {message:?} lacks {word:?}"
            );
        }
    }
    plain.wait_until_idle().await;
    hermes.wait_until_idle().await;
}

#[tokio::test]
async fn reasoning_is_given_apart_from_the_answer() {
    let server = server(reasoning(reasoning::Format::Qwen3, None), true);
    let text = "<think>\nIt is\nlate.\n</think>\n\nGood night.";
    let without = |extra: Value| {
        let mut body = say(text, extra);
        body.as_object_mut().unwrap().remove("tools");
        body
    };
    let said = answer(&server, &without(json!({}))).await;
    assert_eq!(said.reasoning, "It is\nlate.");
    assert_eq!(
        (said.content.as_str(), said.finish.as_str()),
        ("Good night.", "stop")
    );
    let said = answer(&server, &without(json!({"separate_reasoning": false}))).await;
    assert_eq!((said.content.as_str(), said.reasoning.as_str()), (text, ""));
    let cut = answer(&server, &without(json!({"max_tokens": 12}))).await;
    assert_eq!((cut.reasoning.as_str(), cut.content.as_str()), ("It i", ""));
    let late = without(json!({"stream_reasoning": false, "stream": true}));
    let chunks = chunks(&server, CHAT, &late).await;
    let pieces: Vec<&str> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["reasoning_content"].as_str())
        .collect();
    assert_eq!(pieces, ["It is\nlate."]);
}

#[tokio::test]
async fn messages_on_channels_are_reasoning_text_and_calls() {
    let server = server(
        reasoning(reasoning::Format::Harmony, Some(Format::Harmony)),
        true,
    );
    let thought = "<|channel|>analysis<|message|>It is late.<|end|><|start|>assistant";
    let text = format!("{thought}<|channel|>final<|message|>Good night.");
    let said = answer(&server, &say(&text, json!({}))).await;
    assert_eq!(
        (said.reasoning.as_str(), said.content.as_str()),
        ("It is late.", "Good night.")
    );
    let call = format!(
        "{thought}<|channel|>commentary to=functions.weather <|constrain|>json<|message|>\
         {{\"city\": \"Oslo\", \"days\": 2}}"
    );
    let said = answer(&server, &say(&call, json!({}))).await;
    assert_eq!(said.reasoning, "It is late.");
    assert_eq!((said.calls.len(), said.finish.as_str()), (1, "tool_calls"));
    follows_schema(&said.calls[0].1);
    let in_text = json!({"separate_reasoning": false});
    let said = answer(&server, &say(&text, in_text)).await;
    assert_eq!(
        said.content,
        "<|channel|>analysis<|message|>It is late.<|end|>Good night."
    );
    server.wait_until_idle().await;
}

#[tokio::test]
async fn a_grammar_begins_where_the_reasoning_ends() {
    let formats = reasoning(reasoning::Format::DeepseekR1, Some(Format::Hermes));
    let server = server(formats, true);
    let required = json!({"tool_choice": "required", "parallel_tool_calls": false});
    let said = answer(&server, &say("hm, <tool_call>?</think>x", required)).await;
    assert_eq!(said.reasoning, "hm, <tool_call>?");
    assert_eq!((said.content.as_str(), said.calls.len()), ("", 1));
    follows_schema(&said.calls[0].1);
    let mut choice = say("so</think>maybe", json!({"guided_choice": ["yes", "no"]}));
    choice.as_object_mut().unwrap().remove("tools");
    let said = answer(&server, &choice).await;
    assert_eq!(
        (said.reasoning.as_str(), said.content.as_str()),
        ("so", "no")
    );
    let format = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema()}});
    let mut body = say("{so}</think>maybe", json!({"response_format": format}));
    body.as_object_mut().unwrap().remove("tools");
    let said = answer(&server, &body).await;
    assert_eq!(said.reasoning, "{so}");
    follows_schema(&said.content);
    // Reasoning that would go on for ever leaves room for the answer, if that is to be complete.
    let endless = "hm ".repeat(200);
    let mut body = say(
        &endless,
        json!({"response_format": format, "max_tokens": 120}),
    );
    body.as_object_mut().unwrap().remove("tools");
    assert_eq!(answer(&server, &body).await.finish, "length");
    body["complete"] = json!(true);
    let said = answer(&server, &body).await;
    assert_eq!(said.finish, "stop");
    assert!(said.reasoning.len() > 40, "{said:?}");
    follows_schema(&said.content);
    server.wait_until_idle().await;
}
