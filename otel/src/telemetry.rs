//! [`Telemetry`], the handle through which the rest of the server records everything.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use opentelemetry::metrics::{Meter, MeterProvider};
use opentelemetry::trace::{SpanContext, TracerProvider};
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::reader::MetricReader;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::trace::SdkTracerProvider;
use tokio::runtime::Runtime;

use crate::bounds::Bounds;
use crate::error::TelemetryError;
use crate::exporters::{metric_exporter, resource, runtime, tracer_provider};
use crate::exposition::Exposition;
use crate::flight::StepSums;
use crate::flush::within;
use crate::instruments::{
    Derived, EngineFacts, EngineInstruments, EngineSnapshot, GrammarSnapshot, HttpInstruments,
    ReadDerived, ReadEngine, observe_adapters, observe_grammars, server_instruments,
};
use crate::mailbox::{Message, Sender, mailbox};
use crate::options::TelemetryOptions;
use crate::otlp_settings::{Signal, captures_content, environment, propagates, target};
use crate::outbox::StepOutbox;
use crate::points::points;
use crate::records::{Clock, RequestRecord};
use crate::scrape_reader::ScrapeReader;
use crate::spans::{RequestSpan, ServerSpan, Spans};
use crate::text::TextFormat;
use crate::worker::{Shared, Worker};

/// The instrumentation scope of all metrics and spans.
pub const SCOPE: &str = "hearth";

/// Records everything that is measured. Recording never waits: records that the telemetry
/// thread cannot keep up with are dropped and counted. Clones share one state.
#[derive(Clone)]
pub struct Telemetry {
    inner: Arc<Inner>,
}

struct Inner {
    options: TelemetryOptions,
    metrics: SdkMeterProvider,
    meter: Meter,
    reader: ScrapeReader,
    traces: Option<SdkTracerProvider>,
    spans: Option<Spans>,
    /// True if spans have the content of messages.
    captures: bool,
    /// None if no metrics are recorded.
    http: Option<HttpInstruments>,
    model: OnceLock<Model>,
    dropped: Arc<AtomicU64>,
    /// The runtime of gRPC connections, if OTLP uses gRPC.
    runtime: Mutex<Option<Runtime>>,
}

/// The parts of telemetry that exist once a model is served.
struct Model {
    name: String,
    bounds: Bounds,
    /// None if no metrics are recorded.
    instruments: Option<Arc<EngineInstruments>>,
    read: ReadEngine,
    derived: ReadDerived,
    sender: Sender,
    shared: Arc<Shared>,
}

