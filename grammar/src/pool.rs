//! A few threads that compile grammars, so that neither the event loop nor the engine
//! waits for one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;

use crate::cache::Outcome;
use crate::compile::{Compiler, Spec};
use crate::error::GrammarError;

/// Grammars that may wait to be compiled.
const MAX_WAITING: usize = 256;
/// A parser of grammars that goes down as deep as a grammar does, and an overflow would
/// end the process. Only what is touched takes memory.
const STACK_BYTES: usize = 256 << 20;

type Work = Box<dyn FnOnce() + Send>;
type OnCancel = Box<dyn FnOnce() + Send>;

/// One grammar on its way through the pool, as its asker sees it.
#[derive(Default)]
pub struct Ticket {
    started: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    cancelled: bool,
    on_cancel: Option<OnCancel>,
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticket").finish_non_exhaustive()
    }
}

impl Ticket {
    /// Whether a thread has taken it up.
    pub fn has_started(&self) -> bool {
        self.started.load(Ordering::Relaxed)
    }

    /// Its asker does not wait any longer.
    pub fn cancel(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.cancelled = true;
        if let Some(on_cancel) = state.on_cancel.take() {
            on_cancel();
        }
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.cancelled
    }

    /// Has `call` called when it is cancelled, or at once if it is.
    pub(crate) fn on_cancel(&self, call: impl FnOnce() + Send + 'static) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.cancelled {
            call();
        } else {
            state.on_cancel = Some(Box::new(call));
        }
    }
}

/// Too many grammars wait to be compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{MAX_WAITING} grammars are waiting to be compiled; try again later")]
pub struct PoolFull;

/// The threads. They end when it is dropped and what waits is done.
#[derive(Debug)]
pub struct CompilePool {
    compiler: Arc<Compiler>,
    queue: SyncSender<Work>,
}

impl CompilePool {
    /// Starts `threads` threads; the first reads the vocabulary at once, so that the
    /// first request need not wait for it.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(compiler: Arc<Compiler>, threads: usize) -> std::io::Result<Self> {
        let (queue, work) = sync_channel(MAX_WAITING);
        let work = Arc::new(Mutex::new(work));
        for index in 0..threads.max(1) {
            let work = Arc::clone(&work);
            let builder = thread::Builder::new()
                .name(format!("hearth-grammar-{index}"))
                .stack_size(STACK_BYTES);
            builder.spawn(move || serve(&work))?;
        }
        let pool = Self { compiler, queue };
        let compiler = Arc::clone(&pool.compiler);
        // An empty queue takes it.
        let _ = pool.queue.try_send(Box::new(move || compiler.warm_up()));
        Ok(pool)
    }

    pub fn compiler(&self) -> &Compiler {
        &self.compiler
    }

    /// The compiler as long as the pool keeps it.
    pub fn watch(&self) -> Weak<Compiler> {
        Arc::downgrade(&self.compiler)
    }

    /// Has `spec` compiled, and `reply` called with what came of it.
    ///
    /// # Errors
    /// The queue is full.
    pub fn submit(
        &self,
        spec: Spec,
        reply: impl FnOnce(Outcome) + Send + 'static,
    ) -> Result<Arc<Ticket>, PoolFull> {
        let ticket = Arc::new(Ticket::default());
        let (compiler, held) = (Arc::clone(&self.compiler), Arc::clone(&ticket));
        let work: Work =
            Box::new(move || {
                if held.is_cancelled() {
                    return;
                }
                held.started.store(true, Ordering::Relaxed);
                let outcome = catch_unwind(AssertUnwindSafe(|| compiler.compile(&spec, &held)));
                reply(outcome.unwrap_or_else(|_| {
                    Err(GrammarError::invalid("the grammar cannot be compiled"))
                }));
            });
        match self.queue.try_send(work) {
            Ok(()) => Ok(ticket),
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => Err(PoolFull),
        }
    }
}

fn serve(work: &Mutex<Receiver<Work>>) {
    loop {
        let next = work.lock().unwrap_or_else(PoisonError::into_inner).recv();
        match next {
            Ok(work) => work(),
            Err(_) => return,
        }
    }
}
