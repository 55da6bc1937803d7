//! JSON Schema and context-free grammars, by llguidance.

use std::sync::{Arc, Mutex, PoisonError};

use llguidance::api::TopLevelGrammar;
use llguidance::{Matcher, ParserFactory};
use toktrie::TokEnv;

use crate::Mask;
use crate::error::{GrammarError, Problem};
use crate::pool::Ticket;
use crate::vocabulary::Vocabulary;

/// A grammar that is ready to be walked.
pub(crate) struct Template {
    /// Cloned for each request. A lock, because its caches are not to be shared.
    matcher: Mutex<Matcher>,
}

impl std::fmt::Debug for Template {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Template").finish_non_exhaustive()
    }
}

impl Template {
    pub fn matcher(&self) -> Matcher {
        let template = self.matcher.lock().unwrap_or_else(PoisonError::into_inner);
        // Deep: a plain clone would share the lexer and wait for it.
        template.deep_clone()
    }
}

/// What all grammars of one vocabulary share: 0.2 s and 30 MB for 100,000 tokens.
pub(crate) struct Llguidance {
    factory: ParserFactory,
    vocabulary: Arc<Vocabulary>,
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
    ) -> Result<(Template, Mask), GrammarError> {
        let parser = self
            .factory
            .create_parser(grammar)
            .map_err(|error| refused(&error.to_string()))?;
        let template = Matcher::new(Ok(parser)).into_cancellable();
        let mut first = template.deep_clone();
        if let Some(handle) = first.cancellation_handle() {
            ticket.on_cancel(move || handle.cancel());
        }
        let mask = mask(&mut first, &self.vocabulary).map_err(|error| refused(&error))?;
        self.look_ahead(first, &mask)?;
        let matcher = Mutex::new(template);
        Ok((Template { matcher }, mask))
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
    fn look_ahead(&self, mut matcher: Matcher, mask: &[u32]) -> Result<(), GrammarError> {
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
