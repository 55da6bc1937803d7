//! Shuts the server down while clients stream.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use hearth_client::{ClientError, Events};
use serde_json::{Value, json};

use super::harness::{COMPLETIONS, Server};

/// Time beyond `--shutdown-timeout` in which the last bytes must be sent, even on a busy machine.
/// It is less than an endless stream or a longer `--shutdown-timeout` would take.
const MARGIN: Duration = Duration::from_secs(40);

/// Reads a stream to its end. Returns whether it completed; if not, the server must have said
/// that it is shutting down.
async fn completed(mut events: Events) -> bool {
    let mut reason = Value::Null;
    loop {
        match events.next().await {
            Ok(Some(event)) => reason = event["choices"][0]["finish_reason"].clone(),
            Ok(None) => return !reason.is_null(),
            Err(ClientError::BrokenOff(message)) => {
                assert!(message.contains("shutting down"), "{message}");
                return false;
            }
            Err(error) => panic!("a stream ended without a reason: {error:?}"),
        }
    }
}

async fn streams(server: &Server, count: usize, max_tokens: u64) -> Vec<Events> {
    let body = json!({"prompt": "a", "max_tokens": max_tokens, "ignore_eos": true, "stream": true});
    let open = async |_| {
        let mut events = server.client.stream(COMPLETIONS, &body).await.unwrap();
        assert!(events.next().await.unwrap().is_some());
        events
    };
    join_all((0..count).map(open)).await
}

#[tokio::test]
async fn sigterm_lets_streams_finish_within_the_bound_and_the_exit_code_is_0() {
    let mut server = Server::start(&["--shutdown-timeout", "120"]).await;
    let streams = streams(&server, 16, 600).await;
    let started = Instant::now();
    server.signal("-TERM");
    let completed = join_all(streams.into_iter().map(completed)).await;
    assert_eq!(completed, [true; 16]);
    assert_eq!(server.exit_code().await, Some(0));
    println!(
        "16 streams finished and the process ended {:?} after SIGTERM",
        started.elapsed()
    );
    assert!(
        started.elapsed() < Duration::from_secs(120),
        "{:?}",
        started.elapsed()
    );
}

/// A load balancer takes the server out by `/ready`, while probes and scrapers go on asking.
#[tokio::test]
async fn during_the_drain_ready_answers_503_and_health_and_metrics_200() {
    let mut server = Server::start(&["--shutdown-timeout", "600"]).await;
    let endless = streams(&server, 1, 130_000).await;
    let status = async |path: &str| {
        let answer = server.http.get(server.url(path)).send().await.unwrap();
        answer.status().as_u16()
    };
    assert_eq!(status("/ready").await, 200);
    server.signal("-TERM");
    let started = Instant::now();
    while status("/ready").await != 503 {
        assert!(started.elapsed() < MARGIN, "/ready stays 200");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(status("/health").await, 200);
    assert_eq!(status("/metrics").await, 200);
    assert_eq!(status("/ready").await, 503);
    // The drain ends with the last client.
    drop(endless);
    assert_eq!(server.exit_code().await, Some(0));
}

#[tokio::test]
async fn sigterm_cuts_endless_streams_off_at_the_bound_and_the_exit_code_is_0() {
    let mut server = Server::start(&["--shutdown-timeout", "1"]).await;
    let streams = streams(&server, 16, 130_000).await;
    let body = json!({"prompt": "a", "max_tokens": 130_000, "ignore_eos": true});
    let whole = tokio::spawn(server.http.post(server.url(COMPLETIONS)).json(&body).send());
    server.wait_until_running(17).await;
    let started = Instant::now();
    server.signal("-TERM");
    // New requests are refused once the server has seen the signal.
    let one = json!({"prompt": "a", "max_tokens": 1});
    while let Ok(answer) = server
        .http
        .post(server.url(COMPLETIONS))
        .json(&one)
        .send()
        .await
        && answer.status() != 503
    {
        assert!(started.elapsed() < MARGIN, "new requests are still taken");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let completed = join_all(streams.into_iter().map(completed)).await;
    assert_eq!(completed, [false; 16]);
    assert_eq!(whole.await.unwrap().unwrap().status(), 503);
    assert_eq!(server.exit_code().await, Some(0));
    let took = started.elapsed();
    println!("17 endless requests were cut off and the process ended {took:?} after SIGTERM");
    assert!(took < Duration::from_secs(1) + MARGIN, "{took:?}");
}

#[tokio::test]
async fn sigterm_on_an_idle_server_ends_it_at_once() {
    let mut server = Server::start(&["--shutdown-timeout", "600"]).await;
    println!(
        "/ready {:?} after the start of the process",
        server.ready_after
    );
    let started = Instant::now();
    server.signal("-TERM");
    assert_eq!(server.exit_code().await, Some(0));
    assert!(started.elapsed() < MARGIN, "{:?}", started.elapsed());
}
