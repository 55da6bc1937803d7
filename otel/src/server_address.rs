//! The address under which a client reached the server, for spans.

use opentelemetry::KeyValue;

/// Most bytes of an address: clients choose it.
const MAX_BYTES: usize = 255;

/// A host and a port, as the request names them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerAddress {
    pub address: String,
    /// None where the request leaves the port to the scheme.
    pub port: Option<u16>,
}

impl ServerAddress {
    /// Reads a `Host` header, such as `example.com:8000` or `[::1]:8000`; `None` for one that is empty
    /// or too long.
    pub fn parse(host: &str) -> Option<Self> {
        let (address, port) = match host.strip_prefix('[') {
            Some(rest) => {
                let (address, rest) = rest.split_once(']')?;
                (address, rest.strip_prefix(':'))
            }
            None => match host.rsplit_once(':') {
                Some((address, port)) => (address, Some(port)),
                None => (host, None),
            },
        };
        let is_sound = (1..=MAX_BYTES).contains(&address.len());
        is_sound.then(|| Self {
            address: address.to_owned(),
            port: port.and_then(|port| port.parse().ok()),
        })
    }

    /// `server.address` and `server.port`.
    pub(crate) fn attributes(&self) -> impl Iterator<Item = KeyValue> {
        let port = self
            .port
            .map(|port| KeyValue::new("server.port", i64::from(port)));
        let address = KeyValue::new("server.address", self.address.clone());
        [address].into_iter().chain(port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_names_and_addresses_with_and_without_a_port() {
        let parse = |host: &str| ServerAddress::parse(host).map(|s| (s.address, s.port));
        let some = |address: &str, port| Some((address.to_owned(), port));
        assert_eq!(parse("example.com:8000"), some("example.com", Some(8000)));
        assert_eq!(parse("example.com"), some("example.com", None));
        assert_eq!(parse("[::1]:80"), some("::1", Some(80)));
        assert_eq!(parse("[::1]"), some("::1", None));
        assert_eq!(parse("host:none"), some("host", None));
        assert_eq!(parse(""), None);
        assert_eq!(parse(&"a".repeat(256)), None);
    }
}
