//! The JSON of a request to `/v1/messages`.

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::anthropic::content::{Block, Blocks, Messages};
use crate::error::{ApiError, out_of_bounds};
use crate::fields::capped::{Capped, Noticed, Word};
use crate::fields::disaggregation::{Disaggregation, WholeNumber};
use crate::fields::each::Each;
use crate::fields::messages::{Content, MAX_MESSAGES};
use crate::fields::structured::{Asked, GivenSchema, StructuredFields};
use crate::fields::tools::{GivenTools, Spelling};
use crate::fields::wire::{MAX_STOP_STRINGS, Object};
use crate::grammars::{GrammarOptions, Whitespace};
use crate::reasoning::unknown_marks;
use crate::tool_plan::{Asking, Choice, Lark};

/// A request. It also has the fields that this server does not implement, so that they are refused
/// by name unless their value changes nothing.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MessagesRequest {
    pub model: String,
    pub messages: Turns,
    pub max_tokens: i64,
    pub system: Option<Content<true>>,
    pub stop_sequences: Option<Capped<String, MAX_STOP_STRINGS>>,
    pub stream: Option<bool>,
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    pub top_k: Option<i64>,
    /// Requests with different salts share no prefixes (vLLM's field).
    pub cache_salt: Option<String>,
    bootstrap_host: Option<Each<String>>,
    bootstrap_port: Option<Each<WholeNumber>>,
    bootstrap_room: Option<Each<WholeNumber>>,
    metadata: Option<Object<Metadata>>,
    tools: Option<GivenTools>,
    tool_choice: Option<Object<ToolChoice>>,
    thinking: Option<Object<Thinking>>,
    service_tier: Option<String>,
    container: Option<IgnoredAny>,
    context_management: Option<Object<ContextManagement>>,
    mcp_servers: Option<Noticed>,
    output_config: Option<Object<OutputConfig>>,
    /// The older name of `output_config.format`.
    output_format: Option<Object<OutputFormat>>,
    /// True if an output that must follow a grammar is steered to its end before its tokens run out.
    complete: Option<bool>,
    /// It has no effect, because every prefix is cached anyway.
    #[expect(dead_code, reason = "checked for its shape, and that is all")]
    cache_control: Option<Object<CacheControl>>,
    diagnostics: Option<IgnoredAny>,
    inference_geo: Option<IgnoredAny>,
    speed: Option<Word>,
    user_profile_id: Option<IgnoredAny>,
    workspace_id: Option<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputConfig {
    effort: Option<Effort>,
    format: Option<Object<OutputFormat>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputFormat {
    r#type: String,
    schema: Option<GivenSchema>,
}

/// How much the model should do. Chat templates that know the variable `reasoning_effort` see it.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
enum Effort {
    Low,
    Medium,
    High,
    Xhigh,
    Max,
}

/// Edits of the conversation before the model sees it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ContextManagement {
    edits: Option<Capped<Object<Edit>, MAX_EDITS>>,
}

/// Most edits that are looked at.
const MAX_EDITS: usize = 16;

#[derive(Debug, Deserialize)]
struct Edit {
    r#type: String,
    keep: Option<Word>,
}

impl ContextManagement {
    /// True if an edit would change the conversation. One that clears thinking and keeps all of it
    /// changes nothing.
    fn changes(&self) -> bool {
        let keeps_all = |edit: &Edit| {
            let keep = edit.keep.as_ref().and_then(|Word(keep)| keep.as_deref());
            edit.r#type.starts_with("clear_thinking_") && keep == Some("all")
        };
        self.edits.as_ref().is_some_and(|edits| {
            edits.given > edits.items.len() || !edits.items.iter().all(|edit| keeps_all(edit))
        })
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CacheControl {
    #[serde(rename = "type")]
    _type: String,
    #[serde(rename = "ttl")]
    _ttl: Option<String>,
    #[serde(rename = "scope")]
    _scope: Option<String>,
}

/// A request to `/v1/messages/count_tokens`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CountRequest {
    pub model: String,
    pub messages: Turns,
    pub system: Option<Content<true>>,
    tools: Option<GivenTools>,
    tool_choice: Option<Object<ToolChoice>>,
    thinking: Option<Object<Thinking>>,
}

pub type Turns = Capped<Object<Turn>, MAX_MESSAGES>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Turn {
    role: String,
    content: Blocks,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Metadata {
    user_id: Option<String>,
}

/// The field that turns reasoning on and off.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Thinking {
    r#type: ThinkingType,
    /// A bound that the model itself would have to know.
    #[serde(rename = "budget_tokens")]
    _budget_tokens: Option<u64>,
    /// Reasoning is given whole.
    #[serde(rename = "display")]
    _display: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ThinkingType {
    Enabled,
    Disabled,
    /// The model decides, as without the field.
    Adaptive,
}

/// Refuses to turn thinking on unless the model `reasons` with marks that the server knows.
fn check_thinking(thinking: &Option<Object<Thinking>>, reasons: bool) -> Result<(), ApiError> {
    match thinking {
        Some(thinking) if thinking.r#type == ThinkingType::Enabled && !reasons => {
            let others = "disabled, adaptive or left out with all of `thinking`";
            Err(unknown_marks("thinking.type", others, "enabled"))
        }
        _ => Ok(()),
    }
}

/// The variable with which chat templates turn reasoning on and off.
fn thinking_variable(thinking: &Option<Object<Thinking>>) -> Option<(String, Value)> {
    let enabled = match thinking.as_ref()?.r#type {
        ThinkingType::Enabled => true,
        ThinkingType::Disabled => false,
        ThinkingType::Adaptive => return None,
    };
    Some(("enable_thinking".to_owned(), enabled.into()))
}

