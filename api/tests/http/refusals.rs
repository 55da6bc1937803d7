//! Every refusal names the field, its bound and the value.

use serde_json::{Value, json};

use super::fake::{Behaviour, MODEL, TestServer};
use super::{CHAT, COMPLETIONS, ok, post};
use hearth_api::config::HttpConfig;
use hearth_engine::EngineConfig;

pub fn completion(field: &str, value: Value) -> Value {
    let mut body = json!({"model": MODEL, "prompt": "a"});
    body[field] = value;
    body
}

pub fn chat(field: &str, value: Value) -> Value {
    let mut body = json!({"model": MODEL, "messages": [{"role": "user", "content": "a"}]});
    body[field] = value;
    body
}

/// Posts `body`, which must be refused with a 400 about `param` whose message contains `words`.
pub async fn refused(server: &TestServer, path: &str, body: Value, param: &str, words: &[&str]) {
    let (status, answer) = post(server, path, &body).await;
    let error = &answer["error"];
    assert_eq!(status, 400, "{body}: {answer}");
    assert_eq!(error["param"], param, "{body}: {answer}");
    assert_eq!(error["type"], "invalid_request_error", "{answer}");
    let message = error["message"].as_str().unwrap();
    for word in words {
        assert!(message.contains(word), "{body}: {message:?} lacks {word:?}");
    }
}

#[tokio::test]
async fn every_sampling_field_is_held_to_its_bound() {
    let server = TestServer::plain();
    let cases: [(&str, Value, &[&str]); 39] = [
        ("max_tokens", json!(0), &["at least 1", "0"]),
        ("max_tokens", json!(-3), &["at least 1", "-3"]),
        ("max_tokens", json!(1e30), &["floating point", "an integer"]),
        (
            "max_tokens",
            json!("many"),
            &["string \"many\"", "an integer"],
        ),
        ("min_tokens", json!(-1), &["at least 0", "-1"]),
        ("min_tokens", json!(17), &["max_tokens (16)", "17"]),
        ("temperature", json!(-0.5), &["between 0 and 2", "-0.5"]),
        ("temperature", json!(2.5), &["between 0 and 2", "2.5"]),
        ("temperature", json!("hot"), &["string \"hot\"", "a number"]),
        ("temperature", json!([1]), &["list", "a number"]),
        ("temperature", json!(-1e308), &["between 0 and 2", "-1e308"]),
        ("temperature", json!(1e308), &["between 0 and 2", "1e308"]),
        ("top_p", json!(1e308), &["above 0 and at most 1", "1e308"]),
        ("min_p", json!(1e308), &["between 0 and 1", "1e308"]),
        (
            "repetition_penalty",
            json!(1e308),
            &["above 0 and at most 3.4028235e38", "1e308"],
        ),
        (
            "presence_penalty",
            json!(-1e308),
            &["between -2 and 2", "-1e308"],
        ),
        (
            "frequency_penalty",
            json!(1e308),
            &["between -2 and 2", "1e308"],
        ),
        (
            "logit_bias",
            json!({"1": 1e200}),
            &["between -100 and 100", "1e200"],
        ),
        ("top_p", json!(0), &["above 0 and at most 1", "0"]),
        ("top_p", json!(1.5), &["above 0 and at most 1", "1.5"]),
        ("top_k", json!(-2), &["-1", "-2"]),
        ("min_p", json!(1.1), &["between 0 and 1", "1.1"]),
        ("repetition_penalty", json!(0), &["above 0", "0"]),
        ("presence_penalty", json!(3), &["between -2 and 2", "3"]),
        ("frequency_penalty", json!(-3), &["between -2 and 2", "-3"]),
        ("logit_bias", json!({"a": 1}), &["token ids", "\"a\""]),
        (
            "logit_bias",
            json!({"999": 1}),
            &["vocabulary size (260)", "999"],
        ),
        (
            "logit_bias",
            json!({"1": 101}),
            &["between -100 and 100", "101"],
        ),
        ("stop_token_ids", json!([-1]), &["token ids", "-1"]),
        (
            "stop_token_ids",
            json!([260]),
            &["vocabulary size (260)", "260"],
        ),
        ("seed", json!(1.5), &["floating point `1.5`", "an integer"]),
        ("n", json!(0), &["between 1 and 128", "0"]),
        ("n", json!(129), &["between 1 and 128", "129"]),
        ("stop", json!(["a"; 17].to_vec()), &["at most 16", "17"]),
        (
            "stop",
            json!(7),
            &["integer `7`", "a string or a list of strings"],
        ),
        (
            "stop[1]",
            json!(["a", ""]),
            &["between 1 and 1024", "0 bytes"],
        ),
        ("stream", json!("yes"), &["string \"yes\"", "boolean"]),
        (
            "stream_options",
            json!({"include_usage": true}),
            &["unless `stream` is true"],
        ),
        ("user", json!(7), &["integer `7`", "a string"]),
    ];
    for (param, value, words) in cases {
        let field = param.split('[').next().unwrap();
        for (path, body) in [
            (COMPLETIONS, completion(field, value.clone())),
            (CHAT, chat(field, value.clone())),
        ] {
            // A chat's default is the rest of the context: no bound for 17 tokens.
            if path == CHAT && (field, &value) == ("min_tokens", &json!(17)) {
                continue;
            }
            refused(&server, path, body, param, words).await;
        }
    }
    server.wait_until_idle().await;
}

