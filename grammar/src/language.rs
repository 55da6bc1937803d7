//! Regular languages of texts, with complement and intersection. JSON Schema's patterns are read
//! in the spellings of ECMA-262 and Python, and written in those of Rust's `regex` crate.

mod automaton;
mod eliminate;
mod expr;
mod lower;
mod part;
mod pattern;
mod write;

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use self::automaton::{Automaton, MAX_STATES};
use self::eliminate::MAX_BYTES;
use self::expr::{Id, MAX_WORK, Store};
use self::lower::Refusal;
use crate::error::GrammarError;
use crate::regex;

/// The most bytes of a pattern after it was translated.
const MAX_WRITTEN_BYTES: usize = 256 * 1024;

/// Languages that are combined with each other.
#[derive(Debug)]
pub(crate) struct Languages {
    store: Store,
    /// The patterns that were written before: the same names are limited in each part of a schema.
    patterns: HashMap<Id, Option<String>>,
}

/// A language of [`Languages`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Language(Id);

impl Languages {
    pub const ALL: Language = Language(Store::ANY);

    pub fn new() -> Self {
        Self {
            store: Store::new(),
            patterns: HashMap::new(),
        }
    }

    /// The texts in which `pattern` matches anywhere.
    ///
    /// # Errors
    /// If the pattern cannot be read, or is not supported here.
    pub fn matching(&mut self, pattern: &str) -> Result<Language, GrammarError> {
        let part = pattern::parse(pattern)?;
        lower::search(&mut self.store, &part)
            .map(Language)
            .map_err(|refusal| match refusal {
                Refusal::TooLarge => too_large(),
                Refusal::Place(place) => GrammarError::unsupported(format!(
                    "look-around and anchors {place} are not supported in a regex"
                )),
            })
    }

    pub fn text(&mut self, text: &str) -> Language {
        let mut id = Store::EMPTY;
        for letter in text.chars().rev() {
            let class = self.store.class(vec![(letter.into(), letter.into())]);
            id = self.store.concat(class, id);
        }
        Language(id)
    }

    /// The texts of `min` to `max` characters.
    pub fn of_length(&mut self, min: u32, max: Option<u32>) -> Language {
        let any = self.store.class(vec![(0, 0xd7ff), (0xe000, 0x10_FFFF)]);
        Language(self.store.repeat(any, min, max))
    }

    pub fn either(&mut self, list: &[Language]) -> Language {
        Language(
            self.store
                .or(list.iter().map(|language| language.0).collect()),
        )
    }

    pub fn both(&mut self, a: Language, b: Language) -> Language {
        Language(self.store.and(vec![a.0, b.0]))
    }

    pub fn not(&mut self, language: Language) -> Language {
        Language(self.store.not(language.0))
    }

    /// True if no text is in `language`.
    ///
    /// # Errors
    /// If the language is too large to tell.
    pub fn is_empty(&mut self, language: Language) -> Result<bool, GrammarError> {
        automaton::is_empty(&mut self.store, language.0).map_err(|_| too_large())
    }

    /// True if `text` is in `language`.
    pub fn has(&mut self, language: Language, text: &str) -> Result<bool, GrammarError> {
        let text = self.text(text);
        let both = self.both(language, text);
        Ok(!self.is_empty(both)?)
    }

    /// The texts of `language`; `None` if there are more than `most`.
    ///
    /// # Errors
    /// If the language is too large to tell.
    pub fn texts(
        &mut self,
        language: Language,
        most: usize,
    ) -> Result<Option<Vec<String>>, GrammarError> {
        let automaton = Automaton::new(&mut self.store, language.0).map_err(|_| too_large())?;
        Ok(automaton.texts(most))
    }

    /// A pattern that matches exactly the texts of `language`, in the dialect of Rust's `regex`
    /// crate and with anchors; `None` if there are none.
    ///
    /// # Errors
    /// If the pattern would be too large.
    pub fn pattern(&mut self, language: Language) -> Result<Option<String>, GrammarError> {
        if let Some(known) = self.patterns.get(&language.0) {
            return Ok(known.clone());
        }
        let automaton = Automaton::new(&mut self.store, language.0).map_err(|_| too_large())?;
        let pattern = eliminate::pattern(&automaton).map_err(|_| too_large())?;
        let pattern = pattern.map(|pattern| format!("^(?:{pattern})$"));
        self.patterns.insert(language.0, pattern.clone());
        Ok(pattern)
    }

    /// `pattern` in the dialect of Rust's `regex` crate, without look-around; `None` if no text
    /// matches.
    ///
    /// # Errors
    /// If the pattern cannot be read, or is not supported.
    pub fn translated(&mut self, pattern: &str) -> Result<Option<String>, GrammarError> {
        let part = pattern::parse(pattern)?;
        let plain = match write::plain(&part) {
            Some(plain) => Some(plain),
            None => {
                let language = self.matching(pattern)?;
                self.pattern(language)?
            }
        };
        if let Some(plain) = &plain {
            regex::parse(plain, MAX_WRITTEN_BYTES)?;
        }
        Ok(plain)
    }
}

/// The texts that `pattern` matches as a whole, in the dialect of Rust's `regex` crate and without
/// look-around; `None` if there are none.
///
/// # Errors
/// If the pattern cannot be read, or is not supported.
pub(crate) fn whole(pattern: &str) -> Result<Option<String>, GrammarError> {
    let anchored = match pattern.strip_prefix("(?i)") {
        Some(rest) => format!("(?i)^(?:{rest})$"),
        None => format!("^(?:{pattern})$"),
    };
    Languages::new().translated(&anchored)
}

fn too_large() -> GrammarError {
    GrammarError::too_complex(format!(
        "a regex is too large to be combined with other conditions: it must have at most {MAX_STATES} \
         states and {MAX_BYTES} bytes when it is written out, and all that are combined must take at most \
         {MAX_WORK} steps"
    ))
}
