//! Records that the engine and the HTTP routes hand over: the times and numbers of steps,
//! requests and HTTP exchanges.

use std::time::{Duration, Instant, SystemTime};

use crate::server_address::ServerAddress;

/// Translates moments of the monotonic clock into wall-clock times. Each request has its own
/// clock, so that an adjustment of the wall clock shifts a trace as a whole and does not
/// change the lengths of its spans.
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

    /// The wall-clock time of `at`, which may lie before the start of the clock.
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
    /// When the batch had been chosen.
    pub scheduled: Instant,
    /// When the logits were on the host.
    pub forwarded: Instant,
    /// When the tokens had been sampled and sent.
    pub finished: Instant,
    /// Prompt tokens computed and tokens generated.
    pub tokens: usize,
    pub prefill_rows: usize,
    pub prefill_tokens: usize,
    pub decode_rows: usize,
    /// Requests that started in this step; the next two fields count their prompt tokens
    /// and how many of those were cached.
    pub started_requests: u64,
    pub queried_tokens: u64,
    pub cached_tokens: u64,
    pub running: usize,
    pub waiting: usize,
    /// KV slots that running requests use.
    pub kv_used: usize,
    /// The same as a fraction of all KV slots, 0 to 1.
    pub kv_usage: f64,
    pub failed: bool,
    /// The requests in the batch: the engine's id of each and how many of its tokens were
    /// computed. Filled only if steps are traced.
    pub requests: Vec<(u64, usize)>,
}

impl StepRecord {
    /// A step at `now` that took no time and computed nothing.
    pub fn empty(now: Instant) -> Self {
        Self {
            started: now,
            scheduled: now,
            forwarded: now,
            finished: now,
            tokens: 0,
            prefill_rows: 0,
            prefill_tokens: 0,
            decode_rows: 0,
            started_requests: 0,
            queried_tokens: 0,
            cached_tokens: 0,
            running: 0,
            waiting: 0,
            kv_used: 0,
            kv_usage: 0.0,
            failed: false,
            requests: Vec::new(),
        }
    }

    pub fn scheduler(&self) -> Duration {
        self.scheduled.duration_since(self.started)
    }

    pub fn forward(&self) -> Duration {
        self.forwarded.duration_since(self.scheduled)
    }

    /// The forward pass, sampling and sending.
    pub fn execute(&self) -> Duration {
        self.finished.duration_since(self.scheduled)
    }
}

/// The compilation of a request's grammar.
#[derive(Clone, Copy, Debug)]
pub struct Compilation {
    pub from: Instant,
    pub to: Instant,
    /// Whether the compiled grammar came from the cache.
    pub cached: bool,
}

/// A transfer of a prompt's keys and values between a prefill and a decode server, as one of the
/// two saw it.
#[derive(Clone, Debug)]
pub struct KvTransfer {
    /// True if this server computed the prompt.
    pub sends: bool,
    /// When this server could have begun: its request was there, or its slots were reserved.
    pub asked: Instant,
    /// When the servers had found each other.
    pub met: Option<Instant>,
    /// When the first keys and values were read to be sent, or arrived.
    pub began: Option<Instant>,
    pub ended: Instant,
    /// Tokens whose keys and values were sent or written, and their bytes.
    pub tokens: usize,
    pub bytes: u64,
    /// Why it failed, if it did.
    pub error: Option<String>,
}

impl KvTransfer {
    /// The time in which the servers found each other.
    pub fn bootstrap(&self) -> Option<Duration> {
        Some(self.met?.saturating_duration_since(self.asked))
    }

    /// The time from the first keys and values to the end.
    pub fn duration(&self) -> Option<Duration> {
        Some(self.ended.saturating_duration_since(self.began?))
    }
}

/// When things happened to a continuation; `None` if they did not happen.
#[derive(Clone, Debug)]
pub struct RequestTimes {
    pub clock: Clock,
    pub arrived: Instant,
    /// Begin and end of the tokenization.
    pub tokenized: Option<(Instant, Instant)>,
    pub queued: Instant,
    pub started: Option<Instant>,
    pub first_token: Option<Instant>,
    pub last_token: Option<Instant>,
    /// The time between asking for the grammar and having it.
    pub compiled: Option<Compilation>,
    /// The first preemptions only, if there are many; the same holds for `jumps`.
    pub preempted: Vec<Instant>,
    /// When it ran again after each preemption.
    pub resumed: Vec<Instant>,
    /// The most recent start, which is the first one if there was no preemption.
    pub latest_start: Option<Instant>,
    /// The first token after the most recent start.
    pub first_since: Option<Instant>,
    /// When the grammar forced text (jump forward), and how many tokens.
    pub jumps: Vec<(Instant, usize)>,
    /// Begin and end of the detokenization, and the part of that time spent working.
    pub detokenized: Option<(Instant, Instant, Duration)>,
    pub transfer: Option<KvTransfer>,
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

