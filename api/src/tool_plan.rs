//! The tools of a request, whichever dialect it came in, and what follows from them for the prompt,
//! the grammar and the reading of the answer.

use serde_json::Value;
use uuid::Uuid;

use crate::error::{ApiError, out_of_bounds};
use crate::fields::structured::Asked;
use crate::reader::{Calls, Reader, Reasoning};
use crate::reasoning::Begin;
use crate::served::Served;
use crate::tools::{Format, Layout, Quantity, Signature};

pub use crate::tools::Lark;

/// The format of calls that a request demands from a model with no known format of its own: a
/// plain JSON object.
const PLAIN: Format = Format::Llama3;

/// A tool of a request.
#[derive(Clone, Debug)]
pub struct Tool {
    pub signature: Signature,
    /// True if its calls must follow the schema.
    pub strict: bool,
    /// The tool as the chat template sees it: OpenAI's object.
    pub json: Value,
}

/// Which tools the model has to call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// The model decides.
    #[default]
    Auto,
    None,
    /// At least one.
    Required,
    /// This one.
    Named(String),
}

/// The fields of a request that are about tools.
#[derive(Clone, Debug, Default)]
pub struct Asking {
    pub tools: Vec<Tool>,
    pub choice: Option<Choice>,
    /// True if there may be several calls.
    pub parallel: Option<bool>,
    /// The name of `parallel` in this dialect.
    pub parallel_field: &'static str,
}

/// How a request with these tools is carried out.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The list of tools for the chat template.
    pub template: Option<Value>,
    /// The grammar that the answer must follow.
    pub lark: Option<Lark>,
    calls: Calls,
    /// True if calls are marked by special tokens, which the text must then show.
    shows_special: bool,
}

impl Asking {
    /// Decides how the request is carried out. `compact`: forced JSON has no white space.
    ///
    /// # Errors
    /// 400 for a choice without tools or of a tool that is not in the list, for tools whose format
    /// of calls is not known for this model, and for a schema that cannot be enforced.
    pub fn plan(self, served: &Served, compact: bool) -> Result<Plan, ApiError> {
        let choice = self.choice.clone().unwrap_or_default();
        if self.tools.is_empty() {
            return self.plan_without_tools(&choice);
        }
        if choice == Choice::None {
            return Ok(Plan::default());
        }
        let template = self.tools.iter().map(|tool| tool.json.clone()).collect();
        let must = matches!(choice, Choice::Required | Choice::Named(_));
        let format = match (served.formats.tools, must) {
            (Some(format), _) => format,
            (None, true) => PLAIN,
            (None, false) => {
                let names = Format::ALL.map(Format::name).join(", ");
                let message = format!(
                    "`tools`: this model's chat template does not show how it calls tools; start \
                     the server with --tool-call-parser ({names}), or set `tool_choice` to required"
                );
                return Err(ApiError::field("tools", message).code("unsupported_parameter"));
            }
        };
        let layout = Layout::new(format, compact, |mark| served.special_token(mark));
        let quantity = match (&choice, self.parallel) {
            (Choice::Named(_), _) | (_, Some(false)) => Quantity::One,
            _ => Quantity::Several,
        };
        let callable = self.callable(&choice)?;
        let names = callable
            .iter()
            .map(|tool| tool.signature.name.clone())
            .collect();
        let enforced = callable.iter().any(|tool| tool.strict) || quantity == Quantity::One;
        let (lark, calls) = if must {
            let tools: Vec<Signature> =
                callable.iter().map(|tool| tool.signature.clone()).collect();
            let lark = layout.calls_alone(&tools, quantity);
            (Some(lark), Calls::forced(layout, names))
        } else {
            let lark = enforced.then(|| {
                let tools: Vec<Signature> = callable.iter().map(|t| t.loosely(format)).collect();
                layout.calls_in_text(&tools, quantity)
            });
            (lark, Calls::parsed(format, names))
        };
        let unwritable = |error: crate::tools::Unwritable| {
            let message = format!("`{}` {}", error.field, error.message);
            ApiError::field(error.field, message).code("unsupported_schema_feature")
        };
        Ok(Plan {
            template: Some(template),
            lark: lark.transpose().map_err(unwritable)?,
            calls,
            shows_special: format
                .marks()
                .iter()
                .any(|mark| served.special_token(mark).is_some()),
        })
    }

