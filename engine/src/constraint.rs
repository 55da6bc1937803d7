//! Outputs that must match a grammar: what the engine needs of a grammar, and the threads
//! that evaluate it while the device computes.
//!
//! **Architecture Invariant.** The engine thread never walks a grammar and never creates the
//! state of one. A request whose grammar is late is left out of a step; other requests are
//! never delayed by it for more than a moment.

mod answers;
mod forced_text;
mod grammar;
mod request_grammar;
mod wait_budget;
mod workers;

pub(crate) use answers::{PANICKED, Progress};
pub(crate) use forced_text::ForcedTextPredictor;
pub use grammar::{Constrain, Constraint, Grammar};
pub(crate) use request_grammar::{NextTokens, RequestGrammar};
pub(crate) use wait_budget::WaitBudget;
