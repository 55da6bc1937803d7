//! The engine's thread and the handle to it.

use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::command::{AbortTarget, CacheInUse, Command, PauseMode, Pending};
use crate::config::{ConfigError, EngineConfig};
use crate::device::Device;
use crate::events::StepObserver;
use crate::executor::{BuildError, Executor, ExecutorLimits};
use crate::inbox::{Inbox, RequestId};
use crate::request::{Generation, Request, SubmitError};
use crate::stats::EngineStats;
use crate::step::Core;

/// How long past its grace a shutdown waits for a forward that does not return.
const STUCK_FORWARD: Duration = Duration::from_secs(5);

/// The engine; see [`Engine::spawn`].
pub struct Engine;

/// Why there is no engine.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Build(#[from] BuildError),
    #[error("building the model panicked: {0}")]
    BuildPanicked(String),
    #[error(
        "the context must be at least 2 tokens long, one of a prompt and one of its output, got {}: \
         max_model_len is {}, and the KV cache has room for {} tokens",
        context_limit(*.0), .0.max_model_len, .0.kv_slots
    )]
    NoRoom(ExecutorLimits),
    #[error("the model's vocabulary must be at least 1 token large, got 0")]
    NoVocabulary,
    #[error("cannot start the engine thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// How a shutdown went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownOutcome {
    /// The engine thread has ended; what was unfinished at the end of the grace
    /// was cancelled.
    Stopped,
    /// A forward is still running; its thread was left behind.
    Stuck,
}

impl Engine {
    /// Starts the engine thread and the device's, and waits until `build` has made the
    /// executor on the latter (device queues belong to the thread that made them, so an
    /// executor need not be `Send`).
    ///
    /// # Errors
    /// What `build` reports, or bounds that let nothing run.
    pub fn spawn<E, F>(config: EngineConfig, build: F) -> Result<EngineHandle, SpawnError>
    where
        E: Executor,
        F: FnOnce() -> Result<E, BuildError> + Send + 'static,
    {
        config.validate()?;
        let heeds_priority = config.heeds_priority();
        let inbox = Arc::new(Inbox::new(config.max_queue));
        let (report, built) = mpsc::sync_channel(1);
        let thread = thread::Builder::new()
            .name("hearth-engine".to_owned())
            .spawn({
                let inbox = Arc::clone(&inbox);
                move || {
                    let _stop = StopOnExit(&inbox);
                    let landed = {
                        let inbox = Arc::clone(&inbox);
                        move || inbox.landed()
                    };
                    let device = match Device::start(build, landed) {
                        Ok(device) => device,
                        Err(error) => return drop(report.send(Err(error))),
                    };
                    let limits = device.limits;
                    let mut core = Core::new(config, device, Arc::clone(&inbox));
                    if report.send(Ok(limits)).is_ok() {
                        core.serve();
                    }
                }
            })?;
        let limits = built
            .recv()
            .unwrap_or_else(|_| Err(SpawnError::BuildPanicked("no report".to_owned())))?;
        let thread = Mutex::new(Some(thread));
        Ok(EngineHandle {
            shared: Arc::new(Shared {
                inbox,
                limits,
                heeds_priority,
                thread,
            }),
        })
    }
}

/// The longest sequence that one request alone can always finish.
pub(crate) fn context_limit(limits: ExecutorLimits) -> usize {
    limits.max_model_len.min(limits.kv_slots)
}

/// Marks the inbox stopped however the thread ends, so that no caller waits for
/// an engine that is gone.
struct StopOnExit<'a>(&'a Inbox);

impl Drop for StopOnExit<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Sees an engine; see [`EngineHandle::watch`].
#[derive(Clone, Debug)]
pub struct EngineWatch(Arc<Inbox>);

impl EngineWatch {
    /// As [`EngineHandle::stats`].
    pub fn stats(&self) -> EngineStats {
        self.0.stats()
    }

    /// How long the engine has had work and has finished no step of it; zero when it
    /// has none. A large value is an engine that is stuck.
    pub fn heartbeat_age(&self) -> Duration {
        self.0.heartbeat_age()
    }
}

/// A handle to the engine, shared by all callers. When the last clone is
/// dropped, the engine finishes what it has and its thread ends.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    inbox: Arc<Inbox>,
    limits: ExecutorLimits,
    heeds_priority: bool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.inbox.close(None);
    }
}

impl EngineHandle {
    /// Queues a request. `params.max_tokens` beyond the context length is cut to it.
    ///
    /// # Errors
    /// A prompt or parameter that the model cannot take, a full queue, or an
    /// engine that is shutting down; nothing was queued then.
    pub fn submit(&self, request: Request) -> Result<Generation, SubmitError> {
        let mut generations = self.submit_all(vec![request])?;
        Ok(generations.pop().expect("one for each request"))
    }

