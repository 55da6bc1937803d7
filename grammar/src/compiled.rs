//! Compiled grammars.

use std::sync::Arc;

use crate::error::GrammarError;
use crate::fsm::Fsm;
use crate::llg::Template;
use crate::mask::Mask;
use crate::mask_cache::MaskCache;
use crate::matcher::{Matcher, State};
use crate::stats::Counters;
use crate::unique::Rules;
use crate::vocabulary::Vocabulary;

/// The values that one token may begin within each other.
const RISES: usize = 3;
/// The tokens by which a token may make an output longer without a schema.
const RISE: usize = 16;

/// The result of compiling a grammar.
pub type Outcome = Result<Arc<Compiled>, GrammarError>;

/// A grammar that requests can follow.
#[derive(Debug)]
pub struct Compiled {
    automaton: Automaton,
    vocabulary: Arc<Vocabulary>,
    /// The mask before the first token.
    first: Mask,
    extent: Extent,
    /// The arrays whose items must differ, which the automaton does not say.
    unique: Option<Arc<Rules>>,
    ignored: Vec<String>,
    counters: Arc<Counters>,
}

/// The sizes of a grammar.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    /// The bytes of its source.
    pub source_bytes: usize,
    /// The most bytes by which a token makes the shortest output longer.
    pub rise: usize,
}

/// The automaton that runs a grammar.
#[derive(Debug)]
pub(crate) enum Automaton {
    /// Our own machine, with the cache of its masks.
    Fsm(Arc<Fsm>, Arc<MaskCache>),
    Llguidance(Arc<Template>),
}

impl Compiled {
    pub(crate) fn new(
        automaton: Automaton,
        vocabulary: Arc<Vocabulary>,
        first: Mask,
        extent: Extent,
        unique: Option<Arc<Rules>>,
        ignored: Vec<String>,
        counters: Arc<Counters>,
    ) -> Self {
        Self {
            automaton,
            vocabulary,
            first,
            extent,
            unique,
            ignored,
            counters,
        }
    }

    /// A matcher at the beginning of an output that is steered to its end before its tokens run out:
    /// see [`Matcher::mask_within`].
    pub fn completing_matcher(&self) -> Matcher {
        let rise = RISES * self.vocabulary.tokens_of_json(self.extent.rise) + RISE;
        self.matcher().completing(rise)
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
        let matcher = Matcher::new(
            state,
            Arc::clone(&self.vocabulary),
            Mask::clone(&self.first),
            Arc::clone(&self.counters),
        );
        match &self.unique {
            Some(rules) => matcher.with_unique(Arc::clone(rules)),
            None => matcher,
        }
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
            Automaton::Llguidance(_) => 128 * 1024 + 16 * self.extent.source_bytes,
        };
        automaton + size_of_val(&*self.first)
    }
}