impl Telemetry {
    /// Starts the exporters that the options and the `OTEL_*` environment variables ask for.
    ///
    /// # Errors
    /// A setting is not understood. A collector that cannot be reached is not an error.
    pub fn start(options: TelemetryOptions) -> Result<Self, TelemetryError> {
        let traces_to = target(&options.otlp, Signal::Traces, &environment)?;
        let metrics_to = target(&options.otlp, Signal::Metrics, &environment)?;
        let metrics_to = metrics_to.filter(|_| options.metrics);
        let propagates = propagates(&environment)?;
        let captures = captures_content(&environment)? || options.message_content;
        let runtime = runtime(&[traces_to.as_ref(), metrics_to.as_ref()])?;
        let entered = runtime.as_ref().map(Runtime::enter);
        let resource = resource("hearth", options.version);
        let reader = ScrapeReader::new();
        let mut builder = SdkMeterProvider::builder()
            .with_resource(resource.clone())
            .with_reader(reader.clone());
        if let Some(target) = &metrics_to {
            builder =
                builder.with_reader(PeriodicReader::builder(metric_exporter(target)?).build());
        }
        let metrics = builder.build();
        let traces = match &traces_to {
            Some(target) => Some(tracer_provider(
                target,
                resource,
                options.detailed.is_some(),
            )?),
            None => None,
        };
        drop(entered);
        let latest_only = environment("OTEL_SEMCONV_STABILITY_OPT_IN").is_some_and(|given| {
            given
                .split(',')
                .any(|g| g.trim() == "gen_ai_latest_experimental")
        });
        let spans = traces.as_ref().map(|provider| {
            Spans::new(
                provider.tracer(SCOPE),
                propagates,
                latest_only,
                options.detailed,
            )
        });
        let captures = captures && spans.is_some();
        let meter = metrics.meter(SCOPE);
        let dropped = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&dropped);
        let bounds = Bounds::new(0, options.buckets.clone());
        let read_dropped = Arc::new(move || count.load(Ordering::Relaxed));
        let http = options
            .metrics
            .then(|| server_instruments(&meter, &bounds, read_dropped));
        Ok(Self {
            inner: Arc::new(Inner {
                options,
                metrics,
                meter,
                reader,
                traces,
                spans,
                captures,
                http,
                model: OnceLock::new(),
                dropped,
                runtime: Mutex::new(runtime),
            }),
        })
    }

    /// Starts telemetry with the default options: `/metrics` and, if the environment asks for
    /// it, OTLP.
    pub fn local() -> Self {
        let options = TelemetryOptions::default();
        match Self::start(options) {
            Ok(telemetry) => telemetry,
            Err(error) => panic!("the default settings are valid: {error}"),
        }
    }

    /// Begins to measure the engine of the model `name`. `read` returns the engine's state; it
    /// must not keep the engine alive.
    ///
    /// # Errors
    /// The telemetry thread cannot be started.
    pub fn serve_model(
        &self,
        name: &str,
        facts: EngineFacts,
        read: impl Fn() -> EngineSnapshot + Send + Sync + 'static,
    ) -> Result<(), TelemetryError> {
        let Inner { options, meter, .. } = &*self.inner;
        let read: ReadEngine = Arc::new(read);
        let shared = Arc::new(Shared::default());
        let rates = Arc::clone(&shared);
        let derived: ReadDerived =
            Arc::new(move |snapshot| rates.derived(Instant::now(), snapshot));
        let bounds = Bounds::new(facts.context, options.buckets.clone());
        let instruments = options.metrics.then(|| {
            let new = EngineInstruments::new(meter, name, &facts, &bounds, &read, &derived);
            Arc::new(new)
        });
        let (sender, receiver) = mailbox();
        let worker = Worker::new(
            instruments.clone(),
            self.inner.spans.clone(),
            name.to_owned(),
            Arc::clone(&read),
            Arc::clone(&shared),
            options,
            facts.device,
        );
        thread::Builder::new()
            .name("hearth-telemetry".to_owned())
            .spawn(move || worker.run(&receiver))?;
        // A server has one model; a second call has no effect here.
        let _ = self.inner.model.set(Model {
            name: name.to_owned(),
            bounds,
            instruments,
            read,
            derived,
            sender,
            shared,
        });
        Ok(())
    }

    /// Begins to measure the grammars of `model`. `read` returns their totals.
    pub fn serve_grammars(
        &self,
        model: &str,
        read: impl Fn() -> GrammarSnapshot + Send + Sync + 'static,
    ) {
        if self.inner.options.metrics {
            observe_grammars(&self.inner.meter, model, read);
        }
    }

    /// Begins to measure the adapters of a server with so many `slots` for them. `read` returns the
    /// names of the adapters of running and of waiting requests.
    pub fn serve_adapters(
        &self,
        slots: usize,
        read: impl Fn() -> [Vec<String>; 2] + Send + Sync + 'static,
    ) {
        if self.inner.options.metrics {
            observe_adapters(&self.inner.meter, slots, read);
        }
    }

    /// Renders the page of `/metrics`; `None` if no metrics are recorded.
    pub fn scrape(&self, format: TextFormat) -> Option<String> {
        if !self.inner.options.metrics {
            return None;
        }
        let mut collected = ResourceMetrics::default();
        // Collecting fails only after the shutdown, when there is nothing to show.
        let _ = self.inner.reader.collect(&mut collected);
        let model = self.inner.model.get();
        let exposition = Exposition {
            model: model.map_or_else(String::new, |model| model.name.clone()),
            vocabularies: self.inner.options.vocabularies.clone(),
            show_hidden: self.inner.options.show_hidden,
        };
        let mut points = points(&collected);
        if format == TextFormat::OpenMetrics {
            let engine = self.engine().map(|engine| engine.exemplars());
            let http = self.http().map(HttpInstruments::exemplars);
            for exemplars in engine.into_iter().chain(http) {
                exemplars.attach(&mut points);
            }
        }
        Some(match model {
            Some(model) => exposition.render(&points, &model.bounds, format),
            None => {
                let bounds = Bounds::new(0, self.inner.options.buckets.clone());
                exposition.render(&points, &bounds, format)
            }
        })
    }

    /// The instruments of HTTP exchanges; `None` if no metrics are recorded.
    pub fn http(&self) -> Option<&HttpInstruments> {
        self.inner.http.as_ref()
    }

    /// The instruments of the engine and its requests; `None` before a model is served, and if no
    /// metrics are recorded.
    pub fn engine(&self) -> Option<&Arc<EngineInstruments>> {
        self.inner.model.get()?.instruments.as_ref()
    }

    /// The throughputs and the hit rate as `/metrics` would show them now; `None` before a model
    /// is served.
    pub fn rates(&self) -> Option<Derived> {
        let model = self.inner.model.get()?;
        Some((model.derived)(&(model.read)()))
    }

    /// The steps of the `last` time, at most [`STEPS_KEPT`](crate::STEPS_KEPT), as a Chrome trace;
    /// `None` before a model is served, and if nothing is recorded.
    pub fn step_trace(&self, last: Duration) -> Option<String> {
        let model = self
            .inner
            .model
            .get()
            .filter(|_| self.inner.options.metrics)?;
        let engine = (model.read)();
        Some(model.shared.flight.trace(Instant::now(), last, &engine))
    }

    /// The steps that ended after `after`, added up; `None` before a model is served.
    pub fn step_sums(&self, after: Instant) -> Option<StepSums> {
        let model = self.inner.model.get()?;
        Some(model.shared.flight.sums(after))
    }

    /// Begins the span of an HTTP request; `None` if traces are off. `header` returns the value
    /// of a request header.
    pub fn server_span<'a>(
        &self,
        clock: Clock,
        method: &'static str,
        route: &str,
        path: &str,
        header: &dyn Fn(&str) -> Option<&'a str>,
    ) -> Option<ServerSpan> {
        let spans = self.inner.spans.as_ref()?;
        Some(spans.server(clock, method, route, path, header))
    }

    /// True if anything reads what the engine reports about its steps.
    pub fn reads_steps(&self) -> bool {
        self.inner.options.metrics || self.traces_steps()
    }

    /// Whether spans are recorded.
    pub fn traces(&self) -> bool {
        self.inner.spans.is_some()
    }

    /// True if spans have the content of messages, because the operator asked for it.
    pub fn captures_content(&self) -> bool {
        self.inner.captures
    }

    /// Whether engine steps are traced, with links to their requests.
    pub fn traces_steps(&self) -> bool {
        self.traces() && self.inner.options.detailed.is_some()
    }

    /// Begins the span of a continuation if its HTTP exchange is traced. With detailed traces,
    /// a continuation that is not sampled gets a span as well, which is not exported: steps
    /// wait for its `Begin` message.
    pub fn request_span(
        &self,
        engine_id: u64,
        parent: &SpanContext,
        at: SystemTime,
    ) -> Option<RequestSpan> {
        let spans = self.inner.spans.as_ref()?;
        let detailed = self.inner.options.detailed.is_some();
        if !parent.is_sampled() && !detailed {
            return None;
        }
        let span = spans.begin_request(parent, at);
        if detailed {
            self.send(|| Message::Begin(engine_id, span.context().clone()));
        }
        Some(span)
    }

    /// Ends the span of a continuation, and records the spans of its parts.
    pub fn request_ended(&self, span: RequestSpan, record: RequestRecord) {
        self.send(|| Message::End(Box::new((span, record))));
    }

    /// Where the engine's thread passes its steps on. If steps are [traced](Self::traces_steps), a
    /// step must be there before the ends of its requests are.
    pub fn steps(&self) -> StepOutbox {
        let sender = self.inner.model.get().map(|model| model.sender.clone());
        StepOutbox::new(sender, Arc::clone(&self.inner.dropped))
    }

    fn send(&self, message: impl FnOnce() -> Message) {
        if let Some(model) = self.inner.model.get()
            && !model.sender.send(message())
        {
            self.inner.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Exports what is left, and blocks for at most `timeout`. Must not be called inside an
    /// async runtime.
    pub fn shutdown(&self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        let left = || deadline.saturating_duration_since(Instant::now());
        if let Some(model) = self.inner.model.get() {
            let (done, seen) = sync_channel(1);
            if model.sender.send_urgent(Message::Flush(done)) {
                // Either everything is processed, or the time is up.
                let _ = seen.recv_timeout(left());
            }
        }
        let (metrics, traces) = (self.inner.metrics.clone(), self.inner.traces.clone());
        within(left(), move |budget| {
            let traces = traces.map(|provider| provider.shutdown_with_timeout(budget));
            let metrics = metrics.shutdown_with_timeout(budget);
            traces.into_iter().chain([metrics]).collect()
        });
        let runtime = self
            .inner
            .runtime
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(runtime) = runtime {
            runtime.shutdown_background();
        }
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
