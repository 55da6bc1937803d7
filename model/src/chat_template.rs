//! Chat templates: they turn a conversation into the kind of prompt that a model was trained on.
//!
//! Templates are Jinja written for Python; this renders them as transformers does
//! (`trim_blocks`, `lstrip_blocks`, loop controls, `raise_exception`, `strftime_now`, a `tojson`
//! that escapes no HTML, methods of Python's strings and dicts). A model without a template is
//! an error: a guessed format would be silently wrong.
//!
//! A template is a stranger's program. Its nesting, its instructions, its time and the bytes that
//! it makes are bounded, so that a hostile one fails the requests that use it and nothing else.

mod budget;
mod clock;
mod compile;
mod filters;
#[cfg(test)]
mod hostile;
mod json;
mod messages;
mod operators;
mod rewrite;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, merge_maps};
use minijinja::{AutoEscape, Environment, ErrorKind, Output, State, Value as Jinja};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::quoting::Quoting;
use budget::Exceeded;
use compile::{Compiled, Fault};

/// The number of instructions after which a rendering is ended: a thousand times those of a long
/// conversation.
const FUEL: u64 = 20_000_000;
/// A stack for as many macros within one another as minijinja allows.
const MACRO_STACK: usize = 64 << 20;

/// An error between a conversation and its prompt.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ChatTemplateError {
    #[error(
        "the model has no chat template (neither chat_template in tokenizer_config.json nor \
         chat_template.jinja); use /v1/completions"
    )]
    Missing,
    #[error("chat_template in tokenizer_config.json must be {bound}, got {given}")]
    Malformed { bound: &'static str, given: String },
    #[error("the model has several chat templates and no default; available: {available}")]
    NoDefault { available: String },
    #[error("chat template {name}, line {line}: {message}")]
    Syntax {
        name: String,
        line: usize,
        message: String,
    },
    /// The template itself refused the conversation, through `raise_exception`.
    #[error("the chat template refused the messages: {0}")]
    Refused(String),
    #[error("the chat template failed, line {line}: {message}")]
    Render { line: usize, message: String },
    #[error("the chat template did not end within {FUEL} instructions")]
    Endless,
    /// It made more than a prompt can need.
    #[error("the chat template was stopped: {0}")]
    Exceeded(String),
}

/// The variables of a template.
#[derive(Debug, Clone, Copy)]
pub struct ChatInput<'a> {
    /// A list of objects with `role` and `content`.
    pub messages: &'a Value,
    /// A list of tool schemas, as in the OpenAI API.
    pub tools: Option<&'a Value>,
    /// The prompt ends with the header of an assistant's message.
    pub add_generation_prompt: bool,
    /// More variables (`chat_template_kwargs`), such as `enable_thinking`.
    pub kwargs: &'a Map<String, Value>,
    /// Marks special tokens in the messages and tools, which then stay text
    /// ([`Tokenizer::encode_quoted`](crate::tokenizer::Tokenizer::encode_quoted)).
    pub quoting: Option<&'a Quoting>,
}

/// The compiled chat templates of one model. Cheap to clone.
#[derive(Clone)]
pub struct ChatTemplate {
    inner: Arc<Inner>,
}

struct Inner {
    environment: Environment<'static>,
    compiled: BTreeMap<String, Compiled>,
    /// Sources by name. The only template of a model is named `default`.
    sources: BTreeMap<String, String>,
    /// `bos_token`, `eos_token` and the like, under those names.
    special_tokens: BTreeMap<String, String>,
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate")
            .field("templates", &self.inner.sources.keys())
            .finish_non_exhaustive()
    }
}

impl ChatTemplate {
    /// Compiles the template of a checkpoint: `chat_template.jinja` if there is one, else
    /// `chat_template` of `tokenizer_config.json`, a string or a list of named templates.
    ///
    /// # Errors
    /// [`ChatTemplateError::Missing`] if there is neither; other variants if the template is
    /// malformed.
    pub fn from_checkpoint(
        jinja: Option<&str>,
        tokenizer_config: &Map<String, Value>,
        special_tokens: BTreeMap<String, String>,
    ) -> Result<Self, ChatTemplateError> {
        let field = tokenizer_config
            .get("chat_template")
            .unwrap_or(&Value::Null);
        let malformed = |bound| ChatTemplateError::Malformed {
            bound,
            given: field.to_string().chars().take(80).collect(),
        };
        let mut sources = match field {
            Value::Null => BTreeMap::new(),
            Value::String(source) => BTreeMap::from([("default".to_owned(), source.clone())]),
            Value::Array(list) => list
                .iter()
                .map(|entry| {
                    let text = |key| entry.get(key).and_then(Value::as_str).map(str::to_owned);
                    text("name").zip(text("template"))
                })
                .collect::<Option<_>>()
                .ok_or_else(|| malformed("a list of objects with name and template"))?,
            _ => return Err(malformed("a string or a list of named templates")),
        };
        if let Some(source) = jinja {
            sources.insert("default".to_owned(), source.to_owned());
        }
        if sources.is_empty() {
            return Err(ChatTemplateError::Missing);
        }
        Self::new(sources, special_tokens)
    }

