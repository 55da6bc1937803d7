//! The telemetry thread: steps into histograms, spans and log lines.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use opentelemetry::trace::SpanContext;

use crate::instruments::{Derived, EngineInstruments, EngineSnapshot, ReadEngine};
use crate::mailbox::Receiver;
use crate::records::{RequestRecord, StepRecord};
use crate::spans::{RequestSpan, Spans, Steps};
use crate::stats_log::StatsLogger;
use crate::telemetry::TelemetryOptions;

/// How often the engine is looked at.
const TICK: Duration = Duration::from_secs(1);
/// Seconds that throughputs are averaged over.
const WINDOW: usize = 10;
/// Requests whose steps are watched at a time: far more than can run and wait.
const MOST_WATCHED: usize = 1 << 16;
/// How long a step waits for the requests in it to be told of: the engine is faster
/// than whoever submits to it says so. Longer only where a request comes from elsewhere
/// than an exchange that is observed, or where the queue was full.
const BEGINNINGS: Duration = Duration::from_secs(2);
/// How long a request that ended is remembered: steps may still have it in their batch.
const REMEMBERED: Duration = Duration::from_secs(5);
/// Steps and ends that wait for beginnings; beyond it nothing is waited for.
const MOST_PENDING: usize = 4096;

#[derive(Debug)]
pub enum Message {
    Step(StepRecord),
    /// A request with the engine's id, and the span that its steps are linked to.
    Begins(u64, SpanContext),
    Ended(Box<(RequestSpan, RequestRecord)>),
    /// Answered when all before it is done.
    Flush(SyncSender<()>),
}

/// What the thread leaves for scrapes.
#[derive(Debug, Default)]
pub struct Shared {
    /// Ascending; the newest is a tick old at most while anything goes on.
    snapshots: Mutex<VecDeque<(Instant, EngineSnapshot)>>,
    last_hit_rate: AtomicU64,
}

impl Shared {
    fn note(&self, now: Instant, snapshot: EngineSnapshot) {
        let mut snapshots = self
            .snapshots
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        snapshots.push_back((now, snapshot));
        if snapshots.len() > WINDOW {
            snapshots.pop_front();
        }
    }

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

/// A request whose steps are watched.
struct Watched {
    span: SpanContext,
    steps: Steps,
}

/// What is to have spans, in the order in which it was told: a request's last step is
/// told of before its end is.
enum Pending {
    Step(StepRecord),
    Ended(Box<(RequestSpan, RequestRecord)>),
}

pub struct Worker {
    instruments: Arc<EngineInstruments>,
    spans: Option<Spans>,
    model: String,
    read: ReadEngine,
    shared: Arc<Shared>,
    detailed: bool,
    log: StatsLogger,
    watched: HashMap<u64, Watched>,
    pending: VecDeque<(Instant, Pending)>,
    /// Requests that ended and are still watched, and since when.
    over: VecDeque<(Instant, u64)>,
}

impl Worker {
    pub fn new(
        instruments: Arc<EngineInstruments>,
        spans: Option<Spans>,
        model: String,
        read: ReadEngine,
        shared: Arc<Shared>,
        options: &TelemetryOptions,
        device: &'static str,
    ) -> Self {
        let (now, snapshot) = (Instant::now(), read());
        shared.note(now, snapshot);
        let mut log = StatsLogger::new(
            options.stats_log,
            options.stats_interval,
            options.decode_log_interval,
            device,
        );
        // Its first interval begins here.
        log.tick(now, &snapshot);
        Self {
            detailed: options.detailed.is_some() && spans.is_some(),
            log,
            instruments,
            spans,
            model,
            read,
            shared,
            watched: HashMap::new(),
            pending: VecDeque::new(),
            over: VecDeque::new(),
        }
    }

