//! The vocabulary of the simulated model.

/// Token ids of prompts and outputs are below this.
pub const VOCAB: usize = 1024;
