//! The tokens of a model as grammars see them: a trie of their bytes, the tokens that end an
//! output, and the tokenizer.

mod encodings;

use std::sync::{Arc, OnceLock};

use toktrie::{INVALID_TOKEN, TokRxInfo, TokTrie, TokenizerEnv};

use self::encodings::Encodings;
use crate::json_text::is_plain;

/// The most bytes of a token in the trie. Longer tokens (runs of spaces) are never allowed.
const MAX_TOKEN_BYTES: usize = 1000;

/// The tokenizer from which a [`Vocabulary`] is made.
pub trait VocabularySource: Send + Sync + 'static {
    /// All token ids are below this number, which is the smaller of the tokenizer's size and
    /// the width of the logits.
    fn size(&self) -> usize;
    /// The bytes that a token adds to a text; empty if there is no such token.
    fn bytes(&self, token: u32) -> Vec<u8>;
    /// True if the token is a control token and not text.
    fn is_special(&self, token: u32) -> bool;
    /// The token ids of `text`, without tokens for its beginning or end; `None` if the text
    /// cannot be tokenized.
    fn encode(&self, text: &str) -> Option<Vec<u32>>;
}

/// How to tokenize a text that follows another text.
#[derive(Debug, PartialEq)]
enum Continuing {
    /// `encode` gives the right tokens (byte-level vocabularies).
    Plain,
    /// The text is encoded behind [`ANCHOR`], whose tokens these are and are then removed:
    /// tokenizers like SentencePiece put a space before the beginning of a text.
    Anchored(Vec<u32>),
    /// `encode` changes the bytes of a text (it normalizes), so text cannot be forced.
    Never,
}

const ANCHOR: &str = "\n";

/// Texts that are frequent in JSON documents, and one that is not ASCII. They show whether a
/// way to tokenize keeps the bytes of a text.
const SAMPLES: [&str; 6] = [
    "{\"name\": \"",
    "\", \"age\": 12}",
    "],[",
    " null",
    "true",
    "\"é霍\"",
];

/// The vocabulary of one model.
pub struct Vocabulary {
    trie: TokTrie,
    source: Arc<dyn VocabularySource>,
    eos: Vec<u32>,
    continuing: Continuing,
    /// The tokens without characters that structure JSON, outside of strings and within them. They
    /// are collected when an output is steered for the first time.
    plain: OnceLock<[Vec<u32>; 2]>,
    encodings: Encodings,
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vocabulary")
            .field("size", &self.trie.vocab_size())
            .field("continuing", &self.continuing)
            .finish_non_exhaustive()
    }
}

impl Vocabulary {
    /// Reads the tokens of `source`, of which `eos` end an output. This takes 0.15 s and 33 MB
    /// for 100,000 tokens.
    pub fn new(source: Arc<dyn VocabularySource>, eos: &[u32]) -> Self {
        let size = source.size();
        let ids = 0..u32::try_from(size).unwrap_or(u32::MAX);
        let eos: Vec<u32> = eos.iter().copied().filter(|id| ids.contains(id)).collect();
        let words: Vec<Vec<u8>> = ids
            .map(|id| {
                let bytes = source.bytes(id);
                if source.is_special(id) || eos.contains(&id) {
                    // The marker keeps text from matching the name of the token.
                    [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes.as_slice()].concat()
                } else if bytes.len() > MAX_TOKEN_BYTES || bytes.first() == Some(&0xff) {
                    // The byte 0xff is never part of UTF-8, and the trie would take it for
                    // its marker of special tokens.
                    Vec::new()
                } else {
                    bytes
                }
            })
            .collect();
        let first_eos = eos.first().copied().unwrap_or(INVALID_TOKEN);
        let info = TokRxInfo::new(words.len() as u32, first_eos);
        let mut trie = TokTrie::from(&info, &words);
        if !eos.is_empty() {
            trie = trie.with_eos_tokens(&eos);
        }
        let mut vocabulary = Self {
            trie,
            source,
            eos,
            continuing: Continuing::Never,
            plain: OnceLock::new(),
            encodings: Encodings::default(),
        };
        vocabulary.continuing = vocabulary.find_continuing();
        vocabulary
    }

