//! [`Traces`], the handle of a process that sends traces and keeps its metrics elsewhere.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tokio::runtime::Runtime;

use crate::error::TelemetryError;
use crate::exporters::{resource, runtime, tracer_provider};
use crate::flush::within;
use crate::otlp_settings::{OtlpOptions, Signal, environment, propagates, target};
use crate::records::Clock;
use crate::spans::{ServerSpan, Spans, Trace};
use crate::telemetry::SCOPE;

/// Records spans. Clones share one state.
#[derive(Clone, Debug)]
pub struct Traces {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    provider: SdkTracerProvider,
    spans: Spans,
    /// The runtime of gRPC connections, if OTLP uses gRPC.
    runtime: Mutex<Option<Runtime>>,
}

impl Traces {
    /// Starts the exporter that the options and the `OTEL_*` environment variables ask for; `None`
    /// if they ask for none. `service` is `service.name`, unless the environment gives another.
    ///
    /// # Errors
    /// A setting is not understood. A collector that cannot be reached is not an error.
    pub fn start(
        service: &'static str,
        version: &'static str,
        otlp: &OtlpOptions,
    ) -> Result<Option<Self>, TelemetryError> {
        let Some(target) = target(otlp, Signal::Traces, &environment)? else {
            return Ok(None);
        };
        let propagates = propagates(&environment)?;
        let runtime = runtime(&[Some(&target)])?;
        let entered = runtime.as_ref().map(Runtime::enter);
        let provider = tracer_provider(&target, resource(service, version), false)?;
        drop(entered);
        let spans = Spans::new(provider.tracer(SCOPE), propagates, true, None);
        Ok(Some(Self {
            inner: Arc::new(Inner {
                provider,
                spans,
                runtime: Mutex::new(runtime),
            }),
        }))
    }

    /// Begins the span of an HTTP request, and the trace of what it leads to. `header` returns the
    /// value of a request header.
    pub fn server_span<'a>(
        &self,
        clock: Clock,
        method: &'static str,
        route: &str,
        path: &str,
        header: &dyn Fn(&str) -> Option<&'a str>,
    ) -> (ServerSpan, Trace) {
        let spans = &self.inner.spans;
        let span = spans.server(clock, method, route, path, header);
        let trace = spans.trace(span.context());
        (span, trace)
    }

    /// Exports what is left, and blocks for at most `timeout`. Must not be called inside an async
    /// runtime.
    pub fn shutdown(&self, timeout: Duration) {
        let provider = self.inner.provider.clone();
        within(timeout, move |budget| {
            vec![provider.shutdown_with_timeout(budget)]
        });
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Dropping a runtime waits, which is not allowed inside another runtime.
        let runtime = self
            .runtime
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(runtime) = runtime {
            runtime.shutdown_background();
        }
    }
}
