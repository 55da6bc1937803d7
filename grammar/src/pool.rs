//! A few threads that compile grammars, so that neither the event loop nor the engine waits
//! for a compilation.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;

use crate::compiled::Outcome;
use crate::compiler::Compiler;
use crate::error::GrammarError;
use crate::spec::Spec;
use crate::ticket::Ticket;

/// The most grammars that may wait to be compiled.
const MAX_WAITING: usize = 256;
/// The stack of a thread. The parsers of grammars recurse as deeply as a grammar is nested,
/// and a stack overflow would end the process. Only the pages that are used take memory.
const STACK_BYTES: usize = 256 << 20;

type Work = Box<dyn FnOnce() + Send>;

/// The queue of grammars to be compiled is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{MAX_WAITING} grammars are waiting to be compiled; try again later")]
pub struct PoolFull;

/// The threads. They end when the pool is dropped and its queue is empty.
#[derive(Debug)]
pub struct CompilePool {
    compiler: Arc<Compiler>,
    queue: SyncSender<Work>,
}

impl CompilePool {
    /// Starts `threads` threads, one of which reads the vocabulary at once, so that the first
    /// request need not wait for that.
    ///
    /// # Errors
    /// If a thread cannot be started.
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
        // The queue is empty, so this does not fail.
        let _ = pool.queue.try_send(Box::new(move || compiler.warm_up()));
        Ok(pool)
    }

    pub fn compiler(&self) -> &Compiler {
        &self.compiler
    }

    /// A reference that does not keep the compiler alive.
    pub fn watch(&self) -> Weak<Compiler> {
        Arc::downgrade(&self.compiler)
    }

    /// Queues `spec` to be compiled; `reply` is called with the outcome on a thread of the pool,
    /// unless the ticket is cancelled before the compilation starts.
    ///
    /// # Errors
    /// If the queue is full.
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
                held.set_started();
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
