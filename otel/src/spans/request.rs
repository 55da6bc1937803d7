//! The span of a continuation (`llm_request`) and the spans of its parts.

use std::time::{Instant, SystemTime};

use opentelemetry::trace::{Span as _, SpanContext, SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue, TraceId};
use opentelemetry_sdk::trace::Span;

use super::attributes::{count, request_attributes, seconds};
use super::openinference::openinference_attributes;
use super::recorder::Spans;
use super::step_times::StepTimes;
use crate::records::RequestRecord;

/// The span of a continuation, from its arrival to its end.
#[derive(Debug)]
pub struct RequestSpan(Span);

impl RequestSpan {
    /// The trace, if it is exported.
    pub fn trace(&self) -> Option<TraceId> {
        let context = self.0.span_context();
        context.is_sampled().then(|| context.trace_id())
    }

    /// The target of links, and the parent of the spans below this one.
    pub fn context(&self) -> &SpanContext {
        self.0.span_context()
    }
}

impl Spans {
    /// Begins `llm_request` as a child of the span of its HTTP exchange.
    pub fn begin_request(&self, parent: &SpanContext, at: SystemTime) -> RequestSpan {
        let parent = Context::new().with_remote_span_context(parent.clone());
        let builder = self
            .tracer
            .span_builder("llm_request")
            .with_kind(SpanKind::Internal)
            .with_start_time(at);
        RequestSpan(builder.start_with_context(&self.tracer, &parent))
    }

    /// Ends `llm_request`, and records the spans of its parts.
    pub fn request(
        &self,
        RequestSpan(mut span): RequestSpan,
        model: &str,
        record: &RequestRecord,
        steps: Option<&StepTimes>,
    ) {
        if !span.is_recording() {
            return;
        }
        let times = &record.times;
        let system = |at| times.clock.system(at);
        span.set_attributes(request_attributes(model, record, steps, self.latest_only));
        if !self.latest_only {
            span.set_attributes(openinference_attributes(model, record));
        }
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
        // A request that never started was queued until its end.
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
        if let Some(transfer) = &times.transfer {
            self.transfer(transfer, times.clock, &context);
        }
        span.end_with_timestamp(system(end));
    }
}

/// The moments of a continuation that are events of its span.
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
    let resumed = times.resumed.iter();
    events.extend(resumed.map(|&at| event("resumed", at, Vec::new())));
    let jumps = times.jumps.iter();
    events.extend(jumps.map(|&(at, tokens)| {
        let attributes = vec![count("llm.grammar.forced_tokens", tokens)];
        event("jump_forward", at, attributes)
    }));
    events
}
