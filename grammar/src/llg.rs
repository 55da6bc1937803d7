//! JSON Schema and context-free grammars, run by llguidance.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use llguidance::api::TopLevelGrammar;
use llguidance::{Matcher, ParserFactory, TokenParser};
use toktrie::TokEnv;

use crate::error::{GrammarError, Problem};
use crate::mask::Mask;
use crate::ticket::Ticket;
use crate::vocabulary::Vocabulary;

/// A lexer that has created more states than this is not used again. Its limit is a quarter of
/// a million states, and an output must not fail because of the states of earlier outputs.
const MAX_WARM_STATES: usize = 16_384;
/// The memory of the lexers that are kept for later outputs, of all grammars together.
const MAX_WARM_BYTES: usize = 32 << 20;

/// A compiled grammar, from which the parsers of outputs are copied.
pub(crate) struct Template {
    /// A parser at the beginning, with a lexer that has no states yet. It is cloned for each
    /// output.
    parser: TokenParser,
    /// Parsers at the beginning, with the lexers of outputs that have ended, and their sizes in
    /// bytes. A lexer keeps the states that it has computed, which is most of the work on a
    /// text; and creating a new lexer takes longer than computing a mask.
    warm: Mutex<Vec<(TokenParser, usize)>>,
    /// The bytes of the warm parsers of all grammars of the vocabulary.
    warm_bytes: Arc<AtomicUsize>,
}

impl std::fmt::Debug for Template {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Template").finish_non_exhaustive()
    }
}

impl Template {
    fn new(parser: TokenParser, warm_bytes: Arc<AtomicUsize>) -> Self {
        Self {
            parser,
            warm: Mutex::default(),
            warm_bytes,
        }
    }

    /// A parser for a new output, with a lexer that no other output uses at the same time.
    pub fn walk(self: &Arc<Self>) -> Walk {
        let mut warm = self.warm.lock().unwrap_or_else(PoisonError::into_inner);
        let spare = warm.pop();
        drop(warm);
        let parser = match spare {
            Some((parser, bytes)) => {
                self.warm_bytes.fetch_sub(bytes, Ordering::Relaxed);
                parser
            }
            // A plain clone would share the lexer, and wait for its mutex.
            None => self.parser.deep_clone(),
        };
        Walk::new(Arc::clone(self), parser)
    }

    /// Keeps a lexer for a later output, unless it failed or is too large.
    fn keep(&self, parser: TokenParser) {
        let stats = parser.parser.lexer_stats();
        if stats.error || stats.num_states > MAX_WARM_STATES {
            return;
        }
        let bytes = stats.num_bytes;
        let all = self.warm_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if all > MAX_WARM_BYTES {
            self.warm_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return;
        }
        let mut warm = self.warm.lock().unwrap_or_else(PoisonError::into_inner);
        warm.push((parser, bytes));
    }
}

impl Drop for Template {
    fn drop(&mut self) {
        let warm = self.warm.get_mut().unwrap_or_else(PoisonError::into_inner);
        let bytes = warm.iter().map(|(_, bytes)| bytes).sum();
        self.warm_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// The parser of one output.
pub(crate) struct Walk {
    matcher: Matcher,
    /// A parser at the beginning that shares the matcher's lexer.
    parser: Option<TokenParser>,
    template: Arc<Template>,
}

impl Walk {
    fn new(template: Arc<Template>, parser: TokenParser) -> Self {
        let matcher = Matcher::new(Ok(parser.clone())).into_cancellable();
        Self {
            matcher,
            parser: Some(parser),
            template,
        }
    }
}

impl Deref for Walk {
    type Target = Matcher;

    fn deref(&self) -> &Matcher {
        &self.matcher
    }
}

impl DerefMut for Walk {
    fn deref_mut(&mut self) -> &mut Matcher {
        &mut self.matcher
    }
}

impl Drop for Walk {
    /// Gives the lexer back to the template, unless the matcher failed or was cancelled: its
    /// lexer may be in an inconsistent state.
    fn drop(&mut self) {
        let sound = !self.matcher.is_error() && !self.matcher.is_cancelled();
        if let Some(parser) = self.parser.take_if(|_| sound) {
            self.template.keep(parser);
        }
    }
}

/// The data that all grammars of one vocabulary share. It takes 0.2 s and 30 MB for 100,000
/// tokens.
pub(crate) struct Llguidance {
    factory: ParserFactory,
    vocabulary: Arc<Vocabulary>,
    warm_bytes: Arc<AtomicUsize>,
}

impl std::fmt::Debug for Llguidance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Llguidance").finish_non_exhaustive()
    }
}

