//! Tests `/metrics` under too many scrapes, during the shutdown, and after many requests.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::harness::{COMPLETIONS, Server};
use super::metrics::{PATIENCE, has, page_with};

const EVERYTHING: [&str; 2] = ["--metrics-names", "vllm,sglang,otel,plain"];

#[tokio::test]
async fn many_concurrent_scrapes_do_not_interrupt_streams() {
    let server = Server::start(&EVERYTHING).await;
    let body = json!({"prompt": "a", "max_tokens": 400, "ignore_eos": true, "stream": true});
    let stream = async |_| {
        let mut events = server.client.stream(COMPLETIONS, &body).await.unwrap();
        let mut last = Value::Null;
        while let Some(event) = events.next().await.unwrap() {
            last = event["choices"][0]["finish_reason"].clone();
        }
        assert_eq!(last, "length");
    };
    let scrape = async |number: usize| {
        let request = server.http.get(server.url("/metrics"));
        let encoding = ["identity", "gzip"][number % 2];
        let answer = request.header("accept-encoding", encoding).send().await;
        let answer = answer.unwrap();
        let status = answer.status();
        let bytes = answer.bytes().await.unwrap();
        // A scrape that would wait for too long gets status 503.
        assert!(status == 200 || status == 503, "{status}");
        (status == 200 && !bytes.is_empty()) as usize
    };
    let streams = join_all((0..4).map(stream));
    let scrapes = join_all((0..400).map(scrape));
    let (_, answered) = tokio::join!(streams, scrapes);
    let answered: usize = answered.into_iter().sum();
    println!("{answered} of 400 scrapes at once had a page");
    assert!(answered > 0);
    let recorded = |page: &str| has(page, "vllm:generation_tokens_total", " 1600.0");
    let page = page_with(&server, recorded).await;
    assert!(recorded(&page), "{page}");
}

#[tokio::test]
async fn every_page_is_complete_while_the_server_shuts_down() {
    let mut server = Server::start(&[&EVERYTHING[..], &["--shutdown-timeout", "2"]].concat()).await;
    let body = json!({"prompt": "a", "max_tokens": 130_000, "ignore_eos": true, "stream": true});
    let mut streams = Vec::new();
    for _ in 0..8 {
        streams.push(server.client.stream(COMPLETIONS, &body).await.unwrap());
    }
    server.wait_until_running(8).await;
    server.signal("-TERM");
    let deadline = Instant::now() + PATIENCE;
    let mut pages = 0;
    // Until the server no longer listens.
    while let Ok(answer) = server.http.get(server.url("/metrics")).send().await {
        assert!(Instant::now() < deadline, "the server does not end");
        assert_eq!(answer.status(), 200);
        if let Ok(page) = answer.text().await {
            assert!(page.ends_with('\n') && page.contains("process_start_time_seconds"));
            pages += 1;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    println!("{pages} pages while the server ended");
    assert_eq!(server.exit_code().await, Some(0));
}

/// `benches/telemetry.py growth` does this with a million requests.
#[tokio::test]
async fn memory_does_not_grow_with_the_number_of_requests() {
    const AT_ONCE: usize = 100;
    const GROWTH: u64 = 15 << 20;
    let server = Server::start(&[&EVERYTHING[..], &["--max-queue", "1000"]].concat()).await;
    let prompts: Vec<_> = (0..AT_ONCE).map(|i| [65 + i % 26, 66]).collect();
    let body = json!({"prompt": prompts, "max_tokens": 1, "ignore_eos": true});
    let send = async |requests: usize| {
        for _ in 0..requests / AT_ONCE {
            server.ok(COMPLETIONS, &body).await;
        }
    };
    send(5_000).await;
    let before = server.memory();
    send(30_000).await;
    let after = server.memory();
    let recorded = |page: &str| has(page, "vllm:request_generation_tokens_count", " 35000.0");
    let page = page_with(&server, recorded).await;
    assert!(recorded(&page), "{page}");
    if let (Some(before), Some(after)) = (before, after) {
        println!("30 000 requests: {before} bytes before, {after} after");
        // The limit is half a kilobyte per request.
        assert!(after.saturating_sub(before) < GROWTH, "{before} {after}");
    }
}
