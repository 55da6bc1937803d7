//! One output on its way through a grammar.

use std::sync::Arc;
use std::time::Instant;

use crate::Mask;
use crate::error::first_words;
use crate::fsm::Fsm;
use crate::jump;
use crate::llg::Walk;
use crate::masks::MaskCache;
use crate::stats::Counters;
use crate::vocabulary::Vocabulary;

/// Why an output cannot go on; it concerns this output alone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MatchError {
    #[error("token {0} is not allowed by the grammar here")]
    NotAllowed(u32),
    #[error("there are only {given} tokens to take back, not {asked}")]
    NothingToTakeBack { asked: usize, given: usize },
    #[error("the grammar cannot be followed further: {0}")]
    Engine(String),
}

/// Ends what a [`Matcher`] computes on another thread, which then fails.
#[derive(Clone)]
pub struct Canceller(Option<llguidance::CancellationHandle>);

impl Canceller {
    pub fn cancel(&self) {
        if let Some(handle) = &self.0 {
            handle.cancel();
        }
    }
}

/// The way of one output through a compiled grammar.
pub struct Matcher {
    way: Way,
    vocabulary: Arc<Vocabulary>,
    /// The mask of the very beginning, computed with the grammar.
    first: Option<Mask>,
    /// Tokens so far, ends included.
    tokens: Vec<u32>,
    /// Whether an end was among them.
    ended: bool,
    counters: Arc<Counters>,
}

pub(crate) enum Way {
    Fsm {
        fsm: Arc<Fsm>,
        /// Before each token, and now.
        states: Vec<u32>,
        masks: Arc<MaskCache>,
    },
    Llguidance(Box<Walk>),
}

impl std::fmt::Debug for Matcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Matcher")
            .field("tokens", &self.tokens.len())
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

impl Matcher {
    pub(crate) fn new(
        way: Way,
        vocabulary: Arc<Vocabulary>,
        first: Option<Mask>,
        counters: Arc<Counters>,
    ) -> Self {
        Self {
            way,
            vocabulary,
            first,
            tokens: Vec::new(),
            ended: false,
            counters,
        }
    }

    /// The tokens that may come next; those that end an output exactly where the grammar
    /// accepts. Where text is forced it is the tokenizer's next token alone, though
    /// [`Self::consume`] takes any other that spells it: the output is then the same as with
    /// the forced tokens appended, and one that the model has seen the like of.
    ///
    /// # Errors
    /// A limit of the parser, or a cancellation.
    pub fn mask(&mut self) -> Result<Mask, MatchError> {
        let began = Instant::now();
        let mask = self.make_mask();
        self.counters.masked(began.elapsed());
        mask
    }

    fn make_mask(&mut self) -> Result<Mask, MatchError> {
        if matches!(self.way, Way::Fsm { .. })
            && let Some(&token) = self.forced_tokens(1).first()
        {
            let mut mask = vec![0; self.vocabulary.mask_words()];
            mask[token as usize / 32] = 1 << (token % 32);
            return Ok(mask.into());
        }
        if self.tokens.is_empty()
            && let Some(first) = &self.first
        {
            return Ok(Mask::clone(first));
        }
        match &mut self.way {
            Way::Fsm { fsm, states, masks } => {
                Ok(fsm.mask(current(states), &self.vocabulary, masks))
            }
            Way::Llguidance(matcher) => {
                crate::llg::mask(matcher, &self.vocabulary).map_err(|error| engine(&error))
            }
        }
    }

    /// Goes on by `token`.
    ///
    /// # Errors
    /// It is not allowed here. The matcher is of no use any more.
    pub fn consume(&mut self, token: u32) -> Result<(), MatchError> {
        if self.ended {
            return Err(MatchError::NotAllowed(token));
        }
        let is_end = self.vocabulary.eos().contains(&token);
        match &mut self.way {
            Way::Fsm { fsm, states, .. } => {
                let state = current(states);
                let next = if is_end {
                    fsm.is_accepting(state).then_some(state)
                } else if self.vocabulary.is_text(token) {
                    fsm.walk(state, self.vocabulary.trie().token(token))
                } else {
                    None
                };
                states.push(next.ok_or(MatchError::NotAllowed(token))?);
            }
            Way::Llguidance(matcher) => {
                if matcher.is_stopped() && !(is_end && matcher.stop_reason().is_ok()) {
                    return Err(MatchError::NotAllowed(token));
                }
                if !matcher.is_stopped() {
                    matcher
                        .consume_token(token)
                        .map_err(|error| engine(&error.to_string()))?;
                }
            }
        }
        self.tokens.push(token);
        self.ended = is_end;
        Ok(())
    }

