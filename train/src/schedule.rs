//! The end of training, and the learning rate until then.

use std::time::Duration;

/// Training ends after `steps` or after `time`, whichever comes first.
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    pub steps: u64,
    pub time: Duration,
    pub warmup_steps: u64,
    pub peak: f64,
}

impl Schedule {
    /// The share of the run that is over, from 0 to 1. The larger of the shares of steps and time
    /// counts, so that the rate of a run bounded by time falls to its end on any machine.
    pub fn progress(&self, step: u64, elapsed: Duration) -> f64 {
        let by_steps = step as f64 / self.steps.max(1) as f64;
        let by_time = elapsed.as_secs_f64() / self.time.as_secs_f64().max(1e-9);
        by_steps.max(by_time).min(1.0)
    }

    /// Linear warm-up, then a half cosine from the peak down to 2 % of it.
    pub fn learning_rate(&self, step: u64, elapsed: Duration) -> f64 {
        let warmup = ((step + 1) as f64 / self.warmup_steps.max(1) as f64).min(1.0);
        let cosine = 0.5 * (1.0 + (std::f64::consts::PI * self.progress(step, elapsed)).cos());
        self.peak * warmup * (0.02 + 0.98 * cosine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEDULE: Schedule = Schedule {
        steps: 1_000,
        time: Duration::from_secs(100),
        warmup_steps: 10,
        peak: 1.0,
    };

    #[test]
    fn the_rate_rises_to_the_peak_and_falls_to_the_end() {
        let rate = |step| SCHEDULE.learning_rate(step, Duration::ZERO);
        assert!(rate(0) < 0.11 && rate(9) > 0.99);
        assert!((rate(500) - 0.51).abs() < 0.01);
        assert!((rate(1_000) - 0.02).abs() < 1e-9);
    }

    #[test]
    fn time_cools_the_rate_down_as_steps_do() {
        let late = SCHEDULE.learning_rate(100, Duration::from_secs(100));
        assert!((late - 0.02).abs() < 1e-9);
        assert_eq!(SCHEDULE.progress(0, Duration::from_secs(500)), 1.0);
    }
}
