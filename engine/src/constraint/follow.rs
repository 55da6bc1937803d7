//! The constraint of one request, seen from the engine thread.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use super::workers::{BUDGET, Job, Urgency, submit};
use super::{Constrain, Constraint, Grammar, Mask};
use crate::step::panic_text;

/// Where an output stands after its latest token.
#[derive(Debug)]
pub(crate) struct Settled {
    /// What follows by force.
    pub forced: Vec<u32>,
    /// Whether the output is whole.
    pub complete: bool,
}

/// How long the engine thread still waits, in this step, for all grammars together. They
/// take microseconds, and a row that misses its step loses a whole one; but nobody is
/// waited for twice, so that one that hangs costs the others one such wait.
#[derive(Debug)]
pub(crate) struct Grace {
    left: Duration,
    /// Also for those that were waited for before.
    again: bool,
}

impl Grace {
    /// For those that have just come.
    pub fn to_begin() -> Self {
        Self::of(Duration::from_micros(250))
    }

    /// For those that have just sampled, or are about to.
    pub fn to_follow() -> Self {
        Self::of(Duration::from_micros(750))
    }

    pub fn none() -> Self {
        Self::of(Duration::ZERO)
    }

    /// There is nothing else to do but to look at the mail.
    pub fn idle() -> Self {
        Self {
            left: Duration::from_millis(1),
            again: true,
        }
    }

    fn of(left: Duration) -> Self {
        Self { left, again: false }
    }
}

/// The constraint of a request in the engine. It is worked out on another thread: from
/// [`Self::begin`] and [`Self::advance`] on, first to [`Self::settled`], then for
/// [`Self::mask`].
pub(crate) struct Constrained {
    jump_forward: bool,
    /// With a worker, or waiting in the channel for whoever asks next.
    constraint: Receiver<Box<dyn Constraint>>,
    settled: Option<Receiver<Result<Settled, String>>>,
    mask: Receiver<Result<Mask, String>>,
    job: Arc<Job>,
    /// Whether the engine thread has waited for this job in vain.
    awaited: bool,
    leash: Arc<Leash>,
}

impl fmt::Debug for Constrained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Constrained").finish_non_exhaustive()
    }
}

impl Constrained {
    /// Begins an output of at most `limit` tokens; it is made on a worker, too.
    pub fn begin(constrain: &Constrain, limit: usize) -> Self {
        let leash = Arc::default();
        let grammar = Arc::clone(&constrain.grammar);
        let make = {
            let leash = Arc::clone(&leash);
            move || start(&*grammar, &leash)
        };
        let jump_forward = constrain.jump_forward;
        let limit = if jump_forward { limit } else { 0 };
        let (promise, answers) = promise();
        let job = submit(Urgency::Begin, {
            let leash = Arc::clone(&leash);
            move || promise.keep(&leash, make, None, limit)
        });
        Self {
            jump_forward,
            constraint: answers.constraint,
            settled: Some(answers.settled),
            mask: answers.mask,
            job,
            awaited: false,
            leash,
        }
    }

    /// Goes on by `token`, and by what it forces, at most `limit` tokens.
    pub fn advance(&mut self, token: u32, limit: usize) {
        let limit = if self.jump_forward { limit } else { 0 };
        let (promise, answers) = promise();
        let before = std::mem::replace(&mut self.constraint, answers.constraint);
        self.settled = Some(answers.settled);
        self.mask = answers.mask;
        self.awaited = false;
        let leash = Arc::clone(&self.leash);
        self.job = submit(Urgency::Next, move || {
            let make = || {
                before
                    .recv()
                    .map_err(|_| "the grammar has ended".to_owned())
            };
            promise.keep(&leash, make, Some(token), limit);
        });
    }

    /// Whether it is told already where the output stands.
    pub fn is_settled(&self) -> bool {
        self.settled.is_none()
    }

    /// Where the output stands, told once after [`Self::begin`] and each
    /// [`Self::advance`]; an error is why it cannot go on.
    pub fn settled(&mut self, grace: &mut Grace) -> Poll<Result<Settled, String>> {
        let Some(settled) = self.settled.take() else {
            return Poll::Pending;
        };
        let answer = self.hear(&settled, grace);
        if answer.is_pending() {
            self.settled = Some(settled);
        }
        answer
    }

