//! Text to token ids and back, by the checkpoint's own `tokenizer.json`.

mod bounds;
mod bytes;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use serde_json::{Map, Value};
use tokenizers::{Model as _, OffsetType, PreTokenizer as _};

use crate::quoting::{MARK, Quoting};
use bytes::TokenBytes;

/// The fields of `tokenizer_config.json` and `special_tokens_map.json` that hold one token.
const SPECIAL_FIELDS: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

/// An error of a tokenizer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TokenizerError {
    #[error("tokenizer.json cannot be read: {0}")]
    Json(String),
    #[error("the text cannot be tokenized: {0}")]
    Encode(String),
    #[error("the tokens cannot be decoded: {0}")]
    Decode(String),
}

/// The tokenizer of one checkpoint. Cheap to clone.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

struct Inner {
    tokenizer: tokenizers::Tokenizer,
    bytes: TokenBytes,
    /// `[vocab_size]`: whether `decode` can skip the token.
    special: Vec<bool>,
    special_tokens: BTreeMap<String, String>,
    quoting: Quoting,
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Reads the text of a `tokenizer.json`, with the names of special tokens (`bos_token` and
    /// so on) from `tokenizer_config.json` or, failing that, `special_tokens_map.json`.
    ///
    /// # Errors
    /// [`TokenizerError::Json`] when the file is not a tokenizer, or one that makes gigabytes of
    /// little.
    pub fn from_json(
        tokenizer_json: &[u8],
        tokenizer_config: &Map<String, Value>,
        special_tokens_map: &Map<String, Value>,
    ) -> Result<Self, TokenizerError> {
        let json = |error: &dyn fmt::Display| TokenizerError::Json(error.to_string());
        let mut tokenizer =
            guarded(|| tokenizers::Tokenizer::from_bytes(tokenizer_json)).map_err(|e| json(&e))?;
        // Training leaves these in some files, but a server decides about lengths itself.
        tokenizer
            .with_truncation(None)
            .map_err(|error| json(&error))?;
        tokenizer.with_padding(None);

        let tokens: BTreeMap<u32, String> = tokenizer
            .get_vocab(true)
            .into_iter()
            .map(|(token, id)| (id, token))
            .collect();
        let largest = tokens.last_key_value().map(|(id, _)| *id);
        bounds::check_ids(tokens.len(), largest.unwrap_or(0)).map_err(TokenizerError::Json)?;
        let vocab_size = largest.map_or(0, |id| id as usize + 1);
        let mut special = vec![false; vocab_size];
        let added = tokenizer.get_added_tokens_decoder();
        for (id, token) in &added {
            if let Some(flag) = special.get_mut(*id as usize) {
                *flag = token.special;
            }
        }
        let marks = added.values().filter(|token| token.special);
        let quoting = Quoting::new(marks.map(|token| token.content.as_str()));
        let normalizer = serde_json::to_value(tokenizer.get_normalizer()).unwrap_or(Value::Null);
        let pieces = serde_json::to_value(tokenizer.get_pre_tokenizer()).unwrap_or(Value::Null);
        bounds::check_growth("normalizer and pre_tokenizer", &[&normalizer, &pieces])
            .map_err(TokenizerError::Json)?;
        let around = serde_json::to_value(tokenizer.get_post_processor()).unwrap_or(Value::Null);
        bounds::check_around(&around).map_err(TokenizerError::Json)?;
        let decoder = serde_json::to_value(tokenizer.get_decoder()).unwrap_or(Value::Null);
        bounds::check_growth("decoder", &[&decoder]).map_err(TokenizerError::Json)?;
        let bytes = TokenBytes::new(&decoder, &tokens);
        let special_tokens = SPECIAL_FIELDS
            .into_iter()
            .filter_map(|field| {
                let token = token_text(tokenizer_config.get(field))
                    .or_else(|| token_text(special_tokens_map.get(field)))?;
                Some((field.to_owned(), token))
            })
            .collect();
        Ok(Self {
            inner: Arc::new(Inner {
                tokenizer,
                bytes,
                special,
                special_tokens,
                quoting,
            }),
        })
    }

    /// Token ids of `text`. Special tokens written out in the text become their ids;
    /// `add_special_tokens` adds those that the model expects around every text, such as BOS.
    ///
    /// # Errors
    /// [`TokenizerError::Encode`] when the model has no token for some of the text.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, TokenizerError> {
        let encode = || self.inner.tokenizer.encode_fast(text, add_special_tokens);
        guarded(encode)
            .map(|encoding| encoding.get_ids().to_vec())
            .map_err(|error| TokenizerError::Encode(error.to_string()))
    }

