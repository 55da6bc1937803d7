//! OpenAI's Responses.

use std::time::{Duration, Instant};

use hearth_api::config::HttpConfig;
use hearth_client::sse_data;
use hearth_engine::EngineConfig;
use serde_json::{Value, json};

use super::fake::{Behaviour, TestServer};
use super::{ok, post};

const RESPONSES: &str = "/v1/responses";

fn text(response: &Value) -> &str {
    response["output"][0]["content"][0]["text"]
        .as_str()
        .unwrap()
}

/// The events of a stream.
pub async fn events(server: &TestServer, mut body: Value) -> Vec<Value> {
    body["stream"] = json!(true);
    let request = reqwest::Client::new().post(format!("{}{RESPONSES}", server.url));
    let answer = request.json(&body).send().await.unwrap();
    let events = sse_data(&answer.bytes().await.unwrap());
    let read = |event: &String| serde_json::from_str(event).unwrap();
    events.iter().map(read).collect()
}

async fn get(server: &TestServer, id: &str) -> (u16, Value) {
    let url = format!("{}{RESPONSES}/{id}", server.url);
    let response = reqwest::get(url).await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

#[tokio::test]
async fn a_response_is_kept_and_the_next_one_goes_on_from_it() {
    let server = TestServer::plain();
    let body = json!({"input": "hi", "instructions": "Spell.", "temperature": 0,
                      "metadata": {"a": "b"}, "max_output_tokens": 3});
    let first = ok(&server, RESPONSES, &body).await;
    assert_eq!(text(&first), "abc");
    assert_eq!(
        (&first["status"], &first["metadata"]),
        (&json!("incomplete"), &json!({"a": "b"}))
    );
    // "system: Spell.\nuser: hi\nassistant: ", with one token for each byte.
    assert_eq!(first["usage"]["input_tokens"], 15 + 9 + 11);
    let id = first["id"].as_str().unwrap();
    assert_eq!(get(&server, id).await, (200, first.clone()));
    let body = json!({"input": [{"role": "user", "content": [{"type": "input_text", "text": "on"}]}],
                      "previous_response_id": id, "temperature": 0});
    let second = ok(&server, RESPONSES, &body).await;
    // Without the instructions: "user: hi\nassistant: abc\nuser: on\nassistant: ".
    assert_eq!(second["usage"]["input_tokens"], 9 + 15 + 9 + 11);
    assert_eq!(second["status"], "completed");
    let url = format!("{}{RESPONSES}/{id}", server.url);
    let deleted = reqwest::Client::new().delete(&url).send().await.unwrap();
    let deleted: Value = deleted.json().await.unwrap();
    assert_eq!(
        deleted,
        json!({"id": id, "object": "response", "deleted": true})
    );
    let (status, answer) = get(&server, id).await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (404, &json!("response_not_found"))
    );
    // The second response has stored the whole conversation itself.
    let body = json!({"input": "x", "previous_response_id": second["id"], "max_output_tokens": 1});
    ok(&server, RESPONSES, &body).await;
}

#[tokio::test]
async fn a_response_that_is_not_to_be_kept_is_not() {
    let server = TestServer::plain();
    let body = json!({"input": "hi", "store": false, "max_output_tokens": 1});
    for stream in [false, true] {
        let mut body = body.clone();
        body["stream"] = json!(stream);
        let request = reqwest::Client::new().post(format!("{}{RESPONSES}", server.url));
        let answer = request
            .json(&body)
            .send()
            .await
            .unwrap()
            .text()
            .await
            .unwrap();
        let id = answer.split("resp_").nth(1).unwrap();
        let id = format!("resp_{}", &id[..32]);
        assert_eq!(get(&server, &id).await.0, 404, "{answer}");
    }
}

#[tokio::test]
async fn a_streams_events_add_up_to_the_response_that_is_kept() {
    let server = TestServer::plain();
    let events = events(&server, json!({"input": "hi", "temperature": 0})).await;
    let numbers: Vec<_> = events
        .iter()
        .map(|e| e["sequence_number"].as_u64().unwrap())
        .collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    let deltas = events
        .iter()
        .filter(|e| e["type"] == "response.output_text.delta");
    let spelled: String = deltas.map(|e| e["delta"].as_str().unwrap()).collect();
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.completed");
    assert_eq!(
        (spelled.as_str(), text(&last["response"])),
        ("abcdefghijklmnopqrstuvwxyz", spelled.as_str())
    );
    let id = last["response"]["id"].as_str().unwrap();
    assert_eq!(get(&server, id).await, (200, last["response"].clone()));
}

