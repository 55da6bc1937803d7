//! Endpoints as ZeroMQ writes them: `tcp://*:5557`, `tcp://10.0.0.1:5557`, `tcp://[::]:5557`.

use std::fmt;

/// A TCP endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// `*` means all addresses.
    host: String,
    pub port: u16,
}

impl Endpoint {
    /// Reads `tcp://HOST:PORT`; `None` if it is something else.
    pub fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.strip_prefix("tcp://")?.rsplit_once(':')?;
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        let host = bare.unwrap_or(host);
        if host.is_empty() || host.contains(['/', '[', ']']) {
            return None;
        }
        Some(Self {
            host: host.to_owned(),
            port: port.parse().ok()?,
        })
    }

    /// True if vLLM's publisher listens there; otherwise it connects to a subscriber.
    pub fn is_listened_at(&self) -> bool {
        self.host == "*" || self.host.contains("::")
    }

    /// The host to listen on.
    pub fn listen_host(&self) -> &str {
        match self.host.as_str() {
            "*" => "0.0.0.0",
            host => host,
        }
    }

    /// The host to connect to.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// True if the host is a wildcard, which names no machine.
    pub fn is_wildcard(&self) -> bool {
        matches!(self.host.as_str(), "*" | "0.0.0.0" | "::")
    }

    /// The same endpoint at another port.
    pub fn with_port(&self, port: u16) -> Self {
        Self {
            port,
            ..self.clone()
        }
    }

    /// The same endpoint at another host, without brackets.
    pub fn with_host(&self, host: &str) -> Self {
        Self {
            host: host.to_owned(),
            ..self.clone()
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        match host.contains(':') {
            true => write!(f, "tcp://[{host}]:{port}"),
            false => write!(f, "tcp://{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_read_and_written() {
        for (text, listens) in [
            ("tcp://*:5557", true),
            ("tcp://[::]:5557", true),
            ("tcp://10.0.0.1:1", false),
            ("tcp://collector.example:5557", false),
        ] {
            let endpoint = Endpoint::parse(text).unwrap();
            assert_eq!(endpoint.to_string(), text);
            assert_eq!(endpoint.is_listened_at(), listens, "{text}");
        }
        for text in [
            "",
            "ipc:///tmp/a",
            "tcp://*",
            "tcp://:1",
            "tcp://a:b",
            "tcp://a:65536",
        ] {
            assert_eq!(Endpoint::parse(text), None, "{text}");
        }
        let any = Endpoint::parse("tcp://*:7").unwrap();
        assert_eq!(any.with_host("::1").to_string(), "tcp://[::1]:7");
        assert!(any.is_wildcard());
    }
}
