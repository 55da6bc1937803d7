//! A full queue refuses requests at once, and completes the ones in it.

use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt};
use serde_json::{Value, json};

use super::harness::{Answer, COMPLETIONS, Server};

const OVER_THE_LIMIT: usize = 1000;
/// Concurrent connections.
const AT_ONCE: usize = 250;

fn assert_full(answer: &Answer) {
    assert_eq!(answer.status, 503, "{}", answer.body);
    let error = &answer.body["error"];
    assert_eq!(error["code"], "queue_full", "{error}");
    assert!(
        error["message"].as_str().unwrap().contains('8'),
        "the limit is not named: {error}"
    );
    let retry_after = answer.headers["retry-after"].to_str().unwrap();
    assert!(retry_after.parse::<u64>().unwrap() >= 1, "{retry_after}");
}

fn body(max_tokens: u64) -> Value {
    json!({"prompt": "a", "max_tokens": max_tokens, "ignore_eos": true})
}

#[tokio::test]
async fn a_thousand_requests_over_the_limit_get_503_and_the_queued_ones_complete() {
    let server = Server::start(&["--max-queue", "8", "--max-running-requests", "2"]).await;
    // Two requests run and eight wait, without an end.
    let mut endless = body(130_000);
    endless["stream"] = json!(true);
    let open = async |_| server.client.stream(COMPLETIONS, &endless).await.unwrap();
    let mut held: Vec<_> = join_all((0..2).map(open)).await;
    server.wait_until_running(2).await;
    held.extend(join_all((0..8).map(open)).await);
    let stats = server.stats().await;
    assert_eq!(
        (&stats["running"], &stats["waiting"]),
        (&json!(2), &json!(8))
    );
    let body = body(4);
    let refused = stream::iter(0..OVER_THE_LIMIT)
        .map(|_| server.post(COMPLETIONS, &body))
        .buffer_unordered(AT_ONCE)
        .inspect(assert_full)
        .count()
        .await;
    assert_eq!(refused, OVER_THE_LIMIT);
    let stats = server.stats().await;
    assert_eq!(
        (&stats["running"], &stats["waiting"]),
        (&json!(2), &json!(8)),
        "{stats}"
    );
    // All clients but one disconnect, and the remaining request starts.
    held.truncate(9);
    drop(held.drain(..8));
    assert!(held[0].next().await.unwrap().is_some());
    drop(held);
    server.wait_until_idle().await;
    server.ok(COMPLETIONS, &body).await;
}

#[tokio::test]
async fn every_request_of_a_burst_completes_or_is_refused_at_once() {
    let server = Server::start(&["--max-queue", "8", "--max-running-requests", "2"]).await;
    let body = body(8);
    let answers = stream::iter(0..OVER_THE_LIMIT)
        .map(|_| server.post(COMPLETIONS, &body))
        .buffer_unordered(AT_ONCE)
        .collect::<Vec<_>>()
        .await;
    let mut completed = 0;
    for answer in &answers {
        if answer.status == 200 {
            assert_eq!(answer.body["usage"]["completion_tokens"], 8);
            completed += 1;
        } else {
            assert_full(answer);
        }
    }
    println!("of a burst of {OVER_THE_LIMIT}, {completed} completed and the others got 503");
    assert!((10..OVER_THE_LIMIT).contains(&completed), "{completed}");
    server.wait_until_idle().await;
    assert_eq!(server.stat("finished").await, completed as u64);
}

#[tokio::test]
async fn a_queue_that_was_full_and_emptied_can_be_filled_again() {
    let server = Server::start(&["--max-queue", "8", "--max-running-requests", "2"]).await;
    for round in 0..5 {
        let ten = join_all((0..10).map(|_| async {
            // Refused requests are sent again until they complete.
            loop {
                let answer = server.post(COMPLETIONS, &body(16)).await;
                if answer.status == 200 {
                    break answer.body;
                }
                assert_full(&answer);
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        }));
        assert_eq!(ten.await.len(), 10, "round {round}");
        server.wait_until_idle().await;
    }
    assert_eq!(server.stat("finished").await, 50);
}
