//! Spans, built from stored times when their requests or steps are over.

use std::time::{Duration, Instant, SystemTime};

use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{
    Link, Span as _, SpanContext, SpanKind, Status, TraceContextExt, Tracer,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, Span};

use crate::catalog::{ERROR, METHOD, OPERATION, PROVIDER, ROUTE, SCHEME, STATUS};
use crate::instruments::{Ending, HttpOutcome, PROVIDER_NAME};
use crate::records::{Clock, RequestRecord, RequestTimes, StepRecord};

/// Links of one span; the standard's limit.
const MOST_LINKS: usize = 128;

/// Chunks of a prompt that have spans of their own.
const MOST_CHUNKS: usize = 64;

/// What the steps that a request took part in say of it.
#[derive(Clone, Debug, Default)]
pub struct Steps {
    /// Sums.
    pub scheduler: Duration,
    pub forward: Duration,
    pub execute: Duration,
    /// The first of them; those before its first token computed its prompt.
    first: Vec<Chunk>,
}

/// What one step computed of a request.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    scheduled: Instant,
    forwarded: Instant,
    tokens: usize,
}

impl Steps {
    /// A step that computed `tokens` of the request.
    pub fn add(&mut self, step: &StepRecord, tokens: usize) {
        self.scheduler += step.scheduler();
        self.forward += step.forward();
        self.execute += step.execute();
        if self.first.len() < MOST_CHUNKS {
            self.first.push(Chunk {
                scheduled: step.scheduled,
                forwarded: step.forwarded,
                tokens,
            });
        }
    }

    /// The time from `from` to `to`, when the first token came, in parts of which each ends
    /// with a forward: when, and how many tokens it computed.
    fn chunks(&self, from: Instant, to: Instant) -> Vec<(Instant, Instant, usize)> {
        let computed = self.first.iter().filter(|chunk| chunk.scheduled < to);
        let mut chunks: Vec<_> = computed
            .scan(from, |since, chunk| {
                let begun = std::mem::replace(since, chunk.forwarded.clamp(*since, to));
                Some((begun, *since, chunk.tokens))
            })
            .collect();
        if let Some((_, end, _)) = chunks.last_mut() {
            *end = to;
        }
        chunks
    }
}

/// Makes spans.
#[derive(Clone, Debug)]
pub struct Spans {
    tracer: SdkTracer,
    /// Whether `traceparent` of a request is continued.
    propagates: bool,
    /// Whether names that OpenTelemetry has given up are left out.
    latest_only: bool,
    detail: Option<Detail>,
}

/// Which parts of a step get spans, in vLLM's words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Detail {
    /// The forward.
    pub model: bool,
    /// The execution: forward, synchronisation and sampling.
    pub worker: bool,
}

struct Headers<'a>(&'a dyn Fn(&str) -> Option<&'a str>);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        (self.0)(key)
    }

    fn keys(&self) -> Vec<&str> {
        vec!["traceparent", "tracestate"]
    }
}

/// The span of an HTTP exchange, from its first byte to its last.
#[derive(Debug)]
pub struct ServerSpan(Span);

impl ServerSpan {
    /// For the spans under it.
    pub fn context(&self) -> SpanContext {
        self.0.span_context().clone()
    }

    pub fn end(mut self, clock: Clock, at: Instant, outcome: &HttpOutcome) {
        if !self.0.is_recording() {
            return;
        }
        self.0
            .set_attribute(KeyValue::new(STATUS, i64::from(outcome.status)));
        self.0.set_attribute(KeyValue::new(
            "http.request.body.size",
            i64::try_from(outcome.request_bytes).unwrap_or(i64::MAX),
        ));
        self.0.set_attribute(KeyValue::new(
            "http.response.body.size",
            i64::try_from(outcome.response_bytes).unwrap_or(i64::MAX),
        ));
        if let Some(error) = &outcome.error {
            self.0.set_attribute(KeyValue::new(ERROR, error.clone()));
        }
        // What a client did wrong is no error of the server's.
        if outcome.status >= 500 {
            self.0.set_status(Status::error(""));
        }
        self.0.end_with_timestamp(clock.system(at));
    }
}

/// The span of a continuation, from its coming to its end.
#[derive(Debug)]
pub struct RequestSpan(Span);

impl RequestSpan {
    pub fn context(&self) -> &SpanContext {
        self.0.span_context()
    }
}

