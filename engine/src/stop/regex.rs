//! Regular expressions that end a text.

use std::fmt;
use std::sync::Arc;

use regex_automata::MatchKind;
use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::nfa::thompson::{self, NFA};
use regex_automata::util::primitives::StateID;
use regex_automata::util::start;
use regex_syntax::hir::Hir;
use thiserror::Error;

/// Bytes that the automaton of a request's patterns may take, and again what it is made with:
/// some ten milliseconds of work, once a request.
const LARGEST: usize = 1 << 20;

/// Why a pattern cannot end a text; to follow "must be".
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StopRegexError {
    #[error("a regular expression ({0})")]
    Syntax(String),
    #[error("without ^, $ and \\b, as text comes in pieces")]
    LooksAround,
    #[error("one that does not match the empty text")]
    MatchesNothing,
    #[error("smaller: compiled, all of them take more than 1 MiB")]
    TooLarge,
}

/// Patterns of which a match ends the text; shared by all that a request generates.
#[derive(Clone)]
pub struct StopRegexes {
    patterns: Vec<String>,
    dfa: Arc<dense::DFA<Vec<u32>>>,
}

impl StopRegexes {
    /// Compiles `patterns`, in the syntax of the crate `regex`.
    ///
    /// # Errors
    /// The index of a pattern that cannot end a text, and why.
    pub fn new(patterns: &[String]) -> Result<Self, (usize, StopRegexError)> {
        let parsed: Vec<Hir> = (0..)
            .zip(patterns)
            .map(|(index, pattern)| parse(pattern).map_err(|error| (index, error)))
            .collect::<Result<_, _>>()?;
        // What is refused now is refused for its size, and the last made it so large.
        let too_large = || (patterns.len().saturating_sub(1), StopRegexError::TooLarge);
        let nfa = NFA::compiler()
            .configure(thompson::Config::new().nfa_size_limit(Some(LARGEST)))
            .build_many_from_hir(&parsed)
            .map_err(|_| too_large())?;
        let config = dense::Config::new()
            .match_kind(MatchKind::All)
            .start_kind(StartKind::Unanchored)
            .accelerate(false)
            .dfa_size_limit(Some(LARGEST))
            .determinize_size_limit(Some(LARGEST));
        let dfa = dense::Builder::new().configure(config).build_from_nfa(&nfa);
        let dfa = dfa.map_err(|_| too_large())?;
        Ok(Self {
            patterns: patterns.to_vec(),
            dfa: Arc::new(dfa),
        })
    }
}

fn parse(pattern: &str) -> Result<Hir, StopRegexError> {
    let hir = regex_syntax::parse(pattern).map_err(|error| {
        // The crate draws an arrow below the pattern; the last line says what is wrong.
        let text = error.to_string();
        let reason = text.lines().last().unwrap_or_default();
        StopRegexError::Syntax(reason.trim_start_matches("error: ").to_owned())
    })?;
    let properties = hir.properties();
    if !properties.look_set().is_empty() {
        return Err(StopRegexError::LooksAround);
    }
    match properties.minimum_len() {
        Some(0) => Err(StopRegexError::MatchesNothing),
        // A class of nothing matches nowhere, and does no harm.
        _ => Ok(hir),
    }
}

impl fmt::Debug for StopRegexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.patterns.fmt(f)
    }
}

impl PartialEq for StopRegexes {
    fn eq(&self, other: &Self) -> bool {
        self.patterns == other.patterns
    }
}

impl Eq for StopRegexes {}

/// Where the search is in one text.
#[derive(Debug)]
pub(super) struct Search {
    regexes: StopRegexes,
    state: StateID,
}

impl Search {
    /// At the beginning of a text.
    pub fn new(regexes: &StopRegexes) -> Self {
        let start = regexes.dfa.start_state(&start::Config::new());
        Self {
            regexes: regexes.clone(),
            state: start.expect("it is made for searches that begin anywhere"),
        }
    }

    /// Takes a byte; gives the first of the patterns of which this completes a match.
    pub fn advance(&mut self, byte: u8) -> Option<&str> {
        let dfa = &self.regexes.dfa;
        self.state = dfa.next_state(self.state, byte);
        // A match shows one byte late, but for the end of the text.
        let end = dfa.next_eoi_state(self.state);
        let matches = match dfa.is_match_state(end) {
            true => dfa.match_len(end),
            false => 0,
        };
        // Its own order is that of where matches began.
        let first = (0..matches).map(|i| dfa.match_pattern(end, i).as_usize());
        first
            .min()
            .map(|pattern| self.regexes.patterns[pattern].as_str())
    }
}
