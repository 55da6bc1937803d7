//! Clients that stop reading.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use hearth_api::config::HttpConfig;
use hearth_engine::EngineConfig;
use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};

use super::fake::{Behaviour, TestServer};
use super::{COMPLETIONS, chunks, text_of};

const PATIENCE: Duration = Duration::from_secs(30);

fn endless(stall_timeout: u64) -> TestServer {
    let behaviour = Behaviour {
        step: Duration::from_micros(100),
        max_model_len: 100_000,
        kv_slots: 200_000,
        endless: true,
        ..Behaviour::default()
    };
    let config = HttpConfig {
        stall_timeout,
        ..HttpConfig::default()
    };
    TestServer::start(behaviour, EngineConfig::default(), config)
}

/// Asks for a stream with more bytes than the socket buffers of both sides hold, and reads none.
fn stalled(server: &TestServer) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    // It must be set before connecting, because it bounds the advertised window.
    socket.set_recv_buffer_size(4096).unwrap();
    let address: SocketAddr = server.address().parse().unwrap();
    socket.connect(&address.into()).unwrap();
    let mut socket: TcpStream = socket.into();
    let body = stream_body().to_string();
    write!(
        socket,
        "POST {COMPLETIONS} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    socket
}

/// A request whose answer has hundreds of bytes for each of 90,000 tokens.
fn stream_body() -> Value {
    json!({
        "prompt": "a",
        "max_tokens": 90_000,
        "temperature": 0,
        "stream": true,
        "logprobs": 20,
    })
}

#[tokio::test]
async fn a_client_that_stops_reading_is_cut_off_and_holds_nobody_up() {
    let server = endless(1);
    let mut socket = stalled(&server);
    let engine = server.state.loaded().unwrap().engine.clone();
    let deadline = Instant::now() + PATIENCE;
    while engine.stats().running == 0 {
        assert!(Instant::now() < deadline, "{:?}", engine.stats());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // Other clients are served meanwhile.
    let other = json!({"prompt": "a", "max_tokens": 24, "temperature": 0, "stream": true});
    let answer = chunks(&server, COMPLETIONS, &other).await;
    assert_eq!(text_of(&answer, 0), "bcdefghijklmnopqrstuvwxy");
    server.wait_until_idle().await;
    let stats = engine.stats();
    assert_eq!((stats.cancelled, stats.finished), (1, 1), "{stats:?}");
    // The bytes in the socket buffers can still be read, and then the connection ends.
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut read = 0;
    let (mut buffer, mut last) = (vec![0; 1 << 16], Vec::new());
    let end = loop {
        match socket.read(&mut buffer) {
            Ok(0) => break None,
            Ok(bytes) => {
                read += bytes;
                last = buffer[..bytes].to_vec();
            }
            Err(error) => break Some(error.kind()),
        }
    };
    let timed_out = matches!(end, Some(ErrorKind::WouldBlock | ErrorKind::TimedOut));
    assert!(!timed_out, "the connection stays open after {read} bytes");
    let tail = String::from_utf8_lossy(&last);
    assert!(
        !tail.contains("[DONE]"),
        "all of the stream came, {read} bytes: nothing was cut off"
    );
}
