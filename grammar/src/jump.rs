//! Jump-forward: turns bytes that must follow into the tokens that the tokenizer would have
//! made of them.
//!
//! Tokens that the tokenizer would not produce change what the model samples later (SGLang's
//! article, "Tokenization boundary handling"). Therefore the text is tokenized together with
//! the last output token before it, a token at the end is held back if a longer token could
//! still replace it, and no character is cut in two.

use crate::vocabulary::Vocabulary;

/// The tokens of the bytes `forced` after the `last` token of the output. `held_back` returns
/// how many tokens at the end to hold back, because a longer token could replace them. Empty if
/// no token is certain.
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
    // The tokenizer has not seen the bytes behind the last whole character, and the last token
    // might be a different one with them.
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

/// The tokens of `text` after the token `last`; `None` if the tokenizer would merge the end of
/// `last` with the beginning of `text`.
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

/// `bytes` up to the last whole character; `None` if there is none, or `bytes` begins within a
/// character.
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
    fn characters_are_not_cut_in_two() {
        assert_eq!(whole_characters("aé".as_bytes()), Some("aé"));
        assert_eq!(whole_characters(b"a\xc3"), Some("a"));
        assert_eq!(whole_characters(b"\xa9b"), None);
        assert_eq!(whole_characters(b""), None);
    }
}
