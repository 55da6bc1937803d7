//! The text of one request, as a stream.

use std::collections::VecDeque;
use std::sync::Arc;

use super::detokenize::{Detokenize, IncrementalDecoder};
use super::stop::StopMatcher;
use super::stop_regex::StopRegexes;

/// How the tokens of a request become its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextOptions {
    /// Leave special tokens out of the text.
    pub skip_special: bool,
    /// Strings that end the text.
    pub stop: Vec<String>,
    /// Regular expressions, a match of which ends the text, too. The match is part of the text.
    pub stop_regex: Option<StopRegexes>,
    /// Whether the text includes the stop string that ended it.
    pub include_stop: bool,
    /// Stop strings in the text of this many first tokens do not count.
    pub min_tokens: usize,
}

impl Default for TextOptions {
    fn default() -> Self {
        Self {
            skip_special: true,
            stop: Vec::new(),
            stop_regex: None,
            include_stop: false,
            min_tokens: 0,
        }
    }
}

/// The new text after a token, or at the end.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct TextDelta {
    /// Text to append to the earlier deltas. It has whole characters and no part of a stop string.
    pub text: String,
    /// How many more tokens, counted from the oldest that no delta has counted, have all of their
    /// text in the deltas up to this one: their log-probabilities belong here. At the end, every
    /// token has been counted.
    pub tokens: usize,
    /// The stop string, or the regular expression, that ended the text.
    pub stop: Option<String>,
}

/// Turns the output tokens of one request into text.
pub struct TextStream {
    decoder: IncrementalDecoder,
    matcher: StopMatcher,
    min_tokens: usize,
    pushed: usize,
    reported: usize,
    /// Bytes of decoded text, stop strings included.
    decoded: usize,
    /// Characters of decoded text.
    decoded_chars: usize,
    /// For each token that was not reported, oldest first: the number of decoded bytes at which
    /// its text ends. Tokens whose character is unfinished are not in the list yet.
    ends: VecDeque<usize>,
    stopped: bool,
}

impl TextStream {
    /// The text that follows `prompt`, whose last tokens decide how the first output token is
    /// decoded: SentencePiece drops the space that begins a text. Pass the prompt if the text
    /// continues it (a completion), and no tokens if the text stands on its own (a chat message).
    pub fn new(tokenizer: Arc<dyn Detokenize>, prompt: &[u32], options: &TextOptions) -> Self {
        Self {
            decoder: IncrementalDecoder::new(tokenizer, options.skip_special, prompt),
            matcher: StopMatcher::new(
                &options.stop,
                options.stop_regex.as_ref(),
                options.include_stop,
            ),
            min_tokens: options.min_tokens,
            pushed: 0,
            reported: 0,
            decoded: 0,
            decoded_chars: 0,
            ends: VecDeque::new(),
            stopped: false,
        }
    }

    /// Takes the next token. After a stop string or the end, tokens are ignored.
    pub fn push(&mut self, token: u32) -> TextDelta {
        if self.stopped {
            return TextDelta::default();
        }
        self.pushed += 1;
        let text = self.decoder.push(token);
        let complete = self.decoder.is_complete();
        self.scan(&text, complete)
    }

    /// Ends the text and returns the text that was held back. Only the bytes of a character that
    /// was never finished can still complete a stop string.
    pub fn finish(&mut self) -> TextDelta {
        if self.stopped {
            return TextDelta::default();
        }
        let text = self.decoder.finish();
        let mut delta = self.scan(&text, true);
        if !self.stopped {
            delta.text += &self.matcher.finish();
            delta.tokens += self.report_all();
        }
        delta
    }

    /// The length in characters of the text before the next token, which is the token's
    /// `text_offset`. Tokens that share a character share its offset.
    pub fn offset(&self) -> usize {
        self.decoded_chars
    }

    /// The number of tokens taken so far, including those within the stop string.
    pub fn tokens(&self) -> usize {
        self.pushed
    }

    /// Passes decoded text on to the matcher. `complete` says whether the text of all tokens so far
    /// has been decoded.
    fn scan(&mut self, text: &str, complete: bool) -> TextDelta {
        self.decoded += text.len();
        self.decoded_chars += text.chars().count();
        if complete {
            self.ends.resize(self.pushed - self.reported, self.decoded);
        }
        if self.pushed <= self.min_tokens {
            return TextDelta {
                text: text.to_owned(),
                tokens: self.report(),
                stop: None,
            };
        }
        let scanned = self.matcher.push(text);
        let tokens = if scanned.stop.is_some() {
            self.report_all()
        } else {
            self.report()
        };
        TextDelta {
            text: scanned.text,
            tokens,
            stop: scanned.stop,
        }
    }

    /// Reports the tokens whose text has been returned.
    fn report(&mut self) -> usize {
        let returned = self.decoded - self.matcher.held();
        let ends = self.ends.iter();
        let tokens = ends.take_while(|&&end| end <= returned).count();
        self.ends.drain(..tokens);
        self.reported += tokens;
        tokens
    }

    /// Reports all tokens, at the end of the text.
    fn report_all(&mut self) -> usize {
        self.stopped = true;
        self.ends.clear();
        let tokens = self.pushed - self.reported;
        self.reported = self.pushed;
        tokens
    }
}

/// A token as log-probabilities show it: its text, and the bytes of its text.
///
/// A part of a character has no text. It is written `bytes:\xe2\x82`, as the OpenAI API does, so
/// that different parts remain distinguishable.
pub fn token_text(tokenizer: &dyn Detokenize, token: u32) -> (String, Vec<u8>) {
    let bytes = tokenizer.token_bytes(token);
    let text = match std::str::from_utf8(&bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().fold("bytes:".to_owned(), |text, byte| {
            text + &format!("\\x{byte:02x}")
        }),
    };
    (text, bytes)
}
