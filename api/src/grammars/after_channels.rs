//! A grammar for the answer of a model that writes in the harmony format: it begins in the message on
//! the channel `final`, or with the rest of a message to a function. Messages on the channel
//! `analysis` may come before it, as long as there is room for them.

use std::sync::Arc;

use hearth_engine::constraint::{Constraint, Grammar};
use hearth_forward::TokenMask;

use crate::channels::At;
use crate::grammars::after_reasoning::{Answer, AnswerGrammar};
use crate::served::TextCodec;
use crate::tools::harmony::{CHANNEL, END, MARKS, MESSAGE, START};

/// The tokens that may remain beside those which the beginnings of messages and the answer need,
/// when the reasoning of an output that is to be complete is closed.
const MARGIN: usize = 8;

/// The texts of the format as the tokens of a vocabulary.
#[derive(Debug)]
pub struct ChannelMarks {
    vocab_size: usize,
    /// The mark after a message that others follow.
    end: u32,
    /// The tokens of a message's text.
    free: TokenMask,
    /// The beginning of the answer's next message, up to its channel.
    author: Vec<u32>,
    /// The beginnings of messages behind the author.
    analysis: Vec<u32>,
    last: Vec<u32>,
    channel: Vec<u32>,
}

impl ChannelMarks {
    /// `None` if the marks are no special tokens of the model.
    pub fn new(text: &dyn TextCodec, vocab_size: usize, eos: &[u32]) -> Option<Self> {
        let encode = |part: &str| text.encode(part, false).ok();
        let token = |mark: &str| match encode(mark)?.as_slice() {
            [token] if text.is_special(*token) => Some(*token),
            _ => None,
        };
        for mark in [START, CHANNEL, MESSAGE] {
            token(mark)?;
        }
        let mut free = vec![0_u32; vocab_size.div_ceil(32)];
        for id in 0..u32::try_from(vocab_size).ok()? {
            free[id as usize / 32] |= 1 << (id % 32);
        }
        let marks = MARKS.iter().filter_map(|mark| token(mark));
        for id in marks.chain(eos.iter().copied()) {
            if let Some(word) = free.get_mut(id as usize / 32) {
                *word &= !(1 << (id % 32));
            }
        }
        let end = token(END)?;
        allow(&mut free, end);
        Some(Self {
            vocab_size,
            end,
            free: free.into(),
            author: encode(&format!("{START}assistant"))?,
            analysis: encode(&format!("{CHANNEL}analysis{MESSAGE}"))?,
            last: encode(&format!("{CHANNEL}final{MESSAGE}"))?,
            channel: encode(CHANNEL)?,
        })
    }

    fn only(&self, token: u32) -> TokenMask {
        let mut mask = vec![0_u32; self.vocab_size.div_ceil(32)];
        allow(&mut mask, token);
        mask.into()
    }
}

fn allow(mask: &mut [u32], token: u32) {
    if let Some(word) = mask.get_mut(token as usize / 32) {
        *word |= 1 << (token % 32);
    }
}

fn allows(mask: &[u32], token: u32) -> bool {
    mask.get(token as usize / 32)
        .is_some_and(|word| word >> (token % 32) & 1 == 1)
}

/// A grammar that is applied to the answer alone.
#[derive(Debug)]
pub struct AfterChannels<G> {
    pub grammar: G,
    pub marks: Arc<ChannelMarks>,
    /// Where the prompt ends.
    pub at: At,
    /// The grammar begins behind the mark of a channel, as that of calls does. Otherwise it
    /// is for the text of the message on `final`.
    pub calls: bool,
}

