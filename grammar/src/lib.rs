//! Constrained decoding: which tokens may come next, and which tokens must.
//!
//! A [`Spec`] is compiled once into a [`Compiled`] grammar, which all requests with the same
//! grammar share. Each request follows the grammar with a [`Matcher`] of its own. Regular
//! languages (`regex`, `choice`, grammars without recursion) run on our own compressed
//! finite-state machine (`fsm`; SGLang, arXiv:2312.07104, section 4); JSON Schema and
//! context-free grammars run on llguidance (`llg`).
//!
//! ```text
//! CompilePool ─Spec─▶ Compiler ─▶ schema, lark, gbnf, structural, regex   (checks, translation)
//!                        │
//!                        ▼
//!                     Compiled ─▶ Matcher ─▶ fsm or llg                     (masks, forced tokens)
//!                                    └─▶ unique, steering                   (masks with fewer tokens)
//! ```
//!
//! **Architecture Invariant.** No tensor, no HTTP, no scheduling: bytes and token ids.

mod compiled;
mod compiler;
mod error;
mod estimate;
mod fsm;
mod gbnf;
mod grammar_cache;
mod json_text;
mod jump;
mod language;
mod lark;
mod llg;
mod mask;
mod mask_cache;
mod matcher;
mod pool;
mod regex;
mod schema;
mod spec;
mod stats;
mod steering;
mod structural;
mod ticket;
mod unique;
mod vocabulary;

pub use compiled::{Compiled, Outcome};
pub use compiler::Compiler;
pub use error::{GrammarError, Problem};
pub use mask::Mask;
pub use matcher::{Canceller, MatchError, Matcher};
pub use pool::{CompilePool, PoolFull};
pub use spec::{Source, Spec, Strictness, Whitespace};
pub use stats::Stats;
pub use ticket::Ticket;
pub use vocabulary::{Vocabulary, VocabularySource};