    /// Until nobody can send any more.
    pub fn run(mut self, mailbox: &Receiver) {
        let mut next_tick = Instant::now() + TICK;
        let mut messages = Vec::new();
        let mut open = true;
        while open {
            let now = Instant::now();
            if now >= next_tick {
                self.tick(now);
                next_tick = now + TICK;
            }
            let due = self.pending.front().map(|(at, _)| *at + BEGINNINGS);
            let until = due.map_or(next_tick, |due| due.min(next_tick));
            open = mailbox.receive(until, &mut messages);
            messages.drain(..).for_each(|message| self.take(message));
            self.tell_pending(Instant::now(), BEGINNINGS);
        }
        self.tell_pending(Instant::now(), Duration::ZERO);
    }

    fn tick(&mut self, now: Instant) {
        let snapshot = (self.read)();
        self.shared.note(now, snapshot);
        if let Some(line) = self.log.tick(now, &snapshot) {
            tracing::info!("{line}");
        }
        while let Some(&(at, id)) = self.over.front()
            && now.saturating_duration_since(at) >= REMEMBERED
        {
            self.over.pop_front();
            self.watched.remove(&id);
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Step(step) => self.step(step),
            Message::Begins(id, span) => {
                if self.watched.len() >= MOST_WATCHED {
                    // The ends of most of them were dropped, as this thread was behind.
                    self.watched.clear();
                    self.over.clear();
                }
                let steps = Steps::default();
                self.watched.insert(id, Watched { span, steps });
            }
            Message::Ended(record) => {
                let now = Instant::now();
                self.pending.push_back((now, Pending::Ended(record)));
            }
            Message::Flush(done) => {
                self.tell_pending(Instant::now(), Duration::ZERO);
                // Whoever asked may have given up.
                let _ = done.try_send(());
            }
        }
    }

    fn step(&mut self, step: StepRecord) {
        self.instruments.step(&step);
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

    /// Makes the spans of what is pending, up to the first step that has a request whose
    /// beginning was not told and that has waited for less than `patience`.
    fn tell_pending(&mut self, now: Instant, patience: Duration) {
        while let Some((at, first)) = self.pending.front() {
            let waits = match first {
                Pending::Step(step) => !step
                    .requests
                    .iter()
                    .all(|(id, _)| self.watched.contains_key(id)),
                Pending::Ended(_) => false,
            };
            let patient = now.saturating_duration_since(*at) < patience;
            if waits && patient && self.pending.len() < MOST_PENDING {
                return;
            }
            match self.pending.pop_front() {
                Some((_, Pending::Step(step))) => self.tell_step(&step),
                Some((_, Pending::Ended(ended))) => self.tell(now, *ended),
                None => return,
            }
        }
    }

    fn tell_step(&mut self, step: &StepRecord) {
        let Some(spans) = &self.spans else {
            return;
        };
        let mut links = Vec::new();
        for (id, tokens) in &step.requests {
            if let Some(watched) = self.watched.get_mut(id) {
                watched.steps.add(step, *tokens);
                links.extend(
                    Some(&watched.span)
                        .filter(|span| span.is_sampled())
                        .cloned(),
                );
            }
        }
        spans.step(step, links);
    }

    fn tell(&mut self, now: Instant, (span, record): (RequestSpan, RequestRecord)) {
        let watched = self.watched.get(&record.engine_id);
        let steps = watched.map(|watched| &watched.steps);
        if let Some(steps) = steps {
            self.over.push_back((now, record.engine_id));
            let (forward, execute) = (steps.forward, steps.execute);
            self.instruments
                .model_times(forward.as_secs_f64(), execute.as_secs_f64());
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
        shared.note(start, generated(0));
        assert_eq!(
            shared.derived(at(2), &generated(10)).generation_throughput,
            5.0
        );
        for second in 1..=WINDOW as u64 {
            shared.note(at(second), generated(10));
        }
        let idle = shared.derived(at(11), &generated(10));
        assert_eq!(idle.generation_throughput, 0.0);
    }
}
