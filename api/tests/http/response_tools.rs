//! Tools and reasoning through OpenAI's Responses. The model writes the text that a test asks for.

use hearth_api::reasoning;
use hearth_api::tools::Format;
use serde_json::{Value, json};

use super::fake::TestServer;
use super::responses::events;
use super::tools::{calling, follows_schema, reasoning, schema, server};
use super::{ok, post};

const RESPONSES: &str = "/v1/responses";
const TEXT: &str = "<think>\nWhere?\n</think>\n\nSo: <tool_call>{\"name\": \"weather\", \"arguments\": \
                    {\"city\": \"Oslo\"}}</tool_call>\n<tool_call>{\"name\": \"weather\", \"arguments\": \
                    {\"city\": \"Rome\"}}</tool_call>";

fn say(text: &str, extra: Value) -> Value {
    let mut body = json!({
        "input": format!("say: {text}"), "temperature": 0, "max_output_tokens": 400,
        "tools": [{"type": "function", "name": "weather", "description": "d",
                   "parameters": schema(), "strict": false}],
    });
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

fn reasoner() -> TestServer {
    server(
        reasoning(reasoning::Format::Qwen3, Some(Format::Hermes)),
        true,
    )
}

/// The output without its ids, whose prefixes must be those of their kinds.
fn without_ids(output: &Value) -> Vec<Value> {
    let mut items = output.as_array().unwrap().clone();
    for item in &mut items {
        let prefix = match item["type"].as_str().unwrap() {
            "reasoning" => "rs_",
            "message" => "msg_",
            _ => "fc_",
        };
        let item = item.as_object_mut().unwrap();
        assert!(item["id"].as_str().unwrap().starts_with(prefix), "{item:?}");
        item.remove("id");
        if let Some(id) = item.remove("call_id") {
            assert!(id.as_str().unwrap().starts_with("call_"), "{id}");
        }
    }
    items
}

/// The output that the deltas of a stream add up to, in the order of its items.
fn told(events: &[Value]) -> Vec<(String, String)> {
    let mut told: Vec<(String, String)> = Vec::new();
    for event in events {
        let index = || event["output_index"].as_u64().unwrap() as usize;
        match event["type"].as_str().unwrap() {
            "response.output_item.added" => {
                assert_eq!(index(), told.len());
                told.push((
                    event["item"]["type"].as_str().unwrap().to_owned(),
                    String::new(),
                ));
            }
            "response.reasoning_text.delta"
            | "response.output_text.delta"
            | "response.function_call_arguments.delta" => {
                assert_eq!(index() + 1, told.len());
                told[index()].1 += event["delta"].as_str().unwrap();
            }
            "response.reasoning_text.done" | "response.output_text.done" => {
                assert_eq!(event["text"], told[index()].1);
            }
            "response.function_call_arguments.done" => {
                assert_eq!(
                    (&event["name"], &event["arguments"]),
                    (&json!("weather"), &json!(told[index()].1))
                );
            }
            _ => {}
        }
    }
    told
}

#[tokio::test]
async fn reasoning_text_and_calls_are_items_streamed_and_not() {
    let server = reasoner();
    let whole = ok(&server, RESPONSES, &say(TEXT, json!({}))).await;
    let call = |city: &str| {
        json!({"type": "function_call", "status": "completed", "name": "weather",
                                   "arguments": format!("{{\"city\": \"{city}\"}}")})
    };
    let text = json!({"type": "output_text", "text": "So: ", "annotations": [], "logprobs": []});
    let expected = [
        json!({"type": "reasoning", "status": "completed", "summary": [], "encrypted_content": null,
               "content": [{"type": "reasoning_text", "text": "Where?"}]}),
        json!({"type": "message", "status": "completed", "role": "assistant", "content": [text]}),
        call("Oslo"),
        call("Rome"),
    ];
    let mut output = without_ids(&whole["output"]);
    // Which white space around marks belongs to a part is tested with the reader.
    for (item, key) in [(0, "text"), (1, "text")] {
        let text = &mut output[item]["content"][0][key];
        *text = text.as_str().unwrap().trim().into();
    }
    let mut expected = expected.to_vec();
    expected[1]["content"][0]["text"] = "So:".into();
    assert_eq!(output, expected);
    assert_eq!(whole["tools"][0]["parameters"], schema());
    let events = events(&server, say(TEXT, json!({}))).await;
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.completed");
    assert_eq!(
        without_ids(&last["response"]["output"]),
        without_ids(&whole["output"])
    );
    let text_of = |item: &Value| match item["type"].as_str().unwrap() {
        "function_call" => item["arguments"].clone(),
        _ => item["content"][0]["text"].clone(),
    };
    let items = whole["output"].as_array().unwrap();
    let items: Vec<_> = items
        .iter()
        .map(|item| {
            (
                item["type"].as_str().unwrap().to_owned(),
                text_of(item).as_str().unwrap().to_owned(),
            )
        })
        .collect();
    assert_eq!(told(&events), items);
}

#[tokio::test]
async fn a_choice_is_obeyed_and_repeated() {
    let server = server(calling(Format::Hermes), true);
    for choice in [
        json!("required"),
        json!({"type": "function", "name": "weather"}),
    ] {
        let answer = ok(
            &server,
            RESPONSES,
            &say("nothing", json!({"tool_choice": choice})),
        )
        .await;
        assert_eq!(answer["tool_choice"], choice);
        let call = &answer["output"][0];
        assert_eq!(
            (&call["type"], &call["name"]),
            (&json!("function_call"), &json!("weather"))
        );
        let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
        assert!(
            (1..=9).contains(&arguments["days"].as_i64().unwrap()),
            "{answer}"
        );
    }
    let none = ok(
        &server,
        RESPONSES,
        &say("<tool_call>", json!({"tool_choice": "none"})),
    )
    .await;
    assert_eq!(none["output"][0]["content"][0]["text"], "<tool_call>");
    for (param, extra) in [
        (
            "tool_choice",
            json!({"tool_choice": {"type": "function", "name": "news"}}),
        ),
        (
            "tool_choice.name",
            json!({"tool_choice": {"type": "function", "function": {"name": "weather"}}}),
        ),
        (
            "tools",
            json!({"text": {"format": {"type": "json_schema", "name": "n",
                                             "schema": {"type": "boolean"}}}}),
        ),
    ] {
        let (status, answer) = post(&server, RESPONSES, &say("x", extra)).await;
        assert_eq!(
            (status, &answer["error"]["param"]),
            (400, &json!(param)),
            "{answer}"
        );
    }
}

#[tokio::test]
async fn a_schema_begins_where_the_reasoning_ends() {
    let server = server(reasoning(reasoning::Format::DeepseekR1, None), true);
    let format = json!({"type": "json_schema", "name": "n", "schema": schema()});
    let body = json!({"input": "say: {so}</think>maybe", "temperature": 0, "max_output_tokens": 400,
                      "text": {"format": format}});
    let answer = ok(&server, RESPONSES, &body).await;
    assert_eq!(
        answer["output"][0]["content"][0]["text"], "{so}",
        "{answer}"
    );
    follows_schema(answer["output"][1]["content"][0]["text"].as_str().unwrap());
    let events = events(&server, body).await;
    let streamed = &events.last().unwrap()["response"];
    assert_eq!(
        without_ids(&streamed["output"]),
        without_ids(&answer["output"])
    );
}

/// The test compares numbers of tokens, one for each byte, to see that the chat template got the same.
#[tokio::test]
async fn results_of_calls_continue_a_stored_response_or_its_items() {
    let server = reasoner();
    let first = ok(&server, RESPONSES, &say(TEXT, json!({}))).await;
    let items = first["output"].as_array().unwrap();
    let results: Vec<Value> = items
        .iter()
        .filter_map(|item| item.get("call_id"))
        .map(
            |id| json!({"type": "function_call_output", "call_id": id, "output": "say: 7 degrees"}),
        )
        .collect();
    assert_eq!(results.len(), 2);
    let ask = |input: Vec<Value>, before: &Value| {
        let body = json!({"input": input, "previous_response_id": before, "temperature": 0});
        say("", body)
    };
    let stored = ok(&server, RESPONSES, &ask(results.clone(), &first["id"])).await;
    assert_eq!(stored["output"][0]["content"][0]["text"], "7 degrees");
    let mut input = vec![json!({"role": "user", "content": format!("say: {TEXT}")})];
    input.extend(items.iter().cloned());
    input.extend(results);
    let sent = ok(&server, RESPONSES, &ask(input, &Value::Null)).await;
    assert_eq!(sent["output"][0]["content"], stored["output"][0]["content"]);
    assert_eq!(
        sent["usage"]["input_tokens"],
        stored["usage"]["input_tokens"]
    );
}

#[tokio::test]
async fn fields_that_coding_agents_send_are_accepted() {
    let server = server(calling(Format::Hermes), true);
    let hints = json!({
        "tool_choice": "auto", "parallel_tool_calls": true, "store": false,
        "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k",
        "reasoning": {"effort": "high", "summary": "auto"}, "service_tier": "priority",
        "text": {"verbosity": "low"}, "safety_identifier": "s", "max_tool_calls": 3,
        "stream_options": {"include_obfuscation": false}, "client_metadata": {"a": "b"},
        "tools": [{"type": "web_search", "external_web_access": false}],
    });
    let answer = ok(&server, RESPONSES, &say("yes", hints)).await;
    assert_eq!(answer["output"][0]["content"][0]["text"], "yes");
    assert_eq!(
        answer["text"],
        json!({"format": {"type": "text"}, "verbosity": "low"})
    );
    assert_eq!(
        answer["reasoning"],
        json!({"effort": "high", "summary": "auto"})
    );
    assert_eq!(answer["tools"], json!([]));
    let chat = json!({"messages": [{"role": "user", "content": "say: yes"}], "temperature": 0,
                      "reasoning_effort": "low", "verbosity": "low", "store": true,
                      "service_tier": "flex", "prompt_cache_key": "k", "safety_identifier": "s"});
    let answer = ok(&server, "/v1/chat/completions", &chat).await;
    assert_eq!(answer["choices"][0]["message"]["content"], "yes");
}
