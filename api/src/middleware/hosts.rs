//! `--allowed-hosts`: by which names this server may be called.
//!
//! A web page can give its own name the address 127.0.0.1 (DNS rebinding). A browser then sends the
//! page's requests here and takes the answers for the page's own, whatever `--cors` says. But it
//! sends the page's name along, in the header `Host`. An address in that header is always allowed,
//! since nobody can rebind it.

use std::net::{IpAddr, Ipv6Addr};

use actix_web::Error;
use actix_web::body::MessageBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::header::HOST;
use actix_web::middleware::Next;
use actix_web::web::Data;

use crate::config::HttpConfig;
use crate::error::ApiError;
use crate::routes;
use crate::state::AppState;

/// Middleware.
///
/// # Errors
/// The route's errors. A refusal is a response and not an error.
pub async fn check(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let state = request.app_data::<Data<AppState>>();
    let refused = state.and_then(|state| {
        // HTTP/2 has the name in the URI.
        let authority = request
            .uri()
            .authority()
            .map(|authority| authority.as_str());
        let header = request.headers().get(HOST);
        let given = header.map_or(authority, |header| Some(header.to_str().unwrap_or("?")))?;
        (!is_allowed(&state.config, given)).then(|| {
            let name: String = name_of(given).chars().take(100).collect();
            ApiError::forbidden(format!(
                "this server is not called {name:?}; --allowed-hosts names what it is called"
            ))
            .code("host_not_allowed")
        })
    });
    let Some(error) = refused else {
        return Ok(next.call(request).await?.map_into_left_body());
    };
    let response = routes::dialect_of(request.match_info().as_str()).refuse(&error);
    Ok(request.into_response(response).map_into_right_body())
}

/// True if a client may call the server `given`, which is a header `Host`.
fn is_allowed(config: &HttpConfig, given: &str) -> bool {
    let name = name_of(given).trim_end_matches('.').to_ascii_lowercase();
    if is_address(&name) {
        return true;
    }
    let is = |allowed: &str| {
        let allowed = name_of(allowed.trim()).trim_end_matches('.');
        allowed == "*" || allowed.eq_ignore_ascii_case(&name)
    };
    match &config.allowed_hosts {
        Some(allowed) => allowed.split(',').any(is),
        None => !is_loopback(&config.host) || is_local(&name) || is(&config.host),
    }
}

/// Without the port.
fn name_of(host: &str) -> &str {
    match host.rsplit_once(':') {
        // The colons of an address without brackets are no ports.
        Some((name, port)) if !name.contains(':') || name.ends_with(']') => {
            if port.bytes().all(|byte| byte.is_ascii_digit()) {
                name
            } else {
                host
            }
        }
        _ => host,
    }
}

fn is_address(name: &str) -> bool {
    let inner = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'));
    match inner {
        Some(inner) => inner.parse::<Ipv6Addr>().is_ok(),
        None => name.parse::<IpAddr>().is_ok(),
    }
}

fn is_local(name: &str) -> bool {
    name == "localhost" || name.ends_with(".localhost")
}

/// True if the server listens for this machine alone.
fn is_loopback(host: &str) -> bool {
    let address: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
    address.map_or_else(|| is_local(host), |address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(listens: &str, list: Option<&str>, given: &str) -> bool {
        let config = HttpConfig {
            host: listens.to_owned(),
            allowed_hosts: list.map(str::to_owned),
            ..HttpConfig::default()
        };
        is_allowed(&config, given)
    }

    #[test]
    fn on_loopback_only_local_names_and_addresses_are_served() {
        for host in [
            "localhost",
            "LocalHost:8000",
            "localhost.:1",
            "a.localhost",
            "127.0.0.1:8000",
            "[::1]:8000",
            "::1",
            "10.0.0.7",
            "[fe80::1]",
        ] {
            assert!(allowed("127.0.0.1", None, host), "{host}");
            assert!(allowed("localhost", None, host), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:8000",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "",
            "?",
            "[evil.example]",
            "xlocalhost",
        ] {
            assert!(!allowed("127.0.0.1", None, host), "{host}");
            assert!(!allowed("::1", None, host), "{host}");
            assert!(
                allowed("0.0.0.0", None, host),
                "all are served elsewhere: {host}"
            );
        }
    }

    #[test]
    fn a_list_replaces_the_default() {
        let list = Some("llm.example, other.example:8443");
        assert!(allowed("0.0.0.0", list, "llm.example:8000"));
        assert!(allowed("0.0.0.0", list, "LLM.example"));
        assert!(allowed("0.0.0.0", list, "other.example"));
        assert!(!allowed("0.0.0.0", list, "evil.example"));
        assert!(!allowed("127.0.0.1", list, "localhost"));
        assert!(allowed("127.0.0.1", Some("*"), "evil.example"));
    }
}
