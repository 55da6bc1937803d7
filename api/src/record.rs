//! The measurements of one continuation, from its arrival to its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hearth_engine::{DraftCounts, FinishReason, Generation, SamplingParams};
use hearth_otel::{
    Ending, KvTransfer, MessageContent, RequestNumbers, RequestRecord, RequestSpan, RequestTimes,
};

use crate::adapters::AdapterLabels;
use crate::content;
use crate::exchange::Exchange;

/// Preemptions of a request that its trace shows at the most, and runs of forced tokens.
const SHOWN_PREEMPTIONS: usize = 32;
const SHOWN_JUMPS: usize = 32;

/// The measurements that the continuations of one request share.
pub struct Siblings {
    exchange: Arc<Exchange>,
    copies: usize,
    /// True if any of them ended. A request that was refused has none, and is not counted.
    ended: AtomicBool,
    longest: AtomicUsize,
}

impl Siblings {
    /// For a request of the current exchange that asks for `copies` of each prompt. None outside of
    /// HTTP.
    pub fn new(copies: usize) -> Option<Arc<Self>> {
        let exchange = Exchange::current()?;
        Some(Arc::new(Self {
            exchange,
            copies,
            ended: AtomicBool::new(false),
            longest: AtomicUsize::new(0),
        }))
    }
}

impl Drop for Siblings {
    fn drop(&mut self) {
        if let Some(engine) = self.exchange.telemetry.engine()
            && *self.ended.get_mut()
        {
            engine.accepted(self.copies);
            engine.longest(self.longest.load(Ordering::Relaxed));
        }
    }
}

/// Counts a request that was refused because the queue was full.
pub fn rejected() {
    if let Some(exchange) = Exchange::current()
        && let Some(engine) = exchange.telemetry.engine()
    {
        engine.rejected();
    }
}

/// Records the events of one continuation. If it is dropped before the end, the continuation
/// counts as aborted by its client.
pub struct Record {
    siblings: Arc<Siblings>,
    engine_id: u64,
    span: Option<RequestSpan>,
    params: SamplingParams,
    queued: Instant,
    started: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    preempted: Vec<Instant>,
    resumed: Vec<Instant>,
    preemptions: u64,
    /// The most recent start, and the first token after it.
    latest_start: Option<Instant>,
    first_since: Option<Instant>,
    jumps: Vec<(Instant, usize)>,
    forced_tokens: usize,
    drafts: DraftCounts,
    /// The longest time between two tokens so far, in seconds.
    longest_gap: f64,
    /// The input, and the text so far, where traces are to have the content of messages.
    content: Option<MessageContent>,
    said: String,
    /// The time between two tokens of the current run, and how many tokens of it are to come.
    run: (Option<f64>, usize),
    prompt_tokens: usize,
    cached_tokens: usize,
    tokens: usize,
    detokenized: Option<(Instant, Instant, Duration)>,
    transfer: Option<KvTransfer>,
    /// The adapter that it computes with.
    pub adapter: Option<AdapterLabels>,
    /// The strings that end its output.
    pub stop: Vec<String>,
    ended: bool,
}

impl Record {
    pub fn new(
        siblings: &Arc<Siblings>,
        generation: &Generation,
        params: SamplingParams,
        prompt_tokens: usize,
    ) -> Self {
        let exchange = &siblings.exchange;
        exchange
            .waiting_tokens
            .fetch_add(prompt_tokens, Ordering::Relaxed);
        let engine_id = generation.id();
        let span = exchange.span.as_ref().and_then(|parent| {
            let arrived = exchange.clock.system(exchange.clock.start());
            exchange.telemetry.request_span(engine_id, parent, arrived)
        });
        Self {
            siblings: Arc::clone(siblings),
            engine_id,
            span,
            params,
            queued: Instant::now(),
            started: None,
            first_token: None,
            last_token: None,
            preempted: Vec::new(),
            resumed: Vec::new(),
            preemptions: 0,
            latest_start: None,
            first_since: None,
            jumps: Vec::new(),
            forced_tokens: 0,
            drafts: DraftCounts::default(),
            longest_gap: 0.0,
            content: None,
            said: String::new(),
            run: (None, 0),
            prompt_tokens,
            cached_tokens: 0,
            tokens: 0,
            detokenized: None,
            transfer: None,
            adapter: None,
            stop: Vec::new(),
            ended: false,
        }
    }

