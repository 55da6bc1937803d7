//! The handle that the rest of the server holds.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use opentelemetry::metrics::{Meter, MeterProvider};
use opentelemetry::trace::{SpanContext, TracerProvider};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::reader::MetricReader;
use opentelemetry_sdk::metrics::{
    InstrumentKind, ManualReader, PeriodicReader, Pipeline, SdkMeterProvider, Temporality,
};
use opentelemetry_sdk::trace::SdkTracerProvider;
use tokio::runtime::Runtime;

use crate::bounds::{Bounds, CustomBuckets};
use crate::export::{
    OtlpOptions, Signal, TelemetryError, environment, metric_exporter, propagates, resource,
    runtime, target, tracer_provider,
};
use crate::exposition::{Exposition, Vocabulary};
use crate::instruments::{
    Derived, EngineFacts, EngineInstruments, EngineSnapshot, GrammarSnapshot, HttpInstruments,
    ReadEngine, observe_grammars, server_instruments,
};
use crate::mailbox::{Sender, mailbox};
use crate::points::points;
use crate::records::{Clock, RequestRecord, StepRecord};
use crate::spans::{Detail, RequestSpan, ServerSpan, Spans};
use crate::stats_log::StatsLog;
use crate::text::TextFormat;
use crate::worker::{Message, Shared, Worker};

const SCOPE: &str = "hearth";

/// What is exported, and where to.
#[derive(Clone, Debug)]
pub struct TelemetryOptions {
    pub version: &'static str,
    pub vocabularies: Vec<Vocabulary>,
    /// Names that this version of vLLM still had are shown.
    pub show_hidden: Option<(u32, u32)>,
    /// Bounds of histograms that are not their family's.
    pub buckets: CustomBuckets,
    pub otlp: OtlpOptions,
    /// A trace for each step of the engine.
    pub detailed: Option<Detail>,
    pub stats_log: StatsLog,
    pub stats_interval: Duration,
    pub decode_log_interval: u64,
}

impl Default for TelemetryOptions {
    fn default() -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            vocabularies: vec![Vocabulary::Vllm, Vocabulary::Otel],
            show_hidden: None,
            buckets: CustomBuckets::default(),
            otlp: OtlpOptions::default(),
            detailed: None,
            stats_log: StatsLog::Off,
            stats_interval: Duration::from_secs(10),
            decode_log_interval: 40,
        }
    }
}

/// A reader that the provider and the scrape share.
#[derive(Clone, Debug)]
struct ScrapeReader(Arc<ManualReader>);

impl MetricReader for ScrapeReader {
    fn register_pipeline(&self, pipeline: Weak<Pipeline>) {
        self.0.register_pipeline(pipeline);
    }

    fn collect(&self, metrics: &mut ResourceMetrics) -> OTelSdkResult {
        self.0.collect(metrics)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.0.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
    }

    fn temporality(&self, kind: InstrumentKind) -> Temporality {
        self.0.temporality(kind)
    }
}

/// Everything that is measured goes through here. Nothing of it ever waits.
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
    http: HttpInstruments,
    engine: OnceLock<Model>,
    dropped: Arc<AtomicU64>,
    /// gRPC connections live on it.
    runtime: Mutex<Option<Runtime>>,
}

struct Model {
    name: String,
    bounds: Bounds,
    instruments: Arc<EngineInstruments>,
    sender: Sender,
}

