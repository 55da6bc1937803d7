//! A client that disconnects in the middle of a response frees its KV slots at once.

use std::io::{Read, Write};
use std::time::Duration;

use futures_util::future::join_all;
use hearth_client::Events;
use serde_json::{Value, json};

use super::harness::{CHAT, COMPLETIONS, Server, post_bytes, raw_socket};

/// A request that would run for longer than any test.
fn endless(stream: bool) -> Value {
    json!({"prompt": "a", "max_tokens": 130_000, "ignore_eos": true, "stream": stream})
}

async fn assert_all_cancelled(server: &Server, cancelled: u64) {
    let took = server.wait_until_idle().await;
    println!("{cancelled} requests were cancelled, idle after {took:?}");
    // None of them ran to its end.
    let stats = server.stats().await;
    assert_eq!(stats["cancelled"], cancelled, "{stats}");
    server
        .ok(COMPLETIONS, &json!({"prompt": "a", "max_tokens": 2}))
        .await;
}

#[tokio::test]
async fn slots_of_abandoned_streams_are_free_at_once() {
    let server = Server::start(&[]).await;
    let body = endless(true);
    let open = async |_| server.client.stream(COMPLETIONS, &body).await.unwrap();
    let mut streams: Vec<Events> = join_all((0..32).map(open)).await;
    for events in &mut streams {
        for _ in 0..3 {
            assert!(events.next().await.unwrap().is_some());
        }
    }
    server.wait_until_running(32).await;
    drop(streams);
    assert_all_cancelled(&server, 32).await;
}

#[tokio::test]
async fn slots_of_abandoned_responses_that_do_not_stream_are_free_at_once() {
    let server = Server::start(&["--max-running-requests", "4"]).await;
    let bodies = [endless(false), {
        let messages = json!([{"role": "user", "content": "a"}]);
        json!({"messages": messages, "ignore_eos": true})
    }];
    // Four requests run and twelve wait, of both kinds; all clients disconnect.
    let requests = (0..16).map(|i| {
        let path = [COMPLETIONS, CHAT][i % 2];
        let request = server
            .http
            .post(server.url(path))
            .json(&bodies[i % 2])
            .send();
        tokio::spawn(request)
    });
    let requests: Vec<_> = requests.collect();
    server.wait_until_running(4).await;
    while server.stat("waiting").await < 12 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    for request in &requests {
        request.abort();
    }
    assert_all_cancelled(&server, 16).await;
}

#[tokio::test]
async fn every_choice_of_an_abandoned_request_is_cancelled() {
    let server = Server::start(&[]).await;
    let mut body = endless(true);
    body["n"] = json!(24);
    let mut events = server.client.stream(COMPLETIONS, &body).await.unwrap();
    assert!(events.next().await.unwrap().is_some());
    server.wait_until_running(24).await;
    drop(events);
    assert_all_cancelled(&server, 24).await;
}

#[tokio::test]
async fn a_connection_that_is_reset_in_the_middle_of_a_stream_is_noticed() {
    let server = Server::start(&[]).await;
    let body = endless(true).to_string();
    let sockets: Vec<_> = (0..8)
        .map(|_| {
            let mut socket = raw_socket(&server, Duration::from_secs(30));
            post_bytes(&mut socket, COMPLETIONS, body.as_bytes());
            socket
        })
        .collect();
    server.wait_until_running(8).await;
    for mut socket in sockets {
        let mut start = [0; 64];
        socket.read_exact(&mut start).unwrap();
        assert!(start.starts_with(b"HTTP/1.1 200"));
        // Dropping a socket with unread bytes makes the kernel send a reset.
    }
    assert_all_cancelled(&server, 8).await;
}

#[tokio::test]
async fn a_client_that_does_not_read_delays_no_other_client() {
    let server = Server::start(&[]).await;
    let mut silent = raw_socket(&server, Duration::from_secs(30));
    let mut body = endless(true);
    // About as many log-probabilities as one request may ask for.
    (body["n"], body["logprobs"]) = (json!(4), json!(5));
    post_bytes(&mut silent, COMPLETIONS, body.to_string().as_bytes());
    server.wait_until_running(4).await;
    let small = json!({"prompt": "b", "max_tokens": 32, "ignore_eos": true});
    for _ in 0..20 {
        let answer = server.ok(COMPLETIONS, &small).await;
        assert_eq!(answer["usage"]["completion_tokens"], 32);
    }
    // A silent client may be slow, or may begin to read again.
    let _ = silent.flush();
    drop(silent);
    server.wait_until_idle().await;
}
