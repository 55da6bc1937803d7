//! What can be said of a request's tokens before the one that is being chosen is known.

use super::ActiveRequest;
use crate::executor::Choice;

/// What comes after the token that the device chooses.
#[derive(Debug)]
pub(crate) enum Ahead {
    /// Another one, which is chosen so; unless that token ends the request.
    Choice(Choice),
    /// Nothing: it is the last.
    Nothing,
    /// It depends on that token.
    Unknown,
}

impl ActiveRequest {
    /// What is chosen after the token that the device is choosing.
    pub fn ahead(&self) -> Ahead {
        if self.outcome.is_some() || self.remaining() == 1 {
            return Ahead::Nothing;
        }
        match &self.sampler {
            Some(sampler) if self.constrained.is_none() && !sampler.looks_back() => {
                let choice = sampler.choice(self.output_len() + 1, None);
                Ahead::Choice(Choice::Token(choice))
            }
            _ => Ahead::Unknown,
        }
    }
}
