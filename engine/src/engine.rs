//! Starting an engine, and the handle through which callers reach it.

mod prefixes;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hearth_forward::{Executor, ExecutorLimits, panic_text};
use tokio::sync::oneshot;

use crate::adapters::SlotCounts;
use crate::cache_events::CacheObserver;
use crate::command::{AbortTarget, CacheInUse, Command, Look, PauseMode, Pending};
use crate::config::EngineConfig;
use crate::device::Device;
use crate::error::{BuildError, SpawnError};
use crate::events::StepObserver;
use crate::generation::Generation;
use crate::inbox::Inbox;
use crate::limits::context_limit;
use crate::picture::{CachedPrefix, Picture};
use crate::request::{Request, SubmitError};
use crate::request_id::RequestId;
use crate::speculation::{DraftMethod, DraftModel, Speculation};
use crate::stats::EngineStats;
use crate::step::EngineCore;
use crate::transfer::{RemoteOutput, TransferCommand, TransferError, TransferId};

pub use prefixes::EngineHold;

/// How long a shutdown waits, after its grace period, for a forward pass that does not return.
const STUCK_FORWARD: Duration = Duration::from_secs(5);

/// Makes the draft model for a model with the given sizes.
pub type BuildDraftModel =
    Box<dyn FnOnce(ExecutorLimits) -> Result<Box<dyn DraftModel>, BuildError> + Send>;

/// The engine; see [`Engine::spawn`].
pub struct Engine;

/// How a shutdown went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownOutcome {
    /// The engine thread has ended. Requests that were unfinished at the end of the grace period
    /// were cancelled.
    Stopped,
    /// A forward pass is still running, and its thread was left behind.
    Stuck,
}

impl Engine {
    /// Starts the engine thread and the device thread, and waits until `build` has made the
    /// executor on the device thread. (Device queues belong to the thread that made them, so an
    /// executor need not be `Send`.)
    ///
    /// # Errors
    /// The error that `build` returns, or bounds with which no request could run.
    pub fn spawn<E, F>(config: EngineConfig, build: F) -> Result<EngineHandle, SpawnError>
    where
        E: Executor,
        F: FnOnce() -> Result<E, BuildError> + Send + 'static,
    {
        Self::spawn_with_draft_model(config, build, None)
    }

    /// As [`spawn`](Self::spawn), for [`DraftMethod::DraftModel`]: once the executor is there,
    /// `build_draft` makes the draft model on the engine thread. It is not called where nothing is
    /// drafted because the executor samples on the device.
    ///
    /// # Errors
    /// As [`spawn`](Self::spawn), and if the draft model is missing or has another vocabulary.
    pub fn spawn_with_draft_model<E, F>(
        mut config: EngineConfig,
        build: F,
        build_draft: Option<BuildDraftModel>,
    ) -> Result<EngineHandle, SpawnError>
    where
        E: Executor,
        F: FnOnce() -> Result<E, BuildError> + Send + 'static,
    {
        config.validate()?;
        let wanted_speculation = config.speculation;
        let heeds_priority = config.heeds_priority();
        let inbox = Arc::new(Inbox::new(config.max_queue, config.max_running));
        let (report, built) = mpsc::sync_channel(1);
        let thread = thread::Builder::new()
            .name("hearth-engine".to_owned())
            .spawn({
                let inbox = Arc::clone(&inbox);
                move || {
                    let _stop = StopOnExit(&inbox);
                    let completed = {
                        let inbox = Arc::clone(&inbox);
                        move || inbox.step_completed()
                    };
                    let device = match Device::start(build, completed) {
                        Ok(device) => device,
                        Err(error) => return drop(report.send(Err(error))),
                    };
                    let limits = device.limits;
                    let kv_token_bytes = device.kv_token_bytes;
                    let adapter_slots = device.adapter_slots;
                    let samples_on_device = device.samples_on_device;
                    if samples_on_device {
                        config.speculation = None;
                    }
                    let draft_model = match draft_model(&config, limits, build_draft) {
                        Ok(draft_model) => draft_model,
                        Err(error) => return drop(report.send(Err(error))),
                    };
                    let mut core = EngineCore::new(config, device, draft_model, Arc::clone(&inbox));
                    let built = (limits, kv_token_bytes, adapter_slots, samples_on_device);
                    if report.send(Ok(built)).is_ok() {
                        core.serve();
                    }
                }
            })?;
        let (limits, kv_token_bytes, adapter_slots, samples_on_device) = built
            .recv()
            .unwrap_or_else(|_| Err(SpawnError::BuildPanicked("no report".to_owned())))?;
        let speculation = wanted_speculation.filter(|_| !samples_on_device);
        if speculation != wanted_speculation {
            tracing::warn!(
                "speculative decoding is off: this device samples tokens itself and begins a step \
                 before the tokens of the step before it are known, so nothing can be drafted"
            );
        }
        let thread = Mutex::new(Some(thread));
        Ok(EngineHandle {
            shared: Arc::new(Shared {
                inbox,
                limits,
                kv_token_bytes,
                adapter_slots,
                heeds_priority,
                speculation,
                thread,
            }),
        })
    }
}