    /// Token ids of a rendered chat whose messages were quoted: as [`Tokenizer::encode`], except
    /// that what has a mark in it is text.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_quoted(
        &self,
        text: &str,
        add_special_tokens: bool,
    ) -> Result<Vec<u32>, TokenizerError> {
        if !text.contains(MARK) {
            return self.encode(text, add_special_tokens);
        }
        let tokenizer = &self.inner.tokenizer;
        let encode = || {
            // The steps of `tokenizers::Tokenizer::encode`, with one of our own between them.
            let normalizer = tokenizer.get_normalizer();
            let added = tokenizer.get_added_vocabulary();
            let mut pieces = added.extract_and_normalize(normalizer, text);
            pieces.normalize(|piece| piece.replace(MARK, ""))?;
            if let Some(pre_tokenizer) = tokenizer.get_pre_tokenizer() {
                pre_tokenizer.pre_tokenize(&mut pieces)?;
            }
            let model = tokenizer.get_model();
            model.tokenize_in_pretokenized(&mut pieces, None)?;
            let encoding = pieces.into_encoding(None, 0, OffsetType::None)?;
            tokenizer.post_process(encoding, None, add_special_tokens)
        };
        guarded(encode)
            .map(|encoding| encoding.get_ids().to_vec())
            .map_err(|error| TokenizerError::Encode(error.to_string()))
    }

    /// Marks what could become a special token in texts that are to be part of a chat.
    pub fn quoting(&self) -> &Quoting {
        &self.inner.quoting
    }

    /// The text of a whole output. Bytes that are not UTF-8 become U+FFFD, and unknown ids are left
    /// out.
    ///
    /// # Errors
    /// [`TokenizerError::Decode`] when the decoder of `tokenizer.json` fails.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String, TokenizerError> {
        guarded(|| self.inner.tokenizer.decode(ids, skip_special_tokens))
            .map_err(|error| TokenizerError::Decode(error.to_string()))
    }

    /// The bytes that a token adds to a text that it does not begin; empty for unknown ids. The
    /// bytes of a character may be spread over several tokens. Concatenated, the bytes of all
    /// tokens are the decoded text, except for the space that SentencePiece-like decoders drop at
    /// the very beginning.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.inner.bytes.get(id)
    }

    /// The token as `tokenizer.json` spells it.
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.inner.tokenizer.id_to_token(id)
    }

    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.inner.tokenizer.token_to_id(token)
    }

    /// One more than the largest id. The rows of a model's logits may be longer (padded) or
    /// shorter.
    pub fn vocab_size(&self) -> usize {
        self.inner.special.len()
    }

    /// True if `decode` leaves the token out when special tokens are skipped.
    pub fn is_special(&self, id: u32) -> bool {
        self.inner
            .special
            .get(id as usize)
            .copied()
            .unwrap_or(false)
    }

    /// `bos_token`, `eos_token`, ... as far as the checkpoint names them, with their text.
    pub fn special_tokens(&self) -> &BTreeMap<String, String> {
        &self.inner.special_tokens
    }

    pub fn bos_id(&self) -> Option<u32> {
        self.special_id("bos_token")
    }

    pub fn eos_id(&self) -> Option<u32> {
        self.special_id("eos_token")
    }

    fn special_id(&self, field: &str) -> Option<u32> {
        self.token_to_id(self.inner.special_tokens.get(field)?)
    }
}

/// Runs a function of the tokenizers package, which panics on some damaged files.
fn guarded<R>(run: impl FnOnce() -> tokenizers::Result<R>) -> tokenizers::Result<R> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| Err("tokenizer.json is damaged".into()))
}

/// A token in a config: its text, or an object with the text as `content`.
fn token_text(value: Option<&Value>) -> Option<String> {
    let value = value?;
    value
        .as_str()
        .or_else(|| value.get("content")?.as_str())
        .map(str::to_owned)
}
