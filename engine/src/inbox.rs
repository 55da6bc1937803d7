//! Where callers' threads and the engine thread meet: one mutex and one condition variable,
//! which either side holds for a few moves only.

mod mail;

use std::collections::VecDeque;
use std::sync::PoisonError;
#[cfg(not(feature = "loom"))]
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

#[cfg(feature = "loom")]
use loom::sync::{Condvar, Mutex, MutexGuard};

use tokio::sync::mpsc::UnboundedSender;

use crate::command::{Command, Look};
use crate::request::{Event, Request, SubmitError};
use crate::request_id::RequestId;
use crate::stats::EngineStats;

pub(crate) use mail::{Mail, NewRequest, Phase, Wait, Withdrawal};

/// The most requests that are collected at once, so that a burst of thousands delays no step
/// by more than a fraction of a millisecond.
const MOST_COLLECTED: usize = 64;

#[derive(Debug)]
struct State {
    requests: VecDeque<NewRequest>,
    withdrawn: Vec<(RequestId, Withdrawal)>,
    /// Each command with the id of the first request that arrived after it.
    commands: Vec<(RequestId, Command)>,
    looks: Vec<Look>,
    step_completed: bool,
    phase: Phase,
    /// True if the inbox was closed since mail was last collected: an engine that is paused goes on
    /// then, even if a hold keeps it from ending.
    just_closed: bool,
    /// How many callers keep the engine thread alive.
    holds: usize,
    next_id: u64,
    /// The statistics that the engine thread published last. `waiting` does not count
    /// `requests`.
    stats: EngineStats,
    /// Requests that could not start when `stats` were published, though they could if there were
    /// room.
    blocked: usize,
    /// When the engine thread last collected its mail after a step, or when work arrived while
    /// it was idle.
    heartbeat: Instant,
}

impl State {
    fn is_idle(&self) -> bool {
        self.waiting() + self.stats.running == self.stats.transferring
    }

    fn waiting(&self) -> usize {
        self.stats.waiting + self.requests.len()
    }

    fn ends(&self, wait: Wait) -> bool {
        let requests = !self.requests.is_empty() || !self.withdrawn.is_empty();
        match wait {
            Wait::No => true,
            Wait::ForMail => {
                let ends = self.phase != Phase::Open && (self.holds == 0 || !self.is_idle());
                let asks = !self.commands.is_empty() || !self.looks.is_empty();
                requests || asks || self.just_closed || ends
            }
            Wait::ForStep { .. } => requests || self.step_completed,
        }
    }

    fn next_id(&self) -> RequestId {
        RequestId::FIRST.after(self.next_id)
    }
}

#[derive(Debug)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    changed: Condvar,
    limit: usize,
    /// Requests that may run at a time.
    places: usize,
}

impl Inbox {
    /// An inbox that accepts requests while fewer than `limit` wait, beside those that fill the free
    /// ones of `places` at which requests run.
    pub fn new(limit: usize, places: usize) -> Self {
        let state = State {
            requests: VecDeque::new(),
            withdrawn: Vec::new(),
            commands: Vec::new(),
            looks: Vec::new(),
            step_completed: false,
            phase: Phase::Open,
            just_closed: false,
            holds: 0,
            next_id: 0,
            stats: EngineStats::default(),
            blocked: 0,
            heartbeat: Instant::now(),
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
            limit,
            places,
        }
    }

    /// Places for requests that have just arrived. There are none while requests wait that were there
    /// when the engine last looked, because what they lack is something else: slots, or an order.
    fn free_places(&self, state: &State) -> usize {
        match state.blocked {
            0 => self.places.saturating_sub(state.stats.running),
            _ => 0,
        }
    }