    /// Takes the last `count` tokens back.
    ///
    /// # Errors
    /// There are not so many.
    pub fn rollback(&mut self, count: usize) -> Result<(), MatchError> {
        let given = self.tokens.len();
        let Some(left) = given.checked_sub(count) else {
            return Err(MatchError::NothingToTakeBack {
                asked: count,
                given,
            });
        };
        match &mut self.way {
            Way::Fsm { states, .. } => states.truncate(left + 1),
            Way::Llguidance(matcher) => {
                matcher
                    .rollback(count)
                    .map_err(|error| engine(&error.to_string()))?;
            }
        }
        self.tokens.truncate(left);
        self.ended = false;
        Ok(())
    }

    /// Whether the output may end here.
    pub fn is_accepting(&mut self) -> bool {
        match &mut self.way {
            Way::Fsm { fsm, states, .. } => fsm.is_accepting(current(states)),
            Way::Llguidance(matcher) => {
                (matcher.is_stopped() && matcher.stop_reason().is_ok())
                    || matcher.is_accepting().unwrap_or(false)
            }
        }
    }

    /// Whether the output is whole and nothing but an end can follow.
    pub fn is_complete(&self) -> bool {
        self.ended
            || match &self.way {
                Way::Fsm { fsm, states, .. } => {
                    let state = current(states);
                    fsm.is_accepting(state) && fsm.is_final(state)
                }
                Way::Llguidance(matcher) => matcher.is_stopped() && matcher.stop_reason().is_ok(),
            }
    }

    /// The bytes that must follow, up to a choice or a possible end.
    pub fn forced_bytes(&mut self) -> Vec<u8> {
        match &mut self.way {
            Way::Fsm { fsm, states, .. } => fsm.forced(current(states)).0,
            Way::Llguidance(matcher) => matcher.compute_ff_bytes(),
        }
    }

    /// The tokens that must follow, as the tokenizer itself would make them of the text;
    /// at most `limit`. They are not consumed. Empty where there is a choice.
    pub fn forced_tokens(&mut self, limit: usize) -> Vec<u32> {
        if limit == 0 || self.is_complete() || !self.vocabulary.can_force() {
            return Vec::new();
        }
        let mut tokens = match &mut self.way {
            Way::Fsm { fsm, states, .. } => {
                let (bytes, end) = fsm.forced(current(states));
                if bytes.is_empty() {
                    return Vec::new();
                }
                let trie = self.vocabulary.trie();
                jump::tokens(&self.vocabulary, self.tokens.last().copied(), &bytes, |t| {
                    fsm.held_back(end, t, trie)
                })
            }
            // The same by its own means: it sees its parser's states.
            Way::Llguidance(matcher) => matcher.compute_ff_tokens(),
        };
        tokens.truncate(limit);
        tokens
    }

    /// Counts `tokens` as appended without being sampled.
    pub fn count_forced(&self, tokens: &[u32]) {
        if !tokens.is_empty() {
            let bytes = tokens
                .iter()
                .map(|&t| self.vocabulary.trie().token(t).len());
            self.counters.forced(tokens.len(), bytes.sum());
        }
    }

    /// To end what this matcher computes elsewhere.
    pub fn canceller(&self) -> Canceller {
        Canceller(match &self.way {
            Way::Fsm { .. } => None,
            Way::Llguidance(matcher) => matcher.cancellation_handle(),
        })
    }
}

fn current(states: &[u32]) -> u32 {
    *states.last().expect("there is a state before any token")
}

fn engine(text: &str) -> MatchError {
    MatchError::Engine(first_words(text))
}
