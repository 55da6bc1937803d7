//! Tests the load generator with a minimal HTTP server.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use hearth_benches::cli::Cli;
use hearth_benches::load;
use serde_json::{Value, json};

const WARMUP: usize = 2;
const CONCURRENCY: usize = 4;

/// The requests that the server received.
#[derive(Default)]
struct Seen {
    bodies: Mutex<Vec<Value>>,
    in_flight: AtomicUsize,
    most_in_flight: AtomicUsize,
}

fn serve() -> (String, Arc<Seen>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let seen = Arc::new(Seen::default());
    let shared = Arc::clone(&seen);
    thread::spawn(move || {
        for socket in listener.incoming() {
            let seen = Arc::clone(&shared);
            thread::spawn(move || answer(socket.unwrap(), &seen));
        }
    });
    (url, seen)
}

fn answer(mut socket: TcpStream, seen: &Seen) {
    let mut reader = BufReader::new(socket.try_clone().unwrap());
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if let Some((name, value)) = line.trim().split_once(": ")
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.parse().unwrap();
        }
        if line.trim().is_empty() {
            break;
        }
        head.push_str(&line);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    socket
        .write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")
        .unwrap();
    if head.starts_with("GET") {
        return socket.write_all(br#"{"data": [{"id": "m"}]}"#).unwrap();
    }
    let now = seen.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
    seen.most_in_flight.fetch_max(now, Ordering::SeqCst);
    let number = {
        let mut bodies = seen.bodies.lock().unwrap();
        bodies.push(serde_json::from_slice(&body).unwrap());
        bodies.len()
    };
    // No request is answered until all clients have sent one, however slow the machine is.
    let deadline = Instant::now() + Duration::from_secs(20);
    while number > WARMUP
        && seen.most_in_flight.load(Ordering::SeqCst) < CONCURRENCY
        && Instant::now() < deadline
    {
        thread::sleep(Duration::from_millis(1));
    }
    let usage = json!({
        "prompt_tokens": 12, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4},
    });
    let choices = json!([{"text": "x"}]);
    for event in [json!({"choices": choices}), json!({"choices": choices})] {
        thread::sleep(Duration::from_millis(20));
        write!(socket, "data: {event}\n\n").unwrap();
    }
    // Counted before the client can see the end and send its next request.
    seen.in_flight.fetch_sub(1, Ordering::SeqCst);
    write!(
        socket,
        "data: {}\n\ndata: [DONE]\n\n",
        json!({"choices": [], "usage": usage})
    )
    .unwrap();
}

#[test]
fn every_request_is_sent_once_and_no_more_than_the_concurrency_at_a_time() {
    let (url, seen) = serve();
    let cli = Cli::parse_from([
        "x",
        "--url",
        &url,
        "--requests",
        "12",
        "--concurrency",
        "4",
        "--warmup",
        "2",
        "--output-tokens",
        "3",
        "--extra",
        r#"{"cache_prompt": false}"#,
    ]);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let run = runtime.block_on(load::run(&cli)).unwrap();
    assert!(run.errors.is_empty(), "{:?}", run.errors);
    assert_eq!(run.samples.len(), 12);
    assert_eq!(seen.most_in_flight.load(Ordering::SeqCst), CONCURRENCY);
    for sample in &run.samples {
        let tokens = (
            sample.prompt_tokens,
            sample.cached_tokens,
            sample.output_tokens,
        );
        assert_eq!((tokens, sample.gaps.len()), ((12, 4, 3), 1));
        assert!(sample.first_token >= Duration::from_millis(20));
        assert!(sample.last_token >= sample.first_token);
    }
    let bodies = seen.bodies.lock().unwrap();
    let prompts: std::collections::HashSet<String> = bodies
        .iter()
        .map(|body| body["prompt"].to_string())
        .collect();
    assert_eq!(
        prompts.len(),
        14,
        "every prompt is different, including those of the warm-up"
    );
    assert!(
        bodies
            .iter()
            .all(|b| b["cache_prompt"] == json!(false) && b["max_tokens"] == 3)
    );
}
