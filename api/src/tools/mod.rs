//! Tool calls in a model's text. Each family of models writes them in its own format; they are read
//! here, also while the text is still arriving.
//!
//! **Architecture Invariant.** Text goes in and calls come out: this folder knows no HTTP, no
//! tokens, and no JSON of any API.

mod forced;
pub mod harmony;
mod hermes;
mod layout;
mod listed;
mod llama3;
mod mistral;
mod parser;
mod pythonic;
mod pythonic_values;
mod scan;
#[cfg(test)]
mod tests;

pub use forced::Forced;
pub use layout::{Lark, Layout, Quantity, Signature, Unwritable};
pub use parser::Parser;

/// How a family of models writes tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>` (Hermes, Qwen 2.5 and 3).
    Hermes,
    /// `{"name": "f", "parameters": {"a": 1}}`, maybe after `<|python_tag|>` (Llama 3.1).
    Llama3,
    /// `[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}]`, and since version 11 of their
    /// tokenizer `[TOOL_CALLS]f[ARGS]{"a": 1}` (Mistral).
    Mistral,
    /// `[f(a=1), g(b="x")]` (Llama 3.2 and 4).
    Pythonic,
    /// `<|tool_call|>[{"name": "f", "arguments": {"a": 1}}]`, in some versions after `<tool_call>`
    /// (Granite 3).
    Granite,
    /// `<|tool_call|>[{"name": "f", "arguments": {"a": 1}}]<|/tool_call|>` (Phi-4-mini).
    Phi4,
    /// `<|channel|>commentary to=functions.f<|message|>{"a": 1}<|call|>` (GPT-OSS).
    Harmony,
}

impl Format {
    pub const ALL: [Self; 7] = [
        Self::Hermes,
        Self::Llama3,
        Self::Mistral,
        Self::Pythonic,
        Self::Granite,
        Self::Phi4,
        Self::Harmony,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hermes => "hermes",
            Self::Llama3 => "llama3",
            Self::Mistral => "mistral",
            Self::Pythonic => "pythonic",
            Self::Granite => "granite",
            Self::Phi4 => "phi4-mini",
            Self::Harmony => "harmony",
        }
    }

    /// The format that a chat template shows to the model, if that is beyond doubt.
    pub fn detect(template: &str) -> Option<Self> {
        if !template.contains("tools") {
            return None;
        }
        let has = |mark| template.contains(mark);
        if has(harmony::CHANNEL) && has(harmony::MESSAGE) {
            return Some(Self::Harmony);
        }
        if has(mistral::MARK) {
            return Some(Self::Mistral);
        }
        // Phi-4-mini's template has no call, but these marks around the tools.
        if has("<|tool|>") && has("<|/tool|>") {
            return Some(Self::Phi4);
        }
        // Granite 4 writes an object between two marks, as Hermes does.
        let of_granite = has("<|start_of_role|>") && has(listed::PLAIN_MARK);
        if has(listed::MARK) || of_granite && !has(hermes::TRAILER) {
            return Some(Self::Granite);
        }
        // Qwen3-Coder writes XML after the same mark.
        if template.contains("<tool_call>") && !template.contains("<function=") {
            return Some(Self::Hermes);
        }
        // Part of the sentence with which Llama 3.1's template asks for calls.
        let asks = template.contains("\"name\": function name, \"parameters\": dictionary");
        asks.then_some(Self::Llama3)
    }

    /// The text with which every call begins and nothing else does, if the format has one.
    pub fn mark(self) -> Option<&'static str> {
        match self {
            Self::Hermes => Some(hermes::MARK),
            Self::Llama3 => Some(llama3::MARK),
            Self::Mistral => Some(mistral::MARK),
            Self::Granite | Self::Phi4 => Some(listed::MARK),
            Self::Pythonic | Self::Harmony => None,
        }
    }

    /// All marks of the format.
    pub fn marks(self) -> &'static [&'static str] {
        match self {
            Self::Hermes => &[hermes::MARK, hermes::TRAILER],
            Self::Llama3 => &[llama3::MARK],
            Self::Mistral => &mistral::MARKS,
            Self::Pythonic => &[pythonic::MARK, pythonic::TRAILER],
            Self::Granite => &[listed::MARK, listed::PLAIN_MARK],
            Self::Phi4 => &[listed::MARK, listed::TRAILER],
            Self::Harmony => &harmony::MARKS,
        }
    }

    /// Where a call may begin in `text`. `fresh`: before `text` there were only calls and white
    /// space.
    fn begin(self, text: &str, fresh: bool, tools: &[String]) -> Begin {
        match self {
            Self::Hermes => hermes::begin(text),
            Self::Llama3 => llama3::begin(text, fresh),
            Self::Mistral => mistral::begin(text, tools),
            Self::Pythonic => pythonic::begin(text, fresh, tools),
            Self::Granite => listed::begin(text, &[listed::MARK, listed::PLAIN_MARK]),
            Self::Phi4 => listed::begin(text, &[listed::MARK]),
            // The calls are messages, which are cut apart before.
            Self::Harmony => Begin::Text(text.len()),
        }
    }

    /// The calls in `body`, which follows `lead`; none if it is no valid call.
    fn calls(self, lead: &str, body: &str, tools: &[String]) -> Option<Vec<Call>> {
        match self {
            Self::Hermes => Some(vec![Call::from_json(body, &["arguments"], tools)?]),
            Self::Llama3 => {
                let keys = ["parameters", "arguments"];
                Some(vec![Call::from_json(body, &keys, tools)?])
            }
            Self::Mistral => mistral::calls(lead, body, tools),
            Self::Pythonic => pythonic::calls(body, tools),
            Self::Granite | Self::Phi4 => listed::calls(body, tools),
            Self::Harmony => None,
        }
    }

    /// The text that may follow a call and is part of it.
    fn trailer(self) -> &'static str {
        match self {
            Self::Hermes => hermes::TRAILER,
            Self::Llama3 => llama3::TRAILER,
            Self::Phi4 => listed::TRAILER,
            Self::Mistral | Self::Granite | Self::Harmony => "",
            Self::Pythonic => pythonic::TRAILER,
        }
    }

    fn syntax(self) -> scan::Syntax {
        match self {
            Self::Pythonic => scan::Syntax::Python,
            _ => scan::Syntax::Json,
        }
    }
}

