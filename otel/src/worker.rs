//! The telemetry thread, which turns records of steps and requests into histograms, spans
//! and log lines.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use opentelemetry::trace::SpanContext;

use crate::flight::FlightRecorder;
use crate::instruments::{Derived, EngineInstruments, EngineSnapshot, ReadEngine};
use crate::mailbox::{Mail, Message, Receiver};
use crate::options::TelemetryOptions;
use crate::records::{RequestRecord, StepRecord};
use crate::spans::{RequestSpan, Spans, StepTimes};
use crate::stall_log::StallLog;
use crate::stats_log::{StatsLog, StatsLogger};

/// How often the engine's state is read.
const TICK: Duration = Duration::from_secs(1);
/// Snapshots, one per tick, that throughputs are averaged over.
const WINDOW: usize = 10;
/// Requests whose steps are tracked at a time: far more than can run and wait.
const MAX_TRACKED: usize = 1 << 16;
/// How long a step waits for the `Begin` messages of its requests: the engine can finish a
/// step before the HTTP route has reported the request. The message is missing altogether if
/// the request did not come from an observed HTTP exchange, or if the mailbox was full.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a request is tracked after its end: steps may still have it in their batch.
const KEPT_AFTER_END: Duration = Duration::from_secs(5);
/// Steps and ends that may wait for `Begin` messages; beyond this number nothing waits.
const MAX_PENDING: usize = 4096;

/// The numbers that the thread provides to scrapes.
#[derive(Debug, Default)]
pub struct Shared {
    /// In ascending order of time; the newest is at most one tick old.
    snapshots: Mutex<VecDeque<(Instant, EngineSnapshot)>>,
    /// The bits of an `f64`.
    last_hit_rate: AtomicU64,
    /// The latest steps.
    pub flight: FlightRecorder,
}

impl Shared {
    fn push(&self, now: Instant, snapshot: EngineSnapshot) {
        let mut snapshots = self
            .snapshots
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        snapshots.push_back((now, snapshot));
        if snapshots.len() > WINDOW {
            snapshots.pop_front();
        }
    }

    /// Rates between the oldest snapshot of the window and `snapshot`, which was taken `now`.
    pub fn derived(&self, now: Instant, snapshot: &EngineSnapshot) -> Derived {
        let snapshots = self
            .snapshots
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let last_hit_rate = f64::from_bits(self.last_hit_rate.load(Ordering::Relaxed));
        let Some((since, before)) = snapshots.front() else {
            return Derived {
                last_hit_rate,
                ..Derived::default()
            };
        };
        let seconds = now.saturating_duration_since(*since).as_secs_f64();
        let rate = |now: u64, before: u64| match seconds {
            0.0 => 0.0,
            _ => now.saturating_sub(before) as f64 / seconds,
        };
        let prompts = |s: &EngineSnapshot| s.prompt_tokens.saturating_sub(s.cached_tokens);
        Derived {
            prompt_throughput: rate(prompts(snapshot), prompts(before)),
            generation_throughput: rate(snapshot.generated_tokens, before.generated_tokens),
            last_hit_rate,
        }
    }
}

/// A request whose steps are added up and linked to its span.
struct Tracked {
    span: SpanContext,
    steps: StepTimes,
}

/// A record whose spans are still to be made. Records are processed in the order of their
/// messages: the last step of a request is reported before its end.
enum Pending {
    Step(StepRecord),
    End(Box<(RequestSpan, RequestRecord)>),
}

pub struct Worker {
    /// None if no metrics are recorded.
    instruments: Option<Arc<EngineInstruments>>,
    spans: Option<Spans>,
    model: String,
    read: ReadEngine,
    shared: Arc<Shared>,
    detailed: bool,
    log: StatsLogger,
    stalls: StallLog,
    /// By the engine's id.
    tracked: HashMap<u64, Tracked>,
    /// With the time of arrival.
    pending: VecDeque<(Instant, Pending)>,
    /// Tracked requests that have ended, with the time of their end.
    ended: VecDeque<(Instant, u64)>,
}

impl Worker {
    pub fn new(
        instruments: Option<Arc<EngineInstruments>>,
        spans: Option<Spans>,
        model: String,
        read: ReadEngine,
        shared: Arc<Shared>,
        options: &TelemetryOptions,
        device: &'static str,
    ) -> Self {
        let (now, snapshot) = (Instant::now(), read());
        shared.push(now, snapshot);
        let mut log = StatsLogger::new(
            match options.metrics {
                true => options.stats_log,
                false => StatsLog::Off,
            },
            options.stats_interval,
            options.decode_log_interval,
            device,
        );
        // The first call begins the first interval.
        log.tick(now, &snapshot);
        Self {
            detailed: options.detailed.is_some() && spans.is_some(),
            log,
            stalls: StallLog::new(options.stall_dir.clone(), options.stall_after),
            instruments,
            spans,
            model,
            read,
            shared,
            tracked: HashMap::new(),
            pending: VecDeque::new(),
            ended: VecDeque::new(),
        }
    }

