//! Compiles the grammars of requests.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use llguidance::api::TopLevelGrammar;
use regex_syntax::hir::Hir;
use serde_json::{Value, json};

use crate::compiled::{Automaton, Compiled, Extent, Outcome};
use crate::error::{GrammarError, Problem};
use crate::fsm::{BuildError, Fsm};
use crate::gbnf::{self, Translated};
use crate::grammar_cache::GrammarCache;
use crate::language;
use crate::lark;
use crate::llg::Llguidance;
use crate::mask::Mask;
use crate::mask_cache::MaskCache;
use crate::regex;
use crate::schema::{self, Preparing};
use crate::spec::{Source, Spec, Strictness};
use crate::stats::{Counters, Stats};
use crate::structural;
use crate::ticket::Ticket;
use crate::vocabulary::{Vocabulary, VocabularySource};

/// The most bytes of a Lark or GBNF grammar.
const MAX_GRAMMAR_BYTES: usize = 128 * 1024;
/// The most choices, and the most bytes of all choices together.
const MAX_CHOICES: usize = 10_000;
const MAX_CHOICE_BYTES: usize = 512 * 1024;
/// The time that may be spent to find the place of an error in a schema.
const LOCATE_DEADLINE: Duration = Duration::from_millis(500);
/// The memory for compiled grammars, and the memory for masks of our own machines.
const GRAMMAR_CACHE_BYTES: usize = 64 << 20;
const MASK_CACHE_BYTES: usize = 64 << 20;

/// Compiles grammars for one vocabulary, and caches them.
pub struct Compiler {
    source: Arc<dyn VocabularySource>,
    eos: Vec<u32>,
    strictness: Strictness,
    vocabulary: OnceLock<Arc<Vocabulary>>,
    llguidance: OnceLock<Result<Llguidance, GrammarError>>,
    cache: GrammarCache,
    masks: Arc<MaskCache>,
    counters: Arc<Counters>,
}

impl std::fmt::Debug for Compiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiler").finish_non_exhaustive()
    }
}

impl Compiler {
    /// A compiler for the tokens of `source`, of which `eos` end an output. The vocabulary is
    /// read by the first grammar, or by [`Self::warm_up`].
    pub fn new(source: Arc<dyn VocabularySource>, eos: Vec<u32>) -> Self {
        Self {
            source,
            eos,
            strictness: Strictness::default(),
            vocabulary: OnceLock::new(),
            llguidance: OnceLock::new(),
            cache: GrammarCache::new(GRAMMAR_CACHE_BYTES),
            masks: Arc::new(MaskCache::new(MASK_CACHE_BYTES)),
            counters: Arc::default(),
        }
    }

    /// The same with other rules for the words of schemas.
    #[must_use]
    pub fn with_strictness(self, strictness: Strictness) -> Self {
        Self { strictness, ..self }
    }

    /// Reads the vocabulary, which takes 0.4 s for 100,000 tokens.
    pub fn warm_up(&self) {
        // The first grammar reports an error.
        let _ = self.llguidance();
    }

    fn vocabulary(&self) -> &Arc<Vocabulary> {
        self.vocabulary
            .get_or_init(|| Arc::new(Vocabulary::new(Arc::clone(&self.source), &self.eos)))
    }

    fn llguidance(&self) -> Result<&Llguidance, GrammarError> {
        self.llguidance
            .get_or_init(|| Llguidance::new(Arc::clone(self.vocabulary())))
            .as_ref()
            .map_err(Clone::clone)
    }

    /// The cached outcome of `spec`, if it was compiled before.
    pub fn cached(&self, spec: &Spec) -> Option<Outcome> {
        let outcome = self.cache.get(&spec.key());
        self.counters.looked_up(outcome.is_some());
        if let Some(Err(refusal)) = &outcome {
            self.counters.refused(refusal.problem);
        }
        outcome
    }

    /// The totals of all grammars since the start.
    pub fn stats(&self) -> Stats {
        self.counters.read()
    }

