//! From what a request asks for to a grammar that can be walked.

use std::fmt::Write;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use llguidance::api::TopLevelGrammar;
use serde_json::{Value, json};

use crate::Mask;
use crate::cache::{GrammarCache, Outcome};
use crate::error::{GrammarError, Problem};
use crate::fsm::{BuildError, Fsm};
use crate::gbnf::{self, Translated};
use crate::lark;
use crate::llg::{Llguidance, Template};
use crate::masks::MaskCache;
use crate::matcher::{Matcher, Way};
use crate::pool::Ticket;
use crate::regex;
use crate::schema;
use crate::stats::{Counters, Stats};
use crate::structural;
use crate::vocabulary::{Vocabulary, VocabularySource};

/// Bytes of a Lark or GBNF grammar.
const MAX_GRAMMAR_BYTES: usize = 128 * 1024;
/// Choices, and bytes of all of them together.
const MAX_CHOICES: usize = 10_000;
const MAX_CHOICE_BYTES: usize = 512 * 1024;
/// How long the place of what is wrong with a schema may be looked for.
const LOCATE_DEADLINE: Duration = Duration::from_millis(500);
/// Memory for compiled grammars, and for masks of our own machines.
const GRAMMAR_CACHE_BYTES: usize = 64 << 20;
const MASK_CACHE_BYTES: usize = 64 << 20;

/// What an output must be.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// A text that the regex (Rust's `regex` dialect) matches as a whole.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    JsonSchema(Value),
    /// Any JSON object.
    JsonObject,
    /// llguidance's dialect of Lark.
    Lark(String),
    /// Lark that refers to JSON Schemas as `schema_0`, `schema_1`, ...; each has a name, for
    /// errors.
    LarkWithSchemas {
        lark: String,
        schemas: Vec<(String, Value)>,
    },
    /// llama.cpp's grammars, which SGLang and xgrammar call EBNF.
    Gbnf(String),
    /// Free text with parts that follow schemas (SGLang, xgrammar), as its JSON.
    StructuralTag(Value),
}

/// How JSON is laid out. Exactly one way each, so that white space can neither run away
/// nor cost choices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Whitespace {
    /// `{"a": 1, "b": 2}`, which models have read most of.
    #[default]
    Natural,
    /// `{"a":1,"b":2}`: fewer tokens, and more of them forced.
    Compact,
}

/// A grammar to be compiled.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    pub source: Source,
    /// Of JSON; the other grammars say it themselves.
    pub whitespace: Whitespace,
}

impl Spec {
    pub fn new(source: Source) -> Self {
        Self {
            source,
            whitespace: Whitespace::default(),
        }
    }

    /// The same for equal grammars, and different for others.
    fn key(&self) -> String {
        let whitespace = self.whitespace;
        match &self.source {
            Source::Regex(text) => format!("regex {text}"),
            Source::Choice(choices) => {
                choices.iter().fold("choice".to_owned(), |mut key, choice| {
                    // Writing to a string does not fail.
                    let _ = write!(key, " {}:{choice}", choice.len());
                    key
                })
            }
            Source::JsonSchema(schema) => format!("schema {whitespace:?} {schema}"),
            Source::JsonObject => format!("object {whitespace:?}"),
            Source::Lark(text) => format!("lark {whitespace:?} {text}"),
            Source::LarkWithSchemas { lark, schemas } => {
                // The names too: a refusal has them.
                let schemas = Value::from_iter(schemas.clone());
                format!("rules {whitespace:?} {} {lark} {schemas}", lark.len())
            }
            Source::Gbnf(text) => format!("gbnf {text}"),
            Source::StructuralTag(tag) => format!("tag {whitespace:?} {tag}"),
        }
    }
}

/// A grammar that requests can follow.
#[derive(Debug)]
pub struct Compiled {
    engine: Engine,
    vocabulary: Arc<Vocabulary>,
    first: Mask,
    source_bytes: usize,
    counters: Arc<Counters>,
}

#[derive(Debug)]
enum Engine {
    Fsm(Arc<Fsm>, Arc<MaskCache>),
    Llguidance(Arc<Template>),
}

impl Compiled {
    /// A matcher at the beginning.
    pub fn matcher(&self) -> Matcher {
        let way = match &self.engine {
            Engine::Fsm(fsm, masks) => Way::Fsm {
                fsm: Arc::clone(fsm),
                states: vec![0],
                masks: Arc::clone(masks),
            },
            Engine::Llguidance(template) => Way::Llguidance(Box::new(template.walk())),
        };
        let first = Some(Mask::clone(&self.first));
        Matcher::new(
            way,
            Arc::clone(&self.vocabulary),
            first,
            Arc::clone(&self.counters),
        )
    }

    /// Whether our own machine runs it.
    pub fn is_fsm(&self) -> bool {
        matches!(self.engine, Engine::Fsm(..))
    }

