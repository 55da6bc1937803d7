//! The constraint of one request, seen from the engine thread.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use super::workers::{BUDGET, Job, Urgency, submit};
use super::{Constrain, Constraint, Grammar, Mask};
use crate::device::panic_text;

/// Where an output stands after its latest token.
#[derive(Debug)]
pub(crate) struct Settled {
    /// What follows by force.
    pub forced: Vec<u32>,
    /// Whether the output is whole.
    pub complete: bool,
}

/// What may come next.
#[derive(Debug)]
pub(crate) enum Next {
    /// One of these tokens.
    Mask(Mask),
    /// None that is chosen: text is forced, the output is whole, or it cannot go on.
    NoChoice,
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

/// A shorter wait takes this long all the same: Linux is that late with its timers.
const SHORTEST_WAIT: Duration = Duration::from_micros(50);

impl Grace {
    /// For those that have just come.
    pub fn to_begin() -> Self {
        Self::of(Duration::from_micros(250))
    }

    /// For those whose next row depends on the answer.
    pub fn to_follow() -> Self {
        Self::of(Duration::from_micros(750))
    }

    /// For those that go on without the answer, and lose a row if it is that text is forced:
    /// a small part of what a step takes.
    pub fn to_jump(step: Duration) -> Self {
        let wait = (step / 64).min(Duration::from_micros(750));
        Self::of(if wait < SHORTEST_WAIT {
            Duration::ZERO
        } else {
            wait
        })
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
    desk: Arc<Desk>,
    is_settled: bool,
    /// Answers that were looked at, and are still to be told.
    seen: Seen,
    job: Arc<Job>,
    /// Whether the engine thread has waited for this job in vain.
    awaited: bool,
}

impl fmt::Debug for Constrained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Constrained").finish_non_exhaustive()
    }
}

impl Constrained {
    /// Begins an output of at most `limit` tokens; it is made on a worker, too.
    pub fn begin(constrain: &Constrain, limit: usize) -> Self {
        let desk = Arc::<Desk>::default();
        let grammar = Arc::clone(&constrain.grammar);
        let jump_forward = constrain.jump_forward;
        let limit = if jump_forward { limit } else { 0 };
        let job = submit(Urgency::Begin, {
            let desk = Arc::clone(&desk);
            move || desk.work(|| start(&*grammar, &desk), None, limit)
        });
        Self {
            jump_forward,
            desk,
            is_settled: false,
            seen: Seen::default(),
            job,
            awaited: false,
        }
    }

    /// Goes on by `token`, which was chosen under the mask, and by what it forces, at most
    /// `limit` tokens.
    pub fn advance(&mut self, token: u32, limit: usize) {
        let limit = if self.jump_forward { limit } else { 0 };
        self.is_settled = false;
        self.seen = Seen::default();
        self.awaited = false;
        let constraint = self.desk.state().constraint.take();
        let desk = Arc::clone(&self.desk);
        self.job = submit(Urgency::Next, move || {
            let make = || constraint.ok_or_else(|| "the grammar has ended".to_owned());
            desk.work(make, Some(token), limit);
        });
    }

    /// Whether it is told already where the output stands.
    pub fn is_settled(&self) -> bool {
        self.is_settled
    }

    /// Where the output stands, told once after [`Self::begin`] and each
    /// [`Self::advance`]; an error is why it cannot go on.
    pub fn settled(&mut self, grace: &mut Grace) -> Poll<Result<Settled, String>> {
        let answer = match self.seen.settled.take() {
            Some(seen) => Poll::Ready(seen),
            None => self.hear(|state| state.settled.take(), grace),
        };
        self.is_settled |= answer.is_ready();
        answer
    }

    /// The tokens that may come next, told once; an error is why none can.
    pub fn mask(&mut self, grace: &mut Grace) -> Poll<Result<Mask, String>> {
        match self.seen.mask.take() {
            Some(seen) => Poll::Ready(seen),
            None => self.hear(|state| state.mask.take(), grace),
        }
    }

