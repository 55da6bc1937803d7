//! What an operator may ask of a running engine, beside requests.

use tokio::sync::oneshot;

use crate::events::StepObserver;
use crate::inbox::RequestId;

/// Which requests an abort ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AbortTarget {
    All,
    /// Those whose [`Request::id`](crate::Request::id) is this one.
    Id(String),
    /// Those whose [`Request::id`](crate::Request::id) starts with this.
    Prefix(String),
}

impl AbortTarget {
    /// A request without an id is reached by [`AbortTarget::All`] alone.
    pub(crate) fn matches(&self, id: Option<&str>) -> bool {
        match self {
            Self::All => true,
            Self::Id(wanted) => id == Some(wanted),
            Self::Prefix(prefix) => id.is_some_and(|id| id.starts_with(prefix)),
        }
    }
}

/// What becomes of the requests that run when the engine pauses. Requests that
/// come while it is paused wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseMode {
    /// All requests that run or wait end with
    /// [`FinishReason::Aborted`](crate::FinishReason::Aborted).
    Abort,
    /// They keep their slots, and go on where they were.
    InPlace,
    /// They give their slots back and wait; what they computed stays cached for
    /// as long as nobody flushes it.
    Retract,
}

/// The cache was not flushed, because requests are using it.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error("the cache cannot be flushed while requests run: there are {running}")]
pub struct CacheInUse {
    pub running: usize,
}

/// The engine thread has ended; it does nothing any more.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error("the engine has stopped")]
pub struct EngineStopped;

/// An answer of the engine thread, which comes between two of its steps.
/// Dropping it does not take back what was asked.
#[derive(Debug)]
#[must_use = "whether it was done is known only from the answer"]
pub struct Pending<T>(pub(crate) oneshot::Receiver<T>);

impl<T> Pending<T> {
    /// # Errors
    /// If the engine thread has ended.
    pub async fn wait(self) -> Result<T, EngineStopped> {
        self.0.await.map_err(|_| EngineStopped)
    }

    /// [`wait`](Self::wait) for threads without a runtime; it panics on a
    /// runtime's thread.
    ///
    /// # Errors
    /// If the engine thread has ended.
    pub fn wait_blocking(self) -> Result<T, EngineStopped> {
        self.0.blocking_recv().map_err(|_| EngineStopped)
    }
}

/// A question on its way to the engine thread.
#[derive(Debug)]
pub(crate) enum Command {
    Abort {
        target: AbortTarget,
        /// The first request that was not there yet when it was asked for.
        before: RequestId,
        reply: oneshot::Sender<usize>,
    },
    FlushCache(oneshot::Sender<Result<usize, CacheInUse>>),
    Pause(PauseMode, oneshot::Sender<()>),
    Resume(oneshot::Sender<()>),
    /// Tells it of every step from here on.
    Observe(StepObserver),
}
