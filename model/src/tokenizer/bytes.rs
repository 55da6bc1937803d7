//! The bytes of each token, computed once, because streaming, log-probabilities and grammars need
//! them at every step.

use std::collections::BTreeMap;
use std::ops::Range;

use serde_json::Value;

/// How a vocabulary spells bytes.
enum Spelling {
    /// Each byte as one printable character (GPT-2's alphabet).
    ByteLevel,
    /// A mark stands for the space, and `<0xNN>` for bytes that no token spells (SentencePiece).
    SentencePiece { space: char, byte_fallback: bool },
    /// The token is its text.
    Plain,
}

/// The bytes of every token, one after another.
pub(super) struct TokenBytes {
    bytes: Vec<u8>,
    /// `[vocab_size + 1]`: token `i` is `bytes[starts[i]..starts[i + 1]]`.
    starts: Vec<u32>,
}

impl TokenBytes {
    /// `decoder` is the field of that name in `tokenizer.json`, and `tokens` the whole vocabulary.
    pub fn new(decoder: &Value, tokens: &BTreeMap<u32, String>) -> Self {
        let spelling = Spelling::of(decoder);
        let alphabet = byte_alphabet();
        let count = tokens
            .last_key_value()
            .map_or(0, |(id, _)| *id as usize + 1);
        let mut starts = Vec::with_capacity(count + 1);
        let mut bytes = Vec::new();
        for (id, token) in tokens {
            // Ids without a token get no bytes.
            starts.resize(*id as usize + 1, bytes.len() as u32);
            spelling.spell(token, &alphabet, &mut bytes);
        }
        starts.push(bytes.len() as u32);
        Self { bytes, starts }
    }

    /// The bytes of one token; empty for ids outside the vocabulary.
    pub fn get(&self, id: u32) -> &[u8] {
        let bounds = self
            .starts
            .get(id as usize)
            .zip(self.starts.get(id as usize + 1));
        let range: Range<usize> = bounds.map_or(0..0, |(a, b)| *a as usize..*b as usize);
        &self.bytes[range]
    }
}

impl Spelling {
    fn of(decoder: &Value) -> Self {
        let parts: Vec<&Value> = match decoder.get("decoders").and_then(Value::as_array) {
            Some(parts) => parts.iter().collect(),
            None => vec![decoder],
        };
        let kind = |part: &Value| part.get("type").and_then(Value::as_str).map(str::to_owned);
        let has = |name: &str| parts.iter().any(|part| kind(part).as_deref() == Some(name));
        if has("ByteLevel") {
            return Spelling::ByteLevel;
        }
        let byte_fallback = has("ByteFallback");
        // Metaspace names its mark. Replacing a mark by a space has the same effect.
        let space = parts.iter().find_map(|part| match kind(part)?.as_str() {
            "Metaspace" => part.get("replacement")?.as_str()?.chars().next(),
            "Replace" if part.get("content")?.as_str() == Some(" ") => {
                part.get("pattern")?.get("String")?.as_str()?.chars().next()
            }
            _ => None,
        });
        match space {
            Some(space) => Spelling::SentencePiece {
                space,
                byte_fallback,
            },
            None if byte_fallback => Spelling::SentencePiece {
                space: '▁',
                byte_fallback,
            },
            None => Spelling::Plain,
        }
    }

    fn spell(&self, token: &str, alphabet: &BTreeMap<char, u8>, output: &mut Vec<u8>) {
        match self {
            Spelling::ByteLevel => {
                let start = output.len();
                for letter in token.chars() {
                    let Some(byte) = alphabet.get(&letter) else {
                        // An added token outside the alphabet stands for its own text.
                        output.truncate(start);
                        output.extend(token.bytes());
                        return;
                    };
                    output.push(*byte);
                }
            }
            Spelling::SentencePiece {
                space,
                byte_fallback,
            } => match fallback_byte(token).filter(|_| *byte_fallback) {
                Some(byte) => output.push(byte),
                None => {
                    let space = *space;
                    output.extend(token.replace(space, " ").bytes());
                }
            },
            Spelling::Plain => output.extend(token.bytes()),
        }
    }
}

/// The byte that `<0xNN>` stands for.
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 {
        u8::from_str_radix(digits, 16).ok()
    } else {
        None
    }
}

/// GPT-2's characters for bytes: printable Latin-1 stands for itself, the other 68 bytes for
/// the characters from U+0100 on, in order.
fn byte_alphabet() -> BTreeMap<char, u8> {
    let mut next = 0x100;
    (0..=u8::MAX)
        .filter_map(|byte| {
            let code = match byte {
                b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => u32::from(byte),
                _ => {
                    next += 1;
                    next - 1
                }
            };
            Some((char::from_u32(code)?, byte))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn bytes(decoder: Value, tokens: &[(u32, &str)]) -> TokenBytes {
        let tokens = tokens
            .iter()
            .map(|(id, token)| (*id, (*token).to_owned()))
            .collect();
        TokenBytes::new(&decoder, &tokens)
    }

    #[test]
    fn the_alphabet_covers_every_byte_once() {
        let alphabet = byte_alphabet();
        assert_eq!(alphabet.len(), 256);
        assert_eq!(alphabet[&'Ġ'], b' ');
        assert_eq!(alphabet[&'Ċ'], b'\n');
        assert_eq!(alphabet[&'é'], 0xe9);
        assert_eq!(alphabet[&'ł'], 0xa0);
        assert_eq!(alphabet[&'Ń'], 0xad);
    }

    #[test]
    fn byte_level_tokens_are_spelled_back_and_others_stand_for_themselves() {
        let tokens = [
            (0, "Ġcaf"),
            (1, "Ã"),
            (2, "©"),
            (4, "<|end|>"),
            (5, "｜ø▁｜"),
        ];
        let table = bytes(json!({"type": "ByteLevel"}), &tokens);
        assert_eq!(table.get(0), b" caf");
        assert_eq!([table.get(1), table.get(2)].concat(), "é".as_bytes());
        assert_eq!(table.get(3), b"", "an id without a token");
        assert_eq!(table.get(4), b"<|end|>");
        assert_eq!(table.get(5), "｜ø▁｜".as_bytes());
        assert_eq!(table.get(6), b"");
        assert_eq!(table.get(u32::MAX), b"");
    }

    #[test]
    fn sentencepiece_tokens_have_spaces_and_bytes() {
        let replace = json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]});
        let tokens = [(0, "▁a▁b"), (1, "<0x0A>"), (2, "<0xG0>"), (3, "<0x123>")];
        let table = bytes(replace, &tokens);
        assert_eq!(table.get(0), b" a b");
        assert_eq!(table.get(1), b"\n");
        assert_eq!(table.get(2), b"<0xG0>");
        assert_eq!(table.get(3), b"<0x123>");
        let metaspace =
            json!({"type": "Metaspace", "replacement": "_", "prepend_scheme": "always"});
        let table = bytes(metaspace, &[(0, "_a"), (1, "<0x0A>")]);
        assert_eq!(table.get(0), b" a");
        assert_eq!(table.get(1), b"<0x0A>", "without a fallback it is text");
    }

    #[test]
    fn an_empty_vocabulary_has_no_bytes() {
        assert_eq!(bytes(Value::Null, &[]).get(0), b"");
    }
}
