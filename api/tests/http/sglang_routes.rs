//! SGLang's routes about the model, its tokens and its control.

use std::time::Duration;

use hearth_api::config::HttpConfig;
use hearth_engine::EngineConfig;
use serde_json::{Value, json};

use super::fake::{Behaviour, MODEL, TestServer};
use super::{CHAT, chunks, ok, post};

const GENERATE: &str = "/generate";

async fn get(server: &TestServer, path: &str) -> (u16, String) {
    let response = reqwest::get(format!("{}{path}", server.url)).await.unwrap();
    (response.status().as_u16(), response.text().await.unwrap())
}

async fn get_json(server: &TestServer, path: &str) -> Value {
    let (status, text) = get(server, path).await;
    assert_eq!(status, 200, "{path}: {text}");
    serde_json::from_str(&text).unwrap()
}

#[tokio::test]
async fn the_routes_about_the_model_and_the_load_have_what_the_router_reads() {
    let server = TestServer::plain();
    for path in ["/model_info", "/get_model_info"] {
        let info = get_json(&server, path).await;
        assert_eq!(info["served_model_name"], MODEL);
        assert_eq!(
            (&info["is_generation"], &info["max_model_len"]),
            (&json!(true), &json!(512))
        );
        for key in [
            "model_path",
            "tokenizer_path",
            "model_type",
            "architectures",
        ] {
            assert!(info.get(key).is_some(), "{path} lacks {key}");
        }
    }
    for path in ["/server_info", "/get_server_info"] {
        let info = get_json(&server, path).await;
        assert_eq!((&info["tp_size"], &info["dp_size"]), (&json!(1), &json!(1)));
        assert_eq!(info["disaggregation_mode"], "null");
        // The router ignores the whole answer if one of these fields has another type.
        assert_eq!(
            (&info["model"], &info["served_model_name"]),
            (&json!(MODEL), &json!(MODEL))
        );
        assert_eq!(info["max_total_num_tokens"], 4096);
        assert_eq!(info["internal_states"][0]["kv"]["total"], 4096);
    }
    let load = get_json(&server, "/get_load").await;
    assert_eq!(
        (&load[0]["num_reqs"], &load[0]["num_tokens"]),
        (&json!(0), &json!(0))
    );
    for (path, field) in [
        ("/v1/loads?dp_rank=1", "dp_rank"),
        ("/v1/loads?include=core,speculative", "include"),
        ("/v1/loads?format=prometheus", "format"),
    ] {
        let (status, text) = get(&server, path).await;
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((status, &answer["param"]), (400, &json!(field)), "{answer}");
    }
    let (status, answer) = post(&server, "/flush_cache?timeout=-1", &json!({})).await;
    assert_eq!((status, &answer["param"]), (400, &json!("timeout")));
    assert_eq!(get_json(&server, "/health_generate").await["status"], "ok");
    let loading = TestServer::start_loading(HttpConfig::default());
    for path in ["/model_info", "/get_load", "/health_generate"] {
        assert_eq!(get(&loading, path).await.0, 503, "{path}");
    }
    assert_eq!(flush(&loading, "").await, 503);
}