/// A complete call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    pub name: String,
    /// A JSON object, exactly as the model wrote it.
    pub arguments: String,
}

impl Call {
    /// The call that a JSON object describes. Its arguments are under one of `keys`.
    fn from_json(json: &str, keys: &[&str], tools: &[String]) -> Option<Self> {
        let members = scan::members(json)?;
        let find = |key: &str| {
            let mut found = members.iter().filter(|(name, _)| name == key);
            found.next().map(|(_, value)| *value)
        };
        let name: String = serde_json::from_str(find("name")?).ok()?;
        if !tools.contains(&name) {
            return None;
        }
        let arguments = match keys.iter().find_map(|key| find(key)) {
            None | Some("null") => "{}".to_owned(),
            Some(object) if object.starts_with('{') => object.to_owned(),
            // Some models write the arguments as a string of JSON, as OpenAI's API does.
            Some(text) => {
                let text: String = serde_json::from_str(text).ok()?;
                scan::members(&text)?;
                text
            }
        };
        Some(Self { name, arguments })
    }
}

/// A part of a model's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    Text(String),
    /// A call begins, of the tool with this name.
    Call(String),
    /// The next piece of the JSON of its arguments.
    Arguments(String),
}

/// Where in a text a call may begin.
#[derive(Debug, PartialEq, Eq)]
enum Begin {
    /// The first bytes, as many as this, are text. What the rest is depends on the bytes to come.
    Text(usize),
    /// A call begins at `start`, if the bracket at `body` turns out to hold the rest of one.
    At { start: usize, body: usize },
}

/// Most bytes of white space within the syntax of a call.
const MAX_BLANK: usize = 64;

/// Where a text has a mark.
enum Found {
    At(usize),
    /// Nowhere yet, but the text from here on may be the beginning of it.
    Maybe(usize),
}

fn find(text: &str, mark: &str) -> Found {
    if let Some(at) = text.find(mark) {
        return Found::At(at);
    }
    let begun = (1..mark.len()).rev().find(|&n| text.ends_with(&mark[..n]));
    Found::Maybe(text.len() - begun.unwrap_or(0))
}

/// Looks for a call after `mark`. Its body begins with a character for which `is_body` is true.
fn begin_after(text: &str, mark: &str, is_body: impl Fn(char) -> bool) -> Begin {
    let start = match find(text, mark) {
        Found::Maybe(at) => return Begin::Text(at),
        Found::At(at) => at,
    };
    let after = start + mark.len();
    let rest = text[after..].trim_start();
    let body = text.len() - rest.len();
    match rest.chars().next() {
        _ if body - after > MAX_BLANK => Begin::Text(after),
        None => Begin::Text(start),
        Some(first) if is_body(first) => Begin::At { start, body },
        Some(_) => Begin::Text(after),
    }
}

/// True if a tool's name may have this character.
pub fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')
}

/// `text`, cut at the characters that `cuts` points to.
#[cfg(test)]
pub fn pieces<'a>(text: &'a str, cuts: &[proptest::sample::Index]) -> Vec<&'a str> {
    let mut at: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
    at.push(text.len());
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| at[cut.index(at.len())]).collect();
    cuts.extend([0, text.len()]);
    cuts.sort_unstable();
    cuts.windows(2)
        .map(|pair| &text[pair[0]..pair[1]])
        .collect()
}
