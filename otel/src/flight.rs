//! The flight recorder: the latest steps of the engine, kept in memory, as a trace that
//! Perfetto and `chrome://tracing` show.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use crate::instruments::EngineSnapshot;
use crate::records::{Clock, StepRecord};

/// How long a step is kept.
pub const KEPT: Duration = Duration::from_secs(60);
/// Steps that are kept at the most: a minute of steps of one millisecond.
const MOST: usize = 1 << 16;

/// The tracks of the trace, which are threads in Chrome's format.
const TRACKS: [(u32, &str); 4] = [
    (1, "scheduler"),
    (2, "forward"),
    (3, "sampling and events"),
    (4, "no step"),
];

/// The latest steps. The telemetry thread writes them, so that the engine never waits for a reader.
#[derive(Debug)]
pub struct FlightRecorder {
    clock: Clock,
    steps: Mutex<VecDeque<StepRecord>>,
}

/// Several steps, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepSums {
    pub steps: usize,
    /// The time until the batches were complete.
    pub scheduler: Duration,
    pub forward: Duration,
    /// Forward passes, sampling and sending.
    pub execute: Duration,
    /// Tokens of sequences that computed more than one token in a step.
    pub prefill_tokens: usize,
    /// Sequences that computed one token, counted in each step.
    pub decode_rows: usize,
    /// When the latest of the steps ended; `None` without steps.
    pub latest: Option<Instant>,
}

impl Default for FlightRecorder {
    fn default() -> Self {
        Self {
            clock: Clock::now(),
            steps: Mutex::default(),
        }
    }
}

impl FlightRecorder {
    /// Keeps `step`, and forgets what is older than [`KEPT`].
    pub fn record(&self, step: &StepRecord) {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(oldest) = steps.front()
            && (steps.len() >= MOST
                || step.finished.saturating_duration_since(oldest.finished) > KEPT)
        {
            steps.pop_front();
        }
        steps.push_back(step.clone());
    }

    /// The steps that ended after `after`, added up.
    pub fn sums(&self, after: Instant) -> StepSums {
        let steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sums = StepSums::default();
        let new = steps.iter().rev();
        for step in new.take_while(|step| step.finished > after) {
            sums.latest = sums.latest.max(Some(step.finished));
            sums.steps += 1;
            sums.scheduler += step.scheduler();
            sums.forward += step.forward();
            sums.execute += step.execute();
            sums.prefill_tokens += step.prefill_tokens;
            sums.decode_rows += step.decode_rows;
        }
        sums
    }

    /// The steps that ended within the `last` time before `now`, in Chrome's trace event format.
    /// Times are microseconds since the Unix epoch. If the engine has work and finishes no step,
    /// the trace ends with an event that lasts since its last sign of life.
    pub fn trace(&self, now: Instant, last: Duration, engine: &EngineSnapshot) -> String {
        let micros = |at: Instant| {
            let since = self.clock.system(at).duration_since(SystemTime::UNIX_EPOCH);
            since.map_or(0.0, |since| since.as_secs_f64() * 1e6)
        };
        let span = |track: u32, name: &str, from: Instant, to: Instant, args: Value| {
            json!({
                "name": name, "ph": "X", "pid": 1, "tid": track, "ts": micros(from),
                "dur": to.saturating_duration_since(from).as_secs_f64() * 1e6, "args": args,
            })
        };
        let count = |name: &str, at: Instant, args: Value| -> Value {
            json!({
                "name": name, "ph": "C", "pid": 1, "ts": micros(at), "args": args,
            })
        };
        let mut events = vec![named("process_name", 0, "hearth engine")];
        events.extend(TRACKS.map(|(track, name)| named("thread_name", track, name)));
        let steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        for step in steps
            .iter()
            .filter(|step| now.saturating_duration_since(step.finished) <= last)
        {
            let batch = json!({
                "prefill_rows": step.prefill_rows, "prefill_tokens": step.prefill_tokens,
                "decode_rows": step.decode_rows, "failed": step.failed,
            });
            events.extend([
                span(1, "schedule", step.started, step.scheduled, json!({})),
                span(2, "forward", step.scheduled, step.forwarded, batch),
                span(
                    3,
                    "complete",
                    step.forwarded,
                    step.finished,
                    json!({"tokens": step.tokens}),
                ),
                count(
                    "requests",
                    step.finished,
                    json!({"running": step.running, "waiting": step.waiting}),
                ),
                count(
                    "KV slots in use",
                    step.finished,
                    json!({"tokens": step.kv_used}),
                ),
            ]);
        }
        drop(steps);
        if engine.heartbeat_age > Duration::ZERO {
            let from = now.checked_sub(engine.heartbeat_age).unwrap_or(now);
            let waiting = json!({"running": engine.running, "waiting": engine.waiting});
            events.push(span(4, "no step has ended", from, now, waiting));
        }
        json!({"displayTimeUnit": "ms", "traceEvents": events}).to_string()
    }
}