    /// Processes messages until the mailbox is closed.
    pub fn run(mut self, mailbox: &Receiver) {
        let mut next_tick = Instant::now() + TICK;
        let mut mail = Mail::default();
        let mut open = true;
        while open {
            let now = Instant::now();
            if now >= next_tick {
                self.tick(now);
                next_tick = now + TICK;
            }
            let due = self.pending.front().map(|(at, _)| *at + BEGIN_TIMEOUT);
            let until = due.map_or(next_tick, |due| due.min(next_tick));
            open = mailbox.receive(until, &mut mail);
            // A step was sent before the ends of its requests.
            mail.steps.drain(..).for_each(|step| self.step(step));
            mail.messages
                .drain(..)
                .for_each(|message| self.process(message));
            self.process_pending(Instant::now(), BEGIN_TIMEOUT);
        }
        self.process_pending(Instant::now(), Duration::ZERO);
    }

    fn tick(&mut self, now: Instant) {
        let snapshot = (self.read)();
        self.shared.push(now, snapshot);
        self.stalls.tick(now, &snapshot, &self.shared.flight);
        if let Some(line) = self.log.tick(now, &snapshot) {
            tracing::info!("{line}");
        }
        while let Some(&(at, id)) = self.ended.front()
            && now.saturating_duration_since(at) >= KEPT_AFTER_END
        {
            self.ended.pop_front();
            self.tracked.remove(&id);
        }
    }

    fn process(&mut self, message: Message) {
        match message {
            Message::Begin(id, span) => {
                if self.tracked.len() >= MAX_TRACKED {
                    // The ends of most of them were dropped while this thread was behind.
                    self.tracked.clear();
                    self.ended.clear();
                }
                let steps = StepTimes::default();
                self.tracked.insert(id, Tracked { span, steps });
            }
            Message::End(record) => {
                let now = Instant::now();
                self.pending.push_back((now, Pending::End(record)));
            }
            Message::Flush(done) => {
                self.process_pending(Instant::now(), Duration::ZERO);
                // The asking thread may have stopped waiting.
                let _ = done.try_send(());
            }
        }
    }

    fn step(&mut self, step: StepRecord) {
        if let Some(instruments) = &self.instruments {
            instruments.step(&step);
            self.shared.flight.record(&step);
        }
        if step.queried_tokens > 0 {
            let rate = step.cached_tokens as f64 / step.queried_tokens as f64;
            self.shared
                .last_hit_rate
                .store(rate.to_bits(), Ordering::Relaxed);
        }
        if let Some(line) = self.log.step(&step) {
            tracing::info!("{line}");
        }
        if self.detailed {
            let now = Instant::now();
            self.pending.push_back((now, Pending::Step(step)));
        }
    }

    /// Processes pending records up to the first step that waits for a `Begin` message of one
    /// of its requests, and that arrived less than `timeout` ago.
    fn process_pending(&mut self, now: Instant, timeout: Duration) {
        while let Some((at, first)) = self.pending.front() {
            let waits = match first {
                Pending::Step(step) => !step
                    .requests
                    .iter()
                    .all(|(id, _)| self.tracked.contains_key(id)),
                Pending::End(_) => false,
            };
            let early = now.saturating_duration_since(*at) < timeout;
            if waits && early && self.pending.len() < MAX_PENDING {
                return;
            }
            match self.pending.pop_front() {
                Some((_, Pending::Step(step))) => self.trace_step(&step),
                Some((_, Pending::End(ended))) => self.trace_request(now, *ended),
                None => return,
            }
        }
    }

    fn trace_step(&mut self, step: &StepRecord) {
        let Some(spans) = &self.spans else {
            return;
        };
        let mut links = Vec::new();
        for (id, tokens) in &step.requests {
            if let Some(tracked) = self.tracked.get_mut(id) {
                tracked.steps.add(step, *tokens);
                links.extend(
                    Some(&tracked.span)
                        .filter(|span| span.is_sampled())
                        .cloned(),
                );
            }
        }
        spans.step(step, links);
    }

    fn trace_request(&mut self, now: Instant, (span, record): (RequestSpan, RequestRecord)) {
        let tracked = self.tracked.get(&record.engine_id);
        let steps = tracked.map(|tracked| &tracked.steps);
        if let Some(steps) = steps {
            self.ended.push_back((now, record.engine_id));
            let (forward, execute) = (steps.forward, steps.execute);
            if let Some(instruments) = &self.instruments {
                instruments.model_times(forward.as_secs_f64(), execute.as_secs_f64());
            }
        }
        if let Some(spans) = &self.spans {
            spans.request(span, &self.model, &record, steps);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throughputs_are_rates_over_the_window_and_zero_when_idle() {
        let (shared, start) = (Shared::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let generated = |generated_tokens| EngineSnapshot {
            generated_tokens,
            ..EngineSnapshot::default()
        };
        assert_eq!(
            shared.derived(start, &generated(5)).generation_throughput,
            0.0
        );
        shared.push(start, generated(0));
        assert_eq!(
            shared.derived(at(2), &generated(10)).generation_throughput,
            5.0
        );
        for second in 1..=WINDOW as u64 {
            shared.push(at(second), generated(10));
        }
        let idle = shared.derived(at(11), &generated(10));
        assert_eq!(idle.generation_throughput, 0.0);
    }
}