#[tokio::test]
async fn the_fields_of_one_route_are_held_to_their_bounds() {
    let server = TestServer::plain();
    let chats: [(&str, Value, &[&str]); 9] = [
        ("messages", json!([]), &["at least 1 message", "0 messages"]),
        ("messages", json!("hi"), &["string \"hi\"", "a list"]),
        (
            "messages[0]",
            json!([["user", "a"]]),
            &["list", "an object"],
        ),
        (
            "messages[0].role",
            json!([{"role": "cat", "content": "a"}]),
            &["assistant", "\"cat\""],
        ),
        (
            "messages[0].content",
            json!([{"role": "user", "content": null}]),
            &["a string", "null"],
        ),
        (
            "messages[0].content",
            json!([{"role": "user", "content": 5}]),
            &["integer `5`"],
        ),
        (
            "messages[0].colour",
            json!([{"role": "user", "content": "a", "colour": 1}]),
            &["colour"],
        ),
        (
            "top_logprobs",
            json!(3),
            &["unless `logprobs` is true", "3"],
        ),
        ("max_completion_tokens", json!(0), &["at least 1", "0"]),
    ];
    for (param, value, words) in chats {
        let field = param.split('[').next().unwrap();
        refused(&server, CHAT, chat(field, value), param, words).await;
    }
    let texts: [(&str, Value, &[&str]); 7] = [
        ("prompt", json!([]), &["at least 1 prompt", "empty list"]),
        (
            "prompt[1]",
            json!([[1], []]),
            &["at least 1 token", "0 tokens"],
        ),
        ("prompt", json!([260]), &["below 260", "260"]),
        ("prompt", json!({}), &["object", "a list of token ids"]),
        ("logprobs", json!(21), &["between 0 and 20", "21"]),
        ("logprobs", json!(true), &["boolean `true`", "an integer"]),
        ("best_of", json!(2), &["equal to `n` (1)", "2"]),
    ];
    for (param, value, words) in texts {
        let field = param.split('[').next().unwrap();
        refused(&server, COMPLETIONS, completion(field, value), param, words).await;
    }
    let mut both = chat("max_tokens", json!(3));
    both["max_completion_tokens"] = json!(4);
    refused(
        &server,
        CHAT,
        both,
        "max_tokens",
        &["`max_completion_tokens` (4)", "3"],
    )
    .await;
    let mut many = chat("logprobs", json!(true));
    many["top_logprobs"] = json!(21);
    refused(
        &server,
        CHAT,
        many,
        "top_logprobs",
        &["between 0 and 20", "21"],
    )
    .await;
}

#[tokio::test]
async fn what_is_not_implemented_and_what_is_not_known_is_refused_by_name() {
    let server = TestServer::plain();
    for (field, value) in [
        ("functions", json!([{}])),
        ("audio", json!({})),
        ("modalities", json!(["audio"])),
        ("web_search_options", json!({})),
    ] {
        refused(
            &server,
            CHAT,
            chat(field, value),
            field,
            &[field, "not supported"],
        )
        .await;
    }
    refused(
        &server,
        COMPLETIONS,
        completion("suffix", json!("x")),
        "suffix",
        &["suffix"],
    )
    .await;
    for path in [CHAT, COMPLETIONS] {
        let body = if path == CHAT {
            chat("tempreature", json!(1))
        } else {
            completion("x", json!(1))
        };
        let field = if path == CHAT { "tempreature" } else { "x" };
        let (_, answer) = post(&server, path, &body).await;
        assert_eq!(answer["error"]["code"], "unknown_parameter");
        refused(&server, path, body, field, &[field]).await;
    }
}

