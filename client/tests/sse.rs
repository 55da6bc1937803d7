//! Damaged streams of events: the same events come out, wherever the chunks of a stream end.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../../tests/fuzz/mutate.rs"]
mod mutate;

use hearth_client::{Parser, sse_data};
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
            parser.push(chunk, &mut events);
            rest = after;
        }
        assert_eq!(events, whole, "case {case}");
        count += 1;
        found += events.len();
    }
    println!("{count} damaged streams with {found} events");
    assert!(found > 0);
}
