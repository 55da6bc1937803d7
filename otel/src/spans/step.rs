//! The span of an engine step.

use opentelemetry::trace::{
    Link, Span as _, SpanContext, SpanKind, Status, TraceContextExt, Tracer,
};
use opentelemetry::{Context, KeyValue};

use super::attributes::count;
use super::recorder::Spans;
use crate::records::{Clock, StepRecord};

/// Links that one span may have; OpenTelemetry's default limit.
const MAX_LINKS: usize = 128;

impl Spans {
    /// Records a step of the engine as a trace of its own, linked to the spans of the
    /// requests in its batch.
    pub fn step(&self, record: &StepRecord, requests: Vec<SpanContext>) {
        let clock = Clock::now();
        let at = |instant| clock.system(instant);
        let links = requests.into_iter().take(MAX_LINKS);
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
