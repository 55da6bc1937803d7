//! The span of a request to another server.

use std::collections::HashMap;

use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{Span as _, SpanContext, SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::Span;

use super::recorder::Spans;
use crate::catalog::{ERROR, METHOD, STATUS};

/// A trace that goes on in the requests to other servers.
#[derive(Clone, Debug)]
pub struct Trace {
    spans: Spans,
    parent: SpanContext,
}

impl Trace {
    /// Begins the span of a request. `attributes` are those beside the method.
    pub fn client(
        &self,
        name: String,
        method: &str,
        attributes: impl IntoIterator<Item = (&'static str, String)>,
    ) -> ClientSpan {
        let parent = Context::new().with_remote_span_context(self.parent.clone());
        let attributes = attributes
            .into_iter()
            .map(|(key, value)| KeyValue::new(key, value));
        let attributes =
            std::iter::once(KeyValue::new(METHOD, method.to_owned())).chain(attributes);
        let builder = self
            .spans
            .tracer
            .span_builder(name)
            .with_kind(SpanKind::Client)
            .with_attributes(attributes);
        ClientSpan {
            span: builder.start_with_context(&self.spans.tracer, &parent),
            propagates: self.spans.propagates,
        }
    }
}

/// The span of a request to another server. It ends when it is dropped.
#[derive(Debug)]
pub struct ClientSpan {
    span: Span,
    propagates: bool,
}

impl ClientSpan {
    /// The headers by which the other server continues the trace; none where the settings say so.
    pub fn headers(&self) -> HashMap<String, String> {
        let mut headers = HashMap::new();
        if self.propagates {
            let context = Context::new().with_remote_span_context(self.span.span_context().clone());
            TraceContextPropagator::new().inject_context(&context, &mut headers);
        }
        headers
    }

    /// The status of the response.
    pub fn status(&mut self, status: u16) {
        let value = KeyValue::new(STATUS, i64::from(status));
        self.span.set_attribute(value);
        if status >= 400 {
            self.failed(&status.to_string(), "");
        }
    }

    /// The request failed: `kind` is one of few words, and `why` is for people.
    pub fn failed(&mut self, kind: &str, why: &str) {
        self.span
            .set_attribute(KeyValue::new(ERROR, kind.to_owned()));
        self.span.set_status(Status::error(why.to_owned()));
    }
}

impl Spans {
    /// The trace in which `parent` is the latest span.
    pub fn trace(&self, parent: SpanContext) -> Trace {
        Trace {
            spans: self.clone(),
            parent,
        }
    }
}
