//! The publisher's connections to subscribers: what each asked for, and the batches that wait for it.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::history::Numbered;
use crate::zmtp::{self, Received, SMALL};

/// Most subscribers, and most topics that one may ask for.
const MOST: usize = 1024;

enum Outgoing {
    Batch(Numbered),
    Pong(Vec<u8>),
}

/// Prefixes of topics.
type Topics = Arc<Mutex<Vec<Vec<u8>>>>;

struct Subscriber {
    id: u64,
    topics: Topics,
    queue: Sender<Outgoing>,
}

#[derive(Default)]
struct List {
    subscribers: Vec<Subscriber>,
    next: u64,
}

/// All subscribers of a publisher.
pub struct Subscribers {
    topic: Vec<u8>,
    /// Batches that may wait for one subscriber.
    hwm: usize,
    list: Mutex<List>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that panics runs under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Subscribers {
    pub fn new(topic: &str, hwm: usize) -> Self {
        Self {
            topic: topic.as_bytes().to_vec(),
            hwm,
            list: Mutex::default(),
        }
    }

    /// Queues a batch for everyone who asked for the topic. As with any ZeroMQ publisher, it is lost
    /// to a subscriber whose queue is full, who sees that a number is missing.
    pub fn send(&self, batch: &Numbered) {
        for subscriber in &locked(&self.list).subscribers {
            let topics = locked(&subscriber.topics);
            if topics.iter().any(|prefix| self.topic.starts_with(prefix))
                && subscriber
                    .queue
                    .try_send(Outgoing::Batch(batch.clone()))
                    .is_err()
            {
                tracing::debug!(number = batch.0, "a subscriber is slow and loses KV events");
            }
        }
    }

    /// Serves a subscriber until its connection ends.
    ///
    /// # Errors
    /// The connection ended, or the peer broke the protocol.
    pub async fn serve(&self, mut stream: TcpStream) -> io::Result<()> {
        zmtp::greet(&mut stream, "PUB", &["SUB", "XSUB"]).await?;
        let (reader, writer) = stream.into_split();
        let (queue, waiting) = channel(self.hwm);
        let topics = Topics::default();
        let id = {
            let mut list = locked(&self.list);
            if list.subscribers.len() == MOST {
                return Err(io::Error::other("there are too many subscribers"));
            }
            list.next += 1;
            let (id, topics, queue) = (list.next, Arc::clone(&topics), queue.clone());
            list.subscribers.push(Subscriber { id, topics, queue });
            id
        };
        let ended = tokio::select! {
            ended = listen(reader, &topics, &queue) => ended,
            ended = self.write(writer, waiting) => ended,
        };
        locked(&self.list)
            .subscribers
            .retain(|other| other.id != id);
        ended
    }

    async fn write(
        &self,
        mut writer: impl AsyncWrite + Unpin,
        mut waiting: Receiver<Outgoing>,
    ) -> io::Result<()> {
        while let Some(outgoing) = waiting.recv().await {
            match outgoing {
                Outgoing::Batch((number, payload)) => {
                    let frames = [&self.topic[..], &number.to_be_bytes(), &payload];
                    zmtp::write(&mut writer, &frames).await?;
                }
                Outgoing::Pong(pong) => writer.write_all(&pong).await?,
            }
        }
        Ok(())
    }
}

/// Takes in subscriptions: 1 and a prefix of topics, or 0 and the prefix to end one.
async fn listen(
    mut reader: impl AsyncRead + Unpin,
    topics: &Topics,
    queue: &Sender<Outgoing>,
) -> io::Result<()> {
    loop {
        match zmtp::read(&mut reader, SMALL).await? {
            // A peer that does not read needs no PONG either.
            Received::Ping { pong } => drop(queue.try_send(Outgoing::Pong(pong))),
            Received::Message(frames) => {
                let mut topics = locked(topics);
                match frames.first().and_then(|frame| frame.split_first()) {
                    Some((1, prefix)) if topics.len() < MOST => topics.push(prefix.to_vec()),
                    Some((0, prefix)) => {
                        let found = topics.iter().position(|topic| topic == prefix);
                        found.map(|at| topics.swap_remove(at));
                    }
                    _ => {}
                }
            }
        }
    }
}
