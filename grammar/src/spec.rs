//! The grammar that a request asks for.

use std::fmt::Write;

use serde_json::Value;

/// The language that an output must belong to.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// A text that the regex (in the dialect of Rust's `regex` crate) matches as a whole.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// JSON that is valid under this JSON Schema.
    JsonSchema(Value),
    /// Any JSON object.
    JsonObject,
    /// A grammar in llguidance's dialect of Lark.
    Lark(String),
    /// Lark that refers to JSON Schemas as `schema_0`, `schema_1`, ...; each schema comes with
    /// the name that errors use for it.
    LarkWithSchemas {
        lark: String,
        schemas: Vec<(String, Value)>,
    },
    /// A grammar in llama.cpp's GBNF, which SGLang and xgrammar call EBNF.
    Gbnf(String),
    /// A structural tag (SGLang, xgrammar), as its JSON: free text with parts that must follow
    /// schemas.
    StructuralTag(Value),
}

/// The white space of JSON outputs. Each layout allows exactly one way to write a value, so
/// that white space can neither go on without end nor cost a decision of the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Whitespace {
    /// `{"a": 1, "b": 2}`, the layout that models have seen most often.
    #[default]
    Natural,
    /// `{"a":1,"b":2}`: fewer tokens, and more of them forced.
    Compact,
}

/// The treatment of words of a JSON Schema that have no meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strictness {
    /// Unknown words are ignored, and so are conditions that cannot be enforced.
    Lenient,
    /// Unknown keywords and formats are annotations, as the specification says, and are ignored.
    /// A condition that cannot be enforced is refused.
    #[default]
    Spec,
    /// Unknown keywords and formats are refused, too.
    Strict,
}

/// A grammar to be compiled.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    pub source: Source,
    /// The layout of JSON values. Grammars other than JSON Schemas define their own.
    pub whitespace: Whitespace,
}

impl Spec {
    /// The grammar of `source` with the default layout.
    pub fn new(source: Source) -> Self {
        Self {
            source,
            whitespace: Whitespace::default(),
        }
    }

    /// A cache key: equal for equal grammars, and different for different ones.
    pub(crate) fn key(&self) -> String {
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
                // The names are part of the key because errors contain them.
                let schemas = Value::from_iter(schemas.clone());
                format!("rules {whitespace:?} {} {lark} {schemas}", lark.len())
            }
            Source::Gbnf(text) => format!("gbnf {text}"),
            Source::StructuralTag(tag) => format!("tag {whitespace:?} {tag}"),
        }
    }
}
