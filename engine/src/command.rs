//! What an operator may ask of a running engine, beside requests.

use hearth_radix::CachedEdge;
use tokio::sync::oneshot;

use crate::cache_events::CacheObserver;
use crate::events::StepObserver;
use crate::picture::{CachedPrefix, Picture};
use crate::request_id::RequestId;
use crate::transfer::{PrefixCommand, TransferCommand};

/// Which requests an abort ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AbortTarget {
    All,
    /// Requests with exactly this [`Request::id`](crate::Request::id).
    Id(String),
    /// Requests whose [`Request::id`](crate::Request::id) starts with this.
    Prefix(String),
}

impl AbortTarget {
    /// A request without an id is matched by [`AbortTarget::All`] only.
    pub(crate) fn matches(&self, id: Option<&str>) -> bool {
        match self {
            Self::All => true,
            Self::Id(wanted) => id == Some(wanted),
            Self::Prefix(prefix) => id.is_some_and(|id| id.starts_with(prefix)),
        }
    }
}

/// What happens to running requests when the engine pauses. Requests that arrive during the
/// pause wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseMode {
    /// All running and waiting requests end with
    /// [`FinishReason::Aborted`](crate::FinishReason::Aborted).
    Abort,
    /// Running requests keep their slots, and continue where they stopped.
    InPlace,
    /// Running requests give their slots back and wait. Their computed tokens stay cached
    /// until the cache is flushed or the room is needed.
    Retract,
}

/// The cache was not flushed, because requests are using it.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error("the cache cannot be flushed while requests run: there are {running}")]
pub struct CacheInUse {
    pub running: usize,
}

/// The engine thread has ended, and the command was not carried out.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error("the engine has stopped")]
pub struct EngineStopped;

/// The answer to a command, which the engine thread gives between two of its steps. Dropping
/// it does not take the command back.
#[derive(Debug)]
#[must_use = "only the answer tells whether the command was carried out"]
pub struct Pending<T>(pub(crate) oneshot::Receiver<T>);

impl<T> Pending<T> {
    /// # Errors
    /// If the engine thread has ended.
    pub async fn wait(self) -> Result<T, EngineStopped> {
        self.0.await.map_err(|_| EngineStopped)
    }

    /// [`wait`](Self::wait) for threads without a runtime; it panics on a runtime's thread.
    ///
    /// # Errors
    /// If the engine thread has ended.
    pub fn wait_blocking(self) -> Result<T, EngineStopped> {
        self.0.blocking_recv().map_err(|_| EngineStopped)
    }
}

/// A command on its way to the engine thread, with the channel for its answer.
#[derive(Debug)]
pub(crate) enum Command {
    Abort {
        target: AbortTarget,
        /// The id that the next request will get: the abort does not concern requests that
        /// arrive after it.
        before: RequestId,
        reply: oneshot::Sender<usize>,
    },
    FlushCache(oneshot::Sender<Result<usize, CacheInUse>>),
    Pause(PauseMode, oneshot::Sender<()>),
    Resume(oneshot::Sender<()>),
    Transfer(TransferCommand),
    Prefix(PrefixCommand),
    /// Reports every step from now on to this observer.
    Observe(StepObserver),
    /// Reports every change of the prefix cache from now on to this observer.
    ObserveCache(Box<dyn CacheObserver>),
}

/// A request to see a part of the engine's state. It changes nothing and waits for no step to end, so
/// that the device does not become idle because of it.
#[derive(Debug)]
pub(crate) enum Look {
    /// The engine and at most `nodes` nodes of the prefix cache.
    Picture {
        nodes: usize,
        reply: oneshot::Sender<Picture>,
    },
    /// The last `most` tokens of the cached prefix that ends with `node`.
    Prefix {
        node: u64,
        most: usize,
        reply: oneshot::Sender<Option<CachedPrefix>>,
    },
    /// All that the prefix cache of the device holds.
    Contents {
        reply: oneshot::Sender<Vec<CachedEdge>>,
    },
}