/// Makes the draft model, if drafts are to come from one.
fn draft_model(
    config: &EngineConfig,
    limits: ExecutorLimits,
    build: Option<BuildDraftModel>,
) -> Result<Option<Box<dyn DraftModel>>, SpawnError> {
    let method = config.speculation.map(|speculation| speculation.method);
    if method != Some(DraftMethod::DraftModel) {
        return Ok(None);
    }
    let build = build.ok_or(SpawnError::NoDraftModel)?;
    let model = catch_unwind(AssertUnwindSafe(|| build(limits)))
        .map_err(|panic| SpawnError::BuildPanicked(panic_text(&*panic)))??;
    let (draft, target) = (model.sizes().vocab_size, limits.vocab_size);
    match draft == target {
        true => Ok(Some(model)),
        false => Err(SpawnError::DraftVocabulary { target, draft }),
    }
}

/// Marks the inbox as stopped, however the thread ends, so that no caller waits for an engine
/// that is gone.
struct StopOnExit<'a>(&'a Inbox);

impl Drop for StopOnExit<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// A view of an engine that does not keep it running; see [`EngineHandle::watch`].
#[derive(Clone, Debug)]
pub struct EngineWatch(Arc<Inbox>);

impl EngineWatch {
    /// The same as [`EngineHandle::stats`].
    pub fn stats(&self) -> EngineStats {
        self.0.stats()
    }

    /// How long the engine has had work without finishing a step; zero if it has no work. A
    /// large value means that the engine is stuck.
    pub fn heartbeat_age(&self) -> Duration {
        self.0.heartbeat_age()
    }
}