    /// As [`submit`](Self::submit), for requests that belong together: the scheduler sees all
    /// of them before it chooses whom to start, as far as it takes in so many at once.
    ///
    /// # Errors
    /// Those of [`submit`](Self::submit); none of them was queued then.
    pub fn submit_all(&self, requests: Vec<Request>) -> Result<Vec<Generation>, SubmitError> {
        let mut sent = Vec::with_capacity(requests.len());
        let mut streams = Vec::with_capacity(requests.len());
        for request in requests {
            let (sender, events) = tokio::sync::mpsc::unbounded_channel();
            sent.push((self.checked(request)?, sender));
            streams.push(events);
        }
        let first = self.shared.inbox.submit(sent)?;
        let generations = (0..).zip(streams).map(|(n, events)| Generation {
            id: first.after(n),
            events,
            inbox: Arc::clone(&self.shared.inbox),
            ended: false,
        });
        Ok(generations.collect())
    }

    fn checked(&self, mut request: Request) -> Result<Request, SubmitError> {
        let ExecutorLimits { vocab_size, .. } = self.shared.limits;
        let context = context_limit(self.shared.limits);
        let given = request.prompt.len();
        if given == 0 {
            return Err(SubmitError::EmptyPrompt);
        }
        if given >= context {
            return Err(SubmitError::PromptTooLong {
                given,
                limit: context - 1,
                context,
            });
        }
        if let Some(index) = request
            .prompt
            .iter()
            .position(|&id| id as usize >= vocab_size)
        {
            let given = request.prompt[index];
            return Err(SubmitError::TokenOutOfRange {
                index,
                given,
                vocab: vocab_size,
            });
        }
        request.params.validate(vocab_size)?;
        let room = match request.pooling {
            Some(_) => 0,
            None => context - given,
        };
        request.params.max_tokens = request.params.max_tokens.min(room);
        Ok(request)
    }

    /// The engine at the end of its latest step, and what waits now.
    pub fn stats(&self) -> EngineStats {
        self.shared.inbox.stats()
    }

    /// Whether the engine thread is there. It ends after a shutdown, or by a bug
    /// of ours: then every stream has failed, and nothing will be served again.
    pub fn is_running(&self) -> bool {
        !self.shared.inbox.is_stopped()
    }

    /// Whether a policy of this engine looks at [`Request::priority`].
    pub fn heeds_priority(&self) -> bool {
        self.shared.heeds_priority
    }

    pub fn limits(&self) -> ExecutorLimits {
        self.shared.limits
    }

    /// Tokens that prompt and output of one request may have together.
    pub fn context_limit(&self) -> usize {
        context_limit(self.shared.limits)
    }

    /// Ends the requests that `target` names and that are there now, with
    /// [`FinishReason::Aborted`](crate::FinishReason::Aborted); answers how many
    /// there were. Those that run end with the step they are in.
    pub fn abort(&self, target: AbortTarget) -> Pending<usize> {
        self.command(|before, reply| Command::Abort {
            target,
            before,
            reply,
        })
    }

    /// Forgets every cached prefix; answers how many tokens they had, or that
    /// requests run, and then nothing was forgotten. Requests that wait hold
    /// nothing in the cache, and do not matter.
    pub fn flush_cache(&self) -> Pending<Result<usize, CacheInUse>> {
        self.command(|_, reply| Command::FlushCache(reply))
    }

    /// Computes nothing from the next step on, until [`resume`](Self::resume) or
    /// a shutdown. Requests are accepted as before, and wait.
    pub fn pause(&self, mode: PauseMode) -> Pending<()> {
        self.command(|_, reply| Command::Pause(mode, reply))
    }

    /// Goes on after a pause; without one it does nothing.
    pub fn resume(&self) -> Pending<()> {
        self.command(|_, reply| Command::Resume(reply))
    }

    fn command<T>(
        &self,
        make: impl FnOnce(RequestId, oneshot::Sender<T>) -> Command,
    ) -> Pending<T> {
        let (sender, receiver) = oneshot::channel();
        self.shared.inbox.command(|next| make(next, sender));
        Pending(receiver)
    }

    /// Has `observer` told of every step from here on; it takes the place of another.
    pub fn observe(&self, observer: StepObserver) {
        self.shared.inbox.command(|_| Command::Observe(observer));
    }

    /// A look at the engine that does not keep it running.
    pub fn watch(&self) -> EngineWatch {
        EngineWatch(Arc::clone(&self.shared.inbox))
    }

    /// Stops accepting, lets what is running or waiting finish within `grace`,
    /// cancels the rest, and waits for the thread to end. Blocks.
    pub fn shutdown(&self, grace: Duration) -> ShutdownOutcome {
        self.shared.inbox.close(Instant::now().checked_add(grace));
        if !self
            .shared
            .inbox
            .wait_stopped(grace.saturating_add(STUCK_FORWARD))
        {
            return ShutdownOutcome::Stuck;
        }
        let thread = self
            .shared
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread {
            // The inbox is stopped: a panic on the thread has been told to every stream.
            let _ = thread.join();
        }
        ShutdownOutcome::Stopped
    }
}