    /// The grammar of `spec`, from the cache, or compiled on this thread. The outcome is cached
    /// unless `ticket` was cancelled.
    ///
    /// # Errors
    /// If the grammar is refused.
    pub fn compile(&self, spec: &Spec, ticket: &Ticket) -> Outcome {
        let key = spec.key();
        if let Some(outcome) = self.cache.get(&key) {
            return outcome;
        }
        let began = Instant::now();
        let outcome = self.compile_anew(spec, key.len(), ticket).map(Arc::new);
        self.counters.compiled(began.elapsed());
        if let Err(refusal) = &outcome {
            self.counters.refused(refusal.problem);
        }
        if !ticket.is_cancelled() {
            self.cache.insert(key, outcome.clone());
        }
        outcome
    }

    fn compile_anew(
        &self,
        spec: &Spec,
        source_bytes: usize,
        ticket: &Ticket,
    ) -> Result<Compiled, GrammarError> {
        let mut preparing = Preparing::new(spec.whitespace, self.strictness);
        let (automaton, first) = match &spec.source {
            Source::Regex(pattern) => self.regex(pattern, regex::MAX_PATTERN_BYTES, ticket)?,
            Source::Choice(choices) => {
                let pattern = alternation(choices)?;
                self.regex(&pattern, pattern.len(), ticket)?
            }
            Source::JsonSchema(schema) => {
                preparing = preparing.with_unique();
                let prepared = preparing.schema(schema)?;
                let grammar = TopLevelGrammar::from_json_schema(prepared);
                self.by_llguidance(grammar, ticket)
                    .map_err(|error| self.located(error, spec, schema, ticket))?
            }
            Source::JsonObject => {
                let schema = preparing.schema(&json!({"type": "object"}))?;
                self.by_llguidance(TopLevelGrammar::from_json_schema(schema), ticket)?
            }
            Source::Lark(text) => {
                check_grammar_text(text)?;
                let text = lark::prepare(text, &mut preparing)?;
                self.by_llguidance(TopLevelGrammar::from_lark(text), ticket)?
            }
            Source::StructuralTag(tag) => {
                let lark = structural::to_lark(tag, &mut preparing)?;
                self.by_llguidance(TopLevelGrammar::from_lark(lark), ticket)?
            }
            Source::LarkWithSchemas { lark, schemas } => {
                let lark = preparing.within_lark(lark, schemas)?;
                self.by_llguidance(TopLevelGrammar::from_lark(lark), ticket)?
            }
            Source::Gbnf(text) => {
                check_grammar_text(text)?;
                match gbnf::translate(text)? {
                    Translated::Regex(pattern) => self.regex(&pattern, usize::MAX, ticket)?,
                    Translated::Lark(lark) => {
                        self.by_llguidance(TopLevelGrammar::from_lark(lark), ticket)?
                    }
                }
            }
        };
        let extent = Extent {
            source_bytes,
            rise: preparing.rise(),
        };
        let unique = preparing.take_unique().map(Arc::new);
        let ignored = preparing.ignored();
        if !ignored.is_empty() {
            tracing::info!(
                ignored = ignored.join(", "),
                "words of a schema have no effect"
            );
        }
        Ok(Compiled::new(
            automaton,
            Arc::clone(self.vocabulary()),
            first,
            extent,
            unique,
            ignored,
            Arc::clone(&self.counters),
        ))
    }

    /// Compiles a regex to our own machine, or with llguidance where our machine would be too
    /// large: llguidance creates states only when an output reaches them.
    fn regex(
        &self,
        pattern: &str,
        max_bytes: usize,
        ticket: &Ticket,
    ) -> Result<(Automaton, Mask), GrammarError> {
        let hir = match regex::parse(pattern, max_bytes) {
            Ok(hir) => hir,
            Err(refusal) => in_other_spelling(pattern, refusal)?,
        };
        match Fsm::new(&hir, ticket) {
            Ok(fsm) => {
                let first = fsm.mask(Fsm::START, self.vocabulary(), &self.masks);
                if first.iter().all(|&word| word == 0) {
                    return Err(GrammarError::invalid(
                        "no token of the model begins a text that the grammar accepts",
                    ));
                }
                let automaton = Automaton::Fsm(Arc::new(fsm), Arc::clone(&self.masks));
                Ok((automaton, first))
            }
            Err(BuildError::Refused(error)) => Err(error),
            Err(BuildError::TooLarge) => {
                tracing::debug!("a regex is too large for our own machine");
                self.counters.fell_back();
                let pattern = regex::without_anchors(&hir).ok_or_else(|| {
                    GrammarError::unsupported(
                        "anchors and word boundaries within a regex as large as this are not \
                         supported",
                    )
                })?;
                self.by_llguidance(TopLevelGrammar::from_regex(&pattern), ticket)
            }
        }
    }

