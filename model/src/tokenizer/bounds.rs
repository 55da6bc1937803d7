//! Bounds on what a `tokenizer.json` makes of a text. The file comes from a stranger, and a few
//! hundred bytes of it can ask for gigabytes: an enormous id, or replacements one after another of
//! which each makes the text longer.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;

/// Bytes that a byte of text may become. SentencePiece's mark for a space has three.
const MAX_GROWTH: usize = 100;
/// Bytes that are added to each piece of a text.
const MAX_ADDED: usize = 256;
/// Ids beyond the number of tokens: some tokenizers leave gaps between words and added tokens.
const SPARE_IDS: usize = 1 << 16;
/// Tokens that are added around a text.
const MAX_AROUND: usize = 1024;

/// # Errors
/// The largest id has no relation to the number of tokens. Each id takes memory, used or not.
pub(super) fn check_ids(tokens: usize, largest: u32) -> Result<(), String> {
    let most = tokens.saturating_mul(4).saturating_add(SPARE_IDS);
    if (largest as usize) < most {
        return Ok(());
    }
    Err(format!(
        "with {tokens} tokens an id must be less than {most}, got {largest}"
    ))
}

/// Checks fields of a tokenizer that are applied one after another: its normalizer and pre-tokenizer, or
/// its decoder.
///
/// # Errors
/// It makes too much of a text.
pub(super) fn check_growth(what: &str, parts: &[&Value]) -> Result<(), String> {
    let mut growth = Growth {
        factor: 1,
        added: 0,
    };
    parts.iter().for_each(|part| growth.add(part));
    for (bytes, most, each) in [
        (growth.factor, MAX_GROWTH, "a byte of text"),
        (growth.added, MAX_ADDED, "a piece of text"),
    ] {
        if bytes > most {
            return Err(format!(
                "the {what} may make at most {most} bytes of {each}, got {bytes}"
            ));
        }
    }
    Ok(())
}

/// Checks the field `post_processor`.
///
/// # Errors
/// It adds too many tokens.
pub(super) fn check_around(value: &Value) -> Result<(), String> {
    let tokens = ids(value);
    match tokens > MAX_AROUND {
        true => Err(format!(
            "the post_processor may have at most {MAX_AROUND} tokens, got {tokens}"
        )),
        false => Ok(()),
    }
}

/// The length of all lists within `value`, which are sequences of tokens and their ids.
fn ids(value: &Value) -> usize {
    match value {
        Value::Array(list) => list.len() + list.iter().map(ids).sum::<usize>(),
        Value::Object(fields) => fields.values().map(ids).sum(),
        _ => 0,
    }
}

struct Growth {
    factor: usize,
    added: usize,
}

impl Growth {
    /// Takes in a normalizer or decoder, or all those of a sequence.
    fn add(&mut self, value: &Value) {
        let text = |field: &str| value.get(field).and_then(Value::as_str);
        match text("type") {
            Some("Replace") => {
                let content = text("content").map_or(0, str::len);
                let pattern = value
                    .get("pattern")
                    .and_then(|pattern| pattern.get("String"));
                let grown = match pattern.and_then(Value::as_str).map_or(0, str::len) {
                    // An expression may match the empty text between any two bytes.
                    0 => content.saturating_add(1),
                    length => content.div_ceil(length).max(1),
                };
                self.factor = self.factor.saturating_mul(grown);
                self.added = self.added.saturating_mul(grown);
            }
            Some("Prepend") => {
                self.added = self
                    .added
                    .saturating_add(text("prepend").map_or(0, str::len));
            }
            // Bytes become characters of up to two bytes.
            Some("ByteLevel") => self.factor = self.factor.saturating_mul(2),
            // A space becomes a mark.
            Some("Metaspace") => {
                let mark = text("replacement").map_or(3, str::len).max(1);
                self.factor = self.factor.saturating_mul(mark);
                self.added = self.added.saturating_add(mark);
            }
            Some("Precompiled") => {
                let grown = text("precompiled_charsmap").map_or(1, longest_replacement);
                self.factor = self.factor.saturating_mul(grown.max(1));
            }
            _ => {}
        }
        for list in ["normalizers", "pretokenizers", "decoders"] {
            for part in value
                .get(list)
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
            {
                self.add(part);
            }
        }
    }
}

