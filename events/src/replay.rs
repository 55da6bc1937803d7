//! The socket where subscribers ask for batches that they have missed.
//!
//! A request is the number of the first batch in 8 bytes. Each batch is one message with topic, number
//! and payload; the last message has the number -1 and no payload.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::history::History;
use crate::zmtp::{self, Received, SMALL};

/// The number in the message after the last batch.
pub const END: [u8; 8] = [0xff; 8];

/// Answers the requests of one peer until its connection ends.
///
/// # Errors
/// The connection ended, or the peer broke the protocol.
pub async fn serve(
    mut stream: TcpStream,
    history: Arc<Mutex<History>>,
    topic: Arc<str>,
) -> io::Result<()> {
    zmtp::greet(&mut stream, "ROUTER", &["REQ", "DEALER", "ROUTER"]).await?;
    loop {
        let frames = match zmtp::read(&mut stream, SMALL).await? {
            Received::Ping { pong } => {
                stream.write_all(&pong).await?;
                continue;
            }
            Received::Message(frames) => frames,
        };
        let start = match &frames[..] {
            [delimiter, start] if delimiter.is_empty() => <[u8; 8]>::try_from(&start[..]).ok(),
            _ => None,
        };
        // Anything else gets no answer, as from vLLM.
        let Some(start) = start.map(u64::from_be_bytes) else {
            tracing::debug!("a request for missed KV events is malformed");
            continue;
        };
        let batches = {
            let history = history.lock().unwrap_or_else(PoisonError::into_inner);
            history.since(start)
        };
        for (number, payload) in batches {
            let frames = [b"", topic.as_bytes(), &number.to_be_bytes(), &payload];
            zmtp::write(&mut stream, &frames).await?;
        }
        zmtp::write(&mut stream, &[b"", b"", &END, b""]).await?;
    }
}
