//! How calls are written where a grammar makes the model write them: the grammar, and the fixed
//! texts in it, which [`Forced`](super::Forced) looks for.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::tools::{Format, harmony};

/// A tool that may be called.
#[derive(Clone, Debug, PartialEq)]
pub struct Signature {
    pub name: String,
    /// JSON Schema of its arguments.
    pub schema: Value,
    /// The field of the request that has the schema, for errors.
    pub field: String,
}

/// How many calls an answer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    One,
    Several,
}

/// A Lark grammar, with the schemas of its rules `schema_0`, `schema_1`, ... and the field of the
/// request that each schema came from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lark {
    pub text: String,
    pub schemas: Vec<(String, Value)>,
}

/// The fixed texts of one format.
#[derive(Clone, Debug)]
pub struct Layout {
    format: Format,
    /// The texts before the first call, between two calls, and after the last.
    pub opening: &'static str,
    pub between: &'static str,
    pub closing: &'static str,
    /// The text after a call's arguments.
    pub tail: &'static str,
    compact: bool,
    /// The marks that are special tokens, with their ids.
    special: Vec<(&'static str, u32)>,
}

impl Layout {
    /// `compact`: JSON has no white space. `token` gives the special token whose text is its
    /// argument, if there is one.
    pub fn new(format: Format, compact: bool, token: impl Fn(&str) -> Option<u32>) -> Self {
        let (opening, between, closing, tail) = match format {
            Format::Hermes => ("<tool_call>\n", "\n<tool_call>\n", "", "}\n</tool_call>"),
            Format::Llama3 => ("", "; ", "", "}"),
            Format::Mistral => ("[TOOL_CALLS] [", ", ", "]", "}"),
            Format::Pythonic => ("[", ", ", "]", ")"),
            Format::Granite => ("<|tool_call|>[", ", ", "]", "}"),
            Format::Phi4 => ("<|tool_call|>[", ", ", "]<|/tool_call|>", "}"),
            // The mark of the channel comes before the grammar begins.
            Format::Harmony => ("commentary to=", "", "", ""),
        };
        let marks = format.marks().iter();
        let special = marks
            .filter_map(|mark| Some((*mark, token(mark)?)))
            .collect();
        Self {
            format,
            opening,
            between,
            closing,
            tail,
            compact,
            special,
        }
    }

    pub fn format(&self) -> Format {
        self.format
    }

    /// The text of a call of `name` up to its arguments.
    pub fn head(&self, name: &str) -> String {
        let arguments = match self.format {
            Format::Hermes | Format::Mistral | Format::Granite | Format::Phi4 => "arguments",
            Format::Llama3 => "parameters",
            Format::Pythonic => return format!("{name}("),
            Format::Harmony => {
                let (functions, typed) = (harmony::FUNCTIONS, harmony::CONSTRAIN);
                return format!("{functions}{name} {typed}json{}", harmony::MESSAGE);
            }
        };
        match self.compact {
            true => format!("{{\"name\":\"{name}\",\"{arguments}\":"),
            false => format!("{{\"name\": \"{name}\", \"{arguments}\": "),
        }
    }

    /// The grammar of an answer that consists of calls of `tools` alone.
    ///
    /// # Errors
    /// A schema that the format has no way to write, with its field.
    pub fn calls_alone(&self, tools: &[Signature], quantity: Quantity) -> Result<Lark, Unwritable> {
        let mut lark = Lark::default();
        let _ = writeln!(lark.text, "start: {}", self.calls(quantity));
        self.push_calls(tools, &mut lark)?;
        Ok(lark)
    }

    /// The grammar of an answer that is any text; but whatever begins like a call must be one of
    /// `tools`.
    ///
    /// # Errors
    /// A schema that the format has no way to write, with its field.
    pub fn calls_in_text(
        &self,
        tools: &[Signature],
        quantity: Quantity,
    ) -> Result<Lark, Unwritable> {
        let mut lark = Lark::default();
        let out = &mut lark.text;
        // Writing to a string does not fail.
        let _ = match (self.format, self.format.mark()) {
            (Format::Harmony, _) => {
                let (calls, message) = (self.calls(quantity), self.literal(harmony::MESSAGE));
                writeln!(
                    out,
                    "start: {calls} | \"final\" {message} FREE?\nFREE: /(?s:.+)/"
                )
            }
            (Format::Hermes | Format::Mistral | Format::Granite | Format::Phi4, Some(mark)) => {
                let (after, times) = (
                    self.literal(&self.opening[mark.len()..]),
                    match quantity {
                        Quantity::One => "?",
                        Quantity::Several => "*",
                    },
                );
                let several = match (self.format, quantity) {
                    (Format::Hermes, _) | (_, Quantity::One) => "call".to_owned(),
                    _ => format!("call ({} call)*", self.literal(self.between)),
                };
                let body = format!("{after} {several} {}", self.literal(self.closing));
                match self.special_token(mark) {
                    Some(token) => writeln!(
                        out,
                        "start: (FREE? <[{token}]> {body}){times} FREE?\nFREE: /(?s:.+)/"
                    ),
                    None => {
                        let mark = regex_of(mark);
                        writeln!(
                            out,
                            "start: (lead {body}){times} FREE?\n\
                             lead[lazy]: /(?s:.*){mark}/\n\
                             FREE: /(?s:.+)/ & ~/(?s:.*){mark}(?s:.*)/"
                        )
                    }
                }
            }
            (format, mark) => {
                let bracket = match format {
                    Format::Pythonic => "\\[",
                    _ => "\\{",
                };
                let no_mark = mark.map_or(String::new(), |mark| {
                    format!(" & ~/(?s:.*){}(?s:.*)/", regex_of(mark))
                });
                let calls = self.calls(quantity);
                writeln!(
                    out,
                    "start: {calls} | FREE\nFREE: /(?s:.+)/ & ~/\\s*{bracket}(?s:.*)/{no_mark}"
                )
            }
        };
        self.push_calls(tools, &mut lark)?;
        Ok(lark)
    }