/// The longest text in SentencePiece's table of replacements: the size of an index, the index,
/// and texts that end in a zero.
fn longest_replacement(encoded: &str) -> usize {
    let Ok(bytes) = BASE64_STANDARD.decode(encoded) else {
        return usize::MAX;
    };
    let size = bytes
        .first_chunk()
        .map_or(0, |size| u32::from_le_bytes(*size));
    let texts = bytes.get(4 + size as usize..).unwrap_or(&[]);
    let lengths = texts.split(|byte| *byte == 0).map(<[u8]>::len);
    lengths.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ids_are_in_proportion_to_the_number_of_tokens() {
        assert!(check_ids(3, 65_547).is_ok());
        assert!(check_ids(3, 65_548).is_err());
        assert!(check_ids(128_256, 128_255).is_ok());
        let error = check_ids(1, u32::MAX).unwrap_err();
        assert!(error.contains("65540, got 4294967295"), "{error}");
    }

    #[test]
    fn replacements_multiply_and_prefixes_add_up() {
        let replace = |content: &str| json!({"type": "Replace", "pattern": {"String": "a"}, "content": content});
        let sequence = |parts: Vec<Value>| json!({"type": "Sequence", "normalizers": parts});
        let sentencepiece = sequence(vec![
            json!({"type": "Prepend", "prepend": "▁"}),
            json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"}),
        ]);
        assert!(check_growth("normalizer", &[&sentencepiece]).is_ok());
        assert!(check_growth("normalizer", &[&Value::Null]).is_ok());
        assert!(check_growth("normalizer", &[&sequence(vec![replace("aa"); 6])]).is_ok());
        let error = check_growth("normalizer", &[&sequence(vec![replace("aa"); 7])]).unwrap_err();
        assert!(error.contains("at most 100 bytes of a byte of text, got 128"));
        let long = json!({"type": "Prepend", "prepend": "a".repeat(300)});
        let error = check_growth("normalizer", &[&long]).unwrap_err();
        assert!(error.contains("of a piece of text, got 300"), "{error}");
        let empty =
            json!({"type": "Replace", "pattern": {"Regex": "x*"}, "content": "a".repeat(100)});
        assert!(check_growth("decoder", &[&json!({"decoders": [empty]})]).is_err());
    }

    #[test]
    fn pre_tokenizers_multiply_too() {
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": false});
        let sequence = |times: usize| {
            let parts = vec![bytes.clone(); times];
            json!({"type": "Sequence", "pretokenizers": parts})
        };
        assert!(check_growth("pre_tokenizer", &[&sequence(6)]).is_ok());
        let error = check_growth("pre_tokenizer", &[&sequence(7)]).unwrap_err();
        assert!(error.starts_with("the pre_tokenizer may make"), "{error}");
        let normalizer = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"});
        let both = [&normalizer, &sequence(6)];
        assert!(check_growth("normalizer and pre_tokenizer", &both).is_err());
        let mark = json!({"type": "Metaspace", "replacement": "▁"});
        assert!(check_growth("pre_tokenizer", &[&mark]).is_ok());
    }

    #[test]
    fn the_replacements_of_a_table_are_measured() {
        let table = |text: &[u8]| {
            let bytes = [&4u32.to_le_bytes()[..], &[9; 4], text].concat();
            let map = BASE64_STANDARD.encode(bytes);
            json!({"type": "Precompiled", "precompiled_charsmap": map})
        };
        assert!(check_growth("normalizer", &[&table(b"ab\0abc\0")]).is_ok());
        assert!(check_growth("normalizer", &[&table(&[b'a'; 101])]).is_err());
    }
}
