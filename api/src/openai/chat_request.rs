//! The JSON of a request to `/v1/chat/completions`.

use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use crate::error::{ApiError, out_of_bounds};
use crate::fields::bounds::{alternatives, at_least};
use crate::fields::capped::{Capped, Noticed, Variables, Word};
use crate::fields::messages::{MAX_MESSAGES, Message, template_messages};
use crate::fields::speculation::{Prediction, SpeculationFields};
use crate::fields::tools::{GivenTools, Spelling, ToolChoice};
use crate::fields::wire::Object;
use crate::openai::generation_request::generation_request;
use crate::openai::hints::{Effort, ServiceTier, Verbosity};
use crate::reader::Reasoning;
use crate::tool_plan::Asking;

generation_request! {
    /// A chat request. It also has the fields of OpenAI's API that this server does not implement,
    /// so that they are refused by name unless their value changes nothing (see
    /// [`ChatRequest::refuse_unsupported`]).
    ChatRequest {
        messages: Capped<Object<Message>, MAX_MESSAGES>,
        max_completion_tokens: Option<i64>,
        logprobs: Option<bool>,
        top_logprobs: Option<i64>,
        /// Extra variables for the chat template (vLLM and SGLang).
        chat_template_kwargs: Option<Variables>,
        /// True if the prompt ends with the opening of an assistant message.
        add_generation_prompt: Option<bool>,
        /// `true` lets the answer continue the last message, which must be the assistant's.
        continue_final_message: Option<bool>,
        /// True if reasoning is put into `reasoning_content` (SGLang).
        separate_reasoning: Option<bool>,
        /// True if it is streamed there while it is written.
        stream_reasoning: Option<bool>,
        tools: Option<GivenTools>,
        tool_choice: Option<ToolChoice>,
        parallel_tool_calls: Option<bool>,
        functions: Option<Noticed>,
        function_call: Option<Word>,
        modalities: Option<Capped<String, 2>>,
        audio: Option<IgnoredAny>,
        prediction: Option<Object<Prediction>>,
        reasoning_effort: Option<Effort>,
        web_search_options: Option<IgnoredAny>,
        // Hints, which are checked for their types and have no effect.
        #[serde(rename = "verbosity")]
        _verbosity: Option<Verbosity>,
        #[serde(rename = "service_tier")]
        _service_tier: Option<ServiceTier>,
        #[serde(rename = "store")]
        _store: Option<bool>,
        #[serde(rename = "prompt_cache_key")]
        _prompt_cache_key: Option<String>,
        #[serde(rename = "prompt_cache_retention")]
        _prompt_cache_retention: Option<String>,
        #[serde(rename = "safety_identifier")]
        _safety_identifier: Option<String>,
    }
}

impl ChatRequest {
    /// # Errors
    /// 400 that names the first field which asks for something this server cannot do.
    pub fn refuse_unsupported(&self) -> Result<(), ApiError> {
        let asks = |choice: &Option<Word>| {
            let word = choice.as_ref().map(|Word(word)| word.as_deref());
            !matches!(word, None | Some(Some("none" | "auto")))
        };
        let some = |list: &Option<Noticed>| list.as_ref().is_some_and(|list| list.given > 0);
        let modalities = self.modalities.as_ref();
        let fields = [
            ("functions", some(&self.functions)),
            ("function_call", asks(&self.function_call)),
            (
                "modalities",
                modalities.is_some_and(|kinds| {
                    kinds.given > kinds.items.len() || kinds.items.iter().any(|k| k != "text")
                }),
            ),
            ("audio", self.audio.is_some()),
            ("web_search_options", self.web_search_options.is_some()),
        ];
        match fields.into_iter().find(|(_, given)| *given) {
            Some((field, _)) => Err(ApiError::unsupported(field)),
            None => Ok(()),
        }
    }

    /// The messages as the chat template sees them.
    ///
    /// # Errors
    /// 400 for no messages, an unknown role, a message without content, tool calls.
    pub fn template_messages(&self) -> Result<Value, ApiError> {
        template_messages(&self.messages)
    }

    /// Takes out the extra variables for the chat template.
    pub fn take_variables(&mut self) -> Map<String, Value> {
        let mut variables = self.chat_template_kwargs.take().unwrap_or_default().0;
        if let Some(effort) = self.reasoning_effort {
            effort.add_to(&mut variables);
        }
        variables
    }

    /// Takes out the fields about tools.
    ///
    /// # Errors
    /// 400 with field, bound and value.
    pub fn take_tools(&mut self) -> Result<Asking, ApiError> {
        let tools = self.tools.take();
        Ok(Asking {
            tools: tools.map_or(Ok(Vec::new()), |tools| tools.check(Spelling::OpenAi))?,
            choice: self.tool_choice.take().map(|ToolChoice(choice)| choice),
            parallel: self.parallel_tool_calls,
            parallel_field: "parallel_tool_calls",
        })
    }

    /// Takes out the fields about speculative decoding.
    pub fn take_speculation(&mut self) -> SpeculationFields {
        SpeculationFields {
            speculative: self.speculative,
            prediction: self.prediction.take().map(|prediction| prediction.0),
        }
    }

    /// Where reasoning goes.
    pub fn reasoning(&self) -> Reasoning {
        match self.separate_reasoning {
            Some(false) => Reasoning::InText,
            _ => Reasoning::Apart {
                streamed: self.stream_reasoning != Some(false),
            },
        }
    }

    /// True if the answer continues the last message instead of being a new one.
    ///
    /// # Errors
    /// 400 where the request asks for both, or the last message is not the assistant's.
    pub fn continues(&self) -> Result<bool, ApiError> {
        if self.continue_final_message != Some(true) {
            return Ok(false);
        }
        let last = self.messages.items.last();
        let refused = |message: &str| Err(ApiError::field("continue_final_message", message));
        if self.add_generation_prompt == Some(true) {
            refused("`continue_final_message` must be false where `add_generation_prompt` is true")
        } else if last.is_none_or(|last| last.role != "assistant") {
            refused(
                "`continue_final_message` must be false unless the last message is the assistant's",
            )
        } else {
            Ok(true)
        }
    }

    /// The bound on output tokens, and which of its two names the request uses. `None`: the end of
    /// the context.
    ///
    /// # Errors
    /// 400 below 1, or when both are given and differ.
    pub fn token_limit(&self) -> Result<(&'static str, Option<usize>), ApiError> {
        let newer = at_least("max_completion_tokens", 1, self.max_completion_tokens)?;
        let older = at_least("max_tokens", 1, self.max_tokens)?;
        match (newer, older) {
            (Some(newer), Some(older)) if newer != older => Err(out_of_bounds(
                "max_tokens",
                &format!("left out or equal to `max_completion_tokens` ({newer})"),
                older,
            )),
            (Some(newer), _) => Ok(("max_completion_tokens", Some(newer))),
            (None, older) => Ok(("max_tokens", older)),
        }
    }

    /// The number of alternatives per token, if the request asks for log-probabilities.
    ///
    /// # Errors
    /// 400 for `top_logprobs` without `logprobs`, or out of its bounds.
    pub fn logprobs(&self) -> Result<Option<usize>, ApiError> {
        let top = alternatives("top_logprobs", self.top_logprobs)?;
        match (self.logprobs.unwrap_or(false), top) {
            (true, top) => Ok(Some(top.unwrap_or(0))),
            (false, None | Some(0)) => Ok(None),
            (false, Some(top)) => Err(out_of_bounds(
                "top_logprobs",
                "left out unless `logprobs` is true",
                top,
            )),
        }
    }
}
