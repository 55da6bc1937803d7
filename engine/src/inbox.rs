//! Where callers' threads and the engine thread meet: one mutex, one condition
//! variable, held for a few moves on either side.

use std::collections::VecDeque;
use std::sync::PoisonError;
#[cfg(not(feature = "loom"))]
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

#[cfg(feature = "loom")]
use loom::sync::{Condvar, Mutex, MutexGuard};

use tokio::sync::mpsc::UnboundedSender;

use crate::command::Command;
use crate::request::{Event, Request, SubmitError};
use crate::stats::EngineStats;

/// Ascending in order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RequestId(u64);

impl RequestId {
    pub fn number(self) -> u64 {
        self.0
    }

    /// The `n`-th after it.
    pub fn after(self, n: u64) -> Self {
        Self(self.0 + n)
    }
}

impl RequestId {
    pub const FIRST: Self = Self(0);

    /// In no order, and the same in every run.
    pub fn shuffled(self) -> u64 {
        let mut mixed = (self.0 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed ^ mixed >> 31
    }
}

/// Why a consumer no longer wants the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Withdrawal {
    Cancelled,
    Satisfied,
}

/// An accepted request on its way to the engine thread.
#[derive(Debug)]
pub(crate) struct Submission {
    pub id: RequestId,
    pub request: Request,
    pub events: UnboundedSender<Event>,
    pub queued: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Open,
    /// Nothing new is accepted; what is there may go on until the deadline.
    Closing {
        deadline: Option<Instant>,
    },
    /// The engine thread is gone.
    Stopped,
}

/// Requests taken in at once: a burst of thousands holds up no step by more than a fraction
/// of a millisecond.
const MOST_TAKEN: usize = 64;

/// What the engine thread waits for when it looks into the inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// It has work.
    Not,
    /// It has nothing to do.
    ForMail,
    /// The device is at a step, or at two. New requests can be taken in meanwhile.
    ForLanding { of: usize },
}

/// What arrived since the last look.
#[derive(Debug)]
pub(crate) struct Mail {
    /// The device has done what it was at, or the first of two.
    pub landed: bool,
    /// The first of those that came.
    pub submitted: Vec<Submission>,
    pub withdrawn: Vec<(RequestId, Withdrawal)>,
    /// In the order in which they were given, when the device is at nothing and the
    /// requests that came before them are taken.
    pub commands: Vec<Command>,
    /// Whether others wait until the device is at nothing.
    pub commands_wait: bool,
    pub phase: Phase,
}

#[derive(Debug)]
struct State {
    submitted: VecDeque<Submission>,
    withdrawn: Vec<(RequestId, Withdrawal)>,
    /// Each with the next request that came after it.
    commands: Vec<(RequestId, Command)>,
    landed: bool,
    phase: Phase,
    next_id: u64,
    /// As the engine thread last published it; `waiting` is without `submitted`.
    stats: EngineStats,
    /// When the engine thread last had a step behind it and looked here, or work came
    /// after it had none.
    beat: Instant,
}

impl State {
    fn is_idle(&self) -> bool {
        self.waiting() + self.stats.running == 0
    }

    fn waiting(&self) -> usize {
        self.stats.waiting + self.submitted.len()
    }