impl Llguidance {
    pub fn new(vocabulary: Arc<Vocabulary>) -> Result<Self, GrammarError> {
        let env: TokEnv = Arc::clone(&vocabulary) as TokEnv;
        let mut factory =
            ParserFactory::new_simple(&env).map_err(|error| refused(&error.to_string()))?;
        factory.quiet();
        // Verbose errors would show the grammar and all tokens so far.
        factory.limits_mut().verbose_errors = false;
        Ok(Self {
            factory,
            vocabulary,
            warm_bytes: Arc::default(),
        })
    }

    /// Compiles `grammar`, and computes its first mask and one more: llguidance reports only
    /// then that some grammars are too large or match nothing.
    ///
    /// # Errors
    /// If llguidance refuses the grammar, or the ticket is cancelled.
    pub fn compile(
        &self,
        grammar: TopLevelGrammar,
        ticket: &Ticket,
    ) -> Result<(Arc<Template>, Mask), GrammarError> {
        let mut parser = self
            .factory
            .create_parser(grammar)
            .map_err(|error| refused(&error.to_string()))?;
        parser.start_without_prompt();
        let template = Arc::new(Template::new(parser, Arc::clone(&self.warm_bytes)));
        let mut first = template.walk();
        if let Some(handle) = first.cancellation_handle() {
            ticket.on_cancel(move || handle.cancel());
        }
        let mask = mask(&mut first, &self.vocabulary).map_err(|error| refused(&error))?;
        self.check_second_mask(first, &mask)?;
        Ok((template, mask))
    }

    /// The error with which `grammar` is refused before any mask is computed, if it is refused.
    pub fn refusal(&self, grammar: TopLevelGrammar) -> Option<GrammarError> {
        let refusal = self.factory.create_parser(grammar).err();
        refusal.map(|error| refused(&error.to_string()))
    }

    /// Advances by the forced tokens, or by any token of the mask `first`, and computes the
    /// mask there.
    ///
    /// # Errors
    /// If the parser reaches a limit. Other errors are ignored: they say only that this one
    /// token leads nowhere.
    fn check_second_mask(&self, mut walk: Walk, first: &[u32]) -> Result<(), GrammarError> {
        let forced = walk.consume_ff_tokens();
        if forced.is_empty() {
            let tokens = 0..self.vocabulary.trie().vocab_size() as u32;
            let mut allowed = tokens.filter(|&t| first[t as usize / 32] & (1 << (t % 32)) != 0);
            let Some(token) = allowed.find(|&token| self.vocabulary.is_text(token)) else {
                return Ok(());
            };
            // The mask below fails if this fails.
            let _ = walk.consume_token(token);
        }
        let next = walk.compute_mask_or_eos();
        match next.map_err(|error| refused(&error.to_string())) {
            Err(error) if error.problem == Problem::TooComplex => Err(error),
            _ => Ok(()),
        }
    }
}

/// The tokens that may come next.
pub(crate) fn mask(matcher: &mut Matcher, vocabulary: &Vocabulary) -> Result<Mask, String> {
    let allowed = matcher
        .compute_mask_or_eos()
        .map_err(|error| error.to_string())?;
    Ok(Arc::from(&allowed.as_slice()[..vocabulary.mask_words()]))
}

fn refused(text: &str) -> GrammarError {
    GrammarError::from_llguidance(text)
}