fn some(list: &Option<Noticed>) -> bool {
    list.as_ref().is_some_and(|list| list.given > 0)
}

fn refuse(fields: &[(&str, bool)]) -> Result<(), ApiError> {
    match fields.iter().find(|(_, asked)| *asked) {
        Some((field, _)) => Err(ApiError::unsupported(field)),
        None => Ok(()),
    }
}

impl MessagesRequest {
    /// Moves out the fields of a router that pairs prefill with decode servers.
    pub fn take_disaggregation(&mut self) -> Disaggregation {
        Disaggregation {
            bootstrap_host: self.bootstrap_host.take(),
            bootstrap_port: self.bootstrap_port.take(),
            bootstrap_room: self.bootstrap_room.take(),
            ..Disaggregation::default()
        }
    }

    /// The client's name for its user.
    pub fn user_id(&self) -> Option<&str> {
        self.metadata.as_ref()?.user_id.as_deref()
    }

    /// The variables for the chat template.
    pub fn template_variables(&self) -> Map<String, Value> {
        let config = self.output_config.as_ref();
        let effort = config.and_then(|config| config.effort);
        let effort = effort.map(|effort| ("reasoning_effort".to_owned(), json!(effort)));
        let thinking = thinking_variable(&self.thinking);
        thinking.into_iter().chain(effort).collect()
    }

    /// `reasons`: the marks of the model's reasoning are known.
    ///
    /// # Errors
    /// 400 that names the first field which asks for something this server cannot do.
    pub fn refuse_unsupported(&self, reasons: bool) -> Result<(), ApiError> {
        check_thinking(&self.thinking, reasons)?;
        let tier = self.service_tier.as_deref();
        refuse(&[
            (
                "service_tier",
                !matches!(tier, None | Some("auto" | "standard_only")),
            ),
            ("container", self.container.is_some()),
            (
                "context_management",
                self.context_management
                    .as_ref()
                    .is_some_and(|management| management.changes()),
            ),
            ("mcp_servers", some(&self.mcp_servers)),
            ("diagnostics", self.diagnostics.is_some()),
            ("inference_geo", self.inference_geo.is_some()),
            (
                "speed",
                self.speed
                    .as_ref()
                    .is_some_and(|Word(speed)| speed.as_deref() != Some("standard")),
            ),
            ("user_profile_id", self.user_profile_id.is_some()),
            ("workspace_id", self.workspace_id.is_some()),
        ])
    }

    /// Takes out the fields about tools.
    ///
    /// # Errors
    /// 400 with field, bound and value.
    pub fn take_tools(&mut self) -> Result<Asking, ApiError> {
        asking(self.tools.take(), self.tool_choice.take())
    }

    /// The grammar that the answer must follow: that of its format, or that of `calls`.
    ///
    /// # Errors
    /// 400 for a format that is no JSON Schema, and for two formats.
    pub fn take_grammar(
        &mut self,
        calls: Option<Lark>,
        whitespace: Whitespace,
    ) -> Result<Option<Asked>, ApiError> {
        let options = GrammarOptions::completing(self.complete);
        let config = self.output_config.take();
        let newer = config.and_then(|config| config.0.format);
        let (field, format) = match (newer, self.output_format.take()) {
            (Some(_), Some(_)) => {
                let message =
                    "`output_format` and `output_config.format` must not be given together";
                return Err(ApiError::field("output_format", message));
            }
            (Some(format), None) => (OUTPUT_FORMAT, format.0),
            (None, Some(format)) => ("output_format", format.0),
            (None, None) => {
                let fields = StructuredFields {
                    calls,
                    options,
                    ..StructuredFields::default()
                };
                return fields.asked(whitespace, false);
            }
        };
        if format.r#type != "json_schema" {
            let given = format!("{:?}", format.r#type);
            return Err(out_of_bounds(
                &format!("{field}.type"),
                "json_schema",
                given,
            ));
        }
        let Some(schema) = format.schema else {
            let field = format!("{field}.schema");
            return Err(out_of_bounds(&field, "a JSON Schema", "none"));
        };
        let fields = StructuredFields {
            json_schema: Some(schema),
            calls,
            options,
            ..StructuredFields::default()
        };
        fields.asked(whitespace, false).map_err(in_output_format)
    }
}

const OUTPUT_FORMAT: &str = "output_config.format";

/// An error about a schema, whose field has another name in this API.
pub fn in_output_format(error: ApiError) -> ApiError {
    error.renamed("json_schema", OUTPUT_FORMAT)
}