/// The event that names the process or a track.
fn named(kind: &str, track: u32, name: &str) -> Value {
    json!({"name": kind, "ph": "M", "pid": 1, "tid": track, "args": {"name": name}})
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A step that began at `started` and lasted a millisecond.
    fn step(started: Instant) -> StepRecord {
        let at = |micros| started + Duration::from_micros(micros);
        StepRecord {
            scheduled: at(100),
            forwarded: at(900),
            finished: at(1000),
            tokens: 3,
            decode_rows: 3,
            running: 3,
            waiting: 1,
            kv_used: 30,
            kv_usage: 0.5,
            ..StepRecord::empty(started)
        }
    }

    fn events(recorder: &FlightRecorder, now: Instant, last: u64, age: Duration) -> Vec<Value> {
        let engine = EngineSnapshot {
            heartbeat_age: age,
            ..EngineSnapshot::default()
        };
        let trace = recorder.trace(now, Duration::from_secs(last), &engine);
        let trace: Value = serde_json::from_str(&trace).expect("JSON");
        trace["traceEvents"].as_array().expect("a list").clone()
    }

    #[test]
    fn a_trace_has_the_steps_of_the_wanted_time_alone() {
        let recorder = FlightRecorder::default();
        let begin = Instant::now();
        for second in 0..100 {
            recorder.record(&step(begin + Duration::from_secs(second)));
        }
        let now = begin + Duration::from_secs(100);
        let forwards = |last| {
            let events = events(&recorder, now, last, Duration::ZERO);
            let forwards = events.iter().filter(|event| event["name"] == "forward");
            forwards.cloned().collect::<Vec<_>>()
        };
        assert_eq!(forwards(10).len(), 10);
        // A minute is kept, and the step at its begin.
        assert_eq!(forwards(1000).len(), 61);
        let forward = &forwards(10)[9];
        let duration = forward["dur"].as_f64().expect("a number");
        assert!((duration - 800.0).abs() < 1.0, "{forward}");
        assert_eq!(forward["args"]["decode_rows"], 3);
    }

    #[test]
    fn sums_have_the_steps_after_a_moment_alone() {
        let recorder = FlightRecorder::default();
        let begin = Instant::now();
        assert_eq!(recorder.sums(begin), StepSums::default());
        for second in 0..5 {
            recorder.record(&step(begin + Duration::from_secs(second)));
        }
        let sums = recorder.sums(begin + Duration::from_secs(3));
        assert_eq!((sums.steps, sums.decode_rows), (2, 6));
        assert_eq!(sums.scheduler, Duration::from_micros(200));
        assert_eq!(sums.forward, Duration::from_micros(1600));
        assert_eq!(sums.execute, Duration::from_micros(1800));
        let latest = sums.latest.expect("there are steps");
        assert_eq!(recorder.sums(latest), StepSums::default());
    }

    #[test]
    fn an_engine_that_hangs_is_seen() {
        let recorder = FlightRecorder::default();
        let hangs = |event: &&Value| event["tid"] == 4 && event["ph"] == "X";
        let now = Instant::now();
        let quiet = events(&recorder, now, 10, Duration::ZERO);
        assert_eq!(quiet.iter().filter(hangs).count(), 0);
        let stuck = events(&recorder, now, 10, Duration::from_secs(3));
        let stuck = stuck.iter().find(hangs).expect("it hangs");
        let duration = stuck["dur"].as_f64().expect("a number");
        assert!((duration - 3e6).abs() < 1e3, "{stuck}");
    }
}
