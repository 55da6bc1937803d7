//! Chat templates: they turn a conversation into the kind of prompt that a model was trained on.
//!
//! Templates are Jinja written for Python; this renders them as transformers does
//! (`trim_blocks`, `lstrip_blocks`, loop controls, `raise_exception`, `strftime_now`, a `tojson`
//! that escapes no HTML, methods of Python's strings and dicts). A model without a template is
//! an error: a guessed format would be silently wrong.

mod clock;
mod json;
mod messages;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, merge_maps};
use minijinja::{Environment, ErrorKind, Value as Jinja};
use serde::Serialize;
use serde_json::{Map, Value};

/// The number of instructions after which a rendering is ended: a thousand times those of a long
/// conversation.
const FUEL: u64 = 20_000_000;

/// What can go wrong between a conversation and a prompt.
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
}

/// The variables of a template.
#[derive(Debug, Clone, Copy)]
pub struct ChatInput<'a> {
    /// A list of objects with `role` and `content`.
    pub messages: &'a Value,
    /// A list of tool schemas, as in the OpenAI API.
    pub tools: Option<&'a Value>,
    /// Whether the prompt ends with the header of an assistant's message.
    pub add_generation_prompt: bool,
    /// More variables (`chat_template_kwargs`), such as `enable_thinking`.
    pub kwargs: &'a Map<String, Value>,
}

/// The compiled chat templates of one model. Cheap to clone.
#[derive(Clone)]
pub struct ChatTemplate {
    inner: Arc<Inner>,
}

struct Inner {
    environment: Environment<'static>,
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
        let mut environment = environment();
        for (name, source) in &sources {
            let source = without_generation_tags(source).into_owned();
            environment
                .add_template_owned(name.clone(), source)
                .map_err(|error| ChatTemplateError::Syntax {
                    name: name.clone(),
                    line: error.line().unwrap_or(0),
                    message: describe(&error),
                })?;
        }
        Ok(Self {
            inner: Arc::new(Inner {
                environment,
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
        let own = Context {
            messages: messages::prepare(input.messages),
            tools: input.tools,
            documents: None,
            add_generation_prompt: input.add_generation_prompt,
        };
        let inner = &self.inner;
        // Later variables win: a request may replace a special token, but not its own messages.
        let context = [
            Jinja::from(Serde(&inner.special_tokens)),
            Jinja::from(Serde(input.kwargs)),
            Jinja::from(Serde(&own)),
        ];
        let template = inner
            .environment
            .get_template(self.select(input.tools.is_some())?)
            .map_err(render_error)?;
        template.render(merge_maps(context)).map_err(render_error)
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

/// Marks an error as the template's own refusal, to distinguish it from a fault.
#[derive(Debug)]
struct RaisedByTemplate(String);

impl fmt::Display for RaisedByTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for RaisedByTemplate {}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
        .expect("the default delimiters are valid");
    environment.set_syntax(syntax);
    environment.set_fuel(Some(FUEL));
    // Python's methods, such as `.strip()` and `.items()`.
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_filter("tojson", json::tojson);
    environment.add_function("raise_exception", |message: String| -> Result<Jinja, _> {
        let error = minijinja::Error::new(ErrorKind::InvalidOperation, message.clone());
        Err(error.with_source(RaisedByTemplate(message)))
    });
    environment.add_function("strftime_now", |format: String| clock::now(&format));
    environment
}

fn render_error(error: minijinja::Error) -> ChatTemplateError {
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        if let Some(RaisedByTemplate(message)) = cause.downcast_ref() {
            return ChatTemplateError::Refused(message.clone());
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
        let Some(length) = tag.find("%}").map(|end| end + 2) else {
            rest = tag;
            break;
        };
        let inner = &tag[2..length - 2];
        let word = inner.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        let statement = match word {
            "generation" => Some("if true"),
            "endgeneration" => Some("endif"),
            _ => None,
        };
        match statement {
            Some(statement) => {
                output.push_str("{%");
                output.push_str(&inner.replace(word, &format!(" {statement} ")));
                output.push_str("%}");
                rest = &tag[length..];
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