    fn plan_without_tools(&self, choice: &Choice) -> Result<Plan, ApiError> {
        if matches!(choice, Choice::Required | Choice::Named(_)) {
            let message = "`tool_choice` must be left out, auto or none without `tools`";
            return Err(ApiError::field("tool_choice", message));
        }
        if self.parallel.is_some() {
            let field = self.parallel_field;
            let message = format!("`{field}` must be left out without `tools`");
            return Err(ApiError::field(field, message));
        }
        Ok(Plan::default())
    }

    /// The tools that `choice` allows.
    fn callable(&self, choice: &Choice) -> Result<Vec<&Tool>, ApiError> {
        let Choice::Named(name) = choice else {
            return Ok(self.tools.iter().collect());
        };
        let mut tools = self.tools.iter();
        let Some(tool) = tools.find(|tool| tool.signature.name == *name) else {
            let bound = "the name of one of `tools`";
            let given: String = name.chars().take(40).collect();
            return Err(out_of_bounds("tool_choice", bound, format!("{given:?}")));
        };
        Ok(vec![tool])
    }
}

impl Tool {
    /// Its signature for calls that are not demanded: unless the tool is strict, any arguments are
    /// allowed.
    fn loosely(&self, format: Format) -> Signature {
        let mut signature = self.signature.clone();
        // Calls in Python's form need the names of the arguments.
        if !self.strict && format != Format::Pythonic {
            signature.schema = serde_json::json!({"type": "object"});
        }
        signature
    }
}

impl Plan {
    /// Refuses tools beside a grammar that the request asks for itself.
    ///
    /// # Errors
    /// 400 that names both fields.
    pub fn refuse_beside(&self, asked: Option<&Asked>) -> Result<(), ApiError> {
        match asked {
            Some(asked) if asked.param() != "tools" && !matches!(self.calls, Calls::None) => {
                let message = format!(
                    "`tools` and `{}` must not be given together unless `tool_choice` is none",
                    asked.param()
                );
                Err(ApiError::field("tools", message))
            }
            _ => Ok(()),
        }
    }

    /// The same plan, but each call is given only when it is complete.
    #[must_use]
    pub fn with_whole_calls(self) -> Self {
        Self {
            calls: self.calls.whole(),
            ..self
        }
    }

    /// How the answers are read.
    pub fn reading(self, begin: Option<Begin>, reasoning: Reasoning) -> Reading {
        Reading {
            begin,
            reasoning,
            calls: self.calls,
        }
    }

    /// True if special tokens have to be in the text of an answer that begins with `begin`.
    pub fn shows_special(&self, served: &Served, begin: Option<Begin>) -> bool {
        self.shows_special || begin.is_some() && served.reasons_in_special()
    }
}

/// How the answers of a request are read.
#[derive(Clone, Debug)]
pub struct Reading {
    begin: Option<Begin>,
    reasoning: Reasoning,
    calls: Calls,
}

impl Reading {
    /// A reader for one answer; none where the answer is plain text and nothing else.
    pub fn reader(&self) -> Option<Reader> {
        if self.begin.is_none() && matches!(self.calls, Calls::None) {
            return None;
        }
        let reasoning = self.begin.map(|begin| (begin, self.reasoning));
        Some(Reader::new(reasoning, self.calls.clone()))
    }
}

/// A new id for a call; `prefix` is the dialect's.
pub fn call_id(served: &Served, prefix: &str) -> String {
    let id = Uuid::now_v7().simple().to_string();
    match served.formats.tools {
        // Mistral's chat templates refuse all but nine letters and digits.
        Some(Format::Mistral) => id[id.len() - 9..].to_owned(),
        _ => format!("{prefix}{id}"),
    }
}
