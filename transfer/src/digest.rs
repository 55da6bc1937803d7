//! Digests by which two servers see that they talk about the same thing (FNV-1a of 64 bits). They
//! find mistakes; they keep nobody from cheating, for which the secret is there.

/// A digest that is the same in every build.
#[derive(Clone, Copy, Debug)]
pub struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    pub fn update(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    pub fn value(self) -> u64 {
        self.0
    }
}

/// The digest of a prompt's token ids and of the adapter that it is computed with, by the digest of
/// that one's numbers.
pub fn of_prompt(tokens: &[u32], adapter: Option<&str>) -> u64 {
    let mut digest = Digest::default();
    digest.update(adapter.unwrap_or_default().as_bytes());
    for token in tokens {
        digest.update(&token.to_le_bytes());
    }
    digest.value()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_fnv_1a() {
        let mut digest = Digest::default();
        digest.update(b"foobar");
        assert_eq!(digest.value(), 0x8594_4171_f739_67e8);
        assert_ne!(of_prompt(&[1, 2], None), of_prompt(&[2, 1], None));
        assert_ne!(of_prompt(&[1], None), of_prompt(&[1], Some("a")));
        assert_ne!(of_prompt(&[1], Some("b")), of_prompt(&[1], Some("a")));
    }
}
