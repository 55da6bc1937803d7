//! The requests of the routers that people put in front of several servers. The bodies were captured
//! from sglang-router 0.3.2 (its Rust router in regular and in PD mode, and its `--mini-lb`) and from
//! smg 1.13.0, with the model's name `tiny`.

use hearth_api::config::HttpConfig;
use hearth_api::served::Served;
use hearth_engine::EngineConfig;
use serde_json::{Value, json};

use super::fake::{Behaviour, MODEL, TestServer, served};
use super::{CHAT, COMPLETIONS, ok, post};

const GENERATE: &str = "/generate";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";
const EMBEDDINGS: &str = "/v1/embeddings";

/// sglang-router in regular mode.
const REGULAR: &[(&str, &str)] = &[
    (
        GENERATE,
        r#"{"text": "Once", "model": null, "sampling_params": {"max_new_tokens": 8}, "return_text_in_logprobs": false, "stream": false, "log_metrics": true, "return_hidden_states": false, "background": false, "no_logs": false, "return_bytes": false, "return_entropy": false}"#,
    ),
    (
        CHAT,
        r#"{"messages": [{"role": "user", "content": "hi"}], "model": "tiny", "logprobs": false, "max_completion_tokens": 8, "response_format": {"type": "json_object"}, "stream": false, "tool_choice": "none", "tools": [], "no_stop_trim": false, "ignore_eos": false, "continue_final_message": false, "skip_special_tokens": true, "separate_reasoning": true, "stream_reasoning": true, "return_hidden_states": false}"#,
    ),
    (
        COMPLETIONS,
        r#"{"model": "tiny", "prompt": "hi", "max_tokens": 8, "stream": false, "echo": false, "no_stop_trim": false, "ignore_eos": false, "skip_special_tokens": true, "return_hidden_states": false}"#,
    ),
    (EMBEDDINGS, r#"{"model": "tiny", "input": "hi"}"#),
    (
        RESPONSES,
        r#"{"input": "hi", "model": "tiny", "store": true, "stream": null, "temperature": 1.0, "top_p": 1.0, "priority": 0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}"#,
    ),
];

/// sglang-router with `--pd-disaggregation`.
const PAIRED: &[(&str, &str)] = &[
    (
        GENERATE,
        r#"{"text": "Once upon a time", "model": null, "sampling_params": {"temperature": 0.0, "max_new_tokens": 8}, "return_text_in_logprobs": false, "stream": false, "log_metrics": true, "return_hidden_states": false, "background": false, "no_logs": false, "return_bytes": false, "return_entropy": false, "bootstrap_host": "127.0.0.1", "bootstrap_port": 8998, "bootstrap_room": 6298133804765063229}"#,
    ),
    (
        GENERATE,
        r#"{"text": "Once upon a time", "model": null, "sampling_params": {"max_new_tokens": 8}, "return_text_in_logprobs": false, "stream": true, "log_metrics": true, "return_hidden_states": false, "background": false, "no_logs": false, "return_bytes": false, "return_entropy": false, "bootstrap_host": "127.0.0.1", "bootstrap_port": null, "bootstrap_room": 5360201307703414818}"#,
    ),
    (
        GENERATE,
        r#"{"model": null, "input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 8}, "return_logprob": true, "return_text_in_logprobs": false, "stream": false, "log_metrics": true, "return_hidden_states": false, "background": false, "no_logs": false, "return_bytes": false, "return_entropy": false, "bootstrap_host": "127.0.0.1", "bootstrap_port": 8998, "bootstrap_room": 8572658482778618489}"#,
    ),
    (
        CHAT,
        r#"{"messages": [{"role": "user", "content": "hi"}], "model": "tiny", "logprobs": false, "max_completion_tokens": 8, "stream": false, "no_stop_trim": false, "ignore_eos": false, "continue_final_message": false, "skip_special_tokens": true, "separate_reasoning": true, "stream_reasoning": true, "return_hidden_states": false, "bootstrap_host": "127.0.0.1", "bootstrap_port": null, "bootstrap_room": 712224248027523318}"#,
    ),
    (
        CHAT,
        r#"{"messages": [{"role": "user", "content": "hi"}], "model": "tiny", "logprobs": false, "max_completion_tokens": 8, "stream": true, "no_stop_trim": false, "ignore_eos": false, "continue_final_message": false, "skip_special_tokens": true, "separate_reasoning": true, "stream_reasoning": true, "return_hidden_states": false, "bootstrap_host": "127.0.0.1", "bootstrap_port": 8998, "bootstrap_room": 6457509110066130128}"#,
    ),
    (
        COMPLETIONS,
        r#"{"model": "tiny", "prompt": "Once upon", "max_tokens": 8, "stream": false, "echo": false, "no_stop_trim": false, "ignore_eos": false, "skip_special_tokens": true, "return_hidden_states": false, "bootstrap_host": "127.0.0.1", "bootstrap_port": null, "bootstrap_room": 3860808220901247612}"#,
    ),
    (
        COMPLETIONS,
        r#"{"model": "tiny", "prompt": "Once upon", "max_tokens": 8, "n": 2, "stream": false, "echo": false, "no_stop_trim": false, "ignore_eos": false, "skip_special_tokens": true, "return_hidden_states": false, "bootstrap_host": "127.0.0.1", "bootstrap_port": 8998, "bootstrap_room": 5078111582192363206}"#,
    ),
];

/// sglang-router with `--mini-lb`.
const MINI_LB: &[(&str, &str)] = &[
    (
        GENERATE,
        r#"{"text": "x", "sampling_params": {"max_new_tokens": 4}, "bootstrap_host": "127.0.0.1", "bootstrap_port": 8998, "bootstrap_room": 3727650435957947494}"#,
    ),
    (
        GENERATE,
        r#"{"text": ["x", "y"], "sampling_params": {"max_new_tokens": 4}, "bootstrap_host": ["127.0.0.1", "127.0.0.1"], "bootstrap_port": [8998, 8998], "bootstrap_room": [671570608595995858, 6461124250504752768]}"#,
    ),
    (
        CHAT,
        r#"{"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "stream": true, "bootstrap_host": "127.0.0.1", "bootstrap_port": 8998, "bootstrap_room": 1214815948231203222}"#,
    ),
    (
        COMPLETIONS,
        r#"{"model": "tiny", "prompt": "hi", "max_tokens": 8, "bootstrap_host": "127.0.0.1", "bootstrap_port": 8998, "bootstrap_room": 7013573821867571028}"#,
    ),
];

/// smg, which writes `unknown` for a model that the client does not name, with
/// `--pd-disaggregation` and without.
const SMG: &[(&str, &str)] = &[
    (
        CHAT,
        r#"{"messages":[{"role":"user","content":"hi"}],"model":"tiny","logprobs":false,"max_tokens":8,"stream":false,"temperature":0.0,"rid":"mine","bootstrap_host":"127.0.0.1","bootstrap_port":8998,"bootstrap_room":3122142774550767392}"#,
    ),
    (
        CHAT,
        r#"{"messages":[{"role":"user","content":"hi"}],"model":"tiny","logprobs":true,"max_tokens":8,"n":2,"seed":5,"stream":true,"stream_options":{"include_usage":true},"top_logprobs":2,"bootstrap_host":["127.0.0.1","127.0.0.1"],"bootstrap_port":[8998,8998],"bootstrap_room":[6337451872778167939,1963930788264063769]}"#,
    ),
    (
        CHAT,
        r#"{"messages":[{"role":"user","content":"hi"}],"model":"tiny","logprobs":false,"max_tokens":8,"response_format":{"type":"json_object"},"stream":false,"tool_choice":"none","tools":[],"bootstrap_host":"127.0.0.1","bootstrap_port":8998,"bootstrap_room":5139079482961983463}"#,
    ),
    (
        COMPLETIONS,
        r#"{"model":"tiny","prompt":"Once","echo":false,"max_tokens":8,"n":2,"stream":false,"bootstrap_host":"127.0.0.1","bootstrap_port":8998,"bootstrap_room":3997917755680959068}"#,
    ),
    (
        COMPLETIONS,
        r#"{"model":"tiny","prompt":["Once","Upon"],"echo":false,"max_tokens":8,"stream":true,"bootstrap_host":["127.0.0.1","127.0.0.1"],"bootstrap_port":[8998,8998],"bootstrap_room":[2464944090307992132,567724920372556820]}"#,
    ),
    (
        GENERATE,
        r#"{"text":"Once","model":"unknown","sampling_params":{"max_new_tokens":8},"return_logprob":true,"return_text_in_logprobs":false,"stream":true,"log_metrics":true,"background":false,"no_logs":false,"return_bytes":false,"return_entropy":false,"rid":"q","bootstrap_host":"127.0.0.1","bootstrap_port":8998,"bootstrap_room":6590174481044252070}"#,
    ),
    (
        GENERATE,
        r#"{"model":"unknown","input_ids":[1,2],"sampling_params":{"max_new_tokens":8,"n":2},"return_text_in_logprobs":false,"stream":false,"log_metrics":true,"background":false,"no_logs":false,"return_bytes":false,"return_entropy":false,"bootstrap_host":"127.0.0.1","bootstrap_port":8998,"bootstrap_room":2004923892528665538}"#,
    ),
    (
        RESPONSES,
        r#"{"input":"hi","model":"tiny","store":true,"temperature":1.0,"priority":0,"top_k":-1,"min_p":0.0,"repetition_penalty":1.0,"bootstrap_host":"127.0.0.1","bootstrap_port":8998,"bootstrap_room":5478438992120035402}"#,
    ),
    (
        MESSAGES,
        r#"{"model":"tiny","messages":[{"role":"user","content":"hi"}],"max_tokens":8,"bootstrap_host":"127.0.0.1","bootstrap_port":8998,"bootstrap_room":8768501872604853846}"#,
    ),
];

#[tokio::test]
async fn every_captured_request_is_answered() {
    let server = TestServer::start_loading(HttpConfig::default());
    server.state.set_ready(Served {
        id: "tiny".to_owned(),
        ..served(Behaviour::default(), EngineConfig::default())
    });
    for (path, body) in [REGULAR, PAIRED, MINI_LB, SMG].concat() {
        let request = reqwest::Client::new()
            .post(format!("{}{path}", server.url))
            .header("content-type", "application/json")
            .body(body);
        let response = request.send().await.unwrap();
        let status = response.status();
        let answer = response.text().await.unwrap();
        assert_eq!(status, 200, "{path} {body}: {answer}");
        assert!(!answer.contains("error\":{"), "{path} {body}: {answer}");
    }
    server.wait_until_idle().await;
}

#[tokio::test]
async fn rooms_change_no_answer() {
    let server = TestServer::plain();
    let pd = json!({
        "bootstrap_host": "127.0.0.1",
        "bootstrap_port": 8998,
        "bootstrap_room": 9_223_372_036_854_775_807_u64,
        "data_parallel_rank": null,
        "data_parallel_rank_decode": 0,
        "routed_dp_rank": 0,
        "disagg_prefill_dp_rank": null,
    });
    let plain =
        json!({"model": MODEL, "prompt": ["ab", "x"], "n": 2, "max_tokens": 4, "temperature": 0});
    let direct = ok(&server, COMPLETIONS, &plain).await;
    let routed = ok(&server, COMPLETIONS, &with(&plain, &pd)).await;
    assert_eq!(routed["choices"], direct["choices"]);
    let chat = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "n": 2, "temperature": 0});
    let direct = ok(&server, CHAT, &chat).await;
    let routed = ok(&server, CHAT, &with(&chat, &pd)).await;
    assert_eq!(routed["choices"], direct["choices"]);
}

