//! OTLP: whether, where and how traces and metrics leave the process.

use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry_otlp::{
    MetricExporter, Protocol, SpanExporter, WithExportConfig, WithHttpConfig,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, SdkTracerProvider};
use tokio::runtime::Runtime;
use ureq::http::Uri;

use crate::http_client::UreqClient;

const TIMEOUT: Duration = Duration::from_secs(10);
/// With a span for every part of every step, what the standard's queue of 2048 holds
/// is gone in a second.
const DETAILED_QUEUE: usize = 16_384;

/// Why there is no telemetry.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    #[error("{name} must be {bound}, given {given:?}")]
    Setting {
        name: &'static str,
        bound: &'static str,
        given: String,
    },
    #[error("OTLP: {0}")]
    Exporter(String),
    #[error("cannot start the telemetry threads: {0}")]
    Thread(#[from] std::io::Error),
}

/// How OTLP is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtlpProtocol {
    Http,
    Grpc,
}

/// What the command line says about OTLP; the environment says the rest.
#[derive(Clone, Debug, Default)]
pub struct OtlpOptions {
    /// `http://host:4318`, or `host:4317`.
    pub endpoint: Option<String>,
    pub protocol: Option<OtlpProtocol>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    Traces,
    Metrics,
}

/// Where one signal goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// `None`: the exporter takes it from its own environment variables.
    endpoint: Option<String>,
    protocol: OtlpProtocol,
}

type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The process's environment; an empty variable is an unset one.
pub fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Whether the standard's switch for everything is thrown.
fn disabled(environment: Environment<'_>) -> bool {
    environment("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"))
}

/// Whether W3C trace context is read from requests.
///
/// # Errors
/// `OTEL_PROPAGATORS` names one that is not known.
pub fn propagates(environment: Environment<'_>) -> Result<bool, TelemetryError> {
    let given = environment("OTEL_PROPAGATORS").unwrap_or_else(|| "tracecontext".to_owned());
    let mut found = false;
    for name in given.split(',').map(str::trim) {
        match name {
            "tracecontext" => found = true,
            "baggage" | "none" => {}
            _ => {
                return Err(TelemetryError::Setting {
                    name: "OTEL_PROPAGATORS",
                    bound: "a list of tracecontext, baggage and none",
                    given,
                });
            }
        }
    }
    Ok(found)
}

/// Where `signal` goes, if anywhere.
///
/// # Errors
/// A setting that is not understood.
pub fn target(
    options: &OtlpOptions,
    signal: Signal,
    environment: Environment<'_>,
) -> Result<Option<Target>, TelemetryError> {
    let (exporter, specific, protocol, path) = match signal {
        Signal::Traces => (
            "OTEL_TRACES_EXPORTER",
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
            "/v1/traces",
        ),
        Signal::Metrics => (
            "OTEL_METRICS_EXPORTER",
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
            "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL",
            "/v1/metrics",
        ),
    };
    if disabled(environment) {
        return Ok(None);
    }
    let by_environment = [specific, "OTEL_EXPORTER_OTLP_ENDPOINT"]
        .into_iter()
        .find_map(environment);
    let wanted = options.endpoint.is_some() || by_environment.is_some();
    let wanted = match environment(exporter).as_deref() {
        None => wanted,
        Some("otlp") => true,
        Some("none") => false,
        // The scrape is there anyway.
        Some("prometheus") if signal == Signal::Metrics => false,
        Some(given) => {
            return Err(TelemetryError::Setting {
                name: exporter,
                bound: "otlp or none",
                given: given.to_owned(),
            });
        }
    };
    if !wanted {
        return Ok(None);
    }
    let given = [protocol, "OTEL_EXPORTER_OTLP_PROTOCOL"]
        .into_iter()
        .find_map(environment);
    let protocol = match (options.protocol, given.as_deref()) {
        (Some(protocol), _) => protocol,
        (None, None | Some("http/protobuf")) => OtlpProtocol::Http,
        (None, Some("grpc")) => OtlpProtocol::Grpc,
        (None, Some(given)) => {
            return Err(TelemetryError::Setting {
                name: protocol,
                bound: "http/protobuf or grpc",
                given: given.to_owned(),
            });
        }
    };
    let endpoint = match &options.endpoint {
        None => None,
        Some(given) => Some(endpoint(given, protocol, path)?),
    };
    Ok(Some(Target { endpoint, protocol }))
}

/// `given` with what people leave out: the scheme, and for HTTP the path.
fn endpoint(given: &str, protocol: OtlpProtocol, path: &str) -> Result<String, TelemetryError> {
    let refused = || TelemetryError::Setting {
        name: "otlp_endpoint",
        bound: "a URL such as http://localhost:4318, or host:port",
        given: given.to_owned(),
    };
    let whole = match given.split_once("://") {
        None => format!("http://{given}"),
        Some(("http" | "https", _)) => given.to_owned(),
        Some(_) => return Err(refused()),
    };
    let uri: Uri = whole.parse().map_err(|_| refused())?;
    let host = uri.host().unwrap_or_default();
    let named = uri.authority().map_or("", |authority| authority.as_str());
    let has_port = named
        .rsplit_once(':')
        .is_some_and(|(_, port)| !port.ends_with(']'));
    let bad_port = has_port && uri.port_u16().is_none();
    if host.is_empty() || bad_port || uri.query().is_some() {
        return Err(refused());
    }
    let base = whole.trim_end_matches('/');
    Ok(match protocol {
        OtlpProtocol::Http if !base.ends_with(path) => format!("{base}{path}"),
        _ => base.to_owned(),
    })
}

