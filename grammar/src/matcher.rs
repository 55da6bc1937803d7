//! The position of one output within a grammar.

use std::sync::Arc;
use std::time::Instant;

use crate::error::first_words;
use crate::fsm::Fsm;
use crate::jump;
use crate::llg::{self, Walk};
use crate::mask::Mask;
use crate::mask_cache::MaskCache;
use crate::stats::Counters;
use crate::steering::{Steering, completing, search};
use crate::unique::{Rules, Tracker, filtered};
use crate::vocabulary::Vocabulary;

/// Why an output cannot go on. The error concerns this output alone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MatchError {
    #[error("token {0} is not allowed by the grammar here")]
    NotAllowed(u32),
    #[error("the grammar cannot be followed further: {0}")]
    Engine(String),
}

/// Cancels the computation of a [`Matcher`] on another thread, which then returns an error.
#[derive(Clone)]
pub struct Canceller(Option<llguidance::CancellationHandle>);

impl Canceller {
    pub fn cancel(&self) {
        if let Some(handle) = &self.0 {
            handle.cancel();
        }
    }
}

/// Follows a compiled grammar along one output.
pub struct Matcher {
    state: State,
    vocabulary: Arc<Vocabulary>,
    /// The mask before the first token, which was computed with the grammar.
    first: Mask,
    /// The latest token, if there was any.
    last: Option<u32>,
    /// True if the latest token ended the output.
    ended: bool,
    /// Where the output is within its JSON, if items of arrays must differ.
    unique: Option<Tracker>,
    /// How the output is steered to its end, if it is.
    steering: Option<Steering>,
    counters: Arc<Counters>,
}

/// Where the output is in the grammar.
pub(crate) enum State {
    Fsm {
        fsm: Arc<Fsm>,
        state: u32,
        masks: Arc<MaskCache>,
    },
    Llguidance(Box<Walk>),
}

impl std::fmt::Debug for Matcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Matcher")
            .field("last", &self.last)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

impl Matcher {
    /// A matcher at the beginning; `first` is the mask there.
    pub(crate) fn new(
        state: State,
        vocabulary: Arc<Vocabulary>,
        first: Mask,
        counters: Arc<Counters>,
    ) -> Self {
        Self {
            state,
            vocabulary,
            first,
            last: None,
            ended: false,
            unique: None,
            steering: None,
            counters,
        }
    }

    /// The same with items that differ where `rules` say so.
    pub(crate) fn with_unique(self, rules: Arc<Rules>) -> Self {
        Self {
            unique: Some(Tracker::new(rules)),
            ..self
        }
    }

    /// The same, steered to its end. `rise` is the most tokens by which one token makes the
    /// shortest output longer.
    pub(crate) fn completing(self, rise: usize) -> Self {
        Self {
            steering: Some(Steering::new(rise)),
            ..self
        }
    }

    /// As [`Self::mask`], for an output that may have `left` more tokens. If the output is to be
    /// complete before they run out, tokens after which it could not be are left out.
    ///
    /// # Errors
    /// If the parser reaches a limit or is cancelled.
    pub fn mask_within(&mut self, left: usize) -> Result<Mask, MatchError> {
        let mask = self.mask()?;
        let Some(steering) = &mut self.steering else {
            return Ok(mask);
        };
        let vocabulary = &self.vocabulary;
        match &mut self.state {
            State::Fsm { fsm, state, .. } => Ok(fsm.steered(*state, &mask, left, vocabulary)),
            State::Llguidance(walk) => {
                // A way that repeats an item is none.
                let tracker = self.unique.as_ref();
                let differs = |way: &Vec<u32>| {
                    tracker.is_none_or(|tracker| tracker.clone().advance(&vocabulary.bytes_of(way)))
                };
                let steered = steering.next(
                    left,
                    walk,
                    |walk, way| completing(walk, way, vocabulary).filter(differs),
                    |walk, position| search(walk, vocabulary, position).filter(differs),
                );
                Ok(steering.narrowed(&mask, &steered, vocabulary))
            }
        }
    }

    /// The tokens that are enough to complete the output, if it is steered to its end.
    pub fn shortest(&mut self) -> Option<usize> {
        let steering = self.steering.as_mut()?;
        match &mut self.state {
            State::Fsm { fsm, state, .. } => Some(fsm.shortest(*state)),
            State::Llguidance(walk) => {
                steering.length_by(|position| search(walk, &self.vocabulary, position))
            }
        }
    }

