//! Compiled grammars.

use std::sync::Arc;

use crate::error::GrammarError;
use crate::fsm::Fsm;
use crate::llg::Template;
use crate::mask::Mask;
use crate::mask_cache::MaskCache;
use crate::matcher::{Matcher, State};
use crate::stats::Counters;
use crate::vocabulary::Vocabulary;

/// The result of compiling a grammar.
pub type Outcome = Result<Arc<Compiled>, GrammarError>;

/// A grammar that requests can follow.
#[derive(Debug)]
pub struct Compiled {
    automaton: Automaton,
    vocabulary: Arc<Vocabulary>,
    /// The mask before the first token.
    first: Mask,
    source_bytes: usize,
    ignored: Vec<String>,
    counters: Arc<Counters>,
}

/// The automaton that runs a grammar.
#[derive(Debug)]
pub(crate) enum Automaton {
    /// Our own machine, with the cache of its masks.
    Fsm(Arc<Fsm>, Arc<MaskCache>),
    Llguidance(Arc<Template>),
}

impl Compiled {
    /// `source_bytes` is the size of the grammar's source.
    pub(crate) fn new(
        automaton: Automaton,
        vocabulary: Arc<Vocabulary>,
        first: Mask,
        source_bytes: usize,
        ignored: Vec<String>,
        counters: Arc<Counters>,
    ) -> Self {
        Self {
            automaton,
            vocabulary,
            first,
            source_bytes,
            ignored,
            counters,
        }
    }

    /// A matcher at the beginning of an output.
    pub fn matcher(&self) -> Matcher {
        let state = match &self.automaton {
            Automaton::Fsm(fsm, masks) => State::Fsm {
                fsm: Arc::clone(fsm),
                state: Fsm::START,
                masks: Arc::clone(masks),
            },
            Automaton::Llguidance(template) => State::Llguidance(Box::new(template.walk())),
        };
        Matcher::new(
            state,
            Arc::clone(&self.vocabulary),
            Mask::clone(&self.first),
            Arc::clone(&self.counters),
        )
    }

    /// The words of the grammar's schemas that have no effect, without repetition: keywords, and
    /// formats as `format:NAME`.
    pub fn ignored(&self) -> &[String] {
        &self.ignored
    }

    /// The memory that the grammar takes in bytes: counted for our own machine, estimated for
    /// llguidance (about 100 KB besides the grammar itself).
    pub(crate) fn bytes(&self) -> usize {
        let automaton = match &self.automaton {
            Automaton::Fsm(fsm, _) => fsm.bytes(),
            Automaton::Llguidance(_) => 128 * 1024 + 16 * self.source_bytes,
        };
        automaton + size_of_val(&*self.first)
    }
}
