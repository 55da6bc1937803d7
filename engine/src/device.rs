//! The thread that drives the model, so that the engine works on while the device computes.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Instant;

mod reopen;

use hearth_radix::KvCopy;

use crate::engine::{SpawnError, context_limit};
use crate::executor::{BuildError, Choice, Executor, ExecutorLimits, ForwardBatch, Logits};

/// What the device is to do for one step, in this order.
pub(crate) struct Order {
    pub copies: Vec<KvCopy>,
    /// Not run if it has no tokens.
    pub forward: ForwardBatch,
    /// What is wanted at its rows where the executor chooses, all at once; it may come when
    /// the device is at the forward.
    pub choices: Receiver<Vec<Choice>>,
}

/// What came of an [`Order`].
pub(crate) struct Landing {
    pub copied: Result<(), String>,
    pub logits: Result<Logits, String>,
    /// The device is gone, and what its slots held.
    pub lost: bool,
    /// The order's, to be filled again.
    pub order: Order,
    pub at: Instant,
}

/// The model on its thread. It carries out one order after another, so that what one
/// writes is there before the next reads or overwrites it.
#[derive(Debug)]
pub(crate) struct Device {
    orders: Option<Sender<Order>>,
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
        let (orders, taken) = channel::<Order>();
        let (land, landings) = channel();
        let (report, built) = channel();
        let thread = thread::Builder::new()
            .name("hearth-device".to_owned())
            .spawn(move || {
                // Whoever waits for an order is woken, should this thread end by a bug.
                let landed = CallOnDrop(landed);
                let mut executor = match build_executor(build) {
                    Ok(executor) => executor,
                    Err(error) => return drop(report.send(Err(error))),
                };
                let _ = report.send(Ok((
                    executor.limits(),
                    executor.host_slots(),
                    executor.chooses(),
                )));
                let answer = |landing| {
                    let heard = land.send(landing).is_ok();
                    (landed.0)();
                    heard
                };
                while let Ok(order) = taken.recv() {
                    let heard = answer(carry_out(&mut executor, order));
                    let goes_on = heard
                        && (!executor.is_lost() || reopen::reopen(&mut executor, &taken, answer));
                    if !goes_on {
                        return;
                    }
                }
            })?;
        let built = built
            .recv()
            .unwrap_or_else(|_| Err(SpawnError::BuildPanicked("no report".to_owned())));
        let (limits, host_slots, chooses) = built?;
        Ok(Self {
            orders: Some(orders),
            landings,
            thread: Some(thread),
            limits,
            host_slots,
            chooses,
        })
    }

    pub fn launch(&self, order: Order) {
        let orders = self.orders.as_ref().expect("taken when it is dropped");
        // A thread that is gone shows when its answer is asked for.
        let _ = orders.send(order);
    }

    /// Waits for the order that was launched first of those that have not landed.
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
        self.orders = None;
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

fn carry_out(executor: &mut impl Executor, order: Order) -> Landing {
    let copied = copy(executor, &order.copies);
    let logits = match order.forward.tokens.is_empty() {
        true => Ok(Logits::none(executor.limits())),
        false => run(executor, &order.forward, &order.choices),
    };
    Landing {
        copied,
        logits,
        lost: executor.is_lost(),
        order,
        at: Instant::now(),
    }
}

/// Copies between device and host; a panic is an error like others.
fn copy(executor: &mut impl Executor, copies: &[KvCopy]) -> Result<(), String> {
    let copy = || copies.iter().try_for_each(|copy| executor.copy(copy));
    let copied = catch_unwind(AssertUnwindSafe(copy))
        .map_err(|panic| format!("the model panicked: {}", panic_text(&*panic)))
        .and_then(|result| result.map_err(|error| error.to_string()));
    copied.inspect_err(|error| tracing::error!("copying KV failed: {error}"))
}

/// Runs `batch`; a panic is an error like others, as drivers panic where they
/// should return one, and a wrong shape is caught before anybody reads it.
fn run(
    executor: &mut impl Executor,
    batch: &ForwardBatch,
    choices: &Receiver<Vec<Choice>>,
) -> Result<Logits, String> {
    let vocab = executor.limits().vocab_size;
    // Of who does not ask, too.
    let (mut tokens, mut undecided) = (batch.choice_rows.len(), 0);
    let mut ask = || {
        // An engine that is gone reads no answer either.
        let nothing = |_| vec![Choice::Nothing; batch.choice_rows.len()];
        let choices = choices.recv().unwrap_or_else(nothing);
        let count = |is: fn(&Choice) -> bool| choices.iter().filter(|choice| is(choice)).count();
        tokens = count(|choice| matches!(choice, Choice::Token(_)));
        undecided = count(|choice| matches!(choice, Choice::Logits));
        choices
    };
    let logits = catch_unwind(AssertUnwindSafe(|| executor.forward(batch, &mut ask)))
        .map_err(|panic| format!("the model panicked: {}", panic_text(&*panic)))
        .and_then(|result| result.map_err(|error| error.to_string()));
    let logits = logits.and_then(|logits| {
        let (given, rows) = (logits.values.len(), batch.logit_rows.len());
        if logits.vocab != vocab || given != rows * vocab {
            let width = logits.vocab;
            return Err(format!(
                "the model gave {given} logits, {width} a row, for {rows} rows of {vocab}"
            ));
        }
        let (given, rows) = (logits.hidden.len(), batch.hidden_rows.len());
        if (rows == 0) != (given == 0) || (rows > 0 && !given.is_multiple_of(rows)) {
            return Err(format!(
                "the model gave {given} values of hidden states for {rows} rows"
            ));
        }
        let given = logits.chosen.len();
        let known = |token: &Option<u32>| token.is_none_or(|token| (token as usize) < vocab);
        if given != tokens || !logits.chosen.iter().all(known) {
            return Err(format!(
                "the model chose {given} tokens for {tokens} rows, or some that there are not"
            ));
        }
        let given = logits.undecided.len();
        if given != undecided * vocab {
            return Err(format!(
                "the model gave {given} logits for {undecided} undecided rows of {vocab}"
            ));
        }
        Ok(logits)
    });
    logits.inspect_err(|error| {
        let (requests, tokens) = (batch.sequences.len(), batch.tokens.len());
        tracing::error!(requests, tokens, "forward failed: {error}");
    })
}

/// What a panic said, as far as it said it in words.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or(panic.downcast_ref::<&str>().copied());
    text.unwrap_or("without a message").to_owned()
}