impl Spans {
    pub fn new(
        tracer: SdkTracer,
        propagates: bool,
        latest_only: bool,
        detail: Option<Detail>,
    ) -> Self {
        Self {
            tracer,
            propagates,
            latest_only,
            detail,
        }
    }

    /// Begins the span of a request, under the caller's where it names one.
    pub fn server<'a>(
        &self,
        clock: Clock,
        method: &'static str,
        route: &str,
        path: &str,
        header: &dyn Fn(&str) -> Option<&'a str>,
    ) -> ServerSpan {
        let parent = if self.propagates {
            // What is malformed is not continued; the trace is a new one then.
            TraceContextPropagator::new()
                .extract_with_context(&Context::new(), &Headers(&|name| header(name)))
        } else {
            Context::new()
        };
        let builder = self
            .tracer
            .span_builder(format!("{method} {route}"))
            .with_kind(SpanKind::Server)
            .with_start_time(clock.system(clock.start()))
            .with_attributes([
                KeyValue::new(METHOD, method),
                KeyValue::new(SCHEME, "http"),
                KeyValue::new(ROUTE, route.to_owned()),
                KeyValue::new("url.path", cut(path).to_owned()),
            ]);
        ServerSpan(builder.start_with_context(&self.tracer, &parent))
    }

    fn span(
        &self,
        name: &'static str,
        parent: &Context,
        (from, to): (SystemTime, SystemTime),
        attributes: Vec<KeyValue>,
    ) {
        let builder = self
            .tracer
            .span_builder(name)
            .with_kind(SpanKind::Internal)
            .with_start_time(from)
            .with_attributes(attributes);
        let mut span = builder.start_with_context(&self.tracer, parent);
        span.end_with_timestamp(to);
    }

    /// Begins `llm_request` under the span of its exchange.
    pub fn begin_request(&self, parent: &SpanContext, at: SystemTime) -> RequestSpan {
        let parent = Context::new().with_remote_span_context(parent.clone());
        let builder = self
            .tracer
            .span_builder("llm_request")
            .with_kind(SpanKind::Internal)
            .with_start_time(at);
        RequestSpan(builder.start_with_context(&self.tracer, &parent))
    }

    /// Ends `llm_request`, and makes the spans of its parts.
    pub fn request(
        &self,
        RequestSpan(mut span): RequestSpan,
        model: &str,
        record: &RequestRecord,
        steps: Option<&Steps>,
    ) {
        if !span.is_recording() {
            return;
        }
        let times = &record.times;
        let system = |at| times.clock.system(at);
        span.set_attributes(self.request_attributes(model, record, steps));
        for (name, at, attributes) in request_events(record) {
            span.add_event_with_timestamp(name, at, attributes);
        }
        if let Some(error) = &record.error {
            span.set_status(Status::error(error.clone()));
        }
        let context = Context::new().with_remote_span_context(span.span_context().clone());
        let part = |name, from: Option<Instant>, to: Option<Instant>, attributes| {
            if let (Some(from), Some(to)) = (from, to)
                && from <= to
            {
                self.span(name, &context, (system(from), system(to)), attributes);
            }
        };
        let end = times.ended;
        let (tokenized, until) = times.tokenized.unzip();
        part(
            "tokenize",
            tokenized,
            until,
            vec![count("llm.prompt_tokens", record.prompt_tokens)],
        );
        // Whoever never got on ends where the request did.
        let queued_until = times.started.unwrap_or(end);
        part("queue", Some(times.queued), Some(queued_until), Vec::new());
        let prefilled = times.first_token.or(times.started.map(|_| end));
        let chunks = match (steps, times.started, prefilled) {
            (Some(steps), Some(from), Some(to)) => steps.chunks(from, to),
            _ => Vec::new(),
        };
        let cached = count("llm.prefill.cached_tokens", record.cached_tokens);
        if chunks.is_empty() {
            let computed = record.prompt_tokens.saturating_sub(record.cached_tokens);
            let computed = count("llm.prefill.computed_tokens", computed);
            part("prefill", times.started, prefilled, vec![computed, cached]);
        } else {
            for (index, (from, to, tokens)) in chunks.into_iter().enumerate() {
                let computed = count("llm.prefill.computed_tokens", tokens);
                let index = count("llm.prefill.chunk", index);
                let attributes = vec![computed, cached.clone(), index];
                part("prefill", Some(from), Some(to), attributes);
            }
        }
        let attributes = vec![count("llm.decode.tokens", record.completion_tokens)];
        part("decode", times.first_token, times.last_token, attributes);
        if let Some((from, to, busy)) = times.detokenized {
            let attributes = vec![KeyValue::new(
                "llm.detokenize.busy_time",
                busy.as_secs_f64(),
            )];
            part("detokenize", Some(from), Some(to), attributes);
        }
        span.end_with_timestamp(system(end));
    }

    fn request_attributes(
        &self,
        model: &str,
        record: &RequestRecord,
        steps: Option<&Steps>,
    ) -> Vec<KeyValue> {
        let mut attributes = vec![
            KeyValue::new(OPERATION, record.operation),
            KeyValue::new(PROVIDER, PROVIDER_NAME),
            KeyValue::new("gen_ai.request.model", model.to_owned()),
            KeyValue::new("gen_ai.response.model", model.to_owned()),
            KeyValue::new("gen_ai.response.id", record.request_id.clone()),
            KeyValue::new("gen_ai.request.stream", record.stream),
            count("gen_ai.request.max_tokens", record.max_tokens),
            KeyValue::new("gen_ai.request.temperature", decimal(record.temperature)),
            KeyValue::new("gen_ai.request.top_p", decimal(record.top_p)),
            count("gen_ai.usage.input_tokens", record.prompt_tokens),
            count("gen_ai.usage.output_tokens", record.completion_tokens),
            count("gen_ai.usage.cache_read.input_tokens", record.cached_tokens),
            KeyValue::new(
                "gen_ai.response.finish_reasons",
                opentelemetry::Value::Array(opentelemetry::Array::String(vec![
                    record.ending.as_str().into(),
                ])),
            ),
        ];
        if let Some(top_k) = record.top_k {
            attributes.push(count("gen_ai.request.top_k", top_k));
        }
        if let Some(seed) = record.seed {
            attributes.push(KeyValue::new("gen_ai.request.seed", seed.cast_signed()));
        }
        if record.copies != 1 {
            attributes.push(count("gen_ai.request.choice.count", record.copies));
        }
        if record.forced_tokens > 0 {
            attributes.push(count("llm.grammar.forced_tokens", record.forced_tokens));
        }
        let labels = record.labels.iter().cloned();
        attributes.extend(labels.map(|(name, label)| KeyValue::new(name, label)));
        match record.ending {
            Ending::Stop | Ending::Length => {}
            Ending::Abort => attributes.push(KeyValue::new(ERROR, "client_disconnect")),
            Ending::Error => attributes.push(KeyValue::new(ERROR, "internal_error")),
        }
        if !self.latest_only {
            attributes.extend(vllm_attributes(record, steps));
        }
        attributes
    }

    /// A step of the engine as a trace of its own, linked to the requests in it.
    pub fn step(&self, record: &StepRecord, requests: Vec<SpanContext>) {
        let clock = Clock::now();
        let at = |instant| clock.system(instant);
        let links = requests.into_iter().take(MOST_LINKS);
        let builder = self
            .tracer
            .span_builder("engine.step")
            .with_kind(SpanKind::Internal)
            .with_start_time(at(record.started))
            .with_links(
                links
                    .map(|context| Link::new(context, Vec::new(), 0))
                    .collect(),
            )
            .with_attributes([
                count("llm.step.requests", record.requests.len()),
                count("llm.step.tokens", record.tokens),
                count("llm.step.prefill_rows", record.prefill_rows),
                count("llm.step.prefill_tokens", record.prefill_tokens),
                count("llm.step.decode_rows", record.decode_rows),
                count("llm.num_requests_running", record.running),
                count("llm.num_requests_waiting", record.waiting),
                KeyValue::new("llm.kv_cache_usage", record.kv_usage),
            ]);
        let mut span = builder.start_with_context(&self.tracer, &Context::new());
        if record.failed {
            span.set_status(Status::error("the forward failed"));
        }
        if span.is_recording() {
            let parent = Context::new().with_remote_span_context(span.span_context().clone());
            let (started, scheduled) = (at(record.started), at(record.scheduled));
            let (forwarded, finished) = (at(record.forwarded), at(record.finished));
            self.span("scheduler", &parent, (started, scheduled), Vec::new());
            if self.detail.is_some_and(|detail| detail.worker) {
                self.span("execute", &parent, (scheduled, finished), Vec::new());
            }
            if self.detail.is_some_and(|detail| detail.model) {
                self.span("forward", &parent, (scheduled, forwarded), Vec::new());
            }
        }
        span.end_with_timestamp(at(record.finished));
    }
}

