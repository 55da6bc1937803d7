//! The API key, which no log and no page may show.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

/// An API key. It serialises as itself, because a printed configuration must work.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ApiKey(String);

impl ApiKey {
    pub fn new(key: impl Into<String>) -> Self {
        Self(key.into())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Compares in a time that reveals the key's length and nothing else.
    pub fn is(&self, given: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(given).into()
    }

    /// The value of an `authorization` header.
    pub fn bearer(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl FromStr for ApiKey {
    type Err = Infallible;
    fn from_str(key: &str) -> Result<Self, Infallible> {
        Ok(Self::new(key))
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_itself_and_is_not_shown() {
        let key = ApiKey::new("abc");
        assert!(key.is(b"abc"));
        for other in ["abd", "ab", "abcd", ""] {
            assert!(!key.is(other.as_bytes()), "{other}");
        }
        assert_eq!(format!("{key:?}"), "***");
    }
}
