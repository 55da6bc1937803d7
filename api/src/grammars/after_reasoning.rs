//! A grammar that begins where the reasoning ends. Until then every token is allowed, except those
//! that end the output and those whose text would go on beyond the closing mark.

use std::sync::Arc;

use hearth_engine::constraint::{Constraint, Grammar};
use hearth_forward::TokenMask;

use crate::reasoning::{Begin, CLOSE, OPEN};
use crate::served::TextCodec;

/// The tokens that may remain beside those which the closing mark and the answer need, when the
/// reasoning of an output that is to be complete is closed.
const MARGIN: usize = 8;

/// The marks of reasoning in a vocabulary.
#[derive(Debug)]
pub struct Marks {
    /// The opening mark, if it is one token.
    open: Option<u32>,
    /// The bytes of each token.
    text: Texts,
    /// The allowed tokens by the number of bytes of the closing mark that the text ends with.
    free: Vec<TokenMask>,
    /// The part of them that goes on with the closing mark.
    closing: Vec<TokenMask>,
}

struct Texts(Arc<dyn TextCodec>);

impl std::fmt::Debug for Texts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Texts")
    }
}

/// How many bytes of the closing mark the text ends with, or, once the mark was there, how many
/// bytes followed it.
enum Seen {
    Begun(usize),
    Ended { after: usize },
}

/// Advances by `bytes` from a text that ends with `begun` bytes of the mark. This is simple, because
/// only the first byte of the mark is `<`.
fn walk(mut begun: usize, bytes: &[u8]) -> Seen {
    let mark = CLOSE.as_bytes();
    for (at, &byte) in bytes.iter().enumerate() {
        begun = match byte {
            _ if byte == mark[begun] => begun + 1,
            b'<' => 1,
            _ => 0,
        };
        if begun == mark.len() {
            return Seen::Ended {
                after: bytes.len() - at - 1,
            };
        }
    }
    Seen::Begun(begun)
}

impl Marks {
    /// Finds the marks by looking at every token of the model.
    pub fn new(text: Arc<dyn TextCodec>, vocab_size: usize, eos: &[u32]) -> Self {
        let ids = 0..u32::try_from(vocab_size).unwrap_or(u32::MAX);
        let open = match text.encode(OPEN, false).as_deref() {
            Ok([token]) => Some(*token),
            _ => None,
        };
        let none = vec![vec![0_u32; vocab_size.div_ceil(32)]; CLOSE.len()];
        let (mut free, mut closing) = (none.clone(), none);
        for id in ids {
            if eos.contains(&id) {
                continue;
            }
            let bytes = text.token_bytes(id);
            let masks = free.iter_mut().zip(&mut closing);
            for (begun, (free, closing)) in masks.enumerate() {
                let allow = |mask: &mut Vec<u32>| mask[id as usize / 32] |= 1 << (id % 32);
                if !matches!(walk(begun, &bytes), Seen::Ended { after: 1.. }) {
                    allow(free);
                }
                if !bytes.is_empty() && CLOSE.as_bytes()[begun..].starts_with(&bytes) {
                    allow(closing);
                }
            }
        }
        Self {
            open,
            text: Texts(text),
            free: free.into_iter().map(TokenMask::from).collect(),
            closing: closing.into_iter().map(TokenMask::from).collect(),
        }
    }
}

/// The grammar of an answer behind reasoning.
pub trait AnswerGrammar: std::fmt::Debug + Send + Sync {
    /// The state of an answer without any tokens.
    fn answer(&self) -> Box<dyn Answer>;
}

/// The state of an answer behind reasoning.
pub trait Answer: Constraint {
    /// The tokens that are enough to complete the answer, if it is to be complete.
    fn shortest(&mut self) -> Option<usize>;
}

/// A grammar that is applied only after the reasoning of an answer that begins with `begin`.
#[derive(Debug)]
pub struct AfterReasoning<G> {
    pub grammar: G,
    pub marks: Arc<Marks>,
    pub begin: Begin,
}