impl Telemetry {
    /// Starts what the options and the `OTEL_*` variables ask for.
    ///
    /// # Errors
    /// A setting that is not understood; never a collector that is not there.
    pub fn start(options: TelemetryOptions) -> Result<Self, TelemetryError> {
        let traces_to = target(&options.otlp, Signal::Traces, &environment)?;
        let metrics_to = target(&options.otlp, Signal::Metrics, &environment)?;
        let propagates = propagates(&environment)?;
        let runtime = runtime(&[traces_to.as_ref(), metrics_to.as_ref()])?;
        let entered = runtime.as_ref().map(Runtime::enter);
        let resource = resource(options.version);
        let reader = ScrapeReader(Arc::new(ManualReader::builder().build()));
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
        let meter = metrics.meter(SCOPE);
        let dropped = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&dropped);
        let bounds = Bounds::new(0, options.buckets.clone());
        let read_dropped = Arc::new(move || count.load(Ordering::Relaxed));
        let http = server_instruments(&meter, &bounds, read_dropped);
        Ok(Self {
            inner: Arc::new(Inner {
                options,
                metrics,
                meter,
                reader,
                traces,
                spans,
                http,
                engine: OnceLock::new(),
                dropped,
                runtime: Mutex::new(runtime),
            }),
        })
    }

    /// Scrapes only, as by default.
    pub fn local() -> Self {
        let options = TelemetryOptions::default();
        match Self::start(options) {
            Ok(telemetry) => telemetry,
            Err(error) => panic!("the default settings are valid: {error}"),
        }
    }

    /// From here on there is an engine to look at; `read` must not keep it alive.
    ///
    /// # Errors
    /// No thread is to be had.
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
        let derived: Arc<dyn Fn(&EngineSnapshot) -> Derived + Send + Sync> =
            Arc::new(move |snapshot| rates.derived(Instant::now(), snapshot));
        let bounds = Bounds::new(facts.context, options.buckets.clone());
        let instruments = EngineInstruments::new(meter, name, &facts, &bounds, &read, &derived);
        let instruments = Arc::new(instruments);
        let (sender, receiver) = mailbox();
        let worker = Worker::new(
            Arc::clone(&instruments),
            self.inner.spans.clone(),
            name.to_owned(),
            read,
            shared,
            options,
            facts.device,
        );
        thread::Builder::new()
            .name("hearth-telemetry".to_owned())
            .spawn(move || worker.run(&receiver))?;
        // The first model stays, as it does where it is served.
        let _ = self.inner.engine.set(Model {
            name: name.to_owned(),
            bounds,
            instruments,
            sender,
        });
        Ok(())
    }

    /// From here on there are grammars to look at, beside the engine of `model`.
    pub fn serve_grammars(
        &self,
        model: &str,
        read: impl Fn() -> GrammarSnapshot + Send + Sync + 'static,
    ) {
        observe_grammars(&self.inner.meter, model, read);
    }

    /// The page of `/metrics`.
    pub fn scrape(&self, format: TextFormat) -> String {
        let mut collected = ResourceMetrics::default();
        // It fails only after the shutdown, when there is nothing to show.
        let _ = self.inner.reader.collect(&mut collected);
        let model = self.inner.engine.get();
        let exposition = Exposition {
            model: model.map_or_else(String::new, |model| model.name.clone()),
            vocabularies: self.inner.options.vocabularies.clone(),
            show_hidden: self.inner.options.show_hidden,
        };
        let points = points(&collected);
        match model {
            Some(model) => exposition.render(&points, &model.bounds, format),
            None => {
                let bounds = Bounds::new(0, self.inner.options.buckets.clone());
                exposition.render(&points, &bounds, format)
            }
        }
    }

    pub fn http(&self) -> &HttpInstruments {
        &self.inner.http
    }

    /// The instruments of requests, once there is a model.
    pub fn engine(&self) -> Option<&Arc<EngineInstruments>> {
        self.inner.engine.get().map(|model| &model.instruments)
    }

    /// Begins the span of an HTTP request; `None` where nobody wants traces.
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

    /// Whether any spans are made.
    pub fn traces(&self) -> bool {
        self.inner.spans.is_some()
    }

    /// Whether steps have traces, which are linked to the requests in them.
    pub fn traces_steps(&self) -> bool {
        self.traces() && self.inner.options.detailed.is_some()
    }

    /// Begins the span of a continuation, where its exchange is traced. In detail one that
    /// is not sampled has one too, which goes nowhere: steps wait to be told of it.
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
            self.send(|| Message::Begins(engine_id, span.context().clone()));
        }
        Some(span)
    }

    /// A continuation that ended, for its spans.
    pub fn request_ended(&self, span: RequestSpan, record: RequestRecord) {
        self.send(|| Message::Ended(Box::new((span, record))));
    }

    /// For the engine's thread: takes a step of it.
    pub fn steps(&self) -> impl Fn(StepRecord) + Send + 'static {
        let sender = self.inner.engine.get().map(|model| model.sender.clone());
        let dropped = Arc::clone(&self.inner.dropped);
        move |step| {
            if let Some(sender) = &sender
                && !sender.send(Message::Step(step))
            {
                dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn send(&self, message: impl FnOnce() -> Message) {
        if let Some(model) = self.inner.engine.get()
            && !model.sender.send(message())
        {
            self.inner.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sends what is left, within `timeout`; blocks. To be called where no runtime is.
    pub fn shutdown(&self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        let left = || deadline.saturating_duration_since(Instant::now());
        if let Some(model) = self.inner.engine.get() {
            let (done, seen) = sync_channel(1);
            if model.sender.send_urgent(Message::Flush(done)) {
                // What it had to say is said, or the time is up.
                let _ = seen.recv_timeout(left());
            }
        }
        // Each provider waits for its own exporter, which may wait for a collector that is
        // gone: on a thread that may be left behind.
        let (metrics, traces) = (self.inner.metrics.clone(), self.inner.traces.clone());
        let (done, seen) = sync_channel(1);
        let budget = left();
        let flusher = thread::Builder::new()
            .name("hearth-flush".to_owned())
            .spawn(move || {
                let traces = traces.map(|provider| provider.shutdown_with_timeout(budget));
                let metrics = metrics.shutdown_with_timeout(budget);
                for error in [traces.and_then(Result::err), metrics.err()]
                    .into_iter()
                    .flatten()
                {
                    tracing::warn!(%error, "the last telemetry was not delivered");
                }
                let _ = done.send(());
            });
        if flusher.is_ok() && seen.recv_timeout(left()).is_err() {
            tracing::warn!("the collector does not answer; the last telemetry is lost");
        }
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
        // A runtime must not be dropped, which waits, where another one runs.
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
