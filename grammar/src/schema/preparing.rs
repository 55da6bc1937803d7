//! The steps from a schema to one that llguidance compiles.

use std::fmt::Write;

use serde_json::{Value, json};

use super::bounds::{self, MAX_SCHEMA_BYTES};
use super::controls::without_nul;
use super::cost::Costs;
use super::exact::exact;
use super::locate::place_of;
use super::modern::{Ignored, modernised};
use super::shortest::longest_shortest;
use crate::error::GrammarError;
use crate::spec::{Strictness, Whitespace};
use crate::unique::Rules;

/// The most bytes of a schema after it was rewritten.
const MAX_REWRITTEN_BYTES: usize = 4 * 1024 * 1024;

/// Prepares the schemas of one grammar.
#[derive(Debug)]
pub(crate) struct Preparing {
    whitespace: Whitespace,
    strictness: Strictness,
    costs: Costs,
    ignored: Ignored,
    rise: usize,
    /// The arrays of a schema that is the whole grammar, whose items must differ.
    unique: Option<Unique>,
}

/// True if `uniqueItems` may be enforced beside the grammar, and the rules for it.
#[derive(Debug)]
struct Unique {
    rules: Option<Rules>,
}

impl Preparing {
    pub fn new(whitespace: Whitespace, strictness: Strictness) -> Self {
        Self {
            whitespace,
            strictness,
            costs: Costs::default(),
            ignored: Ignored::default(),
            rise: 0,
            unique: None,
        }
    }

    /// The same for a schema that is the whole grammar, so that conditions can be enforced beside
    /// it: [`Self::unique`].
    #[must_use]
    pub fn with_unique(self) -> Self {
        Self {
            unique: Some(Unique { rules: None }),
            ..self
        }
    }

    /// The arrays whose items must differ, beside what the prepared schema says.
    pub fn take_unique(&mut self) -> Option<Rules> {
        self.unique.as_mut()?.rules.take()
    }

    /// The most bytes by which what is begun within a schema makes an output longer.
    pub fn rise(&self) -> usize {
        self.rise
    }

    /// `schema` in the form that llguidance compiles.
    ///
    /// # Errors
    /// If the schema exceeds a bound, or has a condition that cannot be enforced. The error has
    /// the JSON pointer of the place.
    pub fn schema(&mut self, schema: &Value) -> Result<Value, GrammarError> {
        bounds::check(schema, &mut self.costs)?;
        let modern = modernised(schema, self.strictness, &mut self.ignored)?;
        let rules = self.unique.as_ref().and_then(|_| Rules::of(&modern));
        let mut root = exact(&modern, self.strictness, rules.is_some(), &mut self.ignored)?;
        if let Some(unique) = &mut self.unique {
            unique.rules = rules;
        }
        let mut rewritten = Value::Object(std::mem::take(&mut root));
        without_nul(&mut rewritten);
        self.costs.add_joined(&rewritten).map_err(|error| {
            let place = error
                .pointer
                .as_deref()
                .map(|pointer| place_of(&rewritten, pointer));
            let place = place.unwrap_or_else(|| "#".to_owned());
            error.at(place)
        })?;
        self.rise = self.rise.max(longest_shortest(&rewritten));
        let Value::Object(mut root) = rewritten else {
            return Err(GrammarError::invalid(
                "a schema must be an object or a boolean",
            ));
        };
        let (item_separator, key_separator) = match self.whitespace {
            Whitespace::Natural => (", ", ": "),
            Whitespace::Compact => (",", ":"),
        };
        let layout = json!({
            "whitespace_flexible": false,
            "item_separator": item_separator,
            "key_separator": key_separator,
        });
        root.insert("x-guidance".to_owned(), layout);
        Ok(root.into())
    }

    /// `lark` with a rule added for each of the schemas that it refers to.
    ///
    /// # Errors
    /// The errors of [`Self::schema`], with the schema's name in front of the pointer.
    pub fn within_lark(
        &mut self,
        lark: &str,
        schemas: &[(String, Value)],
    ) -> Result<String, GrammarError> {
        let mut text = lark.to_owned();
        let mut bytes = text.len();
        for (index, (name, schema)) in schemas.iter().enumerate() {
            let prepared = self.schema(schema).map_err(|error| {
                let pointer = error.pointer.as_deref().unwrap_or("#");
                let pointer = format!("{name}{pointer}");
                error.at(pointer)
            })?;
            bytes += schema.to_string().len();
            // Writing to a string does not fail.
            let _ = writeln!(text, "schema_{index}: %json {prepared}");
        }
        for (given, most) in [(bytes, MAX_SCHEMA_BYTES), (text.len(), MAX_REWRITTEN_BYTES)] {
            if given > most {
                return Err(GrammarError::too_complex(format!(
                    "schemas must be at most {most} bytes long together, got {given}"
                )));
            }
        }
        Ok(text)
    }

    /// The words that had no effect.
    pub fn ignored(self) -> Vec<String> {
        self.ignored.into_words()
    }
}
