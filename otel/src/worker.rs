//! The telemetry thread: steps into histograms, spans and log lines.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use opentelemetry::trace::SpanContext;

use crate::instruments::{Derived, EngineInstruments, EngineSnapshot, ReadEngine};
use crate::records::{RequestRecord, StepRecord};
use crate::spans::{RequestSpan, Spans, Totals};
use crate::stats_log::StatsLogger;
use crate::telemetry::TelemetryOptions;

/// How often the engine is looked at.
const TICK: Duration = Duration::from_secs(1);
/// Seconds that throughputs are averaged over.
const WINDOW: usize = 10;
/// Requests whose steps are watched at a time: far more than can run and wait.
const MOST_WATCHED: usize = 1 << 16;
/// How long a step waits for the requests in it to be told of: the engine is faster
/// than whoever submits to it says so.
const BEGINNINGS: Duration = Duration::from_millis(50);
/// How long the spans of a request wait for its last step, and for that to be done.
const LAST_STEP: Duration = Duration::from_millis(200);

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
    totals: Totals,
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
    /// Steps that are to have spans.
    steps: VecDeque<(Instant, StepRecord)>,
    /// Requests that ended, whose last step may still come.
    ended: VecDeque<(Instant, Box<(RequestSpan, RequestRecord)>)>,
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
            steps: VecDeque::new(),
            ended: VecDeque::new(),
        }
    }

    /// Until nobody can send any more.
    pub fn run(mut self, messages: &Receiver<Message>) {
        let mut next_tick = Instant::now() + TICK;
        loop {
            let now = Instant::now();
            if now >= next_tick {
                self.tick(now);
                next_tick = now + TICK;
            }
            let step = self.steps.front().map(|(at, _)| *at + BEGINNINGS);
            let request = self.ended.front().map(|(at, _)| *at + LAST_STEP);
            let dues = [Some(next_tick), step, request];
            let until = dues.into_iter().flatten().min().unwrap_or(next_tick);
            match messages.recv_timeout(until.saturating_duration_since(now)) {
                Ok(message) => self.take(message),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            let now = Instant::now();
            self.tell_steps(now.checked_sub(BEGINNINGS));
            self.tell_of(now.checked_sub(LAST_STEP));
        }
        self.tell_all();
    }

    fn tell_all(&mut self) {
        let now = Some(Instant::now());
        self.tell_steps(now);
        self.tell_of(now);
    }

    fn tick(&mut self, now: Instant) {
        let snapshot = (self.read)();
        self.shared.note(now, snapshot);
        if let Some(line) = self.log.tick(now, &snapshot) {
            tracing::info!("{line}");
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Step(step) => self.step(step),
            Message::Begins(id, span) => {
                let totals = Totals::default();
                if self.watched.len() >= MOST_WATCHED {
                    // The ends of most of them were dropped, as this thread was behind.
                    self.watched.clear();
                }
                self.watched.insert(id, Watched { span, totals });
            }
            // Without the detailed level there is no step to wait for.
            Message::Ended(record) if !self.detailed => self.tell(*record),
            Message::Ended(record) => self.ended.push_back((Instant::now(), record)),
            Message::Flush(done) => {
                self.tell_all();
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
            self.steps.push_back((Instant::now(), step));
        }
    }

    /// Makes the spans of the steps that were told of before `limit`.
    fn tell_steps(&mut self, limit: Option<Instant>) {
        while let Some((at, _)) = self.steps.front()
            && limit.is_some_and(|limit| *at <= limit)
        {
            if let Some((_, step)) = self.steps.pop_front() {
                self.tell_step(&step);
            }
        }
    }

    fn tell_step(&mut self, step: &StepRecord) {
        let Some(spans) = &self.spans else {
            return;
        };
        let mut links = Vec::new();
        for id in &step.requests {
            if let Some(watched) = self.watched.get_mut(id) {
                watched.totals.scheduler += step.scheduler();
                watched.totals.forward += step.forward();
                watched.totals.execute += step.execute();
                links.push(watched.span.clone());
            }
        }
        spans.step(step, links);
    }

    /// Makes the spans of the requests that ended before `limit`.
    fn tell_of(&mut self, limit: Option<Instant>) {
        while let Some((at, _)) = self.ended.front()
            && limit.is_some_and(|limit| *at <= limit)
        {
            if let Some((_, record)) = self.ended.pop_front() {
                self.tell(*record);
            }
        }
    }

    fn tell(&mut self, (span, record): (RequestSpan, RequestRecord)) {
        let watched = self.watched.remove(&record.engine_id);
        let totals = watched.map(|watched| watched.totals);
        if let Some(totals) = totals {
            let (forward, execute) = (totals.forward, totals.execute);
            self.instruments
                .model_times(forward.as_secs_f64(), execute.as_secs_f64());
        }
        if let Some(spans) = &self.spans {
            spans.request(span, &self.model, &record, totals);
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