    /// The body of the rule for all calls of an answer.
    fn calls(&self, quantity: Quantity) -> String {
        let (opening, closing) = (self.literal(self.opening), self.literal(self.closing));
        let more = match (self.format, quantity) {
            // A call ends the answer in harmony.
            (Format::Harmony, _) | (_, Quantity::One) => String::new(),
            _ => format!("({} call)*", self.literal(self.between)),
        };
        format!("{opening} call {more} {closing}")
    }

    /// Adds the rule `call`, and the rules that it uses.
    fn push_calls(&self, tools: &[Signature], lark: &mut Lark) -> Result<(), Unwritable> {
        let names: Vec<String> = (0..tools.len()).map(|i| format!("call_{i}")).collect();
        let _ = writeln!(lark.text, "call: {}", names.join(" | "));
        for (tool, rule) in tools.iter().zip(names) {
            let arguments = match self.format {
                Format::Pythonic => keywords(tool, lark)?,
                _ => push_schema(lark, &tool.field, tool.schema.clone()),
            };
            let (head, tail) = (
                self.literal(&self.head(&tool.name)),
                self.literal(self.tail),
            );
            let _ = writeln!(lark.text, "{rule}: {head} {arguments} {tail}");
        }
        Ok(())
    }

    fn special_token(&self, mark: &str) -> Option<u32> {
        let mut special = self.special.iter();
        special
            .find(|(other, _)| *other == mark)
            .map(|(_, token)| *token)
    }

    /// `text` in Lark's syntax, with special tokens by their numbers.
    fn literal(&self, text: &str) -> String {
        let found = self
            .special
            .iter()
            .find_map(|(mark, token)| Some((text.split_once(mark)?, token)));
        match found {
            Some(((before, after), token)) => {
                let (before, after) = (self.literal(before), self.literal(after));
                format!("{before} <[{token}]> {after}")
            }
            None if text.is_empty() => String::new(),
            None => Value::from(text).to_string(),
        }
    }
}

/// A schema that cannot be enforced in this format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unwritable {
    pub field: String,
    pub message: &'static str,
}

fn push_schema(lark: &mut Lark, field: &str, schema: Value) -> String {
    lark.schemas.push((field.to_owned(), schema));
    format!("schema_{}", lark.schemas.len() - 1)
}

/// The body of a rule: the arguments of `tool` as Python's keyword arguments, the required ones
/// first. Their values are written as in JSON.
fn keywords(tool: &Signature, lark: &mut Lark) -> Result<String, Unwritable> {
    let refuse = |message| {
        let field = tool.field.clone();
        Err(Unwritable { field, message })
    };
    let empty = serde_json::Map::new();
    let properties = match tool.schema.get("properties") {
        Some(Value::Object(properties)) => properties,
        None if tool.schema.get("type") == Some(&json!("object")) => &empty,
        _ => {
            return refuse(
                "must be an object with `properties`, to be written as a call in Python",
            );
        }
    };
    let required: Vec<&str> = match tool.schema.get("required") {
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    if required.iter().any(|name| !properties.contains_key(*name)) {
        return refuse("must have what is `required` among its `properties`");
    }
    if properties
        .keys()
        .any(|name| name.is_empty() || !name.chars().all(super::is_name))
    {
        return refuse("must have names of letters, digits, `_`, `-` and `.` in `properties`");
    }
    let prefix = format!("keyword_{}", lark.schemas.len());
    let mut rules = Vec::new();
    for (name, schema) in properties {
        let mut schema = schema.clone();
        // A property may refer to definitions of the tool's whole schema.
        if let Value::Object(schema) = &mut schema {
            for key in ["$defs", "definitions"] {
                if let Some(definitions) = tool.schema.get(key) {
                    schema.insert(key.to_owned(), definitions.clone());
                }
            }
        }
        let field = format!("{}.properties.{name}", tool.field);
        let value = push_schema(lark, &field, schema);
        let rule = format!("{prefix}_{}", rules.len());
        let _ = writeln!(
            lark.text,
            "{rule}: {} {value}",
            Value::from(format!("{name}="))
        );
        rules.push((rule, required.contains(&name.as_str())));
    }
    let of = |wanted: bool| -> Vec<&str> {
        let rules = rules.iter().filter(|(_, required)| *required == wanted);
        rules.map(|(rule, _)| rule.as_str()).collect()
    };
    let (needed, optional) = (of(true), of(false));
    let more = |rules: &[&str]| -> String {
        let each = rules.iter().map(|rule| format!(" (\", \" {rule})?"));
        each.collect()
    };
    if !needed.is_empty() {
        return Ok(needed.join(" \", \" ") + &more(&optional));
    }
    if optional.is_empty() {
        return Ok(String::new());
    }
    let branches: Vec<String> = optional
        .iter()
        .enumerate()
        .map(|(i, first)| format!("{first}{}", more(&optional[i + 1..])))
        .collect();
    Ok(format!("({})?", branches.join(" | ")))
}

/// `text` escaped for a regular expression of Lark.
fn regex_of(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if !c.is_ascii_alphanumeric() && c != '_' && c != '<' && c != '>' {
            out.push('\\');
        }
        out.push(c);
    }
    out
}