    // Every critical section leaves the state consistent, so a panic elsewhere on a thread
    // that held the lock is no reason to stop serving.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The callers' side.
impl Inbox {
    /// Queues all of `requests` at once, or none of them. Returns the id of the first request;
    /// the ids of the others follow it.
    pub fn submit(
        &self,
        requests: Vec<(Request, UnboundedSender<Event>)>,
    ) -> Result<RequestId, SubmitError> {
        let mut state = self.state();
        if state.phase != Phase::Open {
            return Err(SubmitError::ShuttingDown);
        }
        let room = self.limit.saturating_add(self.free_places(&state));
        if state.waiting() + requests.len() > room {
            return Err(SubmitError::QueueFull { limit: self.limit });
        }
        let first = state.next_id();
        let queued = Instant::now();
        if state.is_idle() {
            // The engine had nothing to do until now.
            state.heartbeat = queued;
        }
        for (request, events) in requests {
            let id = state.next_id();
            state.next_id += 1;
            state.requests.push_back(NewRequest {
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

    /// Passes on the command that `make` returns, given the id of the next request to arrive.
    /// An engine that has stopped drops the command, which closes the channel for its answer.
    pub fn command(&self, make: impl FnOnce(RequestId) -> Command) {
        let mut state = self.state();
        if state.phase != Phase::Stopped {
            let next = state.next_id();
            state.commands.push((next, make(next)));
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Passes on a look, which the engine thread answers when it has time: it wakes an idle engine
    /// and delays no step. An engine that has stopped drops it.
    pub fn look(&self, look: Look) {
        let mut state = self.state();
        if state.phase != Phase::Stopped {
            state.looks.push(look);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Accepts no requests from now on. An earlier deadline stays.
    pub fn close(&self, deadline: Option<Instant>) {
        let mut state = self.state();
        state.phase = match state.phase {
            Phase::Open => Phase::Closing { deadline },
            Phase::Closing { deadline: earlier } => Phase::Closing {
                deadline: earlier.into_iter().chain(deadline).min(),
            },
            Phase::Stopped => Phase::Stopped,
        };
        state.just_closed = true;
        drop(state);
        self.changed.notify_all();
    }

    /// Keeps the engine thread alive until [`release`](Self::release).
    pub fn hold(&self) {
        self.state().holds += 1;
    }

    pub fn release(&self) {
        self.state().holds -= 1;
        self.changed.notify_all();
    }

    pub fn stats(&self) -> EngineStats {
        let state = self.state();
        EngineStats {
            waiting: state.waiting(),
            ..state.stats
        }
    }

    /// How long the engine has had work without finishing a step.
    pub fn heartbeat_age(&self) -> Duration {
        let state = self.state();
        if state.is_idle() || state.stats.paused {
            return Duration::ZERO;
        }
        state.heartbeat.elapsed()
    }

    pub fn is_stopped(&self) -> bool {
        self.state().phase == Phase::Stopped
    }

    /// Waits until the engine thread has ended; `false` if it has not within `timeout`.
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
        while !state.ends(wait) {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        let state = &mut *state;
        let step_completed =
            matches!(wait, Wait::ForStep { .. }) && std::mem::take(&mut state.step_completed);
        state.just_closed = false;
        let count = state.requests.len().min(MOST_COLLECTED);
        let requests: Vec<_> = state.requests.drain(..count).collect();
        // Until the statistics are published again, these still count as waiting.
        state.stats.waiting += count;
        let next = state.requests.front().map(|first| first.id);
        let is_taken = |id: RequestId| next.is_none_or(|next| id < next);
        let withdrawn = state.withdrawn.extract_if(.., |(id, _)| is_taken(*id));
        let withdrawn = withdrawn.collect();
        let still_in_flight = match wait {
            Wait::ForStep { in_flight } => in_flight - usize::from(step_completed),
            Wait::No | Wait::ForMail => 0,
        };
        let between_steps = still_in_flight == 0;
        let due = |before: RequestId| between_steps && next.is_none_or(|next| before <= next);
        let commands = state.commands.extract_if(.., |(before, _)| due(*before));
        let commands = commands.map(|(_, command)| command).collect();
        if between_steps || step_completed {
            state.heartbeat = Instant::now();
        }
        Mail {
            step_completed,
            requests,
            withdrawn,
            commands,
            looks: std::mem::take(&mut state.looks),
            commands_wait: !state.commands.is_empty(),
            phase: state.phase,
            is_held: state.holds > 0,
        }
    }

    /// The device has completed the oldest step in flight, or its thread has ended.
    pub fn step_completed(&self) {
        self.state().step_completed = true;
        self.changed.notify_all();
    }

    /// Makes `stats` what callers see, and what the bound of the queue counts.
    pub fn publish(&self, stats: EngineStats) {
        let mut state = self.state();
        state.blocked = stats.waiting.saturating_sub(stats.deferred);
        state.stats = stats;
    }

    /// The engine thread ends, for whatever reason. Drops all uncollected mail, which closes
    /// the channels of the callers who wait for it.
    pub fn stop(&self) {
        let mut state = self.state();
        state.phase = Phase::Stopped;
        state.stats.waiting = 0;
        state.withdrawn.clear();
        let unserved = std::mem::take(&mut state.requests);
        let unanswered = (
            std::mem::take(&mut state.commands),
            std::mem::take(&mut state.looks),
        );
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
