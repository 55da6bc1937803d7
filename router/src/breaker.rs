//! The circuit breaker of a worker: too many failures close it off for a while.
//!
//! Closed, it lets all requests through. `failure_threshold` failures within `window` open it: the
//! worker gets no requests for `timeout`. Then it is half-open: requests pass, `success_threshold`
//! successes close it, and one failure opens it again. The caller gives the time.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::config::RouterConfig;

#[derive(Clone, Copy, Debug)]
pub struct BreakerSettings {
    pub enabled: bool,
    pub failure_threshold: usize,
    pub success_threshold: u32,
    pub timeout: Duration,
    pub window: Duration,
}

impl BreakerSettings {
    pub fn new(config: &RouterConfig) -> Self {
        Self {
            enabled: !config.disable_circuit_breaker,
            failure_threshold: config.cb_failure_threshold as usize,
            success_threshold: config.cb_success_threshold,
            timeout: Duration::from_secs_f64(config.cb_timeout_duration_secs),
            window: Duration::from_secs_f64(config.cb_window_duration_secs),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    Closed,
    Open,
    HalfOpen,
}

impl BreakerState {
    /// The state's name in the label of a metric.
    pub fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }

    /// The value of `smg_worker_cb_state`.
    pub fn number(self) -> i64 {
        match self {
            Self::Closed => 0,
            Self::Open => 1,
            Self::HalfOpen => 2,
        }
    }
}

/// A change of state, for the metrics.
pub type Transition = (BreakerState, BreakerState);

#[derive(Debug)]
pub struct Breaker {
    settings: BreakerSettings,
    state: BreakerState,
    /// When it opened last.
    opened: Option<Instant>,
    /// The failures within the window, oldest first; at most `failure_threshold`.
    failures: VecDeque<Instant>,
    consecutive_failures: u32,
    consecutive_successes: u32,
}

impl Breaker {
    pub fn new(settings: BreakerSettings) -> Self {
        Self {
            settings,
            state: BreakerState::Closed,
            opened: None,
            failures: VecDeque::new(),
            consecutive_failures: 0,
            consecutive_successes: 0,
        }
    }

    /// The state at `now`: an open breaker becomes half-open by the passing of time.
    pub fn advance(&mut self, now: Instant) -> (BreakerState, Option<Transition>) {
        let over = self
            .opened
            .is_some_and(|at| now.saturating_duration_since(at) >= self.settings.timeout);
        let change = (self.state == BreakerState::Open && over).then(|| {
            self.consecutive_successes = 0;
            self.become_state(BreakerState::HalfOpen)
        });
        (self.state, change)
    }

    pub fn succeeded(&mut self, now: Instant) -> Option<Transition> {
        self.consecutive_failures = 0;
        self.consecutive_successes = self.consecutive_successes.saturating_add(1);
        let (state, _) = self.advance(now);
        let enough = self.consecutive_successes >= self.settings.success_threshold;
        (state == BreakerState::HalfOpen && enough).then(|| {
            self.failures.clear();
            self.become_state(BreakerState::Closed)
        })
    }

    pub fn failed(&mut self, now: Instant) -> Option<Transition> {
        self.consecutive_successes = 0;
        self.consecutive_failures = self.consecutive_failures.saturating_add(1);
        if !self.settings.enabled {
            return None;
        }
        match self.advance(now).0 {
            // The requests that were in flight when it opened do not prolong the pause.
            BreakerState::Open => None,
            BreakerState::HalfOpen => {
                self.opened = Some(now);
                Some(self.become_state(BreakerState::Open))
            }
            BreakerState::Closed => {
                let window = self.settings.window;
                let old = |at: &Instant| now.saturating_duration_since(*at) > window;
                while self.failures.front().is_some_and(old) {
                    self.failures.pop_front();
                }
                self.failures.push_back(now);
                (self.failures.len() >= self.settings.failure_threshold).then(|| {
                    self.failures.clear();
                    self.opened = Some(now);
                    self.become_state(BreakerState::Open)
                })
            }
        }
    }

    /// Failures and successes since the last outcome of the other kind.
    pub fn consecutive(&self) -> (u32, u32) {
        (self.consecutive_failures, self.consecutive_successes)
    }

    fn become_state(&mut self, to: BreakerState) -> Transition {
        (std::mem::replace(&mut self.state, to), to)
    }
}

#[cfg(test)]
mod tests {
    use super::BreakerState::{Closed, HalfOpen, Open};
    use super::*;

    fn settings() -> BreakerSettings {
        BreakerSettings {
            enabled: true,
            failure_threshold: 3,
            success_threshold: 2,
            timeout: Duration::from_secs(60),
            window: Duration::from_secs(120),
        }
    }

    fn at(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn failures_within_the_window_open_it_and_successes_close_it_again() {
        let start = Instant::now();
        let mut breaker = Breaker::new(settings());
        assert_eq!(breaker.failed(at(start, 0)), None);
        assert_eq!(breaker.failed(at(start, 1)), None);
        assert_eq!(breaker.succeeded(at(start, 2)), None);
        assert_eq!(breaker.failed(at(start, 3)), Some((Closed, Open)));
        assert_eq!(breaker.advance(at(start, 62)), (Open, None));
        assert_eq!(
            breaker.advance(at(start, 63)),
            (HalfOpen, Some((Open, HalfOpen)))
        );
        assert_eq!(breaker.succeeded(at(start, 64)), None);
        assert_eq!(breaker.succeeded(at(start, 65)), Some((HalfOpen, Closed)));
        // The old failures are forgotten.
        assert_eq!(breaker.failed(at(start, 66)), None);
        assert_eq!(breaker.advance(at(start, 66)).0, Closed);
    }

    #[test]
    fn failures_outside_of_the_window_do_not_count() {
        let start = Instant::now();
        let mut breaker = Breaker::new(settings());
        breaker.failed(at(start, 0));
        breaker.failed(at(start, 1));
        assert_eq!(breaker.failed(at(start, 121)), None);
        assert_eq!(breaker.failed(at(start, 121)), Some((Closed, Open)));
    }

    #[test]
    fn a_failure_while_half_open_opens_it_for_another_pause() {
        let start = Instant::now();
        let mut breaker = Breaker::new(settings());
        for _ in 0..3 {
            breaker.failed(start);
        }
        // A request that was in flight fails, and does not prolong the pause.
        assert_eq!(breaker.failed(at(start, 30)), None);
        assert_eq!(breaker.advance(at(start, 60)).0, HalfOpen);
        assert_eq!(breaker.failed(at(start, 61)), Some((HalfOpen, Open)));
        assert_eq!(breaker.advance(at(start, 120)).0, Open);
        assert_eq!(breaker.advance(at(start, 121)).0, HalfOpen);
    }

    #[test]
    fn a_disabled_breaker_never_opens() {
        let mut breaker = Breaker::new(BreakerSettings {
            enabled: false,
            ..settings()
        });
        let now = Instant::now();
        for _ in 0..100 {
            breaker.failed(now);
        }
        assert_eq!(breaker.advance(now).0, Closed);
        assert_eq!(breaker.consecutive(), (100, 0));
    }
}
