//! JSON Schema and context-free grammars, by llguidance.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use llguidance::api::TopLevelGrammar;
use llguidance::{Matcher, ParserFactory, TokenParser};
use toktrie::TokEnv;

use crate::Mask;
use crate::error::{GrammarError, Problem};
use crate::pool::Ticket;
use crate::vocabulary::Vocabulary;

/// A lexer that has met more states than this is not used again: it may have a quarter of a
/// million of them, and an output must not fail for what others have met.
const MOST_STATES: usize = 16_384;
/// Memory of the lexers that wait for the next output, of all grammars together.
const MOST_WARM_BYTES: usize = 32 << 20;

/// A grammar that is ready to be walked.
pub(crate) struct Template {
    /// At the beginning, with a lexer that has met nothing; cloned for each output. In a
    /// lock, because its lexer is.
    parser: Mutex<TokenParser>,
    /// At the beginning, too, with the lexers of outputs that have ended. What a lexer has
    /// met it need not work out again, which is most of the work on a text; and making one
    /// anew takes longer than a mask.
    warm: Mutex<Vec<(TokenParser, usize)>>,
    /// Bytes of those, of all grammars of the vocabulary.
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
            parser: Mutex::new(parser),
            warm: Mutex::default(),
            warm_bytes,
        }
    }

    /// An output at its beginning, with a lexer that no other one uses meanwhile.
    pub fn walk(self: &Arc<Self>) -> Walk {
        let mut warm = self.warm.lock().unwrap_or_else(PoisonError::into_inner);
        let spare = warm.pop();
        drop(warm);
        let parser = match spare {
            Some((parser, bytes)) => {
                self.warm_bytes.fetch_sub(bytes, Ordering::Relaxed);
                parser
            }
            None => {
                let parser = self.parser.lock().unwrap_or_else(PoisonError::into_inner);
                // Deep: a plain clone would share the lexer and wait for it.
                parser.deep_clone()
            }
        };
        Walk::new(Arc::clone(self), parser)
    }

    /// Keeps a lexer for the next output, if it is fit for one.
    fn keep(&self, parser: TokenParser) {
        let stats = parser.parser.lexer_stats();
        if stats.error || stats.num_states > MOST_STATES {
            return;
        }
        let bytes = stats.num_bytes;
        let all = self.warm_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if all > MOST_WARM_BYTES {
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

/// One output's way through a grammar.
pub(crate) struct Walk {
    matcher: Matcher,
    /// At the beginning, sharing the matcher's lexer.
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
    /// What failed or was cancelled may have left its lexer in the middle of something.
    fn drop(&mut self) {
        let sound = !self.matcher.is_error() && !self.matcher.is_cancelled();
        if let Some(parser) = self.parser.take_if(|_| sound) {
            self.template.keep(parser);
        }
    }
}

/// What all grammars of one vocabulary share: 0.2 s and 30 MB for 100,000 tokens.
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
        // Else errors show the grammar and all tokens so far.
        factory.limits_mut().verbose_errors = false;
        Ok(Self {
            factory,
            vocabulary,
            warm_bytes: Arc::default(),
        })
    }

    /// Compiles, and computes the first mask and one more: several grammars show only
    /// then that they are too large, or match nothing.
    ///
    /// # Errors
    /// What llguidance refuses, or the ticket being cancelled.
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
        self.look_ahead(first, &mask)?;
        Ok((template, mask))
    }
}

impl Llguidance {
    /// Why `grammar` is refused before any mask, if it is.
    pub fn refusal(&self, grammar: TopLevelGrammar) -> Option<GrammarError> {
        let refusal = self.factory.create_parser(grammar).err();
        refusal.map(|error| refused(&error.to_string()))
    }

    /// Goes one step on, by what is forced or by any token of the first mask.
    ///
    /// # Errors
    /// A limit of the parser; that a token leads nowhere says nothing about others.
    fn look_ahead(&self, mut matcher: Walk, mask: &[u32]) -> Result<(), GrammarError> {
        let forced = matcher.consume_ff_tokens();
        if forced.is_empty() {
            let tokens = 0..self.vocabulary.trie().vocab_size() as u32;
            let mut allowed = tokens.filter(|&t| mask[t as usize / 32] & (1 << (t % 32)) != 0);
            let Some(token) = allowed.find(|&token| self.vocabulary.is_text(token)) else {
                return Ok(());
            };
            // What goes wrong is told below.
            let _ = matcher.consume_token(token);
        }
        let next = matcher.compute_mask_or_eos();
        match next.map_err(|error| refused(&error.to_string())) {
            Err(error) if error.problem == Problem::TooComplex => Err(error),
            _ => Ok(()),
        }
    }
}

/// The tokens that may follow.
pub(crate) fn mask(matcher: &mut Matcher, vocabulary: &Vocabulary) -> Result<Mask, String> {
    let allowed = matcher
        .compute_mask_or_eos()
        .map_err(|error| error.to_string())?;
    Ok(Arc::from(&allowed.as_slice()[..vocabulary.mask_words()]))
}

fn refused(text: &str) -> GrammarError {
    GrammarError::from_llguidance(text)
}