    /// Whether there is something to take.
    fn has_news(&self, wait: Wait) -> bool {
        let requests = !self.submitted.is_empty() || !self.withdrawn.is_empty();
        match wait {
            Wait::Not => true,
            Wait::ForMail => requests || !self.commands.is_empty() || self.phase != Phase::Open,
            Wait::ForLanding { .. } => requests || self.landed,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    changed: Condvar,
    limit: usize,
}

impl Inbox {
    /// An inbox that accepts requests while fewer than `limit` wait.
    pub fn new(limit: usize) -> Self {
        let state = State {
            submitted: VecDeque::new(),
            withdrawn: Vec::new(),
            commands: Vec::new(),
            landed: false,
            phase: Phase::Open,
            next_id: 0,
            stats: EngineStats::default(),
            beat: Instant::now(),
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
            limit,
        }
    }

    // Every critical section leaves the state whole, so that a panic elsewhere
    // on a thread that held the lock is no reason to stop serving.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues all of `requests` at once, or none of them; returns the first one's id, which
    /// the others' follow.
    pub fn submit(
        &self,
        requests: Vec<(Request, UnboundedSender<Event>)>,
    ) -> Result<RequestId, SubmitError> {
        let mut state = self.state();
        if state.phase != Phase::Open {
            return Err(SubmitError::ShuttingDown);
        }
        if state.waiting() + requests.len() > self.limit {
            return Err(SubmitError::QueueFull { limit: self.limit });
        }
        let first = RequestId(state.next_id);
        let queued = Instant::now();
        if state.is_idle() {
            // Nobody waited for the engine until now.
            state.beat = queued;
        }
        for (request, events) in requests {
            let id = RequestId(state.next_id);
            state.next_id += 1;
            state.submitted.push_back(Submission {
                id,
                request,
                events,
                queued,
            });
        }
        drop(state);
        self.changed.notify_all();
        Ok(first)
    }

    pub fn withdraw(&self, id: RequestId, why: Withdrawal) {
        let mut state = self.state();
        if state.phase != Phase::Stopped {
            state.withdrawn.push((id, why));
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Passes on the command that `make` makes, given the id of the next request
    /// to come. An engine that has stopped drops it, which tells its sender.
    pub fn command(&self, make: impl FnOnce(RequestId) -> Command) {
        let mut state = self.state();
        if state.phase != Phase::Stopped {
            let next = RequestId(state.next_id);
            state.commands.push((next, make(next)));
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Accepts nothing from now on. An earlier deadline stays.
    pub fn close(&self, deadline: Option<Instant>) {
        let mut state = self.state();
        state.phase = match state.phase {
            Phase::Open => Phase::Closing { deadline },
            Phase::Closing { deadline: earlier } => Phase::Closing {
                deadline: earlier.into_iter().chain(deadline).min(),
            },
            Phase::Stopped => Phase::Stopped,
        };
        drop(state);
        self.changed.notify_all();
    }

    pub fn stats(&self) -> EngineStats {
        let state = self.state();
        EngineStats {
            waiting: state.waiting(),
            ..state.stats
        }
    }

    /// How long the engine has had work and has finished no step of it.
    pub fn heartbeat_age(&self) -> Duration {
        let state = self.state();
        if state.is_idle() || state.stats.paused {
            return Duration::ZERO;
        }
        state.beat.elapsed()
    }

    pub fn is_stopped(&self) -> bool {
        self.state().phase == Phase::Stopped
    }

    /// Waits until the engine thread has ended; `false` if it has not in time.
    pub fn wait_stopped(&self, timeout: Duration) -> bool {
        let start = Instant::now();
        let mut state = self.state();
        while state.phase != Phase::Stopped {
            let Some(left) = timeout.checked_sub(start.elapsed()) else {
                return false;
            };
            (state, _) = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner);
        }
        true
    }
}

/// The engine thread's side.
impl Inbox {
    /// Takes what arrived, after waiting for it as `wait` says.
    pub fn collect(&self, wait: Wait) -> Mail {
        let mut state = self.state();
        while !state.has_news(wait) {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        let state = &mut *state;
        let landed = matches!(wait, Wait::ForLanding { .. }) && std::mem::take(&mut state.landed);
        let count = state.submitted.len().min(MOST_TAKEN);
        let submitted: Vec<_> = state.submitted.drain(..count).collect();
        // They go on to count as waiting until the next publication.
        state.stats.waiting += count;
        let next = state.submitted.front().map(|first| first.id);
        let is_known = |id: RequestId| next.is_none_or(|next| id < next);
        let withdrawn = state.withdrawn.extract_if(.., |(id, _)| is_known(*id));
        let withdrawn = withdrawn.collect();
        let at = match wait {
            Wait::ForLanding { of } => of - usize::from(landed),
            Wait::Not | Wait::ForMail => 0,
        };
        let between_steps = at == 0;
        let due = |before: RequestId| between_steps && next.is_none_or(|next| before <= next);
        let commands = state.commands.extract_if(.., |(before, _)| due(*before));
        let commands = commands.map(|(_, command)| command).collect();
        if between_steps || landed {
            state.beat = Instant::now();
        }
        Mail {
            landed,
            submitted,
            withdrawn,
            commands,
            commands_wait: !state.commands.is_empty(),
            phase: state.phase,
        }
    }

    /// The device has done the first of what it is at, or never will.
    pub fn landed(&self) {
        self.state().landed = true;
        self.changed.notify_all();
    }

    /// Makes `stats` what callers see, and what the queue's bound counts.
    pub fn publish(&self, stats: EngineStats) {
        let mut state = self.state();
        state.stats = stats;
    }

    /// The engine thread ends, in whatever way. Drops what it never took, which
    /// tells those callers.
    pub fn stop(&self) {
        let mut state = self.state();
        state.phase = Phase::Stopped;
        state.stats.waiting = 0;
        state.withdrawn.clear();
        let unserved = std::mem::take(&mut state.submitted);
        let unanswered = std::mem::take(&mut state.commands);
        drop(state);
        drop(unserved);
        drop(unanswered);
        self.changed.notify_all();
    }
}

#[cfg(all(test, feature = "loom"))]
mod interleavings;

#[cfg(all(test, not(feature = "loom")))]
mod tests;