    /// Compiles named templates. `tool_use` is for requests with tools, and `default` for all
    /// others.
    ///
    /// # Errors
    /// [`ChatTemplateError::Syntax`] with the template's name and the line.
    pub fn new(
        sources: BTreeMap<String, String>,
        special_tokens: BTreeMap<String, String>,
    ) -> Result<Self, ChatTemplateError> {
        let mut compiled = BTreeMap::new();
        for (name, source) in &sources {
            let source = without_generation_tags(source);
            let template = compile::compile(name, &source, &syntax()).map_err(|fault| {
                ChatTemplateError::Syntax {
                    name: name.clone(),
                    line: match &fault {
                        Fault::Syntax(error) => error.line().unwrap_or(0),
                        Fault::TooNested { line } => *line,
                        Fault::TooLong(_) | Fault::Thread(_) => 0,
                    },
                    message: match &fault {
                        Fault::Syntax(error) => describe(error),
                        other => other.to_string(),
                    },
                }
            })?;
            compiled.insert(name.clone(), template);
        }
        Ok(Self {
            inner: Arc::new(Inner {
                environment: environment(),
                compiled,
                sources,
                special_tokens,
            }),
        })
    }

    /// The source of the template for a request with or without tools.
    ///
    /// # Errors
    /// [`ChatTemplateError::NoDefault`] if none of the named templates fits.
    pub fn source(&self, tools: bool) -> Result<&str, ChatTemplateError> {
        Ok(&self.inner.sources[self.select(tools)?])
    }

    /// The prompt for a conversation. It contains its special tokens, so it must be encoded without
    /// adding any.
    ///
    /// # Errors
    /// [`ChatTemplateError::Refused`] when the template rejects the conversation, other variants
    /// when it cannot be rendered.
    pub fn render(&self, input: ChatInput<'_>) -> Result<String, ChatTemplateError> {
        #[derive(Serialize)]
        struct Context<'a> {
            messages: Value,
            tools: Option<&'a Value>,
            documents: Option<&'a Value>,
            add_generation_prompt: bool,
        }
        let mut messages = messages::prepare(input.messages);
        let mut tools = input.tools.map(Cow::Borrowed);
        let mut kwargs = Cow::Borrowed(input.kwargs);
        if let Some(quoting) = input.quoting {
            quoting.quote_messages(&mut messages);
            tools = input
                .tools
                .map(|tools| Cow::Owned(quoting.quote_tools(tools)));
            kwargs = Cow::Owned(quoting.quote_variables(input.kwargs));
        }
        let name = self.select(input.tools.is_some())?;
        if let Some(tools) = tools.as_deref()
            && reads_tools_of_a_message(&self.inner.sources[name])
        {
            messages::with_tools(&mut messages, tools);
        }
        let given = [&messages].into_iter().chain(tools.as_deref());
        let bytes: usize = given.chain(kwargs.values()).map(size).sum();
        let own = Context {
            messages,
            tools: tools.as_deref(),
            documents: None,
            add_generation_prompt: input.add_generation_prompt,
        };
        let inner = &self.inner;
        // Later variables win: a request may replace a special token, but not its own messages.
        let context = [
            Jinja::from(Serde(&inner.special_tokens)),
            Jinja::from(Serde(kwargs.as_ref())),
            Jinja::from(Serde(&own)),
        ];
        let context = merge_maps(context);
        let template = &inner.compiled[name];
        let render = || budget::with(bytes, || inner.render(template, context));
        let rendered = match template.recurses {
            true => compile::on_stack(MACRO_STACK, render),
            false => compile::guarded(render),
        };
        rendered.unwrap_or_else(|message| Err(ChatTemplateError::Render { line: 0, message }))
    }

    fn select(&self, tools: bool) -> Result<&str, ChatTemplateError> {
        let sources = &self.inner.sources;
        let names: &[&str] = if tools {
            &["tool_use", "default"]
        } else {
            &["default"]
        };
        names
            .iter()
            .find(|name| sources.contains_key(**name))
            .copied()
            .ok_or_else(|| {
                let available: Vec<&str> = sources.keys().map(String::as_str).collect();
                ChatTemplateError::NoDefault {
                    available: available.join(", "),
                }
            })
    }
}