/// A handle to the engine, shared by all callers. When the last clone is dropped, the engine
/// finishes its requests and its thread ends.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    inbox: Arc<Inbox>,
    limits: ExecutorLimits,
    kv_token_bytes: usize,
    adapter_slots: SlotCounts,
    heeds_priority: bool,
    speculation: Option<Speculation>,
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
    /// A prompt or parameter that the model cannot take, a full queue, or an engine that is
    /// shutting down. Nothing was queued then.
    pub fn submit(&self, request: Request) -> Result<Generation, SubmitError> {
        let mut generations = self.submit_all(vec![request])?;
        Ok(generations.pop().expect("there is one for each request"))
    }

    /// As [`submit`](Self::submit), for requests that belong together: the scheduler sees all
    /// of them before it chooses which one to start, unless they are more than it takes in at
    /// once.
    ///
    /// # Errors
    /// The errors of [`submit`](Self::submit). None of the requests was queued then.
    pub fn submit_all(&self, requests: Vec<Request>) -> Result<Vec<Generation>, SubmitError> {
        let mut sent = Vec::with_capacity(requests.len());
        let mut streams = Vec::with_capacity(requests.len());
        for request in requests {
            let (sender, events) = tokio::sync::mpsc::unbounded_channel();
            sent.push((self.checked(request)?, sender));
            streams.push(events);
        }
        let first = self.shared.inbox.submit(sent)?;
        let generations = (0..).zip(streams).map(|(n, events)| {
            Generation::new(first.after(n), events, Arc::clone(&self.shared.inbox))
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
        if let Some(adapter) = &request.adapter {
            let SlotCounts { all, with_tables } = self.shared.adapter_slots;
            if all == 0 {
                return Err(SubmitError::NoAdapters);
            }
            if adapter.has_tables() && with_tables == 0 {
                return Err(SubmitError::NoTables);
            }
        }
        request.params.validate(vocab_size)?;
        let room = match request.pooling {
            Some(_) => 0,
            None => context - given,
        };
        request.params.max_tokens = request.params.max_tokens.min(room);
        let unknown = |&token: &u32| token as usize >= vocab_size;
        if let Some(end) = request.prediction.iter().position(unknown) {
            request.prediction.truncate(end);
        }
        Ok(request)
    }

    /// The engine at the end of its latest step, with the requests that wait now.
    pub fn stats(&self) -> EngineStats {
        self.shared.inbox.stats()
    }

    /// Whether the engine thread is running. It ends after a shutdown, or by a bug: then every
    /// stream has failed, and no request will be served again.
    pub fn is_running(&self) -> bool {
        !self.shared.inbox.is_stopped()
    }

    /// Whether a policy of this engine uses [`Request::priority`].
    pub fn heeds_priority(&self) -> bool {
        self.shared.heeds_priority
    }

    /// How this engine drafts tokens; `None` if it does not, because it was not configured or
    /// because its executor samples on the device.
    pub fn speculation(&self) -> Option<Speculation> {
        self.shared.speculation
    }

    pub fn limits(&self) -> ExecutorLimits {
        self.shared.limits
    }

    /// Bytes of the keys and values of one token, as [`read_kv`](Self::read_kv) returns them; 0
    /// if they can be neither read nor written.
    pub fn kv_token_bytes(&self) -> usize {
        self.shared.kv_token_bytes
    }

    /// Slots for adapters on the device; 0 if this engine takes none.
    pub fn adapter_slots(&self) -> usize {
        self.shared.adapter_slots.all
    }

    /// The most tokens that prompt and output of one request may have together.
    pub fn context_limit(&self) -> usize {
        context_limit(self.shared.limits)
    }

    /// Ends the requests that `target` names and that have arrived by now, with
    /// [`FinishReason::Aborted`](crate::FinishReason::Aborted). The answer is their number.
    /// Running requests end with the step that they are in.
    pub fn abort(&self, target: AbortTarget) -> Pending<usize> {
        self.command(|before, reply| Command::Abort {
            target,
            before,
            reply,
        })
    }

    /// Forgets every cached prefix. The answer is the number of tokens that they had, or an
    /// error if requests run; then nothing was forgotten. Waiting requests hold nothing in the
    /// cache, and do not matter.
    pub fn flush_cache(&self) -> Pending<Result<usize, CacheInUse>> {
        self.command(|_, reply| Command::FlushCache(reply))
    }

    /// The keys and values of `positions` of a request with
    /// [`Transfer::Send`](crate::Transfer::Send), in the layout of
    /// [`Executor::read_kv`](hearth_forward::Executor::read_kv).
    pub fn read_kv(
        &self,
        request: TransferId,
        positions: Range<usize>,
    ) -> Pending<Result<Vec<u8>, TransferError>> {
        self.transfer(|reply| TransferCommand::Read {
            id: request.0,
            positions,
            reply,
        })
    }

    /// Writes the keys and values of the `tokens` positions from `from` on of a request with
    /// [`Transfer::Receive`](crate::Transfer::Receive).
    pub fn write_kv(
        &self,
        request: TransferId,
        from: usize,
        tokens: usize,
        bytes: Vec<u8>,
    ) -> Pending<Result<(), TransferError>> {
        self.transfer(|reply| TransferCommand::Write {
            id: request.0,
            from,
            tokens,
            bytes,
            reply,
        })
    }

    /// The first `written` tokens of a request with
    /// [`Transfer::Receive`](crate::Transfer::Receive) have been written or were cached; the
    /// request continues after `output`. After an error the request still waits, and
    /// [`receive_failed`](Self::receive_failed) has to follow.
    pub fn received(
        &self,
        request: TransferId,
        written: usize,
        output: RemoteOutput,
    ) -> Pending<Result<(), TransferError>> {
        self.transfer(|reply| TransferCommand::Received {
            id: request.0,
            written,
            output,
            reply,
        })
    }

    /// Nothing more will be received: this engine computes what is missing after the first
    /// `written` tokens.
    pub fn receive_failed(&self, request: TransferId, written: usize) {
        let id = request.0;
        self.shared
            .inbox
            .command(|_| Command::Transfer(TransferCommand::ReceiveFailed { id, written }));
    }

    fn transfer<T>(&self, make: impl FnOnce(oneshot::Sender<T>) -> TransferCommand) -> Pending<T> {
        self.command(|_, reply| Command::Transfer(make(reply)))
    }

    /// Stops computing after the current step, until [`resume`](Self::resume) or a shutdown.
    /// Requests are still accepted, and wait.
    pub fn pause(&self, mode: PauseMode) -> Pending<()> {
        self.command(|_, reply| Command::Pause(mode, reply))
    }

    /// Ends a pause. Without a pause it does nothing.
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

    /// The engine and at most `nodes` nodes of its prefix cache, at the next moment at which a step
    /// is in flight or nothing is to be computed. The cost for the engine thread does not grow with
    /// the cache, and no step waits for it.
    pub fn picture(&self, nodes: usize) -> Pending<Picture> {
        self.look(|reply| Look::Picture { nodes, reply })
    }

    /// The last `most` tokens of the prefix that ends with a `node` of a [`Picture`]; `None` if it
    /// is no longer cached.
    pub fn cached_prefix(&self, node: u64, most: usize) -> Pending<Option<CachedPrefix>> {
        self.look(|reply| Look::Prefix { node, most, reply })
    }

    fn look<T>(&self, make: impl FnOnce(oneshot::Sender<T>) -> Look) -> Pending<T> {
        let (sender, receiver) = oneshot::channel();
        self.shared.inbox.look(make(sender));
        Pending(receiver)
    }

    /// Reports every step from now on to `observer`, which replaces an earlier observer.
    pub fn observe(&self, observer: StepObserver) {
        self.shared.inbox.command(|_| Command::Observe(observer));
    }

    /// Reports every change of the prefix cache from now on to `observer`, which replaces an earlier
    /// one. Nothing is reported without [`EngineConfig::cache_changes`].
    pub fn observe_cache(&self, observer: Box<dyn CacheObserver>) {
        let command = |_| Command::ObserveCache(observer);
        self.shared.inbox.command(command);
    }

    /// A view of the engine that does not keep it running.
    pub fn watch(&self) -> EngineWatch {
        EngineWatch(Arc::clone(&self.shared.inbox))
    }

    /// Stops accepting requests, lets running and waiting requests finish within `grace`,
    /// cancels the rest, and waits for the thread to end. This blocks.
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
            // If the thread panicked, every stream has failed by now.
            let _ = thread.join();
        }
        ShutdownOutcome::Stopped
    }
}
