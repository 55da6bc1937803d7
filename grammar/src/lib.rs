//! Constrained decoding: which tokens may come next, and which must.
//!
//! A [`Spec`] is compiled once into a [`Compiled`] grammar, which every request of the
//! same grammar shares; each request walks it with a [`Matcher`] of its own. Regular
//! languages (`regex`, `choice`, grammars without recursion) run on our own compressed
//! finite-state machine ([`fsm`]; SGLang, arXiv:2312.07104, section 4); JSON Schema and
//! context-free grammars run on llguidance ([`llg`]).
//!
//! **Architecture invariant.** No tensor, no HTTP, no scheduling: bytes and token ids.
pub mod cache;
mod compile;
mod error;
mod fsm;
mod gbnf;
mod jump;
mod lark;
mod llg;
mod masks;
mod matcher;
mod pool;
mod regex;
mod schema;
mod stats;
mod structural;
mod vocabulary;

pub use compile::{Compiled, Compiler, Source, Spec, Whitespace};
pub use error::{GrammarError, Problem};
pub use matcher::{Canceller, MatchError, Matcher};
pub use pool::{CompilePool, PoolFull, Ticket};
pub use stats::Stats;
pub use vocabulary::{Vocabulary, VocabularySource};

/// A set of tokens, one bit each: bit `t % 32` of word `t / 32` is token `t`.
pub type Mask = std::sync::Arc<[u32]>;