impl Inner {
    fn render(&self, template: &Compiled, context: Jinja) -> Result<String, ChatTemplateError> {
        let mut text = String::new();
        // The state is dropped here, within the budget and on this stack.
        let rendered = minijinja::machinery::eval(
            &self.environment,
            &template.instructions,
            context,
            &template.blocks,
            &mut minijinja::machinery::make_string_output(&mut text),
            AutoEscape::None,
        )
        .map(drop);
        rendered.map(|()| text).map_err(render_error)
    }
}

/// True if a template looks for tools in a message, as Phi-4-mini's does.
fn reads_tools_of_a_message(source: &str) -> bool {
    let forms = ["message['tools']", "message[\"tools\"]", "message.tools"];
    forms.iter().any(|form| source.contains(form))
}

/// Bytes of a value as a template sees it.
fn size(value: &Value) -> usize {
    budget::NODE
        + match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
            Value::String(text) => text.len(),
            Value::Array(list) => list.iter().map(size).sum(),
            Value::Object(fields) => {
                let field = |(name, value): (&String, &Value)| name.len() + size(value);
                fields.iter().map(field).sum()
            }
        }
}

/// Marks an error as the template's own refusal, to distinguish it from a fault.
#[derive(Debug)]
struct RaisedByTemplate(String);

impl fmt::Display for RaisedByTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for RaisedByTemplate {}

fn syntax() -> SyntaxConfig {
    SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
        .expect("the default delimiters are valid")
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_syntax(syntax());
    environment.set_fuel(Some(FUEL));
    filters::install(&mut environment);
    environment.set_formatter(write);
    environment.add_filter("tojson", json::tojson);
    environment.add_function("raise_exception", |message: String| -> Result<Jinja, _> {
        let error = minijinja::Error::new(ErrorKind::InvalidOperation, message.clone());
        Err(error.with_source(RaisedByTemplate(message)))
    });
    environment.add_function("strftime_now", |format: String| clock::now(&format));
    environment
}

/// Writes a value into the prompt, or into a variable.
fn write(out: &mut Output, state: &mut State, value: &Jinja) -> Result<(), minijinja::Error> {
    budget::tick()?;
    match value.as_str() {
        Some(text) => budget::write(text.len())?,
        None if value.as_object().is_some() => {
            budget::write(budget::text(&[value])?.len())?;
        }
        None => {}
    }
    minijinja::escape_formatter(out, state, value)
}

fn render_error(error: minijinja::Error) -> ChatTemplateError {
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        if let Some(RaisedByTemplate(message)) = cause.downcast_ref() {
            return ChatTemplateError::Refused(message.clone());
        }
        if let Some(exceeded) = cause.downcast_ref::<Exceeded>() {
            return ChatTemplateError::Exceeded(exceeded.to_string());
        }
        source = cause.source();
    }
    if error.kind() == ErrorKind::OutOfFuel {
        return ChatTemplateError::Endless;
    }
    ChatTemplateError::Render {
        line: error.line().unwrap_or(0),
        message: describe(&error),
    }
}

/// The error without its line, which is reported separately.
fn describe(error: &minijinja::Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

/// Bytes of the longest tag that is looked at.
const GENERATION_TAG: usize = 256;

/// Replaces `{% generation %}` by `{% if true %}`. The tag marks the text that training learns
/// from, and like Jinja's `if` it renders its content without a scope of its own.
fn without_generation_tags(source: &str) -> Cow<'_, str> {
    if !source.contains("generation") {
        return Cow::Borrowed(source);
    }
    let mut output = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        output.push_str(before);
        let near = &tag.as_bytes()[..tag.len().min(GENERATION_TAG)];
        let end = near.windows(2).position(|pair| pair == b"%}");
        let inner = end.map_or("", |end| &tag[2..end.max(2)]);
        let word = inner.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        let statement = match word {
            "generation" => Some("if true"),
            "endgeneration" => Some("endif"),
            _ => None,
        };
        match statement.zip(end) {
            Some((statement, end)) => {
                output.push_str("{%");
                output.push_str(&inner.replace(word, &format!(" {statement} ")));
                output.push_str("%}");
                rest = &tag[end + 2..];
            }
            // Only two bytes are copied, because a string in the tag may contain "%}".
            None => {
                output.push_str("{%");
                rest = &tag[2..];
            }
        }
    }
    output.push_str(rest);
    Cow::Owned(output)
}
