//! Where a worker puts a grammar's answers for the engine thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use hearth_forward::{TokenMask, panic_text};

use super::grammar::{Constraint, Grammar};
use super::workers::{SLOW, Urgency};

/// The pause between two looks for a constraint that another worker has.
const MASK_PAUSE: Duration = Duration::from_micros(100);

/// How long the slow jobs of one output may take together. An ambiguous grammar takes longer with
/// each token, and would use up a core for as long as its output lasts.
const SLOW_LIMIT: Duration = Duration::from_secs(5);

/// The beginning of the error of a grammar that panicked.
pub(crate) const PANICKED: &str = "the grammar panicked";

/// What follows from an output's latest token.
#[derive(Debug)]
pub(crate) struct Progress {
    /// The tokens that must come next.
    pub forced: Vec<u32>,
    /// Whether the output is complete.
    pub complete: bool,
}

/// The answers about one output, shared between the engine thread and the worker that
/// evaluates the grammar.
#[derive(Default)]
pub(super) struct Answers {
    state: Mutex<State>,
    answered: Condvar,
}

/// The answers that the engine thread has not taken yet.
#[derive(Default)]
pub(super) struct State {
    pub progress: Option<Result<Progress, String>>,
    pub mask: Option<Result<TokenMask, String>>,
    /// The state of the output; a worker returns it together with the mask.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Whether the engine thread waits for an answer.
    is_awaited: bool,
    /// Stops a computation of the constraint; known once the constraint has been created.
    cancel: Option<Box<dyn Fn() + Send>>,
    /// The request has ended, or its grammar took too long.
    given_up: bool,
    /// True if the latest job was slow.
    is_slow: bool,
    /// The time of all slow jobs.
    slow: Duration,
}

impl State {
    /// The urgency of the next job of a running request.
    pub fn urgency(&self) -> Urgency {
        match self.is_slow {
            true => Urgency::Slow,
            false => Urgency::Next,
        }
    }

    fn took(&mut self, time: Duration) {
        self.is_slow = time > SLOW;
        if self.is_slow {
            self.slow += time;
        }
    }
}

impl Answers {
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// On the engine thread: takes an answer, and waits for it at most `budget`.
    pub fn wait<T>(&self, take: impl Fn(&mut State) -> Option<T>, budget: Duration) -> Option<T> {
        let start = Instant::now();
        let mut state = self.state();
        let mut answer = take(&mut state);
        while answer.is_none() && start.elapsed() < budget {
            state.is_awaited = true;
            let left = budget.saturating_sub(start.elapsed());
            let woken = self.answered.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
            answer = take(&mut state);
        }
        state.is_awaited = false;
        answer
    }

    /// On a worker: advances the constraint that `make` returns by `token` and, if they are to be
    /// `appended`, by the tokens that this forces. Then computes the mask. The output may have
    /// `left` more tokens after `token`.
    pub fn work(
        &self,
        make: impl FnOnce() -> Result<Box<dyn Constraint>, String>,
        token: Option<u32>,
        appended: bool,
        left: usize,
    ) {
        let State { given_up, slow, .. } = *self.state();
        if given_up {
            return;
        }
        let refused = |error| self.answer(|state| state.progress = Some(Err(error)));
        if slow > SLOW_LIMIT {
            let limit = SLOW_LIMIT.as_millis();
            return refused(format!(
                "the grammar took longer than {limit} ms in all to say what may come next"
            ));
        }
        let mut constraint = match guarded(make) {
            Ok(constraint) => constraint,
            Err(error) => return refused(error),
        };
        let start = Instant::now();
        let limit = if appended { left } else { 0 };
        let progress = guarded(|| advance(&mut *constraint, token, limit));
        let continues = matches!(&progress, Ok(progress) if !progress.complete);
        let forced = progress
            .as_ref()
            .map_or(0, |progress| progress.forced.len());
        // The request may end as soon as the engine thread has the answer, which cancels the
        // constraint. One that is dropped before leaves what it has worked out to the next output.
        let constraint = continues.then_some(constraint);
        self.answer(|state| state.progress = Some(progress));
        if let Some(mut constraint) = constraint {
            let mask = guarded(|| constraint.mask_within(left - forced));
            self.answer(|state| {
                state.took(start.elapsed());
                state.mask = Some(mask);
                state.constraint = Some(constraint);
            });
        }
    }

    /// On a worker: the constraint, when the worker that still computes the mask before it has
    /// returned it. The mask is dropped.
    ///
    /// # Errors
    /// It is not returned within `limit`, because the output is complete or its grammar is slow.
    pub fn constraint_after_mask(&self, limit: Duration) -> Result<Box<dyn Constraint>, String> {
        let start = Instant::now();
        loop {
            let mut state = self.state();
            if let Some(constraint) = state.constraint.take() {
                state.mask = None;
                return Ok(constraint);
            }
            if state.given_up || start.elapsed() >= limit {
                return Err("the grammar has ended".to_owned());
            }
            drop(state);
            // This is rare, and a mask takes microseconds.
            thread::sleep(MASK_PAUSE);
        }
    }

    /// On a worker: creates the state of an output.
    pub fn start(&self, grammar: &dyn Grammar) -> Box<dyn Constraint> {
        let constraint = grammar.start();
        let cancel = constraint.canceller();
        let mut state = self.state();
        if state.given_up {
            cancel();
        }
        state.cancel = Some(cancel);
        drop(state);
        constraint
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

    /// On the engine thread: no further answer is needed.
    pub fn give_up(&self) {
        let mut state = self.state();
        state.given_up = true;
        // Without a computation there is nothing to cancel, and another output may share parts
        // of the constraint.
        if state.constraint.is_none()
            && let Some(cancel) = &state.cancel
        {
            cancel();
        }
    }
}

fn advance(
    constraint: &mut dyn Constraint,
    token: Option<u32>,
    limit: usize,
) -> Result<Progress, String> {
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
    Ok(Progress {
        forced,
        complete: constraint.is_complete(),
    })
}

/// A panic is a fault of the grammar, and ends the request with that grammar only.
fn guarded<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|panic| Err(format!("{PANICKED}: {}", panic_text(&*panic))))
}