impl<G: AnswerGrammar> Grammar for AfterReasoning<G> {
    fn start(&self) -> Box<dyn Constraint> {
        let mut inner = self.grammar.answer();
        let state = match self.begin {
            Begin::Text | Begin::Channels(_) => return inner,
            Begin::Reasoning => State::Reasoning(0),
            Begin::Either | Begin::EitherThenResponse => State::Either,
        };
        let shortest = inner.shortest();
        Box::new(Reasoned {
            shortest,
            inner,
            marks: Arc::clone(&self.marks),
            state,
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the first token.
    Either,
    /// Inside of the reasoning; the text ends with this many bytes of the closing mark.
    Reasoning(usize),
    Text,
}

struct Reasoned {
    inner: Box<dyn Answer>,
    /// The tokens that are enough for the answer behind the reasoning, if the output is to be
    /// complete.
    shortest: Option<usize>,
    marks: Arc<Marks>,
    state: State,
}

impl Constraint for Reasoned {
    fn mask(&mut self) -> Result<TokenMask, String> {
        match self.state {
            State::Text => self.inner.mask(),
            State::Reasoning(begun) => Ok(TokenMask::clone(&self.marks.free[begun])),
            State::Either => {
                let mut mask = self.inner.mask()?.to_vec();
                if let Some(open) = self.marks.open
                    && let Some(word) = mask.get_mut(open as usize / 32)
                {
                    *word |= 1 << (open % 32);
                }
                Ok(mask.into())
            }
        }
    }

    fn mask_within(&mut self, left: usize) -> Result<TokenMask, String> {
        match (self.state, self.shortest) {
            (State::Text, _) => self.inner.mask_within(left),
            (State::Reasoning(begun), Some(answer)) if left <= answer + CLOSE.len() + MARGIN => {
                let closing = &self.marks.closing[begun];
                match closing.iter().all(|&word| word == 0) {
                    true => self.mask(),
                    false => Ok(TokenMask::clone(closing)),
                }
            }
            // There is no room for reasoning.
            (State::Either, Some(answer)) if left <= answer + 2 * CLOSE.len() + MARGIN => {
                self.inner.mask_within(left)
            }
            _ => self.mask(),
        }
    }

    fn consume(&mut self, token: u32) -> Result<(), String> {
        self.state = match self.state {
            State::Either if self.marks.open == Some(token) => State::Reasoning(0),
            State::Either | State::Text => {
                self.inner.consume(token)?;
                State::Text
            }
            State::Reasoning(begun) => match walk(begun, &self.marks.text.0.token_bytes(token)) {
                Seen::Begun(begun) => State::Reasoning(begun),
                Seen::Ended { after: 0 } => State::Text,
                Seen::Ended { .. } => {
                    return Err(format!("token {token} carries text over {CLOSE}"));
                }
            },
        };
        Ok(())
    }

    fn forced(&mut self, limit: usize) -> Vec<u32> {
        match self.state {
            State::Text => self.inner.forced(limit),
            State::Either | State::Reasoning(_) => Vec::new(),
        }
    }

    fn is_complete(&self) -> bool {
        self.state == State::Text && self.inner.is_complete()
    }

    fn canceller(&self) -> Box<dyn Fn() + Send> {
        self.inner.canceller()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_is_found_wherever_tokens_cut_it() {
        let seen = |pieces: &[&str]| {
            let mut begun = 0;
            for piece in pieces {
                match walk(begun, piece.as_bytes()) {
                    Seen::Begun(now) => begun = now,
                    Seen::Ended { after } => return Some(after),
                }
            }
            None
        };
        assert_eq!(seen(&["so</think>"]), Some(0));
        assert_eq!(seen(&["<", "/th", "ink>"]), Some(0));
        assert_eq!(seen(&["<</think", ">a"]), Some(1));
        assert_eq!(seen(&["</think", "</think", ">"]), Some(0));
        assert_eq!(seen(&["</think", " >"]), None);
    }
}