impl CountRequest {
    /// The variables for the chat template.
    pub fn template_variables(&self) -> Map<String, Value> {
        thinking_variable(&self.thinking).into_iter().collect()
    }

    /// `reasons`: the marks of the model's reasoning are known.
    ///
    /// # Errors
    /// 400 that names the first field which asks for something this server cannot do.
    pub fn refuse_unsupported(&self, reasons: bool) -> Result<(), ApiError> {
        check_thinking(&self.thinking, reasons)
    }

    /// Takes out the fields about tools.
    ///
    /// # Errors
    /// 400 with field, bound and value.
    pub fn take_tools(&mut self) -> Result<Asking, ApiError> {
        asking(self.tools.take(), self.tool_choice.take())
    }
}

/// The conversation as the chat template sees it. As in Anthropic's API, turns of one role that
/// follow each other are joined.
///
/// # Errors
/// 400 for no messages and for a role other than `user` and `assistant`.
pub fn template_messages(
    system: &Option<Content<true>>,
    turns: &Turns,
) -> Result<Vec<Value>, ApiError> {
    if turns.given == 0 {
        let bound = "a list of at least 1 message";
        return Err(out_of_bounds("messages", bound, "0 messages"));
    }
    let mut messages = Messages::default();
    if let Some(Content(system)) = system {
        messages.text("system", system);
    }
    for (index, turn) in turns.items.iter().enumerate() {
        let Blocks(blocks) = &turn.content;
        let field = |name: &str| format!("messages[{index}].{name}");
        if !matches!(turn.role.as_str(), "user" | "assistant") {
            let given = format!("{:?}", turn.role);
            return Err(out_of_bounds(&field("role"), "user or assistant", given));
        }
        let is_empty = |block: &Block| matches!(block, Block::Text(text) if text.is_empty());
        if blocks.iter().all(is_empty) {
            let bound = "a text that is not empty";
            return Err(out_of_bounds(&field("content"), bound, "an empty one"));
        }
        for block in blocks {
            let wants = match block {
                Block::Text(_) => &turn.role,
                Block::Result { .. } => "user",
                Block::Use { .. } | Block::Thinking(_) => "assistant",
            };
            if *wants != turn.role {
                let bound = "tool_result in the user's turns, tool_use and thinking in the \
                             assistant's";
                return Err(out_of_bounds(&field("content"), bound, "another"));
            }
            messages.block(&turn.role, block);
        }
    }
    Ok(messages.into_list())
}

/// Anthropic's `tool_choice`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ToolChoice {
    r#type: String,
    name: Option<String>,
    disable_parallel_tool_use: Option<bool>,
}

fn asking(
    tools: Option<GivenTools>,
    choice: Option<Object<ToolChoice>>,
) -> Result<Asking, ApiError> {
    let tools = tools.map_or(Ok(Vec::new()), |tools| tools.check(Spelling::Anthropic))?;
    let mut asking = Asking {
        tools,
        parallel_field: "tool_choice.disable_parallel_tool_use",
        ..Asking::default()
    };
    let Some(Object(choice)) = choice else {
        return Ok(asking);
    };
    let name = choice.name;
    asking.choice = Some(match (choice.r#type.as_str(), name) {
        ("auto", None) => Choice::Auto,
        ("any", None) => Choice::Required,
        ("none", None) => Choice::None,
        ("tool", Some(name)) => Choice::Named(name),
        ("tool", None) => {
            let bound = "the name of one of `tools`";
            return Err(out_of_bounds("tool_choice.name", bound, "none"));
        }
        ("auto" | "any" | "none", Some(_)) => {
            let bound = "left out unless the type is tool";
            return Err(out_of_bounds("tool_choice.name", bound, "one"));
        }
        (kind, _) => {
            let bound = "one of auto, any, tool, none";
            let given = format!("{:?}", kind.chars().take(40).collect::<String>());
            return Err(out_of_bounds("tool_choice.type", bound, given));
        }
    });
    asking.parallel = choice.disable_parallel_tool_use.map(|disable| !disable);
    Ok(asking)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(json: &str) -> Result<Vec<Value>, ApiError> {
        template_messages(&None, &serde_json::from_str(json).unwrap())
    }

    #[test]
    fn turns_of_one_role_are_one_turn() {
        let joined = turns(
            r#"[{"role": "user", "content": "a"},
                {"role": "user", "content": [{"type": "text", "text": "b"}]},
                {"role": "assistant", "content": "c"}]"#,
        );
        let expected = [
            json!({"role": "user", "content": "a\nb"}),
            json!({"role": "assistant", "content": "c"}),
        ];
        assert_eq!(joined.unwrap(), expected);
    }

    #[test]
    fn a_role_that_the_api_has_not_is_refused_by_its_place() {
        let error = turns(r#"[{"role": "system", "content": "a"}]"#).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("messages[0].role"));
        let error = turns(r#"[{"role": "user", "content": ""}]"#).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("messages[0].content"));
        assert!(turns("[]").is_err());
    }
}