impl<G: AnswerGrammar> Grammar for AfterChannels<G> {
    fn start(&self) -> Box<dyn Constraint> {
        let mut inner = self.grammar.answer();
        let state = match (self.at, self.calls) {
            (At::Final, false) => return inner,
            // A message in which there is no call has to end first.
            (At::Final, true) | (At::Analysis, _) => State::Message,
            (At::Header, _) => State::Header(0),
        };
        let shortest = inner.shortest();
        Box::new(Channelled {
            inner,
            shortest,
            marks: Arc::clone(&self.marks),
            calls: self.calls,
            state,
            could_be: (true, true),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Inside of a message before the answer.
    Message,
    /// In the author of the next message, of which there are this many tokens.
    Author(usize),
    /// Behind the author; there are this many tokens of the beginning.
    Header(usize),
    Answer,
}

struct Channelled {
    inner: Box<dyn Answer>,
    /// The tokens that are enough for the answer, if the output is to be complete.
    shortest: Option<usize>,
    marks: Arc<ChannelMarks>,
    calls: bool,
    state: State,
    /// In a beginning: whether it may be that of reasoning, and that of the answer.
    could_be: (bool, bool),
}

impl Channelled {
    /// The beginning of the message that the grammar is for.
    fn beginning(&self) -> &[u32] {
        match self.calls {
            true => &self.marks.channel,
            false => &self.marks.last,
        }
    }

    /// The most tokens from the end of reasoning to the end of the shortest answer.
    fn needed(&self) -> Option<usize> {
        let beginning = self.marks.author.len() + self.beginning().len() + 1;
        Some(self.shortest? + beginning + MARGIN)
    }

    /// The tokens that may follow in a beginning; with `reason`, reasoning may begin.
    fn header(&mut self, seen: usize, reason: bool) -> Result<TokenMask, String> {
        let answer = match self.could_be.1 {
            false => None,
            true => match self.beginning().get(seen) {
                Some(token) => Some(self.marks.only(*token)),
                // Only the grammar of calls has tokens here that reasoning has not.
                None => Some(self.inner.mask()?),
            },
        };
        let analysis = self.marks.analysis.get(seen);
        match (answer, analysis.filter(|_| self.could_be.0)) {
            (Some(mask), Some(token)) if reason => {
                let mut mask = mask.to_vec();
                allow(&mut mask, *token);
                Ok(mask.into())
            }
            (Some(mask), _) => Ok(mask),
            (None, Some(token)) => Ok(self.marks.only(*token)),
            (None, None) => Err("no message begins like this".to_owned()),
        }
    }

    fn consume_header(&mut self, seen: usize, token: u32) -> Result<(), String> {
        let as_analysis = self.could_be.0 && self.marks.analysis.get(seen) == Some(&token);
        let as_answer = self.could_be.1
            && match self.beginning().get(seen) {
                Some(expected) => *expected == token,
                None => !as_analysis && allows(&self.inner.mask()?, token),
            };
        if as_answer && self.beginning().len() <= seen {
            self.state = State::Answer;
            return self.inner.consume(token);
        }
        let seen = seen + 1;
        self.could_be = (as_analysis, as_answer);
        self.state = match self.could_be {
            (false, false) => return Err(format!("token {token} begins no message")),
            (true, false) if seen == self.marks.analysis.len() => State::Message,
            (false, true) if seen == self.beginning().len() => State::Answer,
            _ => State::Header(seen),
        };
        Ok(())
    }
}

impl Constraint for Channelled {
    fn mask(&mut self) -> Result<TokenMask, String> {
        match self.state {
            State::Message => Ok(TokenMask::clone(&self.marks.free)),
            State::Author(seen) => Ok(self.marks.only(self.marks.author[seen])),
            State::Header(seen) => self.header(seen, true),
            State::Answer => self.inner.mask(),
        }
    }

    fn mask_within(&mut self, left: usize) -> Result<TokenMask, String> {
        let is_short = self.needed().is_some_and(|needed| left <= needed);
        match self.state {
            State::Answer => self.inner.mask_within(left),
            State::Message if is_short => Ok(self.marks.only(self.marks.end)),
            // Reasoning has a beginning of its own, and needs another one after it.
            State::Header(seen)
                if self
                    .needed()
                    .is_some_and(|needed| left <= needed + self.marks.analysis.len()) =>
            {
                self.header(seen, false)
            }
            _ => self.mask(),
        }
    }

    fn consume(&mut self, token: u32) -> Result<(), String> {
        match self.state {
            State::Message if token == self.marks.end => self.state = State::Author(0),
            State::Message => {}
            State::Author(seen) => {
                if self.marks.author[seen] != token {
                    return Err(format!("token {token} names no author"));
                }
                self.could_be = (true, true);
                self.state = match seen + 1 == self.marks.author.len() {
                    true => State::Header(0),
                    false => State::Author(seen + 1),
                };
            }
            State::Header(seen) => self.consume_header(seen, token)?,
            State::Answer => self.inner.consume(token)?,
        }
        Ok(())
    }

    fn forced(&mut self, limit: usize) -> Vec<u32> {
        match self.state {
            State::Answer => self.inner.forced(limit),
            State::Author(seen) => {
                let left = self.marks.author[seen..].iter().copied();
                left.take(limit).collect()
            }
            _ => Vec::new(),
        }
    }

    fn is_complete(&self) -> bool {
        self.state == State::Answer && self.inner.is_complete()
    }

    fn canceller(&self) -> Box<dyn Fn() + Send> {
        self.inner.canceller()
    }
}

#[cfg(test)]
mod tests;