    /// What may come next, as far as it is known; both answers are still told afterwards.
    pub fn next(&mut self, grace: &mut Grace) -> Poll<Next> {
        if !self.is_settled && self.seen.settled.is_none() {
            match self.hear(|state| state.settled.take(), grace) {
                Poll::Ready(settled) => self.seen.settled = Some(settled),
                Poll::Pending => return Poll::Pending,
            }
        }
        let goes_on = |settled: &Settled| settled.forced.is_empty() && !settled.complete;
        if let Some(settled) = &self.seen.settled
            && !settled.as_ref().is_ok_and(goes_on)
        {
            return Poll::Ready(Next::NoChoice);
        }
        if self.seen.mask.is_none() {
            match self.hear(|state| state.mask.take(), grace) {
                Poll::Ready(mask) => self.seen.mask = Some(mask),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(match &self.seen.mask {
            Some(Ok(mask)) => Next::Mask(Arc::clone(mask)),
            _ => Next::NoChoice,
        })
    }

    /// A token was chosen under the mask.
    pub fn drop_mask(&mut self) {
        self.seen.mask = None;
    }

    fn hear<T>(
        &mut self,
        take: impl Fn(&mut State) -> Option<Result<T, String>>,
        grace: &mut Grace,
    ) -> Poll<Result<T, String>> {
        let mut state = self.desk.state();
        if let Some(answer) = take(&mut state) {
            return Poll::Ready(answer);
        }
        if !grace.left.is_zero() && (grace.again || !self.awaited) {
            let start = Instant::now();
            let mut answer = None;
            while answer.is_none() && start.elapsed() < grace.left {
                state.is_awaited = true;
                let left = grace.left.saturating_sub(start.elapsed());
                let woken = self.desk.answered.wait_timeout(state, left);
                state = woken.unwrap_or_else(PoisonError::into_inner).0;
                answer = take(&mut state);
            }
            state.is_awaited = false;
            grace.left = grace.left.saturating_sub(start.elapsed());
            match answer {
                Some(answer) => return Poll::Ready(answer),
                None => self.awaited = true,
            }
        }
        drop(state);
        if self.job.abandon_if_overdue() {
            self.desk.give_up();
            let budget = BUDGET.as_millis();
            return Poll::Ready(Err(format!(
                "the grammar took longer than {budget} ms to say what may come next"
            )));
        }
        Poll::Pending
    }
}

impl Drop for Constrained {
    /// Nobody waits for what a worker may still compute.
    fn drop(&mut self) {
        self.desk.give_up();
    }
}

/// Answers that the engine thread has looked at.
#[derive(Default)]
struct Seen {
    settled: Option<Result<Settled, String>>,
    mask: Option<Result<Mask, String>>,
}

/// Where a worker puts its answers for the engine thread.
#[derive(Default)]
struct Desk {
    state: Mutex<State>,
    answered: Condvar,
}

#[derive(Default)]
struct State {
    settled: Option<Result<Settled, String>>,
    mask: Option<Result<Mask, String>>,
    /// Back from the worker when there is a mask.
    constraint: Option<Box<dyn Constraint>>,
    /// Whether the engine thread waits for an answer.
    is_awaited: bool,
    /// By which what is computed is stopped; from the making of the constraint on.
    cancel: Option<Box<dyn Fn() + Send>>,
    /// The request is gone, or its grammar was given up.
    given_up: bool,
}

impl Desk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// On a worker: goes on from what `make` gives by `token` and what that forces, then
    /// makes the mask.
    fn work(
        &self,
        make: impl FnOnce() -> Result<Box<dyn Constraint>, String>,
        token: Option<u32>,
        limit: usize,
    ) {
        if self.state().given_up {
            return;
        }
        let mut constraint = match guarded(make) {
            Ok(constraint) => constraint,
            Err(error) => return self.answer(|state| state.settled = Some(Err(error))),
        };
        let reached = guarded(|| settle_after(&mut *constraint, token, limit));
        let goes_on = matches!(&reached, Ok(settled) if !settled.complete);
        self.answer(|state| state.settled = Some(reached));
        if goes_on {
            let mask = guarded(|| constraint.mask());
            self.answer(|state| {
                state.mask = Some(mask);
                state.constraint = Some(constraint);
            });
        }
    }

    fn answer(&self, put: impl FnOnce(&mut State)) {
        let mut state = self.state();
        put(&mut state);
        let is_awaited = state.is_awaited;
        drop(state);
        if is_awaited {
            self.answered.notify_one();
        }
    }

    fn give_up(&self) {
        let mut state = self.state();
        state.given_up = true;
        // What nobody computes with is left as it is: another output may use parts of it.
        if state.constraint.is_none()
            && let Some(cancel) = &state.cancel
        {
            cancel();
        }
    }
}

fn start(grammar: &dyn Grammar, desk: &Desk) -> Result<Box<dyn Constraint>, String> {
    let constraint = grammar.start();
    let cancel = constraint.canceller();
    let mut state = desk.state();
    if state.given_up {
        cancel();
    }
    state.cancel = Some(cancel);
    drop(state);
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
