//! Outputs that must follow a grammar: what the engine asks of one, and the threads that
//! work it out while the device computes.
//!
//! **Architecture invariant.** The engine thread never walks a grammar; it waits for what
//! it needs next, no longer than a bound, after which that request fails and no other.

use std::fmt;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use crate::step::panic_text;

/// The tokens that may come next, one bit each: bit `t % 32` of word `t / 32`. Tokens
/// beyond its end may not.
pub type Mask = Arc<[u32]>;

/// How long the engine thread waits for forced text, and for a mask, of one request.
/// Both take microseconds; what takes longer is an abuse or a fault.
const FORCED_BUDGET: Duration = Duration::from_millis(500);
const MASK_BUDGET: Duration = Duration::from_secs(1);

/// A grammar, ready to be followed by any number of outputs.
pub trait Grammar: fmt::Debug + Send + Sync {
    /// An output at its beginning.
    fn start(&self) -> Box<dyn Constraint>;
}

/// One output on its way through a grammar.
pub trait Constraint: Send {
    /// The tokens that may come next; those that end an output where it may end.
    ///
    /// # Errors
    /// Why the output cannot go on.
    fn mask(&mut self) -> Result<Mask, String>;

    /// Goes on by `token`.
    ///
    /// # Errors
    /// It is not allowed here.
    fn consume(&mut self, token: u32) -> Result<(), String>;

    /// The tokens that must come next, at most `limit`; they are not consumed.
    fn forced(&mut self, limit: usize) -> Vec<u32>;

    /// Whether the output is whole and only an end can follow.
    fn is_complete(&self) -> bool;

    /// To be called from another thread when what this computes takes too long.
    fn canceller(&self) -> Box<dyn Fn() + Send>;
}

/// What a request asks its output to follow.
#[derive(Clone, Debug)]
pub struct Constrain {
    pub grammar: Arc<dyn Grammar>,
    /// Whether text that the grammar forces is appended without being sampled.
    pub jump_forward: bool,
}

/// Where an output stands after its latest token.
#[derive(Debug)]
pub(crate) struct Settled {
    /// What follows by force.
    pub forced: Vec<u32>,
    /// Whether the output is whole.
    pub complete: bool,
}

/// The constraint of a request in the engine. It is worked out on another thread: from
/// [`Self::advance`] on, first to [`Self::settle`] with, then for [`Self::mask`].
pub(crate) struct Constrained {
    jump_forward: bool,
    /// With a worker, or waiting in the channel for whoever asks next.
    constraint: Receiver<Box<dyn Constraint>>,
    settled: Option<Receiver<Result<Settled, String>>>,
    mask: Receiver<Result<Mask, String>>,
    cancel: Box<dyn Fn() + Send>,
}

impl fmt::Debug for Constrained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Constrained").finish_non_exhaustive()
    }
}

impl Constrained {
    /// Begins an output of at most `limit` tokens.
    pub fn begin(constrain: &Constrain, limit: usize) -> Self {
        let constraint = constrain.grammar.start();
        let (back, here) = channel();
        let cancel = constraint.canceller();
        let mut constrained = Self {
            jump_forward: constrain.jump_forward,
            constraint: here,
            settled: None,
            mask: channel().1,
            cancel,
        };
        // Its receiver is in `constrained`.
        let _ = back.send(constraint);
        constrained.advance(None, limit);
        constrained
    }

    /// Goes on by `token`, and by what it forces, at most `limit` tokens.
    pub fn advance(&mut self, token: Option<u32>, limit: usize) {
        let limit = if self.jump_forward { limit } else { 0 };
        let (settle, settled) = channel();
        let (give_mask, mask) = channel();
        let (back, next) = channel();
        let constraint = std::mem::replace(&mut self.constraint, next);
        self.settled = Some(settled);
        self.mask = mask;
        // The receivers may be gone with their request at any time.
        let work = move || {
            let Ok(mut constraint) = constraint.recv() else {
                return;
            };
            let reached = guarded(|| settle_after(&mut *constraint, token, limit));
            let over = !matches!(
                &reached,
                Ok(Settled {
                    complete: false,
                    ..
                })
            );
            let _ = settle.send(reached);
            if !over {
                let _ = give_mask.send(guarded(|| constraint.mask()));
            }
            let _ = back.send(constraint);
        };
        // The workers live as long as the process.
        let _ = workers().send(Box::new(work));
    }

