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

/// The most bytes that the automaton of a request's patterns may take, and that its construction may
/// take in addition. This bounds the construction to some ten milliseconds, once per request.
const LARGEST: usize = 1 << 20;

/// Why a pattern cannot end a text, worded to follow "must be".
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

/// Patterns, a match of which ends the text. They are shared by all outputs of a request.
#[derive(Clone)]
pub struct StopRegexes {
    patterns: Vec<String>,
    dfa: Arc<dense::DFA<Vec<u32>>>,
}

impl StopRegexes {
    /// Compiles `patterns`, which have the syntax of the crate `regex`.
    ///
    /// # Errors
    /// The index of a pattern that cannot end a text, and the reason.
    pub fn new(patterns: &[String]) -> Result<Self, (usize, StopRegexError)> {
        let parsed: Vec<Hir> = (0..)
            .zip(patterns)
            .map(|(index, pattern)| parse(pattern).map_err(|error| (index, error)))
            .collect::<Result<_, _>>()?;
        // From here on the only reason to refuse is the size, and the last pattern is the one that
        // exceeded it.
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
        // The crate draws an arrow below the pattern; the last line has the reason.
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
        // An empty class never matches, and does no harm.
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

/// The state of the search in one text.
#[derive(Debug)]
pub struct Search {
    regexes: StopRegexes,
    state: StateID,
}

impl Search {
    /// The state at the beginning of a text.
    pub fn new(regexes: &StopRegexes) -> Self {
        let start = regexes.dfa.start_state(&start::Config::new());
        Self {
            regexes: regexes.clone(),
            state: start.expect("the automaton is built for unanchored searches"),
        }
    }

    /// Takes a byte; returns the first of the patterns of which this byte completes a match.
    pub fn advance(&mut self, byte: u8) -> Option<&str> {
        let dfa = &self.regexes.dfa;
        self.state = dfa.next_state(self.state, byte);
        // The automaton reports a match one byte late, except at the end of the text.
        let end = dfa.next_eoi_state(self.state);
        let matches = match dfa.is_match_state(end) {
            true => dfa.match_len(end),
            false => 0,
        };
        // The automaton's own order is that of the beginnings of the matches.
        let first = (0..matches).map(|i| dfa.match_pattern(end, i).as_usize());
        first
            .min()
            .map(|pattern| self.regexes.patterns[pattern].as_str())
    }
}