    /// Queue, prefill, decode and inference as they are if the most recent start counts, and not
    /// the first one.
    pub fn latest(&self) -> [Option<Duration>; 4] {
        let between =
            |from: Option<Instant>, to: Option<Instant>| Some(to?.saturating_duration_since(from?));
        // A token that came before the most recent start is none of it.
        let last = self.first_since.and(self.last_token);
        [
            between(Some(self.queued), self.latest_start),
            between(self.latest_start, self.first_since),
            between(self.first_since, last),
            between(self.latest_start, last),
        ]
    }

    pub fn to_first_token(&self) -> Option<Duration> {
        Some(self.first_token?.saturating_duration_since(self.arrived))
    }

    pub fn duration(&self) -> Duration {
        self.ended.saturating_duration_since(self.arrived)
    }
}

/// How a continuation ended, in vLLM's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Stop,
    Length,
    Abort,
    Error,
}

impl Ending {
    pub const ALL: [Self; 4] = [Self::Stop, Self::Length, Self::Abort, Self::Error];

    /// The label value in metrics and spans.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Abort => "abort",
            Self::Error => "error",
        }
    }
}

/// The content of a continuation in JSON, as OpenTelemetry's GenAI conventions have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageContent {
    pub system: Option<String>,
    /// The tools that the model may call.
    pub tools: Option<String>,
    pub input: String,
    /// None where there is none yet.
    pub output: Option<String>,
}

/// A continuation that ended, as its spans describe it. A request with `n` choices has `n`
/// continuations.
#[derive(Clone, Debug)]
pub struct RequestRecord {
    pub times: RequestTimes,
    /// The engine's id of the continuation.
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
    /// The adapter (LoRA) that it was computed with.
    pub adapter: Option<String>,
    /// Tokens of the output that a grammar forced, and that were not sampled.
    pub forced_tokens: usize,
    /// Tokens that were drafted and computed by speculative decoding.
    pub drafted_tokens: usize,
    /// The part of `drafted_tokens` that is in the output.
    pub accepted_tokens: usize,
    /// Continuations of the whole request (`n`).
    pub copies: usize,
    pub max_tokens: usize,
    pub temperature: f32,
    pub top_p: f32,
    pub top_k: Option<usize>,
    pub seed: Option<u64>,
    pub frequency_penalty: f32,
    pub presence_penalty: f32,
    /// Strings that end the output.
    pub stop: Vec<String>,
    /// The kind of output that the client asked for: `text` or `json`; `None` for embeddings.
    pub output_type: Option<&'static str>,
    /// Where the client reached the server.
    pub server: Option<ServerAddress>,
    /// Present where the operator asked for the content of messages in traces.
    pub content: Option<MessageContent>,
    /// Labels that the client gave the request, as additional span attributes.
    pub labels: Vec<(String, String)>,
}

/// One HTTP exchange, as the middleware saw it.
#[derive(Clone, Debug)]
pub struct HttpOutcome {
    pub status: u16,
    /// `error.type`: a disconnect, or the status code of a server error.
    pub error: Option<String>,
    pub duration: Duration,
    pub request_bytes: u64,
    pub response_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adjusted_wall_clock_shifts_a_trace_as_a_whole() {
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
        // Moments before the start of the clock can be translated, too.
        let earlier = Clock {
            instant: at(100),
            ..before
        };
        assert!(earlier.system(at(0)) < earlier.system(at(100)));
    }

    #[test]
    fn times_in_the_wrong_order_give_durations_of_zero() {
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
            resumed: Vec::new(),
            latest_start: Some(at(30)),
            first_since: Some(at(20)),
            jumps: Vec::new(),
            detokenized: None,
            transfer: None,
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
        assert_eq!(times.latest(), [Some(Duration::ZERO); 4]);
    }
}