    /// Memory that it takes: counted for a machine, estimated for llguidance (some 100
    /// KB beside what its grammar needs).
    pub fn bytes(&self) -> usize {
        let engine = match &self.engine {
            Engine::Fsm(fsm, _) => fsm.bytes(),
            Engine::Llguidance(_) => 128 * 1024 + 16 * self.source_bytes,
        };
        engine + size_of_val(&*self.first)
    }
}

/// Compiles grammars for one vocabulary, each once.
pub struct Compiler {
    source: Arc<dyn VocabularySource>,
    eos: Vec<u32>,
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
    /// Reads nothing yet; the first grammar, or [`Self::warm_up`], does.
    pub fn new(source: Arc<dyn VocabularySource>, eos: Vec<u32>) -> Self {
        Self {
            source,
            eos,
            vocabulary: OnceLock::new(),
            llguidance: OnceLock::new(),
            cache: GrammarCache::new(GRAMMAR_CACHE_BYTES),
            masks: Arc::new(MaskCache::new(MASK_CACHE_BYTES)),
            counters: Arc::default(),
        }
    }

    /// Reads the vocabulary: 0.4 s for 100,000 tokens.
    pub fn warm_up(&self) {
        // What is wrong with it, the first grammar says.
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

    /// What `spec` was compiled to before, if it was.
    pub fn cached(&self, spec: &Spec) -> Option<Outcome> {
        let outcome = self.cache.get(&spec.key());
        self.counters.looked_up(outcome.is_some());
        if let Some(Err(refusal)) = &outcome {
            self.counters.refused(refusal.problem);
        }
        outcome
    }

    /// What its grammars have cost and saved so far.
    pub fn stats(&self) -> Stats {
        self.counters.read()
    }

    /// The grammar of `spec`, from the cache or compiled here and now.
    ///
    /// # Errors
    /// Why it is refused; not kept if `ticket` was cancelled.
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
        let (engine, first) = match &spec.source {
            Source::Regex(pattern) => self.regex(pattern, regex::MAX_PATTERN_BYTES, ticket)?,
            Source::Choice(choices) => {
                let pattern = alternation(choices)?;
                self.regex(&pattern, pattern.len(), ticket)?
            }
            Source::JsonSchema(schema) => {
                let schema = schema::prepare(schema, spec.whitespace)?;
                let grammar = TopLevelGrammar::from_json_schema(schema.clone());
                self.by_llguidance(grammar, ticket)
                    .map_err(|error| self.located(error, &schema, ticket))?
            }
            Source::JsonObject => {
                let schema = schema::prepare(&json!({"type": "object"}), spec.whitespace)?;
                self.by_llguidance(TopLevelGrammar::from_json_schema(schema), ticket)?
            }
            Source::Lark(text) => {
                check_grammar_text(text)?;
                let text = lark::prepare(text, spec.whitespace)?;
                self.by_llguidance(TopLevelGrammar::from_lark(text), ticket)?
            }
            Source::StructuralTag(tag) => {
                let lark = structural::to_lark(tag, spec.whitespace)?;
                self.by_llguidance(TopLevelGrammar::from_lark(lark), ticket)?
            }
            Source::LarkWithSchemas { lark, schemas } => {
                let lark = schema::within_lark(lark, schemas, spec.whitespace)?;
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
        Ok(Compiled {
            engine,
            vocabulary: Arc::clone(self.vocabulary()),
            first,
            source_bytes,
            counters: Arc::clone(&self.counters),
        })
    }

    /// Our own machine, or llguidance's where ours would be too large: it makes states
    /// only as it meets them.
    fn regex(
        &self,
        pattern: &str,
        max_bytes: usize,
        ticket: &Ticket,
    ) -> Result<(Engine, Mask), GrammarError> {
        let hir = regex::parse(pattern, max_bytes)?;
        match Fsm::new(&hir) {
            Ok(fsm) => {
                let first = fsm.mask(0, self.vocabulary(), &self.masks);
                if first.iter().all(|&word| word == 0) {
                    return Err(GrammarError::invalid(
                        "no token of the model begins a text that the grammar accepts",
                    ));
                }
                Ok((Engine::Fsm(Arc::new(fsm), Arc::clone(&self.masks)), first))
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

    /// `error` with its place in `schema`, unless finding it would take long.
    fn located(&self, error: GrammarError, schema: &Value, ticket: &Ticket) -> GrammarError {
        let Ok(llguidance) = self.llguidance() else {
            return error;
        };
        if error.pointer.is_some() || error.problem == Problem::TooComplex {
            return error;
        }
        let began = Instant::now();
        let pointer = schema::locate(schema, &error, |part| {
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
    ) -> Result<(Engine, Mask), GrammarError> {
        let (template, first) = self.llguidance()?.compile(grammar, ticket)?;
        Ok((Engine::Llguidance(template), first))
    }
}

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

/// Bounds what the parsers of grammars do not.
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
