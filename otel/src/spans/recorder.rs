//! The tracer, and the options that every kind of span shares.

use std::time::SystemTime;

use opentelemetry::trace::{Span as _, SpanKind, Tracer};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::SdkTracer;

/// Which parts of a step get spans, in vLLM's words (`--collect-detailed-traces`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Detail {
    /// The forward pass.
    pub model: bool,
    /// The execution: forward pass, synchronisation and sampling.
    pub worker: bool,
}

/// Records the spans of HTTP requests, of continuations and of engine steps.
#[derive(Clone, Debug)]
pub struct Spans {
    pub(super) tracer: SdkTracer,
    /// Whether the trace that a request's `traceparent` header names is continued.
    pub(super) propagates: bool,
    /// Whether attribute names that OpenTelemetry has deprecated are left out.
    pub(super) latest_only: bool,
    pub(super) detail: Option<Detail>,
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

    /// Records a finished span from `from` to `to`.
    pub(super) fn span(
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
}
