//! Outputs that must follow a grammar: what the engine asks of one, and the threads that
//! work it out while the device computes.
//!
//! **Architecture invariant.** The engine thread never walks a grammar, nor makes a state
//! of one. Whoever's grammar is late is left out of a step; nobody else waits for it but
//! for a moment.

mod follow;
mod habits;
mod workers;

use std::fmt;
use std::sync::Arc;

pub(crate) use follow::{Constrained, Grace, Next, Settled};
pub(crate) use habits::Habits;

/// The tokens that may come next, one bit each: bit `t % 32` of word `t / 32`. Tokens
/// beyond its end may not.
pub type Mask = Arc<[u32]>;

/// A grammar, ready to be followed by any number of outputs.
pub trait Grammar: fmt::Debug + Send + Sync {
    /// An output at its beginning.
    fn start(&self) -> Box<dyn Constraint>;
}

/// One output on its way through a grammar.
pub trait Constraint: Send {
    /// The tokens that may come next; those that end an output where it may end.
    ///
    /// # Errors
    /// Why the output cannot go on.
    fn mask(&mut self) -> Result<Mask, String>;

    /// Goes on by `token`.
    ///
    /// # Errors
    /// It is not allowed here.
    fn consume(&mut self, token: u32) -> Result<(), String>;

    /// The tokens that must come next, at most `limit`; they are not consumed.
    fn forced(&mut self, limit: usize) -> Vec<u32>;

    /// Whether the output is whole and only an end can follow.
    fn is_complete(&self) -> bool;

    /// To be called from another thread when what this computes takes too long.
    fn canceller(&self) -> Box<dyn Fn() + Send>;
}

/// What a request asks its output to follow.
#[derive(Clone, Debug)]
pub struct Constrain {
    pub grammar: Arc<dyn Grammar>,
    /// Whether text that the grammar forces is appended without being sampled.
    pub jump_forward: bool,
}

/// Rules out the tokens that `mask` lacks, in `[vocab]` logits.
pub(crate) fn apply(mask: &[u32], logits: &mut [f32]) {
    for (index, chunk) in logits.chunks_mut(32).enumerate() {
        match mask.get(index).copied().unwrap_or(0) {
            u32::MAX => {}
            0 => chunk.fill(f32::NEG_INFINITY),
            word => {
                for (bit, logit) in chunk.iter_mut().enumerate() {
                    if word & (1 << bit) == 0 {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_tokens_of_the_mask_keep_their_logits() {
        let mut logits = vec![1.0; 100];
        apply(&[u32::MAX, 0, 0b101], &mut logits);
        let kept: Vec<usize> = (0..100).filter(|&token| logits[token] == 1.0).collect();
        let expected: Vec<usize> = (0..32).chain([64, 66]).collect();
        assert_eq!(kept, expected);
    }
}