/// The names that vLLM's own span has.
fn vllm_attributes(record: &RequestRecord, steps: Option<&Steps>) -> Vec<KeyValue> {
    let times: &RequestTimes = &record.times;
    let mut attributes = vec![
        KeyValue::new("gen_ai.request.id", record.request_id.clone()),
        count("gen_ai.request.n", record.copies),
        count("gen_ai.usage.prompt_tokens", record.prompt_tokens),
        count("gen_ai.usage.completion_tokens", record.completion_tokens),
        count("gen_ai.usage.num_sequences", record.copies),
        seconds("gen_ai.latency.e2e", times.duration()),
    ];
    let latencies = [
        ("gen_ai.latency.time_to_first_token", times.to_first_token()),
        ("gen_ai.latency.time_in_queue", times.queue()),
        ("gen_ai.latency.time_in_model_prefill", times.prefill()),
        ("gen_ai.latency.time_in_model_decode", times.decode()),
        ("gen_ai.latency.time_in_model_inference", times.inference()),
        (
            "gen_ai.latency.time_in_scheduler",
            steps.map(|s| s.scheduler),
        ),
        (
            "gen_ai.latency.time_in_model_forward",
            steps.map(|s| s.forward),
        ),
        (
            "gen_ai.latency.time_in_model_execute",
            steps.map(|s| s.execute),
        ),
    ];
    for (name, latency) in latencies {
        attributes.extend(latency.map(|latency| seconds(name, latency)));
    }
    attributes
}

