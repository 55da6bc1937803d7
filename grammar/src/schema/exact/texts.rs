//! The strings of a schema as a regular language.

use serde_json::Value;

use super::super::formats::{self, Format};
use super::context::Exact;
use crate::error::GrammarError;
use crate::language::{Language, Languages};

/// The most references that are followed.
const MAX_DEPTH: usize = 16;

impl Exact<'_> {
    /// The strings of `schema`. Conditions on other types do not matter.
    ///
    /// # Errors
    /// If the strings are not a small regular language.
    pub fn language(&mut self, schema: &Value) -> Result<Language, GrammarError> {
        self.language_within(schema, 0, false)
    }

    /// `exactly` says that the language must have no fewer strings either.
    fn language_within(
        &mut self,
        schema: &Value,
        depth: usize,
        exactly: bool,
    ) -> Result<Language, GrammarError> {
        let none = self.languages.not(Languages::ALL);
        let map = match schema {
            Value::Object(map) => map,
            Value::Bool(true) => return Ok(Languages::ALL),
            _ => return Ok(none),
        };
        if depth > MAX_DEPTH {
            return Err(GrammarError::unsupported(
                "references that name each other are not supported here",
            ));
        }
        let mut language = Languages::ALL;
        for (key, value) in map {
            let one = match (key.as_str(), value) {
                ("type", Value::String(kind)) if kind != "string" => none,
                ("type", Value::Array(kinds)) if !kinds.contains(&"string".into()) => none,
                ("pattern", Value::String(pattern)) => self.languages.matching(pattern)?,
                ("format", Value::String(name)) => {
                    let pattern = match formats::pattern(name) {
                        Some(Format::Pattern(pattern)) => Some(pattern),
                        _ => formats::native_pattern(name),
                    };
                    let pattern = pattern.filter(|_| !exactly || formats::is_exact(name));
                    let pattern = pattern.ok_or_else(|| {
                        GrammarError::unsupported(format!(
                            "the format {name:?} is not supported here"
                        ))
                    })?;
                    self.languages.matching(&pattern)?
                }
                ("minLength", _) => {
                    let min = u32::try_from(value.as_u64().unwrap_or(0)).unwrap_or(u32::MAX);
                    self.languages.of_length(min, None)
                }
                ("maxLength", _) => {
                    let max = value.as_u64().and_then(|max| u32::try_from(max).ok());
                    self.languages.of_length(0, max)
                }
                ("enum", Value::Array(values)) => self.texts(values),
                ("const", value) => self.texts(std::slice::from_ref(value)),
                ("$ref", Value::String(reference)) => match self.definition(reference) {
                    Some(definition) => self.language_within(definition, depth + 1, exactly)?,
                    None => Languages::ALL,
                },
                ("allOf", Value::Array(list)) => {
                    let mut all = Languages::ALL;
                    for inner in list {
                        let inner = self.language_within(inner, depth + 1, exactly)?;
                        all = self.languages.both(all, inner);
                    }
                    all
                }
                ("anyOf", Value::Array(list)) => {
                    let list = list.iter();
                    let list = list.map(|inner| self.language_within(inner, depth + 1, exactly));
                    let list = list.collect::<Result<Vec<_>, _>>()?;
                    self.languages.either(&list)
                }
                ("not", inner) => {
                    let inner = self.language_within(inner, depth + 1, true)?;
                    self.languages.not(inner)
                }
                ("oneOf" | "if", _) => {
                    return Err(GrammarError::unsupported(format!(
                        "`{key}` is not supported here"
                    )));
                }
                _ => Languages::ALL,
            };
            language = self.languages.both(language, one);
        }
        Ok(language)
    }

    /// The strings of `schema`, or more of them.
    pub fn language_around(&mut self, schema: &Value) -> Language {
        self.language_within(schema, 0, true)
            .unwrap_or(Languages::ALL)
    }

    /// The strings that are not in `schema`.
    ///
    /// # Errors
    /// If they are not a small regular language.
    pub fn language_outside(&mut self, schema: &Value) -> Result<Language, GrammarError> {
        let language = self.language_within(schema, 0, true)?;
        Ok(self.languages.not(language))
    }

    fn texts(&mut self, values: &[Value]) -> Language {
        let texts = values.iter().filter_map(Value::as_str);
        let texts: Vec<_> = texts.map(|text| self.languages.text(text)).collect();
        self.languages.either(&texts)
    }
}
