//! The reader's side: follows a publisher, and makes up for what it missed.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::endpoint::Endpoint;
use crate::event::{EventBatch, KvEvent};
use crate::zmtp::{self, Message, Received};

/// Longest message in bytes: one has everything that a worker has cached.
const LONGEST: usize = 256 << 20;
const CONNECT: Duration = Duration::from_secs(5);
/// Longest time of a replay.
const REPLAY: Duration = Duration::from_secs(30);

/// A publisher to follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    pub endpoint: Endpoint,
    /// Where missed batches can be asked for.
    pub replay: Option<Endpoint>,
    /// The prefix of topics to read.
    pub topic: String,
}

/// The news for a reader.
#[derive(Clone, Debug, PartialEq)]
pub enum Update {
    /// There is no connection: what was known is worth nothing.
    Disconnected,
    /// Batches were missed for good: forget everything, and go on with what follows.
    Lost,
    /// Apply these events in order.
    Events(Vec<KvEvent>),
    /// The publisher is followed. `complete` says whether all that it has cached is known.
    Following { complete: bool },
}

/// Follows a publisher until the connection ends; returns why.
pub async fn follow(source: &Source, mut on: impl FnMut(Update)) -> io::Error {
    let mut session = Session {
        source,
        on: &mut on,
        last: None,
        complete: false,
    };
    let Err(ended) = session.run().await;
    on(Update::Disconnected);
    ended
}

/// One connection.
struct Session<'a, F> {
    source: &'a Source,
    on: &'a mut F,
    /// The number of the latest batch that was applied.
    last: Option<u64>,
    complete: bool,
}

impl<F: FnMut(Update)> Session<'_, F> {
    async fn run(&mut self) -> io::Result<Infallible> {
        let mut stream = connect(&self.source.endpoint).await?;
        zmtp::greet(&mut stream, "SUB", &["PUB", "XPUB"]).await?;
        let topic = [b"\x01", self.source.topic.as_bytes()].concat();
        zmtp::write(&mut stream, &[&topic]).await?;
        (self.on)(Update::Lost);
        // Batches that come meanwhile wait in the connection.
        let replayed = self.replay(0).await.is_ok();
        // Otherwise the first batch says whether everything before it is known.
        self.complete |= replayed && self.last.is_none();
        self.tell();
        loop {
            match zmtp::read(&mut stream, LONGEST).await? {
                Received::Ping { pong } => stream.write_all(&pong).await?,
                Received::Message(message) => {
                    let (number, payload) = parts(&message)?;
                    self.take(number, payload).await?;
                }
            }
        }
    }

    fn tell(&mut self) {
        let complete = self.complete;
        (self.on)(Update::Following { complete });
    }

    /// The number of the batch that comes next if none is missed.
    fn next(&self) -> u64 {
        self.last.map_or(0, |last| last + 1)
    }

    /// Takes in a published batch, after those that are missing before it.
    async fn take(&mut self, number: u64, payload: &[u8]) -> io::Result<()> {
        if number > self.next()
            && let Err(error) = self.replay(self.next()).await
        {
            tracing::debug!(%error, "missed KV events were not sent again");
        }
        match number < self.next() {
            // It came with a replay, too.
            true => Ok(()),
            false => self.apply(number, payload),
        }
    }

    fn apply(&mut self, number: u64, payload: &[u8]) -> io::Result<()> {
        let batch = EventBatch::decode(payload);
        let batch = batch.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        let is_start = number == 0 || batch.events.contains(&KvEvent::AllBlocksCleared);
        if number > self.next() && !is_start {
            (self.on)(Update::Lost);
            self.complete = false;
            self.tell();
        }
        self.last = Some(number);
        (self.on)(Update::Events(batch.events));
        if is_start && !self.complete {
            self.complete = true;
            self.tell();
        }
        Ok(())
    }

    /// Applies the batches from number `start` on that the publisher still has.
    async fn replay(&mut self, start: u64) -> io::Result<()> {
        let unavailable = || io::Error::other("missed batches cannot be asked for");
        let endpoint = self.source.replay.as_ref().ok_or_else(unavailable)?;
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the replay took too long");
        timeout(REPLAY, self.replay_from(endpoint, start))
            .await
            .map_err(late)?
    }

    async fn replay_from(&mut self, endpoint: &Endpoint, start: u64) -> io::Result<()> {
        let mut stream = connect(endpoint).await?;
        zmtp::greet(&mut stream, "REQ", &["ROUTER", "REP"]).await?;
        zmtp::write(&mut stream, &[b"", &start.to_be_bytes()]).await?;
        loop {
            let message = match zmtp::read(&mut stream, LONGEST).await? {
                Received::Ping { pong } => {
                    stream.write_all(&pong).await?;
                    continue;
                }
                Received::Message(message) => message,
            };
            let (number, payload) = parts(&message)?;
            if payload.is_empty() {
                return Ok(());
            }
            if number >= self.next() {
                self.apply(number, payload)?;
            }
        }
    }
}

async fn connect(endpoint: &Endpoint) -> io::Result<TcpStream> {
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "no connection in time");
    let connecting = TcpStream::connect((endpoint.host(), endpoint.port));
    timeout(CONNECT, connecting).await.map_err(late)?
}

/// The number and the payload of a message, which are its last two frames.
fn parts(message: &Message) -> io::Result<(u64, &[u8])> {
    let invalid = || io::Error::new(io::ErrorKind::InvalidData, "a batch without a number");
    let [.., number, payload] = &message[..] else {
        return Err(invalid());
    };
    let number = <[u8; 8]>::try_from(&number[..]).map_err(|_| invalid())?;
    Ok((u64::from_be_bytes(number), payload))
}

#[cfg(test)]
mod tests;
