//! The thread that drives the model, so that the engine works on while the device computes.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Instant;

mod flights;
mod reopen;

use hearth_forward::KvCopy;

use crate::engine::{SpawnError, context_limit};
use crate::executor::{BuildError, Choice, Executor, ExecutorLimits, ForwardBatch, Logits};
use flights::Flights;

/// What the device is to do for one step, in this order.
pub(crate) struct Order {
    pub copies: Vec<KvCopy>,
    /// Not run if it has no tokens.
    pub forward: ForwardBatch,
    /// What is wanted at its rows where the executor chooses, all at once; it may come when
    /// the device is at the forward.
    pub choices: Receiver<Vec<Choice>>,
}

/// What the engine tells the device's thread.
enum Message {
    Launch(Box<Order>),
    /// To read the oldest order, and to answer.
    Land,
}

/// What came of an [`Order`].
pub(crate) struct Landing {
    pub copied: Result<(), String>,
    pub logits: Result<Logits, String>,
    /// The device is gone, and what its slots held. The orders behind this one land with it.
    pub lost: bool,
    /// The order's, to be filled again.
    pub order: Order,
    pub at: Instant,
}

/// The model on its thread. It carries out one order after another, so that what one
/// writes is there before the next reads or overwrites it. It may be given an order before
/// the one ahead of it is read, and does nothing on its own: it reads when it is told to.
#[derive(Debug)]
pub(crate) struct Device {
    messages: Option<Sender<Message>>,
    landings: Receiver<Landing>,
    thread: Option<JoinHandle<()>>,
    pub limits: ExecutorLimits,
    pub host_slots: usize,
    pub chooses: bool,
}

impl Device {
    /// Has `build` make the executor on the new thread, and waits for it. `landed` is called
    /// when an order is done, and when the thread ends.
    ///
    /// # Errors
    /// What `build` reports, or bounds that let nothing run.
    pub fn start<E, F>(build: F, landed: impl Fn() + Send + 'static) -> Result<Self, SpawnError>
    where
        E: Executor,
        F: FnOnce() -> Result<E, BuildError> + Send + 'static,
    {
        let (messages, taken) = channel();
        let (land, landings) = channel();
        let (report, built) = channel();
        let thread = thread::Builder::new()
            .name("hearth-device".to_owned())
            .spawn(move || {
                // Whoever waits for an order is woken, should this thread end by a bug.
                let landed = CallOnDrop(landed);
                let executor = match build_executor(build) {
                    Ok(executor) => executor,
                    Err(error) => return drop(report.send(Err(error))),
                };
                let _ = report.send(Ok((
                    executor.limits(),
                    executor.host_slots(),
                    executor.chooses(),
                )));
                let mut flights = Flights::new(executor);
                let answer = |landings: Vec<Landing>| {
                    let mut landings = landings.into_iter();
                    let heard = landings.all(|landing| land.send(landing).is_ok());
                    (landed.0)();
                    heard
                };
                while let Ok(message) = taken.recv() {
                    match message {
                        Message::Launch(order) => flights.launch(*order),
                        Message::Land => {
                            let goes_on = answer(flights.land())
                                && (!flights.executor.is_lost()
                                    || reopen::reopen(&mut flights, &taken, answer));
                            if !goes_on {
                                return;
                            }
                        }
                    }
                }
            })?;
        let built = built
            .recv()
            .unwrap_or_else(|_| Err(SpawnError::BuildPanicked("no report".to_owned())));
        let (limits, host_slots, chooses) = built?;
        Ok(Self {
            messages: Some(messages),
            landings,
            thread: Some(thread),
            limits,
            host_slots,
            chooses,
        })
    }

    /// Gives it an order, which lands when it is [called](Self::call).
    pub fn launch(&self, order: Order) {
        self.tell(Message::Launch(Box::new(order)));
    }

    /// Has the oldest order that has not landed do so when it is done.
    pub fn call(&self) {
        self.tell(Message::Land);
    }

    fn tell(&self, message: Message) {
        let messages = self.messages.as_ref().expect("taken when it is dropped");
        // A thread that is gone shows when its answer is asked for.
        let _ = messages.send(message);
    }

    /// Waits for the order that was called.
    ///
    /// # Panics
    /// If the thread has ended, which it does only by a bug.
    pub fn land(&self) -> Landing {
        self.landings.recv().expect("the device's thread is there")
    }
}

impl Drop for Device {
    /// The executor is gone afterwards.
    fn drop(&mut self) {
        self.messages = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
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
    // Drivers panic where they should return errors; the closure is gone
    // afterwards, so nothing sees what it left half done.
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

/// What a panic said, as far as it said it in words.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or(panic.downcast_ref::<&str>().copied());
    text.unwrap_or("without a message").to_owned()
}
