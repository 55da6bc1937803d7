//! Token ids to text, one token at a time.
//!
//! Tokens cannot be decoded one by one: a character may span several, and SentencePiece drops the
//! leading space of whatever token comes first. So a short window of tokens is decoded again with
//! every new one, and the difference is the new text.

use std::sync::Arc;

/// What the engine needs of a tokenizer to give text.
pub trait Detokenize: Send + Sync {
    /// The text of `ids` as one sequence: bytes that are not UTF-8 as U+FFFD, special tokens left
    /// out if `skip_special`, ids without a token left out.
    fn decode(&self, ids: &[u32], skip_special: bool) -> String;

    /// The bytes that `id` stands for within a text, its leading space included; perhaps only a
    /// part of a character. For a special token, its name.
    fn token_bytes(&self, id: u32) -> Vec<u8>;

    /// Whether `decode` leaves `id` out when asked to skip special tokens.
    fn is_special(&self, id: u32) -> bool;
}

const REPLACEMENT: char = char::REPLACEMENT_CHARACTER;

/// Tokens of the prompt that are decoded with the first output token.
const PROMPT_CONTEXT: usize = 6;

/// Further tokens that a context may reach back so as not to begin within a character.
const LONGEST_CHARACTER: usize = 4;

/// Tokens that may wait for a character to be completed, or bring no text, before the window is cut.
/// An adversary's endless half characters would otherwise make decoding quadratic.
const LONGEST_WAIT: usize = 64;

/// Decodes a stream of tokens; a character is given when its last byte has come.
///
/// What was given and what [`IncrementalDecoder::finish`] adds is the decoding of all tokens at
/// once, but for runs of a SentencePiece tokenizer's byte tokens that are not UTF-8: decoded at once
/// all of the run turns into U+FFFD, also the characters that were complete and have left. (And but
/// for runs that spell U+FFFD itself for more than 64 tokens.)
pub struct IncrementalDecoder {
    tokenizer: Arc<dyn Detokenize>,
    skip_special: bool,
    /// Context, then pending tokens.
    window: Vec<u32>,
    /// How many tokens of `window` are context: all their text has left.
    context: usize,
    /// The text of `window` that has left.
    left: String,
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
            // The prompt has a U+FFFD of its own just there.
            .unwrap_or(&visible)
            .to_vec();
        let left = tokenizer.decode(&window, skip_special);
        Self {
            tokenizer,
            skip_special,
            context: window.len(),
            window,
            left,
            waiting: false,
        }
    }

    /// The text that `id` completes; empty while its character lacks bytes.
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
            // The context stays: a token without text is no context to decode the next one after.
            if self.window.len() - self.context > LONGEST_WAIT {
                self.window.pop();
            }
            return fresh;
        }
        self.window.drain(..self.context);
        self.context = self.window.len();
        self.left = self.decode(&self.window);
        fresh
    }

    /// Whether the text of every token has left.
    pub fn is_complete(&self) -> bool {
        !self.waiting
    }

    /// The text that was still waiting, with U+FFFD for the bytes of an unfinished character.
    pub fn finish(&mut self) -> String {
        let fresh = self.fresh(&self.decode(&self.window));
        self.left.push_str(&fresh);
        self.context = self.window.len();
        self.waiting = false;
        fresh
    }

    fn decode(&self, ids: &[u32]) -> String {
        self.tokenizer.decode(ids, self.skip_special)
    }

    /// The part of the window's `text` that has not left.
    fn fresh(&self, text: &str) -> String {
        match text.strip_prefix(&self.left) {
            Some(fresh) => fresh.to_owned(),
            // The pending bytes changed how those before them are decoded; these have left.
            None => self.decode(&self.window[self.context..]),
        }
    }

    /// Gives nothing while the window's `text` ends in what may be the beginning of a character,
    /// unless that lasts too long.
    fn wait(&mut self, text: &str) -> String {
        if self.window.len() - self.context <= LONGEST_WAIT {
            return String::new();
        }
        let mut fresh = self.fresh(text);
        // An unfinished character has at most 3 bytes, and each is at most one U+FFFD.
        let settled = (1..LONGEST_CHARACTER)
            .fold(fresh.as_str(), |text, _| {
                text.strip_suffix(REPLACEMENT).unwrap_or(text)
            })
            .len();
        let tail = fresh.split_off(settled);
        self.window.drain(..self.window.len() - LONGEST_CHARACTER);
        self.context = 0;
        let kept = self.decode(&self.window);
        match kept.strip_suffix(&tail) {
            Some(left) => self.left = left.to_owned(),
            // The unfinished character is out of sight; it will not be finished.
            None => {
                self.window.clear();
                self.left.clear();
                self.waiting = false;
                fresh.push_str(&tail);
            }
        }
        fresh
    }
}
