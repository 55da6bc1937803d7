//! API keys, which no log and no page may show.

use std::convert::Infallible;
use std::fmt;
use std::hint::black_box;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Shown in place of a key.
const HIDDEN: &str = "***";

/// An API key. It serialises as itself, because `hearth config` prints a file that must work.
/// Anything for others to read gets [`hidden`](Self::hidden).
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    pub fn hidden(&self) -> Self {
        Self(HIDDEN.to_owned())
    }

    /// The secret itself, for what proves that this server knows it.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Compares `given` with this key in a time that reveals the key's length and nothing
    /// else.
    pub fn is(&self, given: &[u8]) -> bool {
        let own = self.0.as_bytes();
        if own.len() != given.len() {
            return false;
        }
        let pairs = own.iter().zip(given);
        // The compiler must not find out that one difference decides the result.
        pairs.fold(0u8, |differs, (a, b)| black_box(differs | (a ^ b))) == 0
    }
}

impl FromStr for Secret {
    type Err = Infallible;
    fn from_str(key: &str) -> Result<Self, Infallible> {
        Ok(Self(key.to_owned()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_itself_and_nothing_else() {
        let key: Secret = "abc".parse().unwrap();
        assert!(key.is(b"abc"));
        for other in ["abd", "bbc", "ab", "abcd", ""] {
            assert!(!key.is(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn a_key_is_not_shown() {
        let key: Secret = "abc".parse().unwrap();
        assert_eq!(format!("{key:?} {:?}", key.hidden()), "*** ***");
        assert_eq!(serde_json::to_string(&key.hidden()).unwrap(), "\"***\"");
    }
}
