//! The main function of the device thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender};

use hearth_forward::{Executor, ExecutorLimits, WindowLimits, panic_text};

use super::reopen::reopen;
use super::work::{Completion, Message};
use super::worker::Worker;
use crate::adapters::SlotCounts;
use crate::error::{BuildError, SpawnError};
use crate::limits::context_limit;

/// The facts about the executor that the engine thread needs.
pub(super) struct ExecutorSizes {
    pub limits: ExecutorLimits,
    pub window: Option<WindowLimits>,
    pub host_slots: usize,
    pub samples_on_device: bool,
    pub has_watchdog: bool,
    pub kv_token_bytes: usize,
    pub adapter_slots: SlotCounts,
}

/// Builds the executor, sends a report, and then carries out `messages` until the engine
/// thread has gone.
pub(super) fn run<E: Executor>(
    build: impl FnOnce() -> Result<E, BuildError>,
    report: &Sender<Result<ExecutorSizes, SpawnError>>,
    messages: &Receiver<Message>,
    completions: &Sender<Completion>,
    completed: impl Fn(),
) {
    // If this thread ends by a bug, an engine thread that waits for a step must wake up.
    let completed = CallOnDrop(completed);
    let executor = match build_executor(build) {
        Ok(executor) => executor,
        Err(error) => return drop(report.send(Err(error))),
    };
    let _ = report.send(Ok(ExecutorSizes {
        limits: executor.limits(),
        window: executor.window(),
        host_slots: executor.host_slots(),
        samples_on_device: executor.samples_on_device(),
        has_watchdog: executor.has_watchdog(),
        kv_token_bytes: executor.kv_token_bytes(),
        adapter_slots: SlotCounts {
            all: executor.adapter_slots(),
            with_tables: executor.table_slots(),
        },
    }));
    let mut worker = Worker::new(executor);
    let answer = |completed_steps: Vec<Completion>| {
        let mut steps = completed_steps.into_iter();
        let is_received = steps.all(|completion| completions.send(completion).is_ok());
        (completed.0)();
        is_received
    };
    while let Ok(message) = messages.recv() {
        match message {
            Message::Submit(work) => worker.submit(*work),
            Message::Notify => {
                let continues = answer(worker.complete())
                    && (!worker.executor.is_lost() || reopen(&mut worker, messages, answer));
                if !continues {
                    return;
                }
            }
        }
    }
}

struct CallOnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for CallOnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

fn build_executor<E: Executor>(
    build: impl FnOnce() -> Result<E, BuildError>,
) -> Result<E, SpawnError> {
    // Drivers panic where they should return errors. The closure is consumed, so no state that
    // a panic left half done can be seen.
    let executor = catch_unwind(AssertUnwindSafe(build))
        .map_err(|panic| SpawnError::BuildPanicked(panic_text(&*panic)))??;
    let limits = executor.limits();
    if limits.vocab_size == 0 {
        return Err(SpawnError::NoVocabulary);
    }
    if context_limit(limits) < 2 {
        return Err(SpawnError::NoRoom(limits));
    }
    Ok(executor)
}
