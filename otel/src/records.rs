//! What the engine and the routes tell: times of steps and of requests.

use std::time::{Duration, Instant, SystemTime};

use crate::instruments::Ending;

/// Translates moments of the monotonic clock; one per request, so that a step of the
/// wall clock moves a trace as a whole and never bends it.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    instant: Instant,
    system: SystemTime,
}

impl Clock {
    pub fn now() -> Self {
        Self {
            instant: Instant::now(),
            system: SystemTime::now(),
        }
    }

    /// When the clock was started.
    pub fn start(&self) -> Instant {
        self.instant
    }

    pub fn system(&self, at: Instant) -> SystemTime {
        match at.checked_duration_since(self.instant) {
            Some(after) => self.system + after,
            None => self.system - self.instant.duration_since(at),
        }
    }
}

/// One step of the engine.
#[derive(Clone, Debug)]
pub struct StepRecord {
    pub started: Instant,
    /// The batch was chosen.
    pub scheduled: Instant,
    /// The logits were on the host.
    pub forwarded: Instant,
    /// Tokens were sampled and sent.
    pub finished: Instant,
    /// Prompt tokens computed and tokens generated.
    pub tokens: usize,
    pub prefill_rows: usize,
    pub prefill_tokens: usize,
    pub decode_rows: usize,
    /// Requests that started in it, their prompt tokens, and what of these was cached.
    pub started_requests: u64,
    pub queried_tokens: u64,
    pub cached_tokens: u64,
    pub preemptions: u64,
    pub running: usize,
    pub waiting: usize,
    /// KV slots that running requests use, and which part of all they are.
    pub kv_used: usize,
    pub kv_usage: f64,
    pub failed: bool,
    /// The requests in the batch by the engine's ids, and how many tokens each computed; needed
    /// only where steps have traces.
    pub requests: Vec<(u64, usize)>,
}

impl StepRecord {
    pub fn scheduler(&self) -> Duration {
        self.scheduled.duration_since(self.started)
    }

    pub fn forward(&self) -> Duration {
        self.forwarded.duration_since(self.scheduled)
    }

    /// Forward, sampling and what follows.
    pub fn execute(&self) -> Duration {
        self.finished.duration_since(self.scheduled)
    }
}

/// How a grammar was had.
#[derive(Clone, Copy, Debug)]
pub struct Compilation {
    pub from: Instant,
    pub to: Instant,
    /// It was there already.
    pub cached: bool,
}

/// When things happened to a continuation; absent: they did not.
#[derive(Clone, Debug)]
pub struct RequestTimes {
    pub clock: Clock,
    pub arrived: Instant,
    /// Text to tokens, from and to.
    pub tokenized: Option<(Instant, Instant)>,
    pub queued: Instant,
    pub started: Option<Instant>,
    pub first_token: Option<Instant>,
    pub last_token: Option<Instant>,
    /// Its grammar, from the asking to the having.
    pub compiled: Option<Compilation>,
    /// The first ones only, when there are many; of `jumps` likewise.
    pub preempted: Vec<Instant>,
    /// When text came by force, and how many tokens.
    pub jumps: Vec<(Instant, usize)>,
    /// Tokens to text: from, to, and the time of it that was work.
    pub detokenized: Option<(Instant, Instant, Duration)>,
    pub ended: Instant,
}

impl RequestTimes {
    pub fn queue(&self) -> Option<Duration> {
        Some(self.started?.saturating_duration_since(self.queued))
    }

    pub fn prefill(&self) -> Option<Duration> {
        Some(self.first_token?.saturating_duration_since(self.started?))
    }

    pub fn decode(&self) -> Option<Duration> {
        Some(
            self.last_token?
                .saturating_duration_since(self.first_token?),
        )
    }

    pub fn inference(&self) -> Option<Duration> {
        Some(self.last_token?.saturating_duration_since(self.started?))
    }

    pub fn to_first_token(&self) -> Option<Duration> {
        Some(self.first_token?.saturating_duration_since(self.arrived))
    }

    pub fn duration(&self) -> Duration {
        self.ended.saturating_duration_since(self.arrived)
    }
}

/// A continuation that ended, for its spans.
#[derive(Clone, Debug)]
pub struct RequestRecord {
    pub times: RequestTimes,
    /// The engine's id.
    pub engine_id: u64,
    /// The id that the client sees in a header.
    pub request_id: String,
    pub operation: &'static str,
    pub stream: bool,
    pub ending: Ending,
    pub error: Option<String>,
    pub prompt_tokens: usize,
    pub cached_tokens: usize,
    pub completion_tokens: usize,
    pub preemptions: u64,
    /// Tokens of the output that a grammar forced.
    pub forced_tokens: usize,
    pub copies: usize,
    pub max_tokens: usize,
    pub temperature: f32,
    pub top_p: f32,
    pub top_k: Option<usize>,
    pub seed: Option<u64>,
    /// What the client calls it by: more attributes.
    pub labels: Vec<(String, String)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_of_the_wall_clock_moves_a_trace_as_a_whole() {
        let before = Clock::now();
        let hour = Duration::from_secs(3600);
        let at = |ms| before.start() + Duration::from_millis(ms);
        for system in [before.system + hour, before.system - hour] {
            let stepped = Clock { system, ..before };
            for (from, to) in [(0, 5), (5, 12)] {
                let length = |clock: Clock| {
                    let length = clock.system(at(to)).duration_since(clock.system(at(from)));
                    length.expect("time goes forward within a trace")
                };
                assert_eq!(length(stepped), length(before));
            }
        }
        // What came before the clock was started has its place, too.
        let earlier = Clock {
            instant: at(100),
            ..before
        };
        assert!(earlier.system(at(0)) < earlier.system(at(100)));
    }

    #[test]
    fn times_in_the_wrong_order_are_no_time() {
        let clock = Clock::now();
        let at = |ms| clock.start() + Duration::from_millis(ms);
        let times = RequestTimes {
            clock,
            arrived: at(50),
            tokenized: None,
            queued: at(40),
            started: Some(at(30)),
            first_token: Some(at(20)),
            last_token: Some(at(10)),
            compiled: None,
            preempted: Vec::new(),
            jumps: Vec::new(),
            detokenized: None,
            ended: at(0),
        };
        let all = [
            times.queue(),
            times.prefill(),
            times.decode(),
            times.inference(),
            times.to_first_token(),
            Some(times.duration()),
        ];
        assert_eq!(all, [Some(Duration::ZERO); 6]);
    }
}
