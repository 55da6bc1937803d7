//! How long a step may wait for grammars.

use std::time::Duration;

/// How long the engine thread may still wait, in this step, for all grammars together.
/// Grammars answer within microseconds, and a row that misses its step loses a whole step. No
/// answer is waited for twice, so a grammar that hangs delays the other requests by one such
/// wait only.
#[derive(Debug)]
pub(crate) struct WaitBudget {
    left: Duration,
    /// Whether answers are waited for again that were waited for in vain before.
    repeats: bool,
}

/// Shorter waits take this long anyway: Linux timers are that imprecise.
const SHORTEST_WAIT: Duration = Duration::from_micros(50);

impl WaitBudget {
    /// For requests that have just arrived.
    pub fn for_new_requests() -> Self {
        Self::of(Duration::from_micros(250))
    }

    /// For requests whose next row depends on the answer.
    pub fn for_next_row() -> Self {
        Self::of(Duration::from_micros(750))
    }

    /// For requests that can continue without the answer, and waste a row if the answer is
    /// forced text: a small share of the time `step` that a step takes.
    pub fn for_forced_text(step: Duration) -> Self {
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

    /// For an engine that has nothing else to do but to collect its mail.
    pub fn idle() -> Self {
        Self {
            left: Duration::from_millis(1),
            repeats: true,
        }
    }

    fn of(left: Duration) -> Self {
        Self {
            left,
            repeats: false,
        }
    }

    /// The time left for an answer that has been waited for in vain before, or has not.
    pub fn left(&self, waited_before: bool) -> Duration {
        if waited_before && !self.repeats {
            return Duration::ZERO;
        }
        self.left
    }

    pub fn spend(&mut self, waited: Duration) {
        self.left = self.left.saturating_sub(waited);
    }
}