    pub fn started(&mut self, cached_tokens: usize, queued: Instant, started: Instant) {
        self.leave_queue();
        (self.queued, self.started) = (queued, Some(started));
        self.latest_start = Some(started);
        self.cached_tokens = cached_tokens;
        let exchange = &self.siblings.exchange;
        if let Some(engine) = exchange.telemetry.engine() {
            engine.started(exchange.streams(), self.prompt_tokens);
        }
    }

    /// Takes the prompt's tokens off those that wait, once.
    fn leave_queue(&self) {
        if self.started.is_none() {
            let waiting = &self.siblings.exchange.waiting_tokens;
            waiting.fetch_sub(self.prompt_tokens, Ordering::Relaxed);
        }
    }

    pub fn preempted(&mut self, at: Instant) {
        self.preemptions += 1;
        if self.preempted.len() < SHOWN_PREEMPTIONS {
            self.preempted.push(at);
        }
    }

    /// The request runs again after a preemption.
    pub fn resumed(&mut self, at: Instant) {
        if self.resumed.len() < SHOWN_PREEMPTIONS {
            self.resumed.push(at);
        }
        (self.latest_start, self.first_since) = (Some(at), None);
    }

    /// The prompt's keys and values were sent or received, or were not.
    pub fn transferred(&mut self, transfer: KvTransfer) {
        if let Some(engine) = self.siblings.exchange.telemetry.engine() {
            engine.transferred(&transfer);
        }
        self.transfer = Some(transfer);
    }

    /// The grammar forced `tokens` tokens at once. [`token`](Self::token) is called for each of
    /// them as well.
    pub fn jumped(&mut self, at: Instant, tokens: usize) {
        self.forced_tokens += tokens;
        if self.span.is_some() && self.jumps.len() < SHOWN_JUMPS {
            self.jumps.push((at, tokens));
        }
    }

    /// The drafts of the request so far.
    pub fn drafted(&mut self, drafts: DraftCounts) {
        self.drafts = drafts;
    }

    /// A token came, in a step that brought `run` tokens. The time since the token before the
    /// run is divided among the tokens of the run, so that latencies between tokens add up to
    /// the time of the output.
    pub fn token(&mut self, at: Instant, run: usize) {
        self.tokens += 1;
        let before = self.last_token.replace(at);
        self.first_since.get_or_insert(at);
        if self.run.1 == 0 {
            let since = before.map(|before| at.saturating_duration_since(before).as_secs_f64());
            self.run = (since.map(|since| since / run.max(1) as f64), run);
        }
        self.run.1 = self.run.1.saturating_sub(1);
        let exchange = &self.siblings.exchange;
        let Some(engine) = exchange.telemetry.engine() else {
            return;
        };
        engine.token(exchange.streams(), self.run.0);
        if let Some(gap) = self.run.0 {
            self.longest_gap = self.longest_gap.max(gap);
        }
        if self.first_token.is_none() {
            self.first_token = Some(at);
            let waited = at.saturating_duration_since(exchange.clock.start());
            let adapter = self.adapter.as_ref().map(|adapter| &*adapter.metrics);
            engine.first_token(
                exchange.operation,
                exchange.streams(),
                adapter,
                waited.as_secs_f64(),
                self.span.as_ref().and_then(RequestSpan::trace),
            );
        }
    }

    /// Keeps the input for the trace, if traces are to have the content of messages. `prompt` gives the
    /// beginning of the prompt's text, for a request that is no chat.
    pub fn keep_input(&mut self, prompt: impl FnOnce(usize) -> String) {
        let exchange = &self.siblings.exchange;
        let is_exported = self.span.as_ref().and_then(RequestSpan::trace).is_some();
        if is_exported && exchange.captures_content() {
            let chat = exchange.content();
            self.content =
                Some(chat.unwrap_or_else(|| content::of_prompt(&prompt(content::MAX_BYTES))));
        }
    }

    /// Keeps text of the output for the trace.
    pub fn says(&mut self, text: &str) {
        if self.content.is_some() {
            let room = content::MAX_BYTES.saturating_sub(self.said.len());
            self.said.push_str(&text[..text.floor_char_boundary(room)]);
        }
    }

    /// Runs `work`, which makes text out of tokens, and measures it if a trace will show it.
    pub fn while_detokenizing<T>(record: Option<&mut Self>, work: impl FnOnce() -> T) -> T {
        let Some(record) = record.filter(|record| record.span.is_some()) else {
            return work();
        };
        let from = Instant::now();
        let done = work();
        let to = Instant::now();
        let (since, _, busy) = record.detokenized.unwrap_or((from, to, Duration::ZERO));
        record.detokenized = Some((since, to, busy + to.duration_since(from)));
        done
    }

