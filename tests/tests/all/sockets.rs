//! Clients that stop sending in the middle of a request's head or body.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use serde_json::json;

use super::harness::{COMPLETIONS, Server, post_bytes, raw_socket};

const HEAD: &str =
    "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
/// Time limit for reads. The server waits ten seconds for the head of a request, and the machine
/// may be slow.
const HEAD_PATIENCE: Duration = Duration::from_secs(60);

/// Sends a request, which must succeed, and returns the time that it took.
async fn assert_served(server: &Server) -> Duration {
    let started = Instant::now();
    let body = json!({"prompt": "a", "max_tokens": 8, "ignore_eos": true});
    server.ok(COMPLETIONS, &body).await;
    started.elapsed()
}

/// Sends ten requests, none of which may wait for a stalled client. Waiting would take seconds, or
/// fifty times the time that a request takes `alone` on this machine.
async fn assert_not_delayed(server: &Server, alone: Duration) {
    for _ in 0..10 {
        let took = assert_served(server).await;
        let limit = (alone * 50).max(Duration::from_secs(5));
        assert!(took < limit, "{took:?}, alone {alone:?}");
    }
}

/// Opens connections that send `bytes` and then nothing more.
fn stalled(server: &Server, count: usize, bytes: &str) -> Vec<TcpStream> {
    let open = |_| {
        let mut socket = raw_socket(server, HEAD_PATIENCE);
        socket.write_all(bytes.as_bytes()).unwrap();
        socket
    };
    (0..count).map(open).collect()
}

#[tokio::test]
async fn a_client_that_closes_its_side_after_the_request_counts_as_disconnected() {
    let server = Server::start(&[]).await;
    for stream in [false, true] {
        let body =
            json!({"prompt": "a", "max_tokens": 130_000, "ignore_eos": true, "stream": stream});
        let mut socket = raw_socket(&server, HEAD_PATIENCE);
        post_bytes(&mut socket, COMPLETIONS, body.to_string().as_bytes());
        server.wait_until_running(1).await;
        socket.shutdown(Shutdown::Write).unwrap();
        server.wait_until_idle().await;
    }
    assert_eq!(server.stat("cancelled").await, 2);
    assert_served(&server).await;
}

#[tokio::test]
async fn sockets_half_closed_within_a_request_are_closed_by_the_server() {
    let server = Server::start(&[]).await;
    let starts = [
        String::new(),
        "POST".to_owned(),
        HEAD.to_owned(),
        format!("{HEAD}content-length: 1000\r\n\r\n"),
        format!("{HEAD}content-length: 1000\r\n\r\n{{\"prompt\": \"a\""),
        format!("{HEAD}transfer-encoding: chunked\r\n\r\n5\r\n{{\"pro"),
        format!("{HEAD}content-length: -1\r\n\r\n"),
        format!("{HEAD}content-length: 99999999999999999999\r\n\r\n{{}}"),
        format!("{HEAD}transfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\n{{}}"),
    ];
    for start in &starts {
        for mut socket in stalled(&server, 8, start) {
            socket.shutdown(Shutdown::Write).unwrap();
            let mut answer = Vec::new();
            // The server refuses the request or sends nothing, and closes the connection.
            let read = socket.read_to_end(&mut answer);
            let answer = String::from_utf8_lossy(&answer);
            assert!(read.is_ok(), "{start:?}: {read:?}");
            assert!(
                answer.is_empty() || answer.starts_with("HTTP/1.1 4"),
                "{start:?}: {answer}"
            );
        }
    }
    assert_served(&server).await;
    server.wait_until_idle().await;
    assert_eq!(
        server.stat("finished").await,
        1,
        "half a request was computed"
    );
}

#[tokio::test]
async fn slow_heads_are_cut_off_and_delay_no_other_client() {
    let server = Server::start(&[]).await;
    let alone = assert_served(&server).await;
    let started = Instant::now();
    let sockets = stalled(&server, 100, &HEAD[..HEAD.len() - 2]);
    assert_not_delayed(&server, alone).await;
    let ends = tokio::task::spawn_blocking(move || {
        let end = |mut socket: TcpStream| {
            let mut answer = Vec::new();
            socket
                .read_to_end(&mut answer)
                .map(|_| String::from_utf8_lossy(&answer).into_owned())
        };
        sockets.into_iter().map(end).collect::<Vec<_>>()
    });
    for end in ends.await.unwrap() {
        let answer = end.expect("the server closes a connection whose head does not arrive");
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 408"),
            "{answer}"
        );
    }
    println!("100 slow heads were cut off within {:?}", started.elapsed());
    assert_served(&server).await;
}

#[tokio::test]
async fn slow_bodies_delay_no_other_client() {
    let server = Server::start(&[]).await;
    let alone = assert_served(&server).await;
    let stalled = stalled(
        &server,
        100,
        &format!("{HEAD}content-length: 100\r\n\r\n{{"),
    );
    assert_not_delayed(&server, alone).await;
    drop(stalled);
    assert_served(&server).await;
    server.wait_until_idle().await;
}

#[tokio::test]
async fn bytes_that_are_not_http_are_refused_and_the_next_client_is_served() {
    let server = Server::start(&[]).await;
    for bytes in [
        &b"\x16\x03\x01\x02\x00\x01\x00"[..],
        b"\0\0\0\0\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
    ] {
        let mut socket = raw_socket(&server, HEAD_PATIENCE);
        socket.write_all(bytes).unwrap();
        socket.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 4"),
            "{bytes:?}: {answer}"
        );
    }
    let long = format!(
        "GET /health HTTP/1.1\r\nhost: localhost\r\nx-long: {}\r\n\r\n",
        "a".repeat(1 << 20)
    );
    let mut socket = raw_socket(&server, HEAD_PATIENCE);
    // The server may close the connection before everything is written.
    let _ = socket.write_all(long.as_bytes());
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP/1.1 200"));
    assert_served(&server).await;
}
