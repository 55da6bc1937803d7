//! Sets of allowed tokens.

use std::sync::Arc;

/// A set of tokens, one bit each: bit `t % 32` of word `t / 32` is token `t`.
pub type Mask = Arc<[u32]>;
