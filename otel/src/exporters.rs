//! The OTLP exporters of metrics and spans.

use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry_otlp::{
    MetricExporter, Protocol, SpanExporter, WithExportConfig, WithHttpConfig,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, SdkTracerProvider};
use tokio::runtime::Runtime;
use uuid::Uuid;

use crate::error::TelemetryError;
use crate::http_client::UreqClient;
use crate::otlp_settings::{OtlpProtocol, Target, environment};

/// Time for one export, unless the environment gives another.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Spans that may wait for export if steps are traced. OpenTelemetry's default of 2048 is
/// filled within a second by the spans of all parts of all steps.
const DETAILED_QUEUE: usize = 16_384;

/// Attributes of the sending process: `service.name`, which is `service` unless the environment
/// gives another, `service.instance.id`, which is random unless the environment gives one,
/// version, process id, and those of `OTEL_RESOURCE_ATTRIBUTES`.
pub fn resource(service: &'static str, version: &'static str) -> Resource {
    let given = environment("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
    let gives = |name: &str| {
        let mut pairs = given.split(',').filter_map(|pair| pair.split_once('='));
        pairs.any(|(key, _)| key.trim() == name)
    };
    let mut builder = Resource::builder();
    if environment("OTEL_SERVICE_NAME").is_none() && !gives("service.name") {
        builder = builder.with_service_name(service);
    }
    // Prometheus keeps servers apart by `instance`, which it takes from this attribute.
    if !gives("service.instance.id") {
        let id = Uuid::now_v7().to_string();
        builder = builder.with_attribute(KeyValue::new("service.instance.id", id));
    }
    builder
        .with_attribute(KeyValue::new("service.version", version))
        .with_attribute(KeyValue::new("process.pid", i64::from(std::process::id())))
        .build()
}

/// The export timeout: the variable `name`, then the general one, then [`TIMEOUT`].
fn timeout(name: &str) -> Duration {
    [name, "OTEL_EXPORTER_OTLP_TIMEOUT"]
        .into_iter()
        .find_map(environment)
        .and_then(|value| value.parse().ok())
        .map_or(TIMEOUT, Duration::from_millis)
}

/// Starts a runtime if a target uses gRPC, whose connections need one. It is not the runtime
/// that serves HTTP.
///
/// # Errors
/// The thread cannot be started.
pub fn runtime(targets: &[Option<&Target>]) -> Result<Option<Runtime>, TelemetryError> {
    let grpc = |target: &Target| target.protocol == OtlpProtocol::Grpc;
    if !targets.iter().flatten().copied().any(grpc) {
        return Ok(None);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("hearth-otlp")
        .enable_all()
        .build()?;
    Ok(Some(runtime))
}

/// Builds the exporter of metrics. For gRPC it must be called inside the [`runtime`].
///
/// # Errors
/// The exporter refuses its settings.
pub fn metric_exporter(target: &Target) -> Result<MetricExporter, TelemetryError> {
    let built = match target.protocol {
        OtlpProtocol::Http => {
            let client = UreqClient::new(timeout("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT"));
            let mut builder = MetricExporter::builder()
                .with_http()
                .with_protocol(Protocol::HttpBinary)
                .with_http_client(client);
            if let Some(endpoint) = &target.endpoint {
                builder = builder.with_endpoint(endpoint);
            }
            builder.build()
        }
        OtlpProtocol::Grpc => {
            let mut builder = MetricExporter::builder().with_tonic();
            if let Some(endpoint) = &target.endpoint {
                builder = builder.with_endpoint(endpoint);
            }
            builder.build()
        }
    };
    built.map_err(|error| TelemetryError::Exporter(error.to_string()))
}

/// Builds the provider of spans with its exporter. For gRPC it must be called inside the
/// [`runtime`]. `detailed` enlarges the queue for the spans of engine steps.
///
/// # Errors
/// The exporter refuses its settings.
pub fn tracer_provider(
    target: &Target,
    resource: Resource,
    detailed: bool,
) -> Result<SdkTracerProvider, TelemetryError> {
    let built = match target.protocol {
        OtlpProtocol::Http => {
            let client = UreqClient::new(timeout("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT"));
            let mut builder = SpanExporter::builder()
                .with_http()
                .with_protocol(Protocol::HttpBinary)
                .with_http_client(client);
            if let Some(endpoint) = &target.endpoint {
                builder = builder.with_endpoint(endpoint);
            }
            builder.build()
        }
        OtlpProtocol::Grpc => {
            let mut builder = SpanExporter::builder().with_tonic();
            if let Some(endpoint) = &target.endpoint {
                builder = builder.with_endpoint(endpoint);
            }
            builder.build()
        }
    };
    let exporter = built.map_err(|error| TelemetryError::Exporter(error.to_string()))?;
    let mut batches = BatchConfigBuilder::default();
    if detailed && environment("OTEL_BSP_MAX_QUEUE_SIZE").is_none() {
        batches = batches.with_max_queue_size(DETAILED_QUEUE);
    }
    let processor = BatchSpanProcessor::builder(exporter)
        .with_batch_config(batches.build())
        .build();
    Ok(SdkTracerProvider::builder()
        .with_resource(resource)
        .with_span_processor(processor)
        .build())
}
