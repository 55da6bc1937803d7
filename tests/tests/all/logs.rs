//! Logs that cannot be written: a pipe without a reader, a pipe that nobody reads, a full disk.

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::harness::{COMPLETIONS, Server, hearth};

/// Time limit for a start on a busy machine.
const START: Duration = Duration::from_secs(120);

/// A server of the embedded model whose standard streams the test chooses.
struct Running {
    process: Child,
    address: String,
    http: reqwest::Client,
}

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Running {
    async fn start(flags: &[&str], streams: impl FnOnce(&mut Command)) -> Self {
        let port = {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            listener.local_addr().unwrap().port()
        };
        let mut command = hearth();
        command.args(["serve", "--device", "cpu", "--port", &port.to_string()]);
        command.args(flags);
        streams(&mut command);
        let mut running = Self {
            process: command.spawn().unwrap(),
            address: format!("127.0.0.1:{port}"),
            http: reqwest::Client::new(),
        };
        let started = Instant::now();
        let ready = format!("http://{}/ready", running.address);
        loop {
            let answer = running.http.get(&ready).send().await;
            if answer.is_ok_and(|answer| answer.status().is_success()) {
                return running;
            }
            let ended = running.process.try_wait().unwrap();
            assert!(ended.is_none(), "the server ended: {ended:?}");
            assert!(started.elapsed() < START, "the server is not ready");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn completes(&self) {
        let body = json!({"prompt": "Once", "max_tokens": 4, "ignore_eos": true});
        let url = format!("http://{}{COMPLETIONS}", self.address);
        let request = self.http.post(url).json(&body);
        let answer = request
            .timeout(Duration::from_secs(60))
            .send()
            .await
            .unwrap();
        assert_eq!(answer.status(), 200);
        let answer: Value = answer.json().await.unwrap();
        assert_eq!(answer["usage"]["completion_tokens"], 4);
    }

    /// Log lines that were dropped for this reason.
    async fn dropped(&self, reason: &str) -> f64 {
        let url = format!("http://{}/metrics", self.address);
        let page = self.http.get(url).send().await.unwrap();
        let page = page.text().await.unwrap();
        let line = page.lines().find(|line| {
            line.starts_with("hearth_log_dropped_total") && line.contains(&format!("\"{reason}\""))
        });
        let line = line.unwrap_or_else(|| panic!("no {reason} in {page}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// Sends the head of a request that is no HTTP, and waits for the end of the connection.
    fn send_malformed_head(&self) {
        let mut socket = TcpStream::connect(&self.address).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        socket.write_all(b"GET / HTTP/9.9\r\n\0\r\n\r\n").unwrap();
        // The server may reset the connection.
        let _ = socket.read_to_end(&mut Vec::new());
    }
}

#[tokio::test]
async fn requests_are_served_when_the_reader_of_the_log_is_gone() {
    let mut server = Running::start(&[], |command| {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
    })
    .await;
    drop((server.process.stdout.take(), server.process.stderr.take()));
    for _ in 0..3 {
        server.completes().await;
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    while server.dropped("not_written").await < 3.0 {
        assert!(Instant::now() < deadline, "the lines were not counted");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_full_disk_under_the_log_ends_neither_the_start_nor_a_request() {
    let full = || OpenOptions::new().write(true).open("/dev/full").unwrap();
    let server = Running::start(&[], |command| {
        command.stdout(full()).stderr(full());
    })
    .await;
    for _ in 0..3 {
        server.completes().await;
    }
    assert!(server.dropped("not_written").await >= 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_nobody_reads_stops_no_request_however_often_something_is_logged() {
    // A pipe holds 64 KiB on Linux. Each of these lines takes over 100 bytes.
    let server = Running::start(&["--log-level", "trace"], |command| {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
    })
    .await;
    tokio::task::block_in_place(|| (0..2000).for_each(|_| server.send_malformed_head()));
    let started = Instant::now();
    server.completes().await;
    assert!(started.elapsed() < Duration::from_secs(30));
    assert!(server.dropped("not_written").await > 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_kind_of_error_is_logged_a_bounded_number_of_times() {
    let mut server = Running::start(&[], |command| {
        command.stdout(Stdio::null()).stderr(Stdio::piped());
    })
    .await;
    tokio::task::block_in_place(|| (0..500).for_each(|_| server.send_malformed_head()));
    server.completes().await;
    let left_out = server.dropped("rate_limit").await;
    let mut log = server.process.stderr.take().unwrap();
    drop(server);
    let mut text = String::new();
    log.read_to_string(&mut text).unwrap();
    let errors = text.lines().filter(|line| line.contains("ERROR")).count();
    assert!(
        errors >= 100,
        "{errors} errors were logged, {left_out} left out"
    );
    assert_eq!(errors as f64 + left_out, 500.0);
}

#[tokio::test]
async fn a_requests_log_line_has_the_id_of_its_trace_where_traces_are_exported() {
    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    let logged = async |flags: &[&str]| {
        let server = Server::start(flags).await;
        let body = json!({"prompt": "Once", "max_tokens": 2, "ignore_eos": true});
        let request = server.http.post(server.url(COMPLETIONS)).json(&body);
        let request = request.header("traceparent", format!("00-{TRACE}-b7ad6b7169203331-01"));
        let request = request.header("x-request-id", "mine");
        assert_eq!(request.send().await.unwrap().status(), 200);
        let started = Instant::now();
        while !server.has_logged(r#""request_id":"mine""#) {
            assert!(started.elapsed() < START, "the request is not logged");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        server.has_logged(&format!(r#""trace_id":"{TRACE}""#))
    };
    // Nobody listens there; the ids do not depend on that.
    assert!(logged(&["--otlp-endpoint", "http://127.0.0.1:9"]).await);
    assert!(!logged(&[]).await);
}

#[tokio::test]
async fn a_refusal_is_logged_and_a_probe_is_not() {
    let server = Server::embedded(&[]).await;
    let body = json!({"model": "nobody", "prompt": "a"});
    assert_eq!(server.post(COMPLETIONS, &body).await.status, 404);
    let started = Instant::now();
    while !server.has_logged(r#""why":"model_not_found""#) {
        assert!(started.elapsed() < START, "no line");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // The message, which quotes the client, is for another level.
    assert!(!server.has_logged("nobody") && !server.has_logged(r#""path":"/ready""#));
}