#[tokio::test]
async fn a_response_in_the_background_can_be_cancelled_and_stops() {
    let behaviour = Behaviour {
        step: Duration::from_millis(5),
        max_model_len: 100_000,
        kv_slots: 100_000,
        endless: true,
        ..Behaviour::default()
    };
    let server = TestServer::start(behaviour, EngineConfig::default(), HttpConfig::default());
    let body = json!({"input": "hi", "temperature": 0, "background": true});
    let response = ok(&server, RESPONSES, &body).await;
    assert_eq!(
        (&response["status"], &response["output"]),
        (&json!("in_progress"), &json!([]))
    );
    let id = response["id"].as_str().unwrap();
    let engine = server.state.loaded().unwrap().engine.clone();
    let deadline = Instant::now() + Duration::from_secs(30);
    while engine.stats().running == 0 {
        assert!(Instant::now() < deadline, "{:?}", engine.stats());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let body = json!({"input": "x", "previous_response_id": id});
    let (status, refused) = post(&server, RESPONSES, &body).await;
    assert_eq!(
        (status, &refused["error"]["param"]),
        (400, &json!("previous_response_id"))
    );
    let cancelled = ok(&server, &format!("{RESPONSES}/{id}/cancel"), &json!({})).await;
    assert_eq!(cancelled["status"], "cancelled");
    server.wait_until_idle().await;
    assert_eq!(engine.stats().cancelled, 1);
    assert_eq!(get(&server, id).await.1["status"], "cancelled");
}

#[tokio::test]
async fn only_what_runs_in_the_background_can_be_cancelled() {
    let server = TestServer::plain();
    let body = json!({"input": "hi", "max_output_tokens": 1});
    let response = ok(&server, RESPONSES, &body).await;
    let path = format!("{RESPONSES}/{}/cancel", response["id"].as_str().unwrap());
    let (status, answer) = post(&server, &path, &json!({})).await;
    assert_eq!(status, 400, "{answer}");
    let (status, _) = post(&server, "/v1/responses/resp_none/cancel", &json!({})).await;
    assert_eq!(status, 404);
}

#[tokio::test]
async fn what_a_response_cannot_be_asked_for_is_refused_by_name() {
    let server = TestServer::plain();
    let cases = [
        ("input", json!([])),
        (
            "input[0].type",
            json!([{"type": "item_reference", "id": "x"}]),
        ),
        (
            "input[0].call_id",
            json!([{"type": "function_call_output", "output": "x"}]),
        ),
        (
            "input[0].name",
            json!([{"type": "message", "role": "user", "content": "x", "name": "y"}]),
        ),
        (
            "input[0].encrypted_content",
            json!([{"type": "reasoning", "summary": [], "encrypted_content": "x"}]),
        ),
        ("input[0].role", json!([{"role": "tool", "content": "x"}])),
        ("input[0].content", json!([{"role": "user"}])),
        ("max_output_tokens", json!(0)),
        ("temperature", json!(3)),
        ("tools[0].type", json!([{"type": "file_search"}])),
        ("tool_choice", json!("required")),
        ("reasoning.effort", json!({"effort": "much"})),
        ("include", json!(["message.output_text.logprobs"])),
        ("service_tier", json!("gold")),
        ("truncation", json!("auto")),
        (
            "text.format.schema",
            json!({"format": {"type": "json_schema", "name": "x"}}),
        ),
        ("text.format.type", json!({"format": {"type": "xml"}})),
        ("previous_response_id", json!("resp_none")),
    ];
    for (param, value) in cases {
        let mut body = json!({"input": "hi", "max_output_tokens": 1});
        let field = param.split(['.', '[']).next().unwrap();
        body[field] = value;
        let (status, answer) = post(&server, RESPONSES, &body).await;
        let expected = if param == "previous_response_id" {
            404
        } else {
            400
        };
        assert_eq!(status, expected, "{answer}");
        assert_eq!(answer["error"]["param"], param, "{answer}");
    }
    for (field, other) in [("store", json!(false)), ("stream", json!(true))] {
        let mut body = json!({"input": "hi", "background": true});
        body[field] = other;
        let (status, answer) = post(&server, RESPONSES, &body).await;
        assert_eq!((status, &answer["error"]["param"]), (400, &json!(field)));
    }
}
