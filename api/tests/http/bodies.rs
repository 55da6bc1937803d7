//! Bodies that are announced and do not come.

use std::time::{Duration, Instant};

use hearth_api::config::HttpConfig;
use hearth_engine::EngineConfig;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::fake::{Behaviour, MODEL, TestServer};
use super::{COMPLETIONS, post};

async fn begin(server: &TestServer, head: &str) -> TcpStream {
    let address = server.url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST {COMPLETIONS} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         {head}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

/// A request with a body of 1 MB, which does not fit the context.
async fn large(server: &TestServer) -> Duration {
    let began = Instant::now();
    let body = json!({"model": MODEL, "prompt": "a".repeat(1 << 20)});
    let (status, answer) = post(server, COMPLETIONS, &body).await;
    assert_eq!(status, 400, "{answer}");
    began.elapsed()
}

#[tokio::test]
async fn announced_bodies_do_not_hold_up_others() {
    let server = TestServer::plain();
    let mut open = Vec::new();
    for index in 0..64 {
        let head = match index % 2 {
            0 => "content-length: 16777216",
            _ => "transfer-encoding: chunked",
        };
        let mut stream = begin(&server, head).await;
        let part: &[u8] = if index % 2 == 0 {
            b"{\"a"
        } else {
            b"3\r\n{\"a\r\n"
        };
        stream.write_all(part).await.unwrap();
        open.push(stream);
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    let took = large(&server).await;
    // The announced bodies are given up after 10 s.
    assert!(took < Duration::from_secs(9), "{took:?}");
}

#[tokio::test]
async fn a_body_that_stops_coming_is_given_up() {
    let server = TestServer::plain();
    let mut stream = begin(&server, "content-length: 1000").await;
    stream.write_all(b"{").await.unwrap();
    let began = Instant::now();
    let mut answer = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(30), stream.read_to_end(&mut answer));
    read.await.unwrap().unwrap();
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(answer.contains("nothing of it within 10 s"), "{answer}");
    let took = began.elapsed();
    assert!((9..20).contains(&took.as_secs()), "{took:?}");
}

#[tokio::test]
async fn a_body_without_a_key_is_not_read() {
    let config = HttpConfig {
        api_key: "key".parse().ok(),
        ..HttpConfig::default()
    };
    let server = TestServer::start(Behaviour::default(), EngineConfig::default(), config);
    let mut stream = begin(&server, "content-length: 16777216").await;
    let mut answer = Vec::new();
    // The connection ends with the answer, and nothing waits for the body.
    let read = tokio::time::timeout(Duration::from_secs(9), stream.read_to_end(&mut answer));
    read.await.unwrap().unwrap();
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
}
