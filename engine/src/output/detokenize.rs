//! Token ids to text, one token at a time.
//!
//! Tokens cannot be decoded one by one: a character may span several tokens, and SentencePiece drops
//! the leading space of the first token. So a short window of tokens is decoded again with every new
//! token, and the difference is the new text.

use std::sync::Arc;

/// What the engine needs of a tokenizer to turn tokens into text.
pub trait Detokenize: Send + Sync {
    /// The text of `ids` as one sequence. Bytes that are not UTF-8 become U+FFFD. Special tokens are
    /// left out if `skip_special`, and so are ids without a token.
    fn decode(&self, ids: &[u32], skip_special: bool) -> String;

    /// The bytes that `id` stands for within a text, including its leading space. They may be only a
    /// part of a character. For a special token, they are its name.
    fn token_bytes(&self, id: u32) -> Vec<u8>;

    /// Whether `decode` leaves `id` out if `skip_special`.
    fn is_special(&self, id: u32) -> bool;
}

const REPLACEMENT: char = char::REPLACEMENT_CHARACTER;

/// Tokens of the prompt that are decoded together with the first output token.
const PROMPT_CONTEXT: usize = 6;

/// By how many more tokens the context may be extended so that it does not begin within a
/// character.
const LONGEST_CHARACTER: usize = 4;

/// How many tokens may wait for a character to be completed, or have no text, before the window is
/// cut. Without this bound, an endless run of unfinished characters would make decoding quadratic.
const LONGEST_WAIT: usize = 64;

/// Decodes a stream of tokens. A character is returned when its last byte has arrived.
///
/// All returned text together, including that of [`IncrementalDecoder::finish`], equals the decoding
/// of all tokens at once, with two exceptions. In a run of a SentencePiece tokenizer's byte tokens
/// that is not UTF-8, decoding at once turns all of the run into U+FFFD, even the complete
/// characters, which were returned here. And runs that spell U+FFFD itself may differ after 64
/// tokens.
pub struct IncrementalDecoder {
    tokenizer: Arc<dyn Detokenize>,
    skip_special: bool,
    /// The context, followed by the pending tokens.
    window: Vec<u32>,
    /// How many tokens of `window` are the context: all of their text has been returned.
    context: usize,
    /// The text of `window` that has been returned.
    returned: String,
    /// Whether the last character lacks bytes.
    waiting: bool,
}

impl IncrementalDecoder {
    /// A decoder of the tokens that follow `prompt`.
    pub fn new(tokenizer: Arc<dyn Detokenize>, skip_special: bool, prompt: &[u32]) -> Self {
        let mut visible: Vec<u32> = prompt
            .iter()
            .rev()
            .copied()
            .filter(|&id| !(skip_special && tokenizer.is_special(id)))
            .take(LONGEST_WAIT)
            .collect();
        visible.reverse();
        let is_whole = |window: &&[u32]| {
            let text = tokenizer.decode(window, skip_special);
            !text.starts_with(REPLACEMENT)
        };
        let window = (PROMPT_CONTEXT..PROMPT_CONTEXT + LONGEST_CHARACTER)
            .map(|length| &visible[visible.len().saturating_sub(length)..])
            .find(is_whole)
            // The prompt itself has a U+FFFD at that place.
            .unwrap_or(&visible)
            .to_vec();
        let returned = tokenizer.decode(&window, skip_special);
        Self {
            tokenizer,
            skip_special,
            context: window.len(),
            window,
            returned,
            waiting: false,
        }
    }

    /// The text that `id` completes; empty while a character lacks bytes.
    pub fn push(&mut self, id: u32) -> String {
        if self.skip_special && self.tokenizer.is_special(id) {
            return String::new();
        }
        self.window.push(id);
        let text = self.decode(&self.window);
        self.waiting = text.ends_with(REPLACEMENT);
        if self.waiting {
            return self.wait(&text);
        }
        let fresh = self.fresh(&text);
        if fresh.is_empty() {
            // The context stays: a token without text is no context for decoding the next one.
            if self.window.len() - self.context > LONGEST_WAIT {
                self.window.pop();
            }
            return fresh;
        }
        self.window.drain(..self.context);
        self.context = self.window.len();
        self.returned = self.decode(&self.window);
        fresh
    }

    /// Whether the text of every token has been returned.
    pub fn is_complete(&self) -> bool {
        !self.waiting
    }

    /// The text that was held back, with U+FFFD for the bytes of an unfinished character.
    pub fn finish(&mut self) -> String {
        let fresh = self.fresh(&self.decode(&self.window));
        self.returned.push_str(&fresh);
        self.context = self.window.len();
        self.waiting = false;
        fresh
    }

    fn decode(&self, ids: &[u32]) -> String {
        self.tokenizer.decode(ids, self.skip_special)
    }

    /// The part of the window's `text` that has not been returned.
    fn fresh(&self, text: &str) -> String {
        match text.strip_prefix(&self.returned) {
            Some(fresh) => fresh.to_owned(),
            // The pending bytes changed how the bytes before them are decoded, whose text has been
            // returned already.
            None => self.decode(&self.window[self.context..]),
        }
    }

    /// Returns nothing while the window's `text` may end with an unfinished character, unless that
    /// lasts too long.
    fn wait(&mut self, text: &str) -> String {
        if self.window.len() - self.context <= LONGEST_WAIT {
            return String::new();
        }
        let mut fresh = self.fresh(text);
        // An unfinished character has at most 3 bytes, and each becomes at most one U+FFFD.
        let finished = (1..LONGEST_CHARACTER)
            .fold(fresh.as_str(), |text, _| {
                text.strip_suffix(REPLACEMENT).unwrap_or(text)
            })
            .len();
        let tail = fresh.split_off(finished);
        self.window.drain(..self.window.len() - LONGEST_CHARACTER);
        self.context = 0;
        let kept = self.decode(&self.window);
        match kept.strip_suffix(&tail) {
            Some(returned) => self.returned = returned.to_owned(),
            // The unfinished character is no longer in the window, and will not be finished.
            None => {
                self.window.clear();
                self.returned.clear();
                self.waiting = false;
                fresh.push_str(&tail);
            }
        }
        fresh
    }
}