#[tokio::test]
async fn text_becomes_tokens_and_tokens_text() {
    let server = TestServer::plain();
    for path in ["/tokenize", "/v1/tokenize"] {
        let answer = ok(&server, path, &json!({"model": MODEL, "prompt": "ab"})).await;
        assert_eq!(
            answer,
            json!({"count": 3, "max_model_len": 512, "tokens": [257, 97, 98]})
        );
    }
    for field in ["add_generation_prompt", "chat_template_kwargs"] {
        let mut body = json!({"prompt": "a"});
        body[field] = if field.ends_with("kwargs") {
            json!({})
        } else {
            json!(true)
        };
        let (status, answer) = post(&server, "/tokenize", &body).await;
        assert_eq!(status, 400, "{answer}");
        assert!(answer.to_string().contains(field), "{answer}");
    }
    let long = "a".repeat(1 << 10);
    let (status, answer) = post(&server, "/tokenize", &json!({"prompt": vec![long; 1025]})).await;
    assert_eq!(status, 400, "{answer}");
    assert!(
        answer.to_string().contains("at most 1048576 bytes in all"),
        "{answer}"
    );
    let (status, answer) = post(
        &server,
        "/detokenize",
        &json!({"tokens": vec![97; 1 << 21]}),
    )
    .await;
    assert_eq!(status, 400, "{answer}");
    assert!(
        answer.to_string().contains("at most 1048576 token ids"),
        "{answer}"
    );
    let plain = json!({"prompt": "a", "add_special_tokens": false, "return_token_strs": true});
    let answer = ok(&server, "/tokenize", &plain).await;
    assert_eq!(
        (&answer["tokens"], &answer["token_strs"]),
        (&json!([97]), &json!(["a"]))
    );
    let answer = ok(&server, "/tokenize", &json!({"prompt": ["a", ""]})).await;
    assert_eq!(
        (&answer["tokens"], &answer["count"]),
        (&json!([[257, 97], [257]]), &json!([2, 1]))
    );
    let chat = json!({"messages": [{"role": "user", "content": "hi"}]});
    let answer = ok(&server, "/tokenize", &chat).await;
    let text = "user: hi\nassistant: ";
    assert_eq!(answer["tokens"], json!(text.bytes().collect::<Vec<_>>()));
    for path in ["/detokenize", "/v1/detokenize"] {
        let answer = ok(&server, path, &json!({"tokens": [97, 256, 98]})).await;
        assert_eq!(
            (&answer["text"], &answer["prompt"]),
            (&json!("ab"), &json!("ab"))
        );
    }
    let kept = json!({"tokens": [[97, 256], []], "skip_special_tokens": false});
    assert_eq!(
        ok(&server, "/detokenize", &kept).await["text"],
        json!(["a<eos>", ""])
    );
    for (path, body, field) in [
        ("/tokenize", json!({}), "prompt"),
        ("/tokenize", json!({"prompt": 7}), "prompt"),
        ("/tokenize", json!({"prompt": []}), "prompt"),
        (
            "/tokenize",
            json!({"prompt": "a", "messages": []}),
            "messages",
        ),
        ("/tokenize", json!({"messages": []}), "messages"),
        ("/tokenize", json!({"prompt": "a", "tools": [1]}), "tools"),
        ("/detokenize", json!({}), "tokens"),
        ("/detokenize", json!({"tokens": "a"}), "tokens"),
        ("/detokenize", json!({"tokens": [260]}), "tokens"),
        ("/detokenize", json!({"tokens": [1], "colour": 1}), "colour"),
    ] {
        let (status, answer) = post(&server, path, &body).await;
        assert_eq!(
            (status, &answer["param"]),
            (400, &json!(field)),
            "{body}: {answer}"
        );
    }
}

/// A server whose model would generate for minutes.
fn slow() -> TestServer {
    let behaviour = Behaviour {
        step: Duration::from_millis(3),
        max_model_len: 100_000,
        kv_slots: 100_000,
        endless: true,
        ..Behaviour::default()
    };
    TestServer::start(behaviour, EngineConfig::default(), HttpConfig::default())
}