fn request_events(record: &RequestRecord) -> Vec<(&'static str, SystemTime, Vec<KeyValue>)> {
    let times = &record.times;
    let event = |name, at, attributes| (name, times.clock.system(at), attributes);
    let mut events = Vec::new();
    if let Some(compiled) = times.compiled {
        let took = compiled.to.saturating_duration_since(compiled.from);
        let attributes = vec![
            seconds("llm.grammar.compile_time", took),
            KeyValue::new("llm.grammar.cached", compiled.cached),
        ];
        events.push(event("grammar_compile", compiled.to, attributes));
    }
    if let (Some(started), 1..) = (times.started, record.cached_tokens) {
        let attributes = vec![count("llm.cached_tokens", record.cached_tokens)];
        events.push(event("cache_hit", started, attributes));
    }
    let preempted = times.preempted.iter();
    events.extend(preempted.map(|&at| event("preempted", at, Vec::new())));
    let jumps = times.jumps.iter();
    events.extend(jumps.map(|&(at, tokens)| {
        let attributes = vec![count("llm.grammar.forced_tokens", tokens)];
        event("jump_forward", at, attributes)
    }));
    events
}

fn count(name: &'static str, value: usize) -> KeyValue {
    KeyValue::new(name, i64::try_from(value).unwrap_or(i64::MAX))
}

/// The number that was written as `value`: 0.7, not what is nearest to it in 32 bits.
fn decimal(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

fn seconds(name: &'static str, value: Duration) -> KeyValue {
    KeyValue::new(name, value.as_secs_f64())
}

/// The beginning of a path: clients make them up, 64 KB long if they like, and thousands of spans
/// may wait for a collector.
fn cut(path: &str) -> &str {
    const MAX_BYTES: usize = 256;
    &path[..path.floor_char_boundary(MAX_BYTES)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chunks_of_a_prompt_fill_the_time_to_its_first_token() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut steps = Steps::default();
        for (scheduled, forwarded, tokens) in [(1, 5, 32), (6, 9, 32), (10, 12, 7), (15, 17, 1)] {
            steps.first.push(Chunk {
                scheduled: at(scheduled),
                forwarded: at(forwarded),
                tokens,
            });
        }
        let chunks = [(0, 5, 32), (5, 9, 32), (9, 13, 7)];
        let chunks = chunks.map(|(from, to, tokens)| (at(from), at(to), tokens));
        assert_eq!(steps.chunks(at(0), at(13)), chunks);
        assert_eq!(Steps::default().chunks(at(0), at(13)), []);
    }

    #[test]
    fn a_long_path_is_cut_between_characters() {
        assert_eq!(cut("/v1/models"), "/v1/models");
        let long = format!("/{}", "\u{e9}".repeat(40_000));
        assert_eq!(cut(&long), &long[..255]);
    }
}
