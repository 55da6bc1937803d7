//! Jump-forward: from bytes that must follow to the tokens that the tokenizer would
//! have made of them.
//!
//! Appending tokens that the tokenizer would not produce shifts the model's later
//! choices (SGLang's article, "Tokenization boundary handling"), so three things are
//! kept: the text is tokenised with the last output token before it, a token at the end
//! that a longer one could still replace is held back, and no character is cut.

use crate::vocabulary::Vocabulary;

/// The tokens of `forced`, given the `last` token of the output. `held_back` says how
/// many of the tokens' last a longer token could reach over. Empty if nothing is sure.
pub(crate) fn tokens(
    vocabulary: &Vocabulary,
    last: Option<u32>,
    forced: &[u8],
    held_back: impl FnOnce(&[u32]) -> usize,
) -> Vec<u32> {
    let Some(text) = whole_characters(forced) else {
        return Vec::new();
    };
    let cut = text.len() < forced.len();
    let mut tokens = after_last(vocabulary, last, text)
        .or_else(|| vocabulary.encode(text))
        .unwrap_or_default();
    // What follows the cut is not known to the tokenizer: its bytes count as an end that
    // could be reached over.
    let held = if cut {
        tokens.len().min(1)
    } else {
        held_back(&tokens)
    };
    tokens.truncate(tokens.len() - held);
    while !tokens.is_empty() && std::str::from_utf8(&vocabulary.bytes_of(&tokens)).is_err() {
        tokens.pop();
    }
    tokens
}

/// Tokens of `text` where it follows `last`; `None` if the two would melt into one.
fn after_last(vocabulary: &Vocabulary, last: Option<u32>, text: &str) -> Option<Vec<u32>> {
    let last = last.filter(|&token| vocabulary.is_text(token))?;
    let bytes = vocabulary.bytes_of(&[last]);
    let before = std::str::from_utf8(&bytes).ok()?;
    let mut tokens = vocabulary.encode(&format!("{before}{text}"))?;
    (tokens.first() == Some(&last)).then(|| {
        tokens.remove(0);
        tokens
    })
}

/// `bytes` up to its last whole character; `None` if it begins within one.
fn whole_characters(bytes: &[u8]) -> Option<&str> {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).ok()?,
    };
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_stay_whole() {
        assert_eq!(whole_characters("aé".as_bytes()), Some("aé"));
        assert_eq!(whole_characters(b"a\xc3"), Some("a"));
        assert_eq!(whole_characters(b"\xa9b"), None);
        assert_eq!(whole_characters(b""), None);
    }
}