#[tokio::test]
async fn a_missing_field_is_named() {
    let server = TestServer::plain();
    for (path, field) in [(CHAT, "messages"), (COMPLETIONS, "prompt")] {
        let (status, answer) = post(&server, path, &json!({"model": MODEL})).await;
        let message = answer["error"]["message"].as_str().unwrap();
        assert_eq!(status, 400);
        assert!(
            message.contains(&format!("missing field `{field}`")),
            "{message}"
        );
        assert_eq!(answer["error"]["param"], field, "{answer}");
        assert_eq!(
            answer["error"]["code"], "missing_required_parameter",
            "{answer}"
        );
    }
}

#[tokio::test]
async fn the_templates_own_refusal_is_passed_on() {
    let server = TestServer::plain();
    let messages = json!([{"role": "user", "content": "unspeakable"}]);
    refused(
        &server,
        CHAT,
        chat("messages", messages),
        "messages",
        &["refused", "unspeakable"],
    )
    .await;
}

#[tokio::test]
async fn an_unknown_model_is_404_with_the_name_of_the_known_one() {
    let server = TestServer::plain();
    for body in [chat("model", json!("gpt-4")), chat("model", json!(""))] {
        let (status, answer) = post(&server, CHAT, &body).await;
        assert_eq!(
            (status, &answer["error"]["code"]),
            (404, &json!("model_not_found"))
        );
        assert!(
            answer["error"]["message"]
                .as_str()
                .unwrap()
                .contains("\"fake\""),
            "{answer}"
        );
    }
    ok(
        &server,
        CHAT,
        &json!({"messages": [{"role": "user", "content": "a"}]}),
    )
    .await;
}

#[tokio::test]
async fn prompts_and_outputs_beyond_the_context_say_how_much_there_is() {
    let server = TestServer::plain();
    let long = completion("prompt", json!("a".repeat(600)));
    refused(
        &server,
        COMPLETIONS,
        long,
        "prompt",
        &["601 tokens", "512", "511"],
    )
    .await;
    let ids = completion("prompt", json!(vec![97; 512]));
    refused(&server, COMPLETIONS, ids, "prompt", &["512 tokens", "511"]).await;
    let message = json!([{"role": "user", "content": "a".repeat(600)}]);
    refused(
        &server,
        CHAT,
        chat("messages", message),
        "messages",
        &["512"],
    )
    .await;
    let greedy = completion("max_tokens", json!(511));
    refused(
        &server,
        COMPLETIONS,
        greedy,
        "max_tokens",
        &["at most 510", "511"],
    )
    .await;
    let (_, answer) = post(&server, CHAT, &chat("max_tokens", json!(1_000_000))).await;
    assert_eq!(answer["error"]["code"], "context_length_exceeded");
    let fits = completion("max_tokens", json!(510));
    ok(&server, COMPLETIONS, &fits).await;
}

#[tokio::test]
async fn a_body_of_10_mb_is_refused_at_once_and_disturbs_nobody() {
    let server = TestServer::plain();
    let huge = completion("prompt", json!("a".repeat(10 << 20)));
    let started = std::time::Instant::now();
    let refusal = refused(
        &server,
        COMPLETIONS,
        huge,
        "prompt",
        &["10485760 bytes", "3584"],
    );
    let mut small = completion("max_tokens", json!(3));
    small["temperature"] = json!(0);
    let ((), answer) = tokio::join!(refusal, ok(&server, COMPLETIONS, &small));
    assert_eq!(answer["choices"][0]["text"], "bcd");
    assert!(started.elapsed().as_secs() < 60, "{:?}", started.elapsed());
    let over = completion("prompt", json!("a".repeat(17 << 20)));
    let (status, answer) = post(&server, COMPLETIONS, &over).await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (413, &json!("body_too_large"))
    );
    assert!(
        answer["error"]["message"]
            .as_str()
            .unwrap()
            .contains("16777216"),
        "{answer}"
    );
}

