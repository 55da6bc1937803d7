//! Readiness, disconnects, faults and shutdown.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use actix_web::web::Data;
use hearth_api::config::HttpConfig;
use hearth_api::served::Served;
use hearth_api::server;
use hearth_api::state::AppState;
use hearth_client::{Client, ClientError};
use hearth_engine::EngineConfig;
use hearth_otel::Telemetry;
use serde_json::{Value, json};

use super::fake::{Behaviour, MODEL, POISON, TestServer, served};
use super::{CHAT, COMPLETIONS, ok, post};

/// A server whose model would generate for minutes.
fn slow() -> TestServer {
    let behaviour = Behaviour {
        step: Duration::from_millis(5),
        max_model_len: 100_000,
        kv_slots: 100_000,
        endless: true,
        ..Behaviour::default()
    };
    TestServer::start(behaviour, EngineConfig::default(), HttpConfig::default())
}

fn endless(stream: bool) -> Value {
    json!({"model": MODEL, "prompt": "a", "max_tokens": 90_000, "stream": stream})
}

async fn get(server: &TestServer, path: &str) -> (u16, Value) {
    let response = reqwest::get(format!("{}{path}", server.url)).await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

async fn wait_until_running(server: &TestServer, count: usize) {
    let engine = &server.state.loaded().unwrap().engine;
    let deadline = Instant::now() + Duration::from_secs(30);
    while engine.stats().running != count {
        assert!(Instant::now() < deadline, "{:?}", engine.stats());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn a_lost_device_turns_health_and_refuses_requests() {
    let server = slow();
    assert_eq!(get(&server, "/health").await.0, 200);
    let lost = &server.state.loaded().unwrap().lost;
    lost.store(true, std::sync::atomic::Ordering::Relaxed);
    let (status, answer) = get(&server, "/health").await;
    assert_eq!((status, &answer["status"]), (503, &json!("device_lost")));
    let code = json!("device_lost");
    let (status, answer) = get(&server, "/ready").await;
    assert_eq!((status, &answer["error"]["code"]), (503, &code));
    let (status, answer) = post(&server, COMPLETIONS, &endless(false)).await;
    assert_eq!((status, &answer["error"]["code"]), (503, &code));
    lost.store(false, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(get(&server, "/health").await.0, 200);
    assert_eq!(get(&server, "/ready").await.0, 200);
}

#[tokio::test]
async fn what_runs_when_the_device_goes_ends_with_503() {
    let server = TestServer::plain();
    let served = server.state.loaded().unwrap();
    let paused = served.engine.pause(hearth_engine::PauseMode::InPlace);
    paused.wait().await.unwrap();
    let doomed = json!({"model": MODEL, "prompt": [POISON], "max_tokens": 3});
    let (answer, ()) = tokio::join!(post(&server, COMPLETIONS, &doomed), async {
        while served.engine.stats().waiting == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        served
            .lost
            .store(true, std::sync::atomic::Ordering::Relaxed);
        served.engine.resume().wait().await.unwrap();
    });
    let (status, answer) = answer;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (503, &json!("device_lost"))
    );
}

#[tokio::test]
async fn ready_is_503_until_the_model_is_there_and_health_is_not() {
    let server = TestServer::start_loading(HttpConfig::default());
    assert_eq!(get(&server, "/health").await.0, 200);
    for path in ["/ready", "/v1/models"] {
        let (status, answer) = get(&server, path).await;
        assert_eq!(
            (status, &answer["error"]["code"]),
            (503, &json!("model_loading"))
        );
    }
    let (status, answer) = post(&server, CHAT, &json!({"messages": []})).await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (503, &json!("model_loading"))
    );
    server
        .state
        .set_ready(served(Behaviour::default(), EngineConfig::default()));
    assert_eq!(
        get(&server, "/ready").await,
        (200, json!({"status": "ready", "model": MODEL}))
    );
    assert_eq!(
        get(&server, "/version").await.1,
        json!({"version": env!("CARGO_PKG_VERSION")})
    );
}

#[tokio::test]
async fn models_and_server_info_say_what_is_served() {
    let config = HttpConfig {
        shown: json!({"max_queue": 512}),
        ..HttpConfig::default()
    };
    let server = TestServer::start(Behaviour::default(), EngineConfig::default(), config);
    let (_, models) = get(&server, "/v1/models").await;
    assert_eq!(models["data"][0]["id"], MODEL);
    assert_eq!(models["data"][0]["max_model_len"], 512);
    assert_eq!(get(&server, "/v1/models/fake").await.1, models["data"][0]);
    ok(&server, COMPLETIONS, &json!({"prompt": "a"})).await;
    server.wait_until_idle().await;
    let (_, info) = get(&server, "/server_info").await;
    let state = &info["internal_states"][0];
    let kv = |key: &str| state["kv"][key].as_u64().unwrap();
    assert_eq!(kv("free") + kv("cached") + kv("held"), kv("total"));
    assert_eq!(
        (state["running"].as_u64(), state["finished"].as_u64()),
        (Some(0), Some(1))
    );
    assert_eq!(info["config"]["max_queue"], 512);
}

#[tokio::test]
async fn each_name_of_the_model_may_be_asked_for_and_answers_have_the_first() {
    let server = TestServer::start_loading(HttpConfig::default());
    server.state.set_ready(Served {
        aliases: vec!["gpt-x".to_owned()],
        ..served(Behaviour::default(), EngineConfig::default())
    });
    let (_, models) = get(&server, "/v1/models").await;
    let ids: Vec<&Value> = models["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| &m["id"])
        .collect();
    assert_eq!(ids, [MODEL, "gpt-x"]);
    assert_eq!(get(&server, "/v1/models/gpt-x").await.1, models["data"][1]);
    for name in [MODEL, "gpt-x"] {
        let answer = ok(&server, COMPLETIONS, &json!({"model": name, "prompt": "a"})).await;
        assert_eq!(answer["model"], MODEL);
    }
    let body = json!({"model": "gpt-y", "prompt": "a"});
    let (status, refusal) = post(&server, COMPLETIONS, &body).await;
    assert_eq!(status, 404);
    let message = refusal["error"]["message"].as_str().unwrap();
    for name in [MODEL, "gpt-x", "gpt-y"] {
        assert!(message.contains(&format!("\"{name}\"")), "{message}");
    }
}

#[tokio::test]
async fn a_server_whose_engine_is_gone_is_not_ready() {
    let server = TestServer::plain();
    assert_eq!(get(&server, "/ready").await.0, 200);
    let engine = server.state.loaded().unwrap().engine.clone();
    tokio::task::spawn_blocking(move || engine.shutdown(Duration::ZERO))
        .await
        .unwrap();
    let (status, answer) = get(&server, "/ready").await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (503, &json!("engine_stopped"))
    );
    let (status, answer) = post(&server, COMPLETIONS, &json!({"prompt": "a"})).await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (503, &json!("engine_stopped"))
    );
    assert_eq!(get(&server, "/health").await.0, 200);
}

#[tokio::test]
async fn the_request_id_comes_back_or_is_made() {
    let server = TestServer::plain();
    let id = async |given: Option<&str>| {
        let mut request = reqwest::Client::new().get(format!("{}/health", server.url));
        if let Some(given) = given {
            request = request.header("x-request-id", given);
        }
        let response = request.send().await.unwrap();
        response.headers()["x-request-id"]
            .to_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(id(Some("abc-123")).await, "abc-123");
    assert_eq!(id(None).await.len(), 32);
    assert_eq!(id(Some("two words")).await.len(), 32);
    assert_eq!(id(Some(&"x".repeat(129))).await.len(), 32);
}

#[tokio::test]
async fn a_client_that_leaves_a_stream_cancels_its_request() {
    let server = slow();
    let client = Client::new(&server.url).unwrap();
    let mut events = client.stream(COMPLETIONS, &endless(true)).await.unwrap();
    assert!(events.next().await.unwrap().is_some());
    wait_until_running(&server, 1).await;
    drop(events);
    server.wait_until_idle().await;
    assert_eq!(server.state.loaded().unwrap().engine.stats().cancelled, 1);
}

#[tokio::test]
async fn a_client_that_leaves_without_a_stream_cancels_its_request_too() {
    let server = slow();
    let url = format!("{}{COMPLETIONS}", server.url);
    let request = reqwest::Client::new()
        .post(url)
        .json(&endless(false))
        .send();
    let request = tokio::spawn(request);
    wait_until_running(&server, 1).await;
    request.abort();
    server.wait_until_idle().await;
    assert_eq!(server.state.loaded().unwrap().engine.stats().cancelled, 1);
}

#[tokio::test]
async fn a_half_closed_socket_counts_as_gone() {
    let server = slow();
    let body = endless(false).to_string();
    let mut socket = TcpStream::connect(server.address()).unwrap();
    write!(
        socket,
        "POST {COMPLETIONS} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    wait_until_running(&server, 1).await;
    socket.shutdown(Shutdown::Write).unwrap();
    server.wait_until_idle().await;
    assert_eq!(server.state.loaded().unwrap().engine.stats().cancelled, 1);
}

#[tokio::test]
async fn a_client_that_leaves_within_its_body_leaves_nothing_behind() {
    let server = TestServer::plain();
    let mut socket = TcpStream::connect(server.address()).unwrap();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{";
    socket.write_all(head.as_bytes()).unwrap();
    socket.shutdown(Shutdown::Both).unwrap();
    ok(&server, COMPLETIONS, &json!({"prompt": "a"})).await;
    server.wait_until_idle().await;
}

#[tokio::test]
async fn rubbish_on_the_socket_is_400_and_the_next_client_is_served() {
    let server = TestServer::plain();
    let mut socket = TcpStream::connect(server.address()).unwrap();
    socket.write_all(b"\x16\x03\x01 not http\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).unwrap();
    assert!(
        answer.starts_with(b"HTTP/1.1 400"),
        "{}",
        String::from_utf8_lossy(&answer)
    );
    ok(&server, COMPLETIONS, &json!({"prompt": "a"})).await;
}

#[tokio::test]
async fn one_client_of_many_leaving_disturbs_no_other() {
    let server = slow();
    let client = Client::new(&server.url).unwrap();
    let mut leavers = Vec::new();
    for _ in 0..8 {
        leavers.push(client.stream(COMPLETIONS, &endless(true)).await.unwrap());
    }
    let stays = json!({"prompt": "a", "max_tokens": 24, "temperature": 0});
    let (answer, ()) = tokio::join!(ok(&server, COMPLETIONS, &stays), async move {
        for events in leavers {
            tokio::time::sleep(Duration::from_millis(7)).await;
            drop(events);
        }
    });
    assert_eq!(answer["choices"][0]["text"], "bcdefghijklmnopqrstuvwxy");
    server.wait_until_idle().await;
}

#[tokio::test]
async fn a_failing_model_is_500_or_an_error_in_the_stream_and_the_next_request_works() {
    let server = TestServer::plain();
    let (status, answer) = post(&server, COMPLETIONS, &json!({"prompt": [97, POISON]})).await;
    assert_eq!(
        (status, &answer["error"]["type"]),
        (500, &json!("internal_error"))
    );
    assert!(
        answer["error"]["message"]
            .as_str()
            .unwrap()
            .contains("poisoned"),
        "{answer}"
    );
    let client = Client::new(&server.url).unwrap();
    // The first token is poison, so the second forward pass fails; the stream has begun by then.
    let bias = json!({"259": 100});
    let body = json!({"prompt": "a", "logit_bias": bias, "logprobs": 0, "stream": true});
    let mut events = client.stream(COMPLETIONS, &body).await.unwrap();
    let first = events.next().await.unwrap().unwrap();
    assert_eq!(
        first["choices"][0]["logprobs"]["tokens"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    let error = events.next().await.unwrap_err();
    assert!(
        matches!(&error, ClientError::BrokenOff(m) if m.contains("poisoned")),
        "{error}"
    );
    assert!(
        events.next().await.unwrap().is_none(),
        "[DONE] after the error"
    );
    ok(&server, COMPLETIONS, &json!({"prompt": "a"})).await;
    server.wait_until_idle().await;
}

#[tokio::test]
async fn draining_refuses_new_requests_and_finishes_those_in_flight() {
    let server = slow();
    let client = Client::new(&server.url).unwrap();
    let body = json!({"prompt": "a", "max_tokens": 20, "temperature": 0, "stream": true});
    let mut events = client.stream(COMPLETIONS, &body).await.unwrap();
    assert!(events.next().await.unwrap().is_some());
    server.state.start_draining();
    let (status, answer) = post(&server, COMPLETIONS, &json!({"prompt": "a"})).await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (503, &json!("shutting_down"))
    );
    assert_eq!(get(&server, "/ready").await.0, 503);
    let mut chunks = 1;
    while events.next().await.unwrap().is_some() {
        chunks += 1;
    }
    // 20 tokens and the finish reason.
    assert_eq!(chunks, 21);
}

#[tokio::test]
async fn requests_beyond_the_grace_are_cut_off_with_an_error() {
    let server = slow();
    let client = Client::new(&server.url).unwrap();
    let mut events = client.stream(COMPLETIONS, &endless(true)).await.unwrap();
    assert!(events.next().await.unwrap().is_some());
    let engine = server.state.loaded().unwrap().engine.clone();
    let stopped = tokio::task::spawn_blocking(move || engine.shutdown(Duration::from_millis(50)));
    let error = loop {
        match events.next().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("ended as if it were complete"),
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("shutting down"), "{error}");
    stopped.await.unwrap();
}

#[tokio::test]
async fn sixty_four_clients_that_come_and_go_leave_no_slot_behind() {
    const CLIENTS: u64 = 64;
    const REQUESTS: u64 = 6;
    // There are too few slots for all clients: some requests wait, and some are preempted.
    let behaviour = Behaviour {
        step: Duration::from_millis(1),
        max_model_len: 512,
        kv_slots: 1024,
        endless: true,
        ..Behaviour::default()
    };
    let server = TestServer::start(behaviour, EngineConfig::default(), HttpConfig::default());
    let client = Client::new(&server.url).unwrap();
    let visits = (0..CLIENTS).map(|visitor| {
        let client = client.clone();
        async move {
            for round in 0..REQUESTS {
                // Pseudo-random, and the same in every run.
                let chance = (visitor * 31 + round * 17) % 23;
                let prompt = "shared prefix, then ".repeat(1 + (chance % 3) as usize);
                let body = json!({
                    "prompt": format!("{prompt}{chance}"),
                    "max_tokens": 40,
                    "stream": true,
                    "temperature": 0,
                });
                let mut events = client.stream(COMPLETIONS, &body).await.unwrap();
                let mut left = if chance % 2 == 0 { u64::MAX } else { chance };
                while left > 0 && events.next().await.unwrap().is_some() {
                    left -= 1;
                }
            }
        }
    });
    futures_util::future::join_all(visits).await;
    server.wait_until_idle().await;
    let stats = server.state.loaded().unwrap().engine.stats();
    assert_eq!(
        stats.finished + stats.cancelled,
        CLIENTS * REQUESTS,
        "{stats:?}"
    );
    assert!(
        stats.cancelled > 0 && stats.finished > 0 && stats.failed == 0,
        "{stats:?}"
    );
}

#[tokio::test]
async fn an_address_that_is_taken_is_named_with_one_reason() {
    let server = TestServer::plain();
    let (_, port) = server.address().rsplit_once(':').unwrap();
    let config = HttpConfig {
        port: port.parse().unwrap(),
        ..HttpConfig::default()
    };
    let state = Data::new(AppState::new(config, Telemetry::local()).unwrap());
    let error = anyhow::Error::from(server::bind(state).err().unwrap());
    let chain = format!("{error:#}");
    let expected = format!("cannot listen on 127.0.0.1:{port}: ");
    assert!(chain.starts_with(&expected), "{chain}");
    assert_eq!(chain.matches("in use").count(), 1, "{chain}");
}