#[tokio::test]
async fn a_room_that_cannot_be_is_refused_on_every_route() {
    let server = TestServer::plain();
    let sampling = json!({"max_new_tokens": 2});
    let routes = [
        (GENERATE, json!({"text": "a", "sampling_params": sampling})),
        (
            CHAT,
            json!({"messages": [{"role": "user", "content": "a"}]}),
        ),
        (COMPLETIONS, json!({"prompt": "a"})),
        (RESPONSES, json!({"input": "a"})),
        (
            MESSAGES,
            json!({"model": MODEL, "messages": [{"role": "user", "content": "a"}], "max_tokens": 2}),
        ),
    ];
    for (path, body) in &routes {
        for (fields, field, says) in [
            (
                json!({"bootstrap_room": 1}),
                "bootstrap_host",
                "must be given",
            ),
            (
                json!({"bootstrap_host": "h"}),
                "bootstrap_room",
                "must be given",
            ),
            (
                json!({"bootstrap_host": "h", "bootstrap_room": 1, "bootstrap_port": 65536}),
                "bootstrap_port",
                "between 0 and 65535, got 65536",
            ),
            (
                json!({"bootstrap_host": "h", "bootstrap_room": [1, 2]}),
                "bootstrap_room",
                "got a list of 2",
            ),
        ] {
            let (status, answer) = post(&server, path, &with(body, &fields)).await;
            assert_eq!(status, 400, "{path} {fields}: {answer}");
            let message = answer["error"]["message"].as_str().unwrap();
            assert!(message.contains(field), "{path} {fields}: {answer}");
            assert!(message.contains(says), "{path} {fields}: {answer}");
        }
    }
    for (path, body) in &routes[..3] {
        for field in [
            "data_parallel_rank",
            "data_parallel_rank_decode",
            "routed_dp_rank",
            "disagg_prefill_dp_rank",
        ] {
            let (status, answer) = post(&server, path, &with(body, &json!({field: 1}))).await;
            assert_eq!(status, 400, "{path}: {answer}");
            let message = answer["error"]["message"].as_str().unwrap();
            assert!(message.contains(field), "{answer}");
            assert!(
                message.contains("null or 0, the only rank here, got 1"),
                "{answer}"
            );
        }
        let (status, answer) = post(
            &server,
            path,
            &with(body, &json!({"return_hidden_states": true})),
        )
        .await;
        assert_eq!(
            (status, &answer["error"]["param"]),
            (400, &json!("return_hidden_states"))
        );
    }
}

