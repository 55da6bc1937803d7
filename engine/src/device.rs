//! The device thread, which owns the executor, so that the engine thread works on while the
//! device computes.

mod output_check;
mod reopen;
mod thread;
mod work;
mod worker;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use hearth_forward::{Executor, ExecutorLimits, WindowLimits};

use crate::adapters::SlotCounts;
use crate::error::{BuildError, SpawnError};
use work::Message;

pub(crate) use work::{Completion, StepWork};

/// The engine thread's end of the device thread.
///
/// The device thread carries out the work of one step after another, so that what one step
/// writes is there before the next reads or overwrites it. A step may be submitted before the
/// one before it is complete. The device thread waits for the device only when it is asked to
/// [notify](Self::notify).
#[derive(Debug)]
pub(crate) struct Device {
    messages: Option<Sender<Message>>,
    completions: Receiver<Completion>,
    thread: Option<JoinHandle<()>>,
    pub limits: ExecutorLimits,
    pub window: Option<WindowLimits>,
    pub host_slots: usize,
    pub samples_on_device: bool,
    pub has_watchdog: bool,
    pub kv_token_bytes: usize,
    pub adapter_slots: SlotCounts,
}

impl Device {
    /// Starts the thread, on which `build` makes the executor, and waits for the executor.
    /// `completed` is called on that thread when a step for which it was asked to notify is
    /// complete, and when the thread ends.
    ///
    /// # Errors
    /// The error that `build` returns, or limits with which no request could run.
    pub fn start<E, F>(build: F, completed: impl Fn() + Send + 'static) -> Result<Self, SpawnError>
    where
        E: Executor,
        F: FnOnce() -> Result<E, BuildError> + Send + 'static,
    {
        let (messages, received) = channel();
        let (answers, completions) = channel();
        let (report, built) = channel();
        let thread = std::thread::Builder::new()
            .name("hearth-device".to_owned())
            .spawn(move || thread::run(build, &report, &received, &answers, completed))?;
        let built = built
            .recv()
            .unwrap_or_else(|_| Err(SpawnError::BuildPanicked("no report".to_owned())));
        let sizes = built?;
        Ok(Self {
            messages: Some(messages),
            completions,
            thread: Some(thread),
            limits: sizes.limits,
            window: sizes.window,
            host_slots: sizes.host_slots,
            samples_on_device: sizes.samples_on_device,
            has_watchdog: sizes.has_watchdog,
            kv_token_bytes: sizes.kv_token_bytes,
            adapter_slots: sizes.adapter_slots,
        })
    }

    pub fn submit(&self, work: StepWork) {
        self.send(Message::Submit(Box::new(work)));
    }

    /// Asks the device thread to wait for the oldest step that is not complete, and then to
    /// call the `completed` function of [`start`](Self::start). There is a
    /// [`Completion`] to receive then.
    pub fn notify(&self) {
        self.send(Message::Notify);
    }

    fn send(&self, message: Message) {
        let messages = self.messages.as_ref().expect("it is taken in drop only");
        // If the thread has ended, receiving its completion shows it.
        let _ = messages.send(message);
    }

    /// Waits for the oldest completion. If the device is lost, there is a completion for every
    /// step in flight.
    ///
    /// # Panics
    /// If the thread has ended, which happens only by a bug.
    pub fn receive(&self) -> Completion {
        self.completions
            .recv()
            .expect("the device thread is running")
    }
}

impl Drop for Device {
    /// Ends the thread and drops the executor.
    fn drop(&mut self) {
        self.messages = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
