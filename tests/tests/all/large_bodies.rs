//! Bodies of ten megabytes are refused with the right status, while another request streams.

use std::cell::Cell;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::harness::{CHAT, COMPLETIONS, Server};

const TEN_MEGABYTES: usize = 10_000_000;
/// A stream counts as disturbed if it pauses for longer than this, and for longer than twenty
/// times its longest pause when alone. The cores are shared with the client that sends the bodies.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

struct Stream {
    text: String,
    longest_pause: Duration,
}

async fn stream(server: &Server) -> Stream {
    let body = json!({
        "prompt": "Once", "max_tokens": 2000, "temperature": 0, "ignore_eos": true, "stream": true,
    });
    let mut events = server.client.stream(COMPLETIONS, &body).await.unwrap();
    let (mut text, mut longest_pause, mut last) = (String::new(), Duration::ZERO, Instant::now());
    let mut reason = Value::Null;
    while let Some(event) = events.next().await.unwrap() {
        longest_pause = longest_pause.max(last.elapsed());
        last = Instant::now();
        let choice = &event["choices"][0];
        text += choice["text"].as_str().unwrap_or_default();
        reason = choice["finish_reason"].clone();
    }
    assert_eq!(reason, "length");
    Stream {
        text,
        longest_pause,
    }
}

/// Invalid bodies of ten megabytes or more: route, body and expected status.
fn bodies() -> Vec<(&'static str, Vec<u8>, u16)> {
    let long = "a ".repeat(TEN_MEGABYTES / 2);
    let chat = json!({"messages": [{"role": "user", "content": long}]}).to_string();
    let many = json!({"role": "user", "content": "hello hello"});
    let many = json!({"messages": vec![many; TEN_MEGABYTES / 40]}).to_string();
    let ids = json!({"prompt": vec![123; TEN_MEGABYTES / 4]}).to_string();
    let lists = json!({"prompt": vec![[7]; TEN_MEGABYTES / 4]}).to_string();
    let text = json!({"prompt": long}).to_string();
    let cut = text[..text.len() - 2].to_owned();
    let biases = (0..TEN_MEGABYTES / 16).map(|id| (format!("{id}"), json!(1)));
    let biases: serde_json::Map<String, Value> = biases.collect();
    let biases = json!({"prompt": "a", "logit_bias": biases}).to_string();
    let mut no_text = text.clone().into_bytes();
    let middle = no_text.len() / 2;
    no_text[middle] = 0xff;
    vec![
        (CHAT, chat.into_bytes(), 400),
        (CHAT, many.into_bytes(), 400),
        (COMPLETIONS, ids.into_bytes(), 400),
        (COMPLETIONS, lists.into_bytes(), 400),
        (COMPLETIONS, text.into_bytes(), 400),
        (COMPLETIONS, cut.into_bytes(), 400),
        (COMPLETIONS, biases.into_bytes(), 400),
        (COMPLETIONS, no_text, 400),
        (COMPLETIONS, vec![b' '; TEN_MEGABYTES * 2], 413),
        (COMPLETIONS, vec![b'['; TEN_MEGABYTES], 400),
    ]
}

#[tokio::test]
async fn ten_megabyte_bodies_are_refused_while_another_request_streams_undisturbed() {
    let server = Server::undisturbed(&[]).await;
    let alone = stream(&server).await;
    let bodies = bodies();
    let all_refused = Cell::new(false);
    let refused = async {
        server.wait_until_running(1).await;
        for (path, body, status) in &bodies {
            let started = Instant::now();
            let answer = server.post_raw(path, body.clone()).await;
            let start: String = answer.body.to_string().chars().take(300).collect();
            assert_eq!(answer.status, *status, "{start}");
            assert!(answer.body["error"]["message"].is_string(), "{start}");
            println!(
                "{} bytes to {path}: {status} in {:?}: {start}",
                body.len(),
                started.elapsed()
            );
        }
        let all = bodies
            .iter()
            .map(|(path, body, _)| server.post_raw(path, body.clone()));
        for (answer, (_, _, status)) in join_all(all).await.iter().zip(&bodies) {
            assert_eq!(answer.status, *status);
        }
        all_refused.set(true);
    };
    let streams = async {
        let mut streams = Vec::new();
        while !all_refused.get() {
            streams.push(stream(&server).await);
        }
        streams
    };
    let (streams, ()) = tokio::join!(streams, refused);
    for disturbed in streams {
        assert_eq!(disturbed.text, alone.text);
        println!(
            "longest pause {:?}, alone {:?}",
            disturbed.longest_pause, alone.longest_pause
        );
        assert!(
            disturbed.longest_pause < LONGEST_PAUSE.max(20 * alone.longest_pause),
            "{:?}",
            disturbed.longest_pause
        );
    }
    server.wait_until_idle().await;
}