    fn find_continuing(&self) -> Continuing {
        let faithful = |continuing: &Continuing| {
            SAMPLES
                .iter()
                .all(|text| self.encode_by(continuing, text).is_some())
        };
        if faithful(&Continuing::Plain) {
            return Continuing::Plain;
        }
        let anchored = self.source.encode(ANCHOR).map(Continuing::Anchored);
        anchored.filter(faithful).unwrap_or(Continuing::Never)
    }

    /// The tokens of a `text` that follows another text. Their bytes are exactly those of
    /// `text`, and none is special; `None` if the tokenizer gives no such tokens.
    pub fn encode(&self, text: &str) -> Option<Vec<u32>> {
        let encode = || self.encode_by(&self.continuing, text);
        self.encodings.get(text, encode)
    }

    fn encode_by(&self, continuing: &Continuing, text: &str) -> Option<Vec<u32>> {
        let tokens = match continuing {
            Continuing::Plain => self.source.encode(text)?,
            Continuing::Anchored(anchor) => {
                let anchored = self.source.encode(&format!("{ANCHOR}{text}"))?;
                anchored.strip_prefix(anchor.as_slice())?.to_vec()
            }
            Continuing::Never => return None,
        };
        let plain = tokens.iter().all(|&token| self.is_text(token));
        (plain && self.bytes_of(&tokens) == text.as_bytes()).then_some(tokens)
    }

    /// True if forced text can be turned into the tokens that the tokenizer would make of it.
    pub fn can_force(&self) -> bool {
        self.continuing != Continuing::Never
    }

    /// The bytes of all tokens.
    pub fn trie(&self) -> &TokTrie {
        &self.trie
    }

    /// The tokens that end an output.
    pub fn eos(&self) -> &[u32] {
        &self.eos
    }

    /// True if `token` stands for bytes of text.
    pub fn is_text(&self, token: u32) -> bool {
        !self.trie.token(token).is_empty() && !self.trie.is_special_token(token)
    }

    /// The token of one byte.
    pub fn token_of(&self, byte: u8) -> Option<u32> {
        self.trie.token_id(&[byte])
    }

    /// The tokens that begin and end nothing, as a mask: within a string if `in_string`.
    pub fn plain(&self, in_string: bool) -> &[u32] {
        let plain = self
            .plain
            .get_or_init(|| [false, true].map(|in_string| self.make_plain(in_string)));
        &plain[usize::from(in_string)]
    }

    fn make_plain(&self, in_string: bool) -> Vec<u32> {
        let mut mask = vec![0; self.mask_words()];
        for token in 0..self.trie.vocab_size() as u32 {
            let mut bytes = self.trie.token(token).iter();
            if self.is_text(token) && bytes.all(|&byte| is_plain(byte, in_string)) {
                mask[token as usize / 32] |= 1 << (token % 32);
            }
        }
        mask
    }

    /// The tokens that a JSON text of `bytes` bytes has, roughly and rather too many.
    pub fn tokens_of_json(&self, bytes: usize) -> usize {
        let text = SAMPLES[..2].concat();
        let tokens = self.encode(&text).map_or(text.len(), |tokens| tokens.len());
        (bytes * tokens).div_ceil(text.len())
    }

    /// The length of a mask in words.
    pub fn mask_words(&self) -> usize {
        self.trie.vocab_size().div_ceil(32)
    }

    pub fn bytes_of(&self, tokens: &[u32]) -> Vec<u8> {
        let bytes = tokens.iter().flat_map(|&token| self.trie.token(token));
        bytes.copied().collect()
    }
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        // Text that only looks like a special token is encoded as text.
        let encode = |text: &str| {
            self.encode(text)
                .unwrap_or_else(|| self.trie.greedy_tokenize(text.as_bytes()))
        };
        self.trie.tokenize_with_greedy_fallback(bytes, encode)
    }

    fn tokenize_is_canonical(&self) -> bool {
        self.can_force()
    }
}
