//! The traits through which the engine uses a grammar.

use std::fmt;
use std::sync::Arc;

use hearth_forward::TokenMask;

/// A grammar that any number of outputs can be constrained by.
pub trait Grammar: fmt::Debug + Send + Sync {
    /// The state of an output without any tokens.
    fn start(&self) -> Box<dyn Constraint>;
}

/// The state of one output in its grammar.
pub trait Constraint: Send {
    /// The tokens that may come next, including end-of-sequence tokens where the output may
    /// end.
    ///
    /// # Errors
    /// Why the output cannot continue.
    fn mask(&mut self) -> Result<TokenMask, String>;

    /// As [`Self::mask`], for an output that may have `left` more tokens.
    ///
    /// # Errors
    /// Why the output cannot continue.
    fn mask_within(&mut self, left: usize) -> Result<TokenMask, String> {
        let _ = left;
        self.mask()
    }

    /// Appends `token` to the output.
    ///
    /// # Errors
    /// The token is not allowed here.
    fn consume(&mut self, token: u32) -> Result<(), String>;

    /// The tokens that must come next, at most `limit`. They are not consumed.
    fn forced(&mut self, limit: usize) -> Vec<u32>;

    /// Whether the output is complete, so that only an end-of-sequence token can follow.
    fn is_complete(&self) -> bool;

    /// A function that another thread calls to stop a computation that takes too long.
    fn canceller(&self) -> Box<dyn Fn() + Send>;
}

/// The constraint of one request.
#[derive(Clone, Debug)]
pub struct Constrain {
    /// The grammar that the output must match.
    pub grammar: Arc<dyn Grammar>,
    /// Whether text that the grammar forces is appended without being sampled.
    pub jump_forward: bool,
}