async fn wait_until_running(server: &TestServer, count: usize) {
    let engine = &server.state.loaded().unwrap().engine;
    for _ in 0..10_000 {
        if engine.stats().running == count {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("never {count} running: {:?}", engine.stats());
}

#[tokio::test]
async fn an_aborted_request_ends_with_what_it_has_and_others_go_on() {
    let server = slow();
    let long = json!({"max_new_tokens": 50_000, "temperature": 0});
    let mut one = json!({"text": "a", "rid": "job-1", "sampling_params": long});
    let mut two = one.clone();
    two["rid"] = json!("job-2");
    one["stream"] = json!(true);
    let chat = json!({
        "model": MODEL, "messages": [{"role": "user", "content": "a"}], "temperature": 0,
    });
    let others = async {
        wait_until_running(&server, 3).await;
        let gone = ok(&server, "/abort_request", &json!({"rid": "nobody"})).await;
        assert_eq!(gone, json!({"aborted": 0}));
        let gone = ok(&server, "/abort_request", &json!({"rid": "job-"})).await;
        assert_eq!(gone, json!({"aborted": 2}));
        wait_until_running(&server, 1).await;
        let gone = ok(&server, "/abort_request", &json!({"abort_all": true})).await;
        assert_eq!(gone, json!({"aborted": 1}));
    };
    let (one, two, three, ()) = tokio::join!(
        chunks(&server, GENERATE, &one),
        ok(&server, GENERATE, &two),
        ok(&server, CHAT, &chat),
        others
    );
    let last = one.last().unwrap();
    for answer in [last, &two] {
        assert_eq!(answer["meta_info"]["finish_reason"]["type"], "abort");
        assert!(!answer["text"].as_str().unwrap().is_empty());
    }
    assert_eq!(three["choices"][0]["finish_reason"], "abort");
    let (status, answer) = post(&server, "/abort_request", &json!({})).await;
    assert_eq!((status, &answer["param"]), (400, &json!("rid")));
    server.wait_until_idle().await;
}

/// The status of a flush by GET, which needs a header that web pages cannot have.
async fn flush(server: &TestServer, query: &str) -> u16 {
    let request = reqwest::Client::new()
        .get(format!("{}/flush_cache{query}", server.url))
        .header("x-requested-with", "test");
    request.send().await.unwrap().status().as_u16()
}

#[tokio::test]
async fn the_cache_is_flushed_when_nothing_runs() {
    let server = slow();
    let body =
        json!({"text": "abcdefgh", "sampling_params": {"max_new_tokens": 4, "temperature": 0}});
    ok(&server, GENERATE, &body).await;
    assert_eq!(
        ok(&server, GENERATE, &body).await["meta_info"]["cached_tokens"],
        8
    );
    server.wait_until_idle().await;
    assert_eq!(flush(&server, "").await, 200);
    assert_eq!(
        ok(&server, GENERATE, &body).await["meta_info"]["cached_tokens"],
        0
    );
    let long = json!({"text": "a", "rid": "long", "sampling_params": {"max_new_tokens": 50_000, "temperature": 0}});
    let while_it_runs = async {
        wait_until_running(&server, 1).await;
        let client = reqwest::Client::new();
        let busy = client
            .post(format!("{}/flush_cache", server.url))
            .send()
            .await
            .unwrap();
        assert_eq!(busy.status(), 400);
        let patient = flush(&server, "?timeout=30");
        let abort = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            ok(&server, "/abort_request", &json!({"rid": "long"})).await
        };
        let (status, _) = tokio::join!(patient, abort);
        assert_eq!(status, 200);
    };
    tokio::join!(ok(&server, GENERATE, &long), while_it_runs);
}

#[tokio::test]
async fn a_pause_holds_requests_and_a_continuation_lets_them_go() {
    let server = slow();
    let body = json!({"text": "a", "sampling_params": {"max_new_tokens": 40, "temperature": 0}});
    let (answer, ()) = tokio::join!(ok(&server, GENERATE, &body), async {
        wait_until_running(&server, 1).await;
        ok(&server, "/pause_generation", &json!({"mode": "in_place"})).await;
        let steps = server.state.loaded().unwrap().engine.stats().steps;
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(server.state.loaded().unwrap().engine.stats().steps, steps);
        ok(&server, "/continue_generation", &json!({})).await;
    });
    assert_eq!(answer["meta_info"]["completion_tokens"], 40);
    // Without a `mode`, running requests are aborted, as in SGLang.
    let long =
        json!({"text": "a", "sampling_params": {"max_new_tokens": 50_000, "temperature": 0}});
    let (answer, ()) = tokio::join!(ok(&server, GENERATE, &long), async {
        wait_until_running(&server, 1).await;
        let client = reqwest::Client::new();
        let url = format!("{}/pause_generation", server.url);
        assert_eq!(client.post(url).send().await.unwrap().status(), 200);
    });
    assert_eq!(answer["meta_info"]["finish_reason"]["type"], "abort");
    ok(
        &server,
        "/continue_generation",
        &json!({"torch_empty_cache": false}),
    )
    .await;
    for (path, body, field) in [
        ("/pause_generation", json!({"mode": "nap"}), "mode"),
        (
            "/continue_generation",
            json!({"torch_empty_cache": true}),
            "torch_empty_cache",
        ),
    ] {
        let (status, answer) = post(&server, path, &body).await;
        assert_eq!((status, &answer["param"]), (400, &json!(field)), "{answer}");
    }
    server.wait_until_idle().await;
}

#[tokio::test]
async fn the_latest_steps_are_shown_as_a_trace() {
    let server = slow();
    let body =
        json!({"text": "abcdefgh", "sampling_params": {"max_new_tokens": 4, "temperature": 0}});
    let answer = ok(&server, GENERATE, &body).await;
    let prompt_tokens = answer["meta_info"]["prompt_tokens"].as_u64().unwrap();
    server.wait_until_idle().await;
    let trace = async || {
        let answer = reqwest::get(format!("{}/debug/trace", server.url)).await;
        let text = answer.unwrap().error_for_status().unwrap().text().await;
        let trace: Value = serde_json::from_str(&text.unwrap()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap().clone();
        let is_step = |event: &Value| event["name"] == "forward" && event["ph"] == "X";
        events.into_iter().filter(is_step).collect::<Vec<_>>()
    };
    // The telemetry thread may be a moment behind the answer.
    let mut steps = trace().await;
    while steps.len() < 4 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        steps = trace().await;
    }
    let prompt = steps.iter().map(|step| &step["args"]["prefill_tokens"]);
    assert_eq!(prompt.filter_map(Value::as_u64).sum::<u64>(), prompt_tokens);
    assert!(steps.iter().all(|step| step["dur"].as_f64() > Some(0.0)));
    // No step ended within the last 0 seconds, and more than a minute is not kept.
    for (seconds, expected) in [
        ("10", 200),
        ("60", 200),
        ("0", 200),
        ("61", 400),
        ("-1", 400),
        ("x", 400),
    ] {
        let url = format!("{}/debug/trace?seconds={seconds}", server.url);
        let answer = reqwest::get(url).await.unwrap();
        assert_eq!(answer.status(), expected, "{seconds}");
        let trace: Value = answer.json().await.unwrap();
        let events = trace["traceEvents"].as_array().into_iter().flatten();
        let forwards = events.filter(|event| event["name"] == "forward").count();
        match seconds {
            "10" | "60" => assert!(forwards >= 4, "{trace}"),
            _ => assert_eq!(forwards, 0, "{trace}"),
        }
    }
}