#[tokio::test]
async fn unknown_is_the_served_model_in_requests_and_nowhere_else() {
    let server = TestServer::plain();
    for model in [json!("unknown"), json!(null), json!(MODEL)] {
        let body = json!({"model": model, "prompt": "a", "max_tokens": 2});
        let answer = ok(&server, COMPLETIONS, &body).await;
        assert_eq!(answer["model"], MODEL, "{model}");
    }
    let body = json!({"model": "Unknown", "prompt": "a", "max_tokens": 2});
    assert_eq!(post(&server, COMPLETIONS, &body).await.0, 404);
    let card = reqwest::get(format!("{}/v1/models/unknown", server.url)).await;
    assert_eq!(card.unwrap().status(), 404);
}

/// smg looks here first for the API that a server speaks. Otherwise `/version` makes it vLLM's.
#[tokio::test]
async fn the_model_card_says_whose_api_it_is() {
    let server = TestServer::plain();
    let models = reqwest::get(format!("{}/v1/models", server.url)).await;
    let models: Value = models.unwrap().json().await.unwrap();
    assert_eq!(models["data"][0]["owned_by"], "sglang");
    let version = reqwest::get(format!("{}/version", server.url)).await;
    assert_eq!(version.unwrap().status(), 200);
}

#[tokio::test]
async fn a_rid_names_the_answer_and_the_request_that_is_aborted() {
    let behaviour = Behaviour {
        step: std::time::Duration::from_millis(2),
        max_model_len: 4096,
        endless: true,
        ..Behaviour::default()
    };
    let server = TestServer::start(behaviour, EngineConfig::default(), HttpConfig::default());
    let messages = json!([{"role": "user", "content": "hi"}]);
    let short = json!({"messages": messages, "max_tokens": 2, "rid": "mine"});
    assert_eq!(ok(&server, CHAT, &short).await["id"], "mine");
    let batch = |rid| json!({"prompt": ["a", "b"], "max_tokens": 2, "rid": rid});
    let answer = ok(&server, COMPLETIONS, &batch(json!(["one", "two"]))).await;
    assert_eq!(answer["id"], "one");
    let texts = answer["choices"].as_array().unwrap().iter();
    assert_eq!(
        texts
            .map(|choice| choice["text"].clone())
            .collect::<Vec<_>>(),
        ["bc", "cd"]
    );
    let answer = ok(&server, COMPLETIONS, &batch(json!("job"))).await;
    assert_eq!(answer["id"], "job_0");
    for (path, body, says) in [
        (
            CHAT,
            json!({"messages": messages, "rid": ["a", "b"]}),
            "each of 1 prompts",
        ),
        (
            COMPLETIONS,
            batch(json!(["a", "a"])),
            "a list of names that differ",
        ),
        (
            COMPLETIONS,
            json!({"prompt": "a", "rid": ""}),
            "between 1 and 128",
        ),
    ] {
        let (status, answer) = post(&server, path, &body).await;
        assert_eq!(
            (status, &answer["error"]["param"]),
            (400, &json!("rid")),
            "{answer}"
        );
        assert!(answer.to_string().contains(says), "{answer}");
    }
    let long = json!({
        "prompt": ["a", "b"], "max_tokens": 2000, "temperature": 0, "rid": ["left", "right"],
    });
    let running = ok(&server, COMPLETIONS, &long);
    let aborting = async {
        while server.state.loaded().unwrap().engine.stats().running < 2 {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        ok(&server, "/abort_request", &json!({"rid": "left"})).await
    };
    let (answer, aborted) = tokio::join!(running, aborting);
    assert_eq!(aborted["aborted"], 1);
    let reason = |choice: usize| answer["choices"][choice]["finish_reason"].clone();
    assert_eq!((reason(0), reason(1)), (json!("abort"), json!("length")));
}

/// `body` with `fields` in addition.
fn with(body: &Value, fields: &Value) -> Value {
    let mut body = body.clone();
    let fields = fields.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(fields);
    body
}