    pub fn finished(mut self, reason: &FinishReason, completion_tokens: usize) {
        let ending = match reason {
            FinishReason::Stop { .. } => Ending::Stop,
            FinishReason::Length => Ending::Length,
            FinishReason::Cancelled | FinishReason::Aborted => Ending::Abort,
        };
        self.end(ending, completion_tokens, None);
    }

    /// The output ended in a stop string.
    pub fn stopped(mut self) {
        let tokens = self.tokens;
        self.end(Ending::Stop, tokens, None);
    }

    pub fn failed(mut self, error: &str) {
        let tokens = self.tokens;
        self.end(Ending::Error, tokens, Some(error.to_owned()));
    }

    fn end(&mut self, ending: Ending, completion_tokens: usize, error: Option<String>) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        self.leave_queue();
        let exchange = &self.siblings.exchange;
        self.siblings.ended.store(true, Ordering::Relaxed);
        let longest = &self.siblings.longest;
        longest.fetch_max(completion_tokens, Ordering::Relaxed);
        let times = RequestTimes {
            clock: exchange.clock,
            arrived: exchange.clock.start(),
            tokenized: exchange.tokenized(),
            queued: self.queued,
            started: self.started,
            first_token: self.first_token,
            last_token: self.last_token,
            compiled: exchange.compiled(),
            preempted: std::mem::take(&mut self.preempted),
            resumed: std::mem::take(&mut self.resumed),
            latest_start: self.latest_start,
            first_since: self.first_since,
            jumps: std::mem::take(&mut self.jumps),
            detokenized: self.detokenized,
            transfer: self.transfer.take(),
            ended: Instant::now(),
        };
        let stream = exchange.streams();
        if let Some(engine) = exchange.telemetry.engine() {
            let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
            engine.unseen_tokens(stream, completion_tokens.saturating_sub(self.tokens));
            // Only the longest time opens its trace: a trace for each token would cost too much.
            if let Some(trace) = self.span.as_ref().and_then(RequestSpan::trace)
                && self.tokens > 1
            {
                engine.longest_gap(self.longest_gap, trace);
            }
            if let Some(client) = exchange.client() {
                engine.client_ended(&client.name, self.prompt_tokens, completion_tokens);
            }
            engine.ended(&RequestNumbers {
                operation: exchange.operation,
                stream,
                adapter: self.adapter.as_ref().map(|adapter| &*adapter.metrics),
                ending,
                duration: times.duration().as_secs_f64(),
                queue: seconds(times.queue()),
                prefill: seconds(times.prefill()),
                decode: seconds(times.decode()),
                inference: seconds(times.inference()),
                latest: times.latest().map(seconds),
                trace: self.span.as_ref().and_then(RequestSpan::trace),
                prompt_tokens: self.prompt_tokens,
                cached_tokens: self.cached_tokens,
                completion_tokens,
                max_tokens: self.params.max_tokens,
                preemptions: self.preemptions,
            });
        }
        if let Some(span) = self.span.take() {
            if let Some(content) = &mut self.content {
                content.output = Some(content::of_output(&self.said, ending.as_str()));
            }
            let record = RequestRecord {
                times,
                engine_id: self.engine_id,
                request_id: exchange.request_id.clone(),
                operation: exchange.operation,
                stream,
                ending,
                error,
                prompt_tokens: self.prompt_tokens,
                cached_tokens: self.cached_tokens,
                completion_tokens,
                preemptions: self.preemptions,
                adapter: self.adapter.take().map(|adapter| adapter.traces),
                forced_tokens: self.forced_tokens,
                drafted_tokens: self.drafts.drafted,
                accepted_tokens: self.drafts.accepted,
                copies: self.siblings.copies,
                max_tokens: self.params.max_tokens,
                temperature: self.params.temperature,
                top_p: self.params.top_p,
                top_k: self.params.top_k.map(|top_k| top_k as usize),
                seed: self.params.seed,
                frequency_penalty: self.params.frequency_penalty,
                presence_penalty: self.params.presence_penalty,
                stop: std::mem::take(&mut self.stop),
                output_type: exchange.output_type(),
                server: exchange.server.clone(),
                content: self.content.take(),
                labels: exchange.labels(),
            };
            exchange.telemetry.request_ended(span, record);
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let tokens = self.tokens;
        self.end(Ending::Abort, tokens, None);
    }
}