    /// Where the output stands after [`Self::advance`]; `None` if that was told before.
    ///
    /// # Errors
    /// Why it cannot go on.
    pub fn settle(&mut self) -> Option<Result<Settled, String>> {
        let settled = self.settled.take()?;
        Some(self.wait(&settled, FORCED_BUDGET).and_then(|inner| inner))
    }

    /// The tokens that may come next.
    ///
    /// # Errors
    /// Why none can.
    pub fn mask(&self) -> Result<Mask, String> {
        self.wait(&self.mask, MASK_BUDGET).and_then(|inner| inner)
    }

    fn wait<T>(&self, answer: &Receiver<T>, budget: Duration) -> Result<T, String> {
        answer.recv_timeout(budget).map_err(|error| match error {
            RecvTimeoutError::Timeout => {
                (self.cancel)();
                let budget = budget.as_millis();
                format!("the grammar took longer than {budget} ms to say what may come next")
            }
            RecvTimeoutError::Disconnected => "the grammar has ended".to_owned(),
        })
    }
}

impl Drop for Constrained {
    /// Nobody waits for what a worker may still compute.
    fn drop(&mut self) {
        (self.cancel)();
    }
}

fn settle_after(
    constraint: &mut dyn Constraint,
    token: Option<u32>,
    limit: usize,
) -> Result<Settled, String> {
    if let Some(token) = token {
        constraint.consume(token)?;
    }
    let forced = match limit {
        0 => Vec::new(),
        limit => constraint.forced(limit),
    };
    for &token in &forced {
        constraint.consume(token)?;
    }
    Ok(Settled {
        forced,
        complete: constraint.is_complete(),
    })
}

/// A panic is a fault of the grammar's engine; it ends the request that met it.
fn guarded<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|panic| Err(format!("the grammar panicked: {}", panic_text(&*panic))))
}

type Work = Box<dyn FnOnce() + Send>;

/// The threads that walk grammars, started when the first is used; half of the cores, as
/// the model's own threads need theirs.
fn workers() -> &'static Sender<Work> {
    static WORKERS: OnceLock<Sender<Work>> = OnceLock::new();
    WORKERS.get_or_init(|| {
        let (sender, receiver) = channel::<Work>();
        let receiver = Arc::new(Mutex::new(receiver));
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        for index in 0..(cores / 2).clamp(2, 16) {
            let receiver = Arc::clone(&receiver);
            let name = format!("hearth-mask-{index}");
            let started = thread::Builder::new().name(name).spawn(move || {
                loop {
                    let work = receiver
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .recv();
                    match work {
                        Ok(work) => work(),
                        Err(_) => return,
                    }
                }
            });
            if let Err(error) = started {
                tracing::error!(%error, "cannot start a thread for grammars");
            }
        }
        sender
    })
}

/// Rules out the tokens that `mask` lacks, in `[vocab]` logits.
pub(crate) fn apply(mask: &[u32], logits: &mut [f32]) {
    for (index, chunk) in logits.chunks_mut(32).enumerate() {
        match mask.get(index).copied().unwrap_or(0) {
            u32::MAX => {}
            0 => chunk.fill(f32::NEG_INFINITY),
            word => {
                for (bit, logit) in chunk.iter_mut().enumerate() {
                    if word & (1 << bit) == 0 {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_tokens_of_the_mask_keep_their_logits() {
        let mut logits = vec![1.0; 100];
        apply(&[u32::MAX, 0, 0b101], &mut logits);
        let kept: Vec<usize> = (0..100).filter(|&token| logits[token] == 1.0).collect();
        let expected: Vec<usize> = (0..32).chain([64, 66]).collect();
        assert_eq!(kept, expected);
    }
}
