//! OTLP settings: whether, where and how traces and metrics are exported, from the command
//! line and the `OTEL_*` environment variables.

use ureq::http::Uri;

use crate::error::TelemetryError;

/// The protocol of OTLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtlpProtocol {
    /// Protobuf over HTTP.
    Http,
    Grpc,
}

/// OTLP settings of the command line, which take precedence over the environment.
#[derive(Clone, Debug, Default)]
pub struct OtlpOptions {
    /// A URL such as `http://host:4318`, or `host:4317`.
    pub endpoint: Option<String>,
    pub protocol: Option<OtlpProtocol>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    Traces,
    Metrics,
}

/// Where one signal is exported to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// `None` if the exporter takes it from its own environment variables.
    pub endpoint: Option<String>,
    pub protocol: OtlpProtocol,
}

type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// A variable of the process's environment. An empty variable counts as unset.
pub fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Whether OpenTelemetry's switch that disables everything is set.
fn disabled(environment: Environment<'_>) -> bool {
    environment("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"))
}

/// True if OpenTelemetry's variable asks for the content of messages in spans: with `true`, or with the
/// place that the content goes to.
///
/// # Errors
/// The variable has another value, or asks for events.
pub fn captures_content(environment: Environment<'_>) -> Result<bool, TelemetryError> {
    const NAME: &str = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT";
    let Some(given) = environment(NAME) else {
        return Ok(false);
    };
    match given.to_ascii_lowercase().as_str() {
        "true" | "span_only" => Ok(true),
        "false" | "no_content" => Ok(false),
        _ => Err(TelemetryError::Setting {
            name: NAME,
            bound: "one of true, SPAN_ONLY, false and NO_CONTENT",
            given,
        }),
    }
}

/// Whether requests continue the traces of their W3C trace context headers.
///
/// # Errors
/// `OTEL_PROPAGATORS` names an unknown propagator.
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

/// Where `signal` is exported to; `None` if it is not exported.
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
        // `/metrics` exists in any case.
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

/// Completes `given` with what may be left out: the scheme, and for HTTP the path.
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
    fn nothing_is_exported_without_an_endpoint() {
        assert_eq!(resolved(None, Signal::Traces, &[]), Ok(None));
        let env = [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318")];
        let target = resolved(None, Signal::Metrics, &env).unwrap().unwrap();
        assert_eq!(
            (target.endpoint, target.protocol),
            (None, OtlpProtocol::Http)
        );
    }

    #[test]
    fn the_standard_environment_switches_are_obeyed() {
        let at = Some("http://c:4318");
        for off in [
            ("OTEL_SDK_DISABLED", "true"),
            ("OTEL_TRACES_EXPORTER", "none"),
        ] {
            assert_eq!(resolved(at, Signal::Traces, &[off]), Ok(None));
        }
        let other = resolved(at, Signal::Metrics, &[("OTEL_TRACES_EXPORTER", "none")]);
        assert!(
            other.unwrap().is_some(),
            "the switch for traces leaves metrics on"
        );
        let error = resolved(at, Signal::Traces, &[("OTEL_TRACES_EXPORTER", "zipkin")]);
        assert!(error.unwrap_err().contains("\"zipkin\""));
        let none = |name: &str| (name == "OTEL_PROPAGATORS").then(|| "none".to_owned());
        assert!(!propagates(&none).unwrap());
        assert!(propagates(&|_| None).unwrap());
        assert!(propagates(&|_| Some("b3".to_owned())).is_err());
    }

    #[test]
    fn an_endpoint_is_accepted_with_and_without_scheme_and_path() {
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
    fn the_signals_own_protocol_variable_comes_before_the_general_one() {
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