/// Who sends: `service.name` and the rest of the environment's attributes.
pub fn resource(version: &'static str) -> Resource {
    let builder = Resource::builder();
    let builder = if environment("OTEL_SERVICE_NAME").is_none()
        && !environment("OTEL_RESOURCE_ATTRIBUTES").is_some_and(|a| a.contains("service.name="))
    {
        builder.with_service_name("hearth")
    } else {
        builder
    };
    builder
        .with_attribute(KeyValue::new("service.version", version))
        .with_attribute(KeyValue::new("process.pid", i64::from(std::process::id())))
        .build()
}

fn timeout(name: &str) -> Duration {
    [name, "OTEL_EXPORTER_OTLP_TIMEOUT"]
        .into_iter()
        .find_map(environment)
        .and_then(|value| value.parse().ok())
        .map_or(TIMEOUT, Duration::from_millis)
}

/// A runtime for gRPC, whose connections need one; never the one that serves.
///
/// # Errors
/// No thread is to be had.
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

/// To be called inside the runtime, where there is one.
///
/// # Errors
/// What the exporter says about its settings.
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

/// To be called inside the runtime, where there is one.
///
/// # Errors
/// What the exporter says about its settings.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(
        endpoint: Option<&str>,
        signal: Signal,
        environment: &[(&str, &str)],
    ) -> Result<Option<Target>, String> {
        let options = OtlpOptions {
            endpoint: endpoint.map(str::to_owned),
            protocol: None,
        };
        let read = |name: &str| {
            let mut pairs = environment.iter();
            pairs
                .find(|(key, _)| *key == name)
                .map(|(_, value)| (*value).to_owned())
        };
        target(&options, signal, &read).map_err(|error| error.to_string())
    }

    #[test]
    fn nothing_is_sent_unless_somebody_says_where() {
        assert_eq!(resolved(None, Signal::Traces, &[]), Ok(None));
        let env = [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318")];
        let target = resolved(None, Signal::Metrics, &env).unwrap().unwrap();
        assert_eq!(
            (target.endpoint, target.protocol),
            (None, OtlpProtocol::Http)
        );
    }

    #[test]
    fn the_standards_switches_are_obeyed() {
        let at = Some("http://c:4318");
        for off in [
            ("OTEL_SDK_DISABLED", "true"),
            ("OTEL_TRACES_EXPORTER", "none"),
        ] {
            assert_eq!(resolved(at, Signal::Traces, &[off]), Ok(None));
        }
        let other = resolved(at, Signal::Metrics, &[("OTEL_TRACES_EXPORTER", "none")]);
        assert!(other.unwrap().is_some(), "it is not about metrics");
        let error = resolved(at, Signal::Traces, &[("OTEL_TRACES_EXPORTER", "zipkin")]);
        assert!(error.unwrap_err().contains("\"zipkin\""));
        let none = |name: &str| (name == "OTEL_PROPAGATORS").then(|| "none".to_owned());
        assert!(!propagates(&none).unwrap());
        assert!(propagates(&|_| None).unwrap());
        assert!(propagates(&|_| Some("b3".to_owned())).is_err());
    }

    #[test]
    fn an_endpoint_is_taken_in_every_form_that_people_write() {
        let of = |given, protocol| endpoint(given, protocol, "/v1/traces");
        let http = |given| of(given, OtlpProtocol::Http).unwrap();
        assert_eq!(http("http://c:4318"), "http://c:4318/v1/traces");
        assert_eq!(http("c:4318/"), "http://c:4318/v1/traces");
        assert_eq!(http("https://c/otlp"), "https://c/otlp/v1/traces");
        assert_eq!(http("http://c/v1/traces"), "http://c/v1/traces");
        let grpc = |given| of(given, OtlpProtocol::Grpc).unwrap();
        assert_eq!(grpc("localhost:4317"), "http://localhost:4317");
        for wrong in ["", "http://", "ftp://c:1", "http://c:port", "a b"] {
            let error = of(wrong, OtlpProtocol::Http).unwrap_err().to_string();
            assert!(error.contains("otlp_endpoint must be"), "{wrong}: {error}");
        }
    }

    #[test]
    fn the_protocol_is_the_signals_then_the_general_one() {
        let env = [
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc"),
        ];
        let at = Some("c:4317");
        let protocol = |signal| resolved(at, signal, &env).unwrap().unwrap().protocol;
        assert_eq!(protocol(Signal::Traces), OtlpProtocol::Grpc);
        assert_eq!(protocol(Signal::Metrics), OtlpProtocol::Http);
        let json = [("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")];
        assert!(resolved(at, Signal::Traces, &json).is_err());
    }
}