#[tokio::test]
async fn a_top_p_above_zero_stays_above_zero() {
    let server = TestServer::plain();
    let body = completion("top_p", json!(1e-320));
    super::ok(&server, COMPLETIONS, &body).await;
}

#[tokio::test]
async fn unknown_routes_and_methods_are_json_too() {
    let server = TestServer::plain();
    let get = async |path: &str| {
        let response = reqwest::get(format!("{}{path}", server.url)).await.unwrap();
        (
            response.status().as_u16(),
            response.json::<Value>().await.unwrap(),
        )
    };
    let (status, answer) = get("/v2/nothing").await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (404, &json!("not_found"))
    );
    assert!(
        answer["error"]["message"]
            .as_str()
            .unwrap()
            .contains("/v2/nothing")
    );
    let (status, answer) = get(CHAT).await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (405, &json!("method_not_allowed"))
    );
    let health = format!("{}/health", server.url);
    let response = reqwest::Client::new().post(&health).send().await.unwrap();
    assert_eq!(
        (response.status(), &response.headers()["allow"]),
        (405.try_into().unwrap(), &"GET, HEAD".parse().unwrap())
    );
    assert_eq!(
        reqwest::Client::new()
            .head(&health)
            .send()
            .await
            .unwrap()
            .status(),
        200
    );
    let (status, answer) = get("/v1/models/other").await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (404, &json!("model_not_found"))
    );
}

#[tokio::test]
async fn a_full_queue_is_503_with_retry_after_and_takes_no_part_of_a_request() {
    let behaviour = Behaviour {
        step: std::time::Duration::from_millis(20),
        ..Behaviour::default()
    };
    let engine = EngineConfig {
        max_queue: 8,
        max_running: 1,
        ..EngineConfig::default()
    };
    let server = TestServer::start(behaviour, engine, HttpConfig::default());
    let mut never = completion("n", json!(9));
    never["stream"] = json!(true);
    refused(&server, COMPLETIONS, never, "n", &["at most 8", "got 9"]).await;
    let mut busy = completion("n", json!(8));
    busy["stream"] = json!(true);
    let client = hearth_client::Client::new(&server.url).unwrap();
    let events = client.stream(COMPLETIONS, &busy).await.unwrap();
    let body = completion("n", json!(4));
    let request = reqwest::Client::new()
        .post(format!("{}{COMPLETIONS}", server.url))
        .json(&body);
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 503);
    assert_eq!(response.headers()["retry-after"], "1");
    let answer: Value = response.json().await.unwrap();
    assert_eq!(answer["error"]["code"], "queue_full");
    assert!(
        answer["error"]["message"].as_str().unwrap().contains('8'),
        "{answer}"
    );
    drop(events);
    server.wait_until_idle().await;
    ok(&server, COMPLETIONS, &completion("max_tokens", json!(1))).await;
}

#[tokio::test]
async fn a_crowd_over_the_limit_is_served_as_far_as_it_fits_and_the_rest_told_to_come_back() {
    let behaviour = Behaviour {
        step: std::time::Duration::from_millis(2),
        ..Behaviour::default()
    };
    let engine = EngineConfig {
        max_queue: 16,
        max_running: 8,
        ..EngineConfig::default()
    };
    let server = TestServer::start(behaviour, engine, HttpConfig::default());
    let client = reqwest::Client::new();
    let requests = (0..300).map(|_| {
        let body = completion("max_tokens", json!(4));
        client
            .post(format!("{}{COMPLETIONS}", server.url))
            .json(&body)
            .send()
    });
    let answers = futures_util::future::join_all(requests).await;
    let statuses: Vec<u16> = answers
        .iter()
        .map(|answer| answer.as_ref().unwrap().status().as_u16())
        .collect();
    let count = |status| statuses.iter().filter(|&&given| given == status).count();
    assert_eq!(count(200) + count(503), 300, "{statuses:?}");
    assert!(count(200) >= 24 && count(503) > 0, "{} served", count(200));
    server.wait_until_idle().await;
    ok(&server, COMPLETIONS, &completion("max_tokens", json!(1))).await;
}
