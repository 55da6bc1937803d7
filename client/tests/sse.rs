//! Damaged streams of events: the same events come out, wherever the chunks of a stream end.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../../tests/fuzz/mutate.rs"]
mod mutate;

use std::io::{Read, Write};
use std::net::TcpListener;

use hearth_client::{Client, ClientError, Parser, sse_data};
use mutate::{Random, cases};

const CASES: u64 = 20_000;

const STREAMS: [&str; 3] = [
    "data: {\"choices\":[{\"delta\":{\"content\":\"a\\nb\"}}]}\n\ndata: [DONE]\n\n",
    ": keep-alive\r\nevent: delta\r\nid: 7\r\ndata: first\r\ndata:  second\r\n\r\ndata\r\n\r\n",
    "event: message_start\ndata: {\"type\":\"message_start\"}\n\nevent: ping\ndata: \u{20ac}\n\n",
];

#[test]
fn a_damaged_stream_has_the_same_events_in_any_chunks() {
    let (mut count, mut found) = (0, 0);
    for case in cases(CASES) {
        let mut random = Random(case);
        let mut stream = STREAMS[random.below(STREAMS.len())].repeat(1 + random.below(3));
        stream.push_str(STREAMS[random.below(STREAMS.len())]);
        let mut bytes = stream.into_bytes();
        mutate::bytes(&mut bytes, &mut random);
        let whole = sse_data(&bytes);
        let (mut parser, mut events) = (Parser::default(), Vec::new());
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let (chunk, after) = rest.split_at((1 + random.below(20)).min(rest.len()));
            parser.push(chunk, &mut events).unwrap();
            rest = after;
        }
        assert_eq!(events, whole, "case {case}");
        count += 1;
        found += events.len();
    }
    println!("{count} damaged streams with {found} events");
    assert!(found > 0);
}

#[tokio::test]
async fn a_line_that_never_ends_ends_the_stream_and_not_the_memory() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let _ = socket.read(&mut [0; 4096]);
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: 1\n\ndata: ";
        socket.write_all(head.as_bytes()).unwrap();
        let line = vec![b'a'; 1 << 20];
        // Until the client has gone.
        while socket.write_all(&line).is_ok() {}
    });
    let client = Client::new(&url).unwrap();
    let mut events = client.stream("/", &serde_json::json!({})).await.unwrap();
    assert_eq!(events.next().await.unwrap(), Some(1.into()));
    let error = events.next().await.unwrap_err();
    assert!(matches!(error, ClientError::TooLong(_)), "{error}");
    assert!(error.to_string().contains("67108864 bytes"), "{error}");
}