    /// Adds the place in `schema`, which `spec` has, to `error`, unless finding it takes too long.
    fn located(
        &self,
        error: GrammarError,
        spec: &Spec,
        schema: &Value,
        ticket: &Ticket,
    ) -> GrammarError {
        let Ok(llguidance) = self.llguidance() else {
            return error;
        };
        if error.pointer.is_some() || error.problem == Problem::TooComplex {
            return error;
        }
        // Errors are rare, and a copy of each schema for them would take time.
        let mut preparing = Preparing::new(spec.whitespace, self.strictness).with_unique();
        let Ok(schema) = preparing.schema(schema) else {
            return error;
        };
        let began = Instant::now();
        let pointer = schema::located(&schema, &error, |part| {
            let in_time = began.elapsed() < LOCATE_DEADLINE && !ticket.is_cancelled();
            let grammar = TopLevelGrammar::from_json_schema(part);
            in_time.then(|| llguidance.refusal(grammar)).flatten()
        });
        error.at(pointer)
    }

    fn by_llguidance(
        &self,
        grammar: TopLevelGrammar,
        ticket: &Ticket,
    ) -> Result<(Automaton, Mask), GrammarError> {
        let (template, first) = self.llguidance()?.compile(grammar, ticket)?;
        Ok((Automaton::Llguidance(template), first))
    }
}

/// A regex that Rust's `regex` crate refuses, and that has a meaning in ECMA-262 or in Python's `re`:
/// look-ahead, other escapes, anchors within it.
fn in_other_spelling(pattern: &str, refusal: GrammarError) -> Result<Hir, GrammarError> {
    if refusal.problem == Problem::TooComplex {
        return Err(refusal);
    }
    match language::whole(pattern) {
        Ok(Some(plain)) => regex::parse(&plain, usize::MAX),
        Ok(None) => Err(GrammarError::unsatisfiable()),
        // Without a meaning in any dialect, Rust's words say best what is wrong.
        Err(other) if other.problem == Problem::Invalid => Err(refusal),
        Err(other) => Err(other),
    }
}

/// A regex that matches each of `choices`.
fn alternation(choices: &[String]) -> Result<String, GrammarError> {
    let bytes: usize = choices.iter().map(String::len).sum();
    if choices.is_empty() {
        return Err(GrammarError::invalid(
            "there must be at least 1 choice, got 0",
        ));
    }
    if choices.len() > MAX_CHOICES {
        return Err(GrammarError::too_complex(format!(
            "there must be at most {MAX_CHOICES} choices, got {}",
            choices.len()
        )));
    }
    if bytes > MAX_CHOICE_BYTES {
        return Err(GrammarError::too_complex(format!(
            "choices must be at most {MAX_CHOICE_BYTES} bytes together, got {bytes}"
        )));
    }
    let escaped: Vec<String> = choices
        .iter()
        .map(|choice| regex_syntax::escape(choice))
        .collect();
    Ok(escaped.join("|"))
}

/// Checks bounds that the parsers of grammars do not check.
fn check_grammar_text(text: &str) -> Result<(), GrammarError> {
    if text.len() > MAX_GRAMMAR_BYTES {
        return Err(GrammarError::too_complex(format!(
            "a grammar must be at most {MAX_GRAMMAR_BYTES} bytes long, got {}",
            text.len()
        )));
    }
    if text.trim().is_empty() {
        return Err(GrammarError::invalid("the grammar is empty"));
    }
    if text.contains('\0') {
        return Err(GrammarError::invalid(
            "the grammar must not have NUL characters",
        ));
    }
    Ok(())
}