    /// The tokens that may come next, told once; an error is why none can.
    pub fn mask(&mut self, grace: &mut Grace) -> Poll<Result<Mask, String>> {
        let mask = std::mem::replace(&mut self.mask, channel().1);
        let answer = self.hear(&mask, grace);
        if answer.is_pending() {
            self.mask = mask;
        }
        answer
    }

    fn hear<T>(
        &mut self,
        answer: &Receiver<Result<T, String>>,
        grace: &mut Grace,
    ) -> Poll<Result<T, String>> {
        match answer.try_recv() {
            Ok(answer) => return Poll::Ready(answer),
            Err(TryRecvError::Disconnected) => return gone(),
            Err(TryRecvError::Empty) => {}
        }
        if !grace.left.is_zero() && (grace.again || !self.awaited) {
            let start = Instant::now();
            let heard = answer.recv_timeout(grace.left);
            grace.left = grace.left.saturating_sub(start.elapsed());
            match heard {
                Ok(answer) => return Poll::Ready(answer),
                Err(RecvTimeoutError::Disconnected) => return gone(),
                Err(RecvTimeoutError::Timeout) => self.awaited = true,
            }
        }
        if self.job.abandon_if_overdue() {
            self.leash.pull();
            let budget = BUDGET.as_millis();
            return Poll::Ready(Err(format!(
                "the grammar took longer than {budget} ms to say what may come next"
            )));
        }
        Poll::Pending
    }
}

fn gone<T>() -> Poll<Result<T, String>> {
    Poll::Ready(Err("the grammar has ended".to_owned()))
}

impl Drop for Constrained {
    /// Nobody waits for what a worker may still compute.
    fn drop(&mut self) {
        self.leash.pull();
    }
}

/// What a worker owes the engine thread, whose receivers may be gone at any time.
struct Promise {
    settled: Sender<Result<Settled, String>>,
    mask: Sender<Result<Mask, String>>,
    constraint: Sender<Box<dyn Constraint>>,
}

struct Answers {
    settled: Receiver<Result<Settled, String>>,
    mask: Receiver<Result<Mask, String>>,
    constraint: Receiver<Box<dyn Constraint>>,
}

fn promise() -> (Promise, Answers) {
    let (settle, settled) = channel();
    let (give_mask, mask) = channel();
    let (back, constraint) = channel();
    let promise = Promise {
        settled: settle,
        mask: give_mask,
        constraint: back,
    };
    let answers = Answers {
        settled,
        mask,
        constraint,
    };
    (promise, answers)
}

impl Promise {
    fn keep(
        self,
        leash: &Leash,
        make: impl FnOnce() -> Result<Box<dyn Constraint>, String>,
        token: Option<u32>,
        limit: usize,
    ) {
        if leash.state().pulled {
            return;
        }
        let mut constraint = match guarded(make) {
            Ok(constraint) => constraint,
            Err(error) => return drop(self.settled.send(Err(error))),
        };
        let reached = guarded(|| settle_after(&mut *constraint, token, limit));
        let goes_on = matches!(&reached, Ok(settled) if !settled.complete);
        let _ = self.settled.send(reached);
        if goes_on {
            let _ = self.mask.send(guarded(|| constraint.mask()));
        }
        let _ = self.constraint.send(constraint);
    }
}

fn start(grammar: &dyn Grammar, leash: &Leash) -> Result<Box<dyn Constraint>, String> {
    let constraint = grammar.start();
    let cancel = constraint.canceller();
    let mut leash = leash.state();
    if leash.pulled {
        cancel();
    }
    leash.cancel = Some(cancel);
    drop(leash);
    Ok(constraint)
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

/// By which a request that is gone, or was given up, stops what is computed for it.
#[derive(Default)]
struct Leash(Mutex<LeashState>);

#[derive(Default)]
struct LeashState {
    /// From the making of the constraint on.
    cancel: Option<Box<dyn Fn() + Send>>,
    pulled: bool,
}

impl Leash {
    fn state(&self) -> MutexGuard<'_, LeashState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pull(&self) {
        let mut state = self.state();
        state.pulled = true;
        if let Some(cancel) = &state.cancel {
            cancel();
        }
    }
}
