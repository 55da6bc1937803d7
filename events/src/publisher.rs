//! The publisher: a thread that numbers batches, sends them to subscribers and keeps the last ones.

use std::io;
use std::net::TcpListener as StdListener;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::sleep;

use crate::config::{ConfigError, KvEventsConfig};
use crate::endpoint::Endpoint;
use crate::event::EventBatch;
use crate::history::{History, Numbered};
use crate::replay;
use crate::subscribers::Subscribers;

/// Pause between two attempts to reach a subscriber that listens.
const RECONNECT: Duration = Duration::from_secs(1);
/// Pause after an error of a listener, such as too many open files.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// Time in which the last batches may reach subscribers.
const LAST_BATCHES: Duration = Duration::from_millis(200);

/// Why a publisher could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("--kv-events-config: {0}")]
    Config(#[from] ConfigError),
    #[error("--kv-events-config: cannot listen on {endpoint}: {error}")]
    Listen { endpoint: String, error: io::Error },
    #[error("cannot start the thread that publishes KV events: {0}")]
    Thread(io::Error),
}

/// A running publisher. It ends when this is dropped.
#[derive(Debug)]
pub struct Publisher {
    queue: Sender<EventBatch>,
    endpoint: Endpoint,
    replay: Option<Endpoint>,
}

impl Publisher {
    /// Opens the ports and starts the thread.
    ///
    /// # Errors
    /// A port cannot be opened.
    pub fn start(config: &KvEventsConfig) -> Result<Self, StartError> {
        let (mut endpoint, mut replay) = config.endpoints()?;
        let listener = match endpoint.is_listened_at() {
            true => Some(listen(&mut endpoint)?),
            false => None,
        };
        let replays = replay.as_mut().map(listen).transpose()?;
        let (queue, batches) = channel(config.max_queue_size);
        let sockets = Sockets {
            listener,
            endpoint: endpoint.clone(),
            replays,
        };
        let topic = Arc::from(config.topic.as_str());
        let (buffer, hwm) = (config.buffer_steps, config.hwm);
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(StartError::Thread)?;
        thread::Builder::new()
            .name("hearth-kv-events".to_owned())
            .spawn(move || runtime.block_on(run(sockets, batches, topic, hwm, buffer)))
            .map_err(StartError::Thread)?;
        Ok(Self {
            queue,
            endpoint,
            replay,
        })
    }

    /// True if [`publish`](Self::publish) will take a batch, if nobody else publishes.
    pub fn has_room(&self) -> bool {
        self.queue.capacity() > 0
    }

    /// Queues a batch; returns whether there was room. It never waits.
    pub fn publish(&self, batch: EventBatch) -> bool {
        self.queue.try_send(batch).is_ok()
    }

    /// The endpoint with its port.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Where missed batches can be asked for.
    pub fn replay_endpoint(&self) -> Option<&Endpoint> {
        self.replay.as_ref()
    }
}

/// Listens at `endpoint`, and replaces its port 0 with the real one.
fn listen(endpoint: &mut Endpoint) -> Result<StdListener, StartError> {
    let bound = StdListener::bind((endpoint.listen_host(), endpoint.port)).and_then(|listener| {
        listener.set_nonblocking(true)?;
        *endpoint = endpoint.with_port(listener.local_addr()?.port());
        Ok(listener)
    });
    bound.map_err(|error| StartError::Listen {
        endpoint: endpoint.to_string(),
        error,
    })
}

struct Sockets {
    /// None if the publisher connects.
    listener: Option<StdListener>,
    endpoint: Endpoint,
    replays: Option<StdListener>,
}

async fn run(
    sockets: Sockets,
    mut batches: Receiver<EventBatch>,
    topic: Arc<str>,
    hwm: usize,
    buffer: usize,
) {
    let subscribers = Arc::new(Subscribers::new(&topic, hwm));
    match sockets.listener.map(TcpListener::from_std) {
        None => drop(tokio::spawn(connect(
            sockets.endpoint,
            Arc::clone(&subscribers),
        ))),
        Some(Ok(listener)) => {
            let subscribers = Arc::clone(&subscribers);
            tokio::spawn(accept(listener, move |stream| {
                let subscribers = Arc::clone(&subscribers);
                async move { subscribers.serve(stream).await }
            }));
        }
        Some(Err(error)) => tracing::error!(%error, "KV events are not published"),
    }
    let mut history = None;
    match sockets.replays.map(TcpListener::from_std) {
        None => {}
        Some(Ok(listener)) => {
            let kept = Arc::new(Mutex::new(History::new(buffer)));
            history = Some(Arc::clone(&kept));
            tokio::spawn(accept(listener, move |stream| {
                replay::serve(stream, Arc::clone(&kept), Arc::clone(&topic))
            }));
        }
        Some(Err(error)) => tracing::error!(%error, "missed KV events are not sent again"),
    }
    let mut number = 0;
    while let Some(batch) = batches.recv().await {
        let payload = match batch.encode() {
            Ok(payload) => payload,
            Err(error) => {
                tracing::error!(%error, "a batch of KV events was not written");
                continue;
            }
        };
        let batch: Numbered = (number, Arc::from(payload));
        number += 1;
        subscribers.send(&batch);
        if let Some(history) = &history {
            let mut history = history.lock().unwrap_or_else(PoisonError::into_inner);
            history.push(batch);
        }
    }
    sleep(LAST_BATCHES).await;
}

/// Serves each connection in a task of its own.
async fn accept<F: Future<Output = io::Result<()>> + Send + 'static>(
    listener: TcpListener,
    serve: impl Fn(TcpStream) -> F,
) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let served = serve(stream);
                tokio::spawn(async move {
                    let ended = served.await.err();
                    tracing::debug!(%peer, ?ended, "a connection for KV events ended");
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection for KV events was not accepted");
                sleep(ACCEPT_AGAIN).await;
            }
        }
    }
}

/// Publishes to one subscriber that listens, whenever it can be reached.
async fn connect(endpoint: Endpoint, subscribers: Arc<Subscribers>) {
    loop {
        let stream = TcpStream::connect((endpoint.host(), endpoint.port)).await;
        let ended = match stream {
            Ok(stream) => subscribers.serve(stream).await,
            Err(error) => Err(error),
        };
        tracing::debug!(%endpoint, error = ?ended.err(), "no connection for KV events");
        sleep(RECONNECT).await;
    }
}