    /// The tokens that may come next. The tokens that end an output are among them exactly
    /// where the grammar accepts.
    ///
    /// Where text is forced, the mask has only the token that the tokenizer would make of it,
    /// although [`Self::consume`] takes every token that spells the text. The output is then
    /// the same as if the forced tokens were appended, and the model sees the tokens that it
    /// knows from its training.
    ///
    /// # Errors
    /// If the parser reaches a limit or is cancelled.
    pub fn mask(&mut self) -> Result<Mask, MatchError> {
        let began = Instant::now();
        let mask = self.make_mask();
        self.counters.masked(began.elapsed());
        mask
    }

    fn make_mask(&mut self) -> Result<Mask, MatchError> {
        if matches!(self.state, State::Fsm { .. })
            && let Some(&token) = self.forced_tokens(1).first()
        {
            let mut mask = vec![0; self.vocabulary.mask_words()];
            mask[token as usize / 32] = 1 << (token % 32);
            return Ok(mask.into());
        }
        if self.last.is_none() {
            return Ok(Mask::clone(&self.first));
        }
        match &mut self.state {
            State::Fsm { fsm, state, masks } => Ok(fsm.mask(*state, &self.vocabulary, masks)),
            State::Llguidance(walk) => {
                let mask = llg::mask(walk, &self.vocabulary).map_err(|e| engine_error(&e))?;
                let Some(tracker) = &self.unique else {
                    return Ok(mask);
                };
                let mask = filtered(mask, tracker, walk, &self.vocabulary);
                match mask.iter().all(|&word| word == 0) {
                    true => Err(engine_error("no item is left that the array does not have")),
                    false => Ok(mask),
                }
            }
        }
    }

    /// Advances by `token`.
    ///
    /// # Errors
    /// If the token is not allowed here. The matcher must not be used afterwards.
    pub fn consume(&mut self, token: u32) -> Result<(), MatchError> {
        if self.ended {
            return Err(MatchError::NotAllowed(token));
        }
        let is_end = self.vocabulary.eos().contains(&token);
        match &mut self.state {
            State::Fsm { fsm, state, .. } => {
                let next = if is_end {
                    fsm.is_accepting(*state).then_some(*state)
                } else if self.vocabulary.is_text(token) {
                    fsm.walk(*state, self.vocabulary.trie().token(token))
                } else {
                    None
                };
                *state = next.ok_or(MatchError::NotAllowed(token))?;
            }
            State::Llguidance(walk) => {
                if walk.is_stopped() && !(is_end && walk.stop_reason().is_ok()) {
                    return Err(MatchError::NotAllowed(token));
                }
                if !walk.is_stopped() {
                    walk.consume_token(token)
                        .map_err(|error| engine_error(&error.to_string()))?;
                }
            }
        }
        if let Some(tracker) = &mut self.unique
            && !is_end
            && !tracker.advance(self.vocabulary.trie().token(token))
        {
            return Err(MatchError::NotAllowed(token));
        }
        if let Some(steering) = &mut self.steering {
            steering.advance(token, self.vocabulary.trie().token(token));
        }
        self.last = Some(token);
        self.ended = is_end;
        Ok(())
    }

    /// True if the output is complete, so that only an end can follow.
    pub fn is_complete(&self) -> bool {
        self.ended
            || match &self.state {
                State::Fsm { fsm, state, .. } => fsm.is_accepting(*state) && fsm.is_final(*state),
                State::Llguidance(walk) => walk.is_stopped() && walk.stop_reason().is_ok(),
            }
    }

    /// The tokens that must follow, at most `limit`, as the tokenizer would make them of the
    /// forced text. They are not consumed. Empty where the model has a choice.
    pub fn forced_tokens(&mut self, limit: usize) -> Vec<u32> {
        if limit == 0 || self.is_complete() || !self.vocabulary.can_force() {
            return Vec::new();
        }
        let mut tokens = match &mut self.state {
            State::Fsm { fsm, state, .. } => {
                let (bytes, end) = fsm.forced(*state);
                if bytes.is_empty() {
                    return Vec::new();
                }
                let trie = self.vocabulary.trie();
                jump::tokens(&self.vocabulary, self.last, &bytes, |tokens| {
                    fsm.held_back(end, tokens, trie)
                })
            }
            // llguidance does the same with the states of its own parser.
            State::Llguidance(walk) => walk.compute_ff_tokens(),
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

    /// A handle that cancels what this matcher computes on another thread.
    pub fn canceller(&self) -> Canceller {
        Canceller(match &self.state {
            State::Fsm { .. } => None,
            State::Llguidance(walk) => walk.cancellation_handle(),
        })
    }
}

fn engine_error(text: &str) -> MatchError {
    MatchError::Engine(first_words(text))
}
