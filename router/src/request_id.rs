//! Ids of requests in PD mode: a prefix by route, 24 random letters and digits, and the address of
//! this host, so that the logs of several routers in front of the same workers can be told apart.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};

use rand::Rng;
use rand::distr::Alphanumeric;

const RANDOM_CHARS: usize = 24;

/// A new id such as `chatcmpl-` + `x7…` + `-10.0.0.5`.
pub fn request_id(prefix: &str, address: IpAddr) -> String {
    let random: String = rand::rng()
        .sample_iter(Alphanumeric)
        .take(RANDOM_CHARS)
        .map(char::from)
        .collect();
    format!("{prefix}{random}-{address}")
}

/// The address of this host from which it reaches other networks; loopback if there is none. A UDP
/// socket finds its route when it is connected, and connecting sends nothing.
pub fn outbound_address() -> IpAddr {
    let found = || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect((Ipv4Addr::new(8, 8, 8, 8), 80))?;
        Ok::<_, std::io::Error>(socket.local_addr()?.ip())
    };
    found().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_a_prefix_24_letters_or_digits_and_an_address() {
        let address = outbound_address();
        assert!(!address.is_unspecified());
        let id = request_id("gnt-", address);
        let random = id.strip_prefix("gnt-").unwrap();
        let (random, host) = random.split_once('-').unwrap();
        assert_eq!(random.len(), 24);
        assert!(random.bytes().all(|byte| byte.is_ascii_alphanumeric()));
        assert_eq!(host, address.to_string());
        assert_ne!(id, request_id("gnt-", address));
    }
}
