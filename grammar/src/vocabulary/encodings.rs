//! The tokens of texts that were tokenized lately.
//!
//! A grammar forces the same texts in each of its outputs, such as the keys of an object, and a
//! tokenizer takes longer for one of them than the rest of a mask does.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// The most bytes of a text that is kept.
const MAX_BYTES: usize = 256;
/// The most texts that are kept: at most 5 MiB with their tokens, which are at most one for each byte.
const MAX_TEXTS: usize = 4096;

/// The tokens of a text, or `None` where the tokenizer gives none that spell it.
type Tokens = Option<Box<[u32]>>;

/// The tokens of texts by text.
#[derive(Default)]
pub(super) struct Encodings(Mutex<HashMap<Box<str>, Tokens>>);

impl Encodings {
    /// The tokens of `text`, by `encode` unless they are known.
    pub fn get(&self, text: &str, encode: impl FnOnce() -> Option<Vec<u32>>) -> Option<Vec<u32>> {
        if text.len() > MAX_BYTES {
            return encode();
        }
        let texts = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tokens) = texts().get(text) {
            return tokens.as_deref().map(<[u32]>::to_vec);
        }
        let tokens = encode();
        let mut texts = texts();
        // Texts in use come back soon.
        if texts.len() >= MAX_TEXTS {
            texts.clear();
        }
        texts.insert(text.into(), tokens.as_deref().map(Box::from));
        tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_encoded_once_while_it_is_kept_and_long_ones_are_not_kept() {
        let encodings = Encodings::default();
        let tokens = |text: &str| Some(vec![text.len() as u32]);
        let unknown = || -> Option<Vec<u32>> { unreachable!("it is known") };
        assert_eq!(encodings.get("key", || tokens("key")), Some(vec![3]));
        assert_eq!(encodings.get("key", unknown), Some(vec![3]));
        assert_eq!(encodings.get("none", || None), None);
        assert_eq!(encodings.get("none", unknown), None);
        let long = "a".repeat(MAX_BYTES + 1);
        for length in [1, 2] {
            let encoded = encodings.get(&long, || Some(vec![length]));
            assert_eq!(encoded, Some(vec![length]));
        }
        for number in 0..3 * MAX_TEXTS {
            let text = number.to_string();
            assert_eq!(encodings.get(&text, || tokens(&text)), tokens(&text));
            assert!(encodings.0.lock().unwrap().len() <= MAX_TEXTS);
        }
    }
}
