//! The span of an HTTP exchange.

use std::time::Instant;

use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{Span as _, SpanContext, SpanKind, Status, Tracer};
use opentelemetry::{Context, KeyValue, TraceId};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::Span;

use super::recorder::Spans;
use crate::catalog::{ERROR, METHOD, ROUTE, SCHEME, STATUS};
use crate::records::{Clock, HttpOutcome};
use crate::server_address::ServerAddress;

/// Request headers by name, for the trace context propagator.
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
    /// The trace, if it is exported.
    pub fn trace(&self) -> Option<TraceId> {
        let context = self.0.span_context();
        context.is_sampled().then(|| context.trace_id())
    }

    /// The parent of the spans below this one.
    pub fn context(&self) -> SpanContext {
        self.0.span_context().clone()
    }

    /// Ends the span at `at`, with the outcome of the exchange as its attributes.
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
        // A client's mistake (4xx) is not an error of the server.
        if outcome.status >= 500 {
            self.0.set_status(Status::error(""));
        }
        self.0.end_with_timestamp(clock.system(at));
    }
}

impl Spans {
    /// Begins the span of an HTTP request, as a child of the caller's span if the request
    /// names one. `header` returns the value of a request header.
    pub fn server<'a>(
        &self,
        clock: Clock,
        method: &'static str,
        route: &str,
        path: &str,
        header: &dyn Fn(&str) -> Option<&'a str>,
    ) -> ServerSpan {
        let parent = if self.propagates {
            // A malformed header is ignored, and the request begins a new trace.
            TraceContextPropagator::new()
                .extract_with_context(&Context::new(), &Headers(&|name| header(name)))
        } else {
            Context::new()
        };
        let mut attributes = vec![
            KeyValue::new(METHOD, method),
            KeyValue::new(SCHEME, "http"),
            KeyValue::new(ROUTE, route.to_owned()),
            KeyValue::new("url.path", cut(path).to_owned()),
        ];
        if let Some(server) = header("host").and_then(ServerAddress::parse) {
            attributes.extend(server.attributes());
        }
        let builder = self
            .tracer
            .span_builder(format!("{method} {route}"))
            .with_kind(SpanKind::Server)
            .with_start_time(clock.system(clock.start()))
            .with_attributes(attributes);
        ServerSpan(builder.start_with_context(&self.tracer, &parent))
    }
}

/// The first 256 bytes of a path. Clients choose paths freely, up to 64 KB, and thousands
/// of spans may be waiting for a collector.
fn cut(path: &str) -> &str {
    const MAX_BYTES: usize = 256;
    &path[..path.floor_char_boundary(MAX_BYTES)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_path_is_cut_between_characters() {
        assert_eq!(cut("/v1/models"), "/v1/models");
        let long = format!("/{}", "\u{e9}".repeat(40_000));
        assert_eq!(cut(&long), &long[..255]);
    }
}
