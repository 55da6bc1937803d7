//! A loaded model as this crate sees it: an engine that takes and gives tokens, and a trait that
//! turns text into tokens and back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hearth_engine::output::Detokenize;
use hearth_engine::{EngineConfig, EngineHandle, Pooling, SamplingParams};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::adapters::{Adapters, Choice, Wanted};
use crate::disaggregation::Disaggregation;
use crate::error::ApiError;
use crate::grammars::Grammars;
use crate::{reasoning, tools};

/// A conversation, for the chat template to make a prompt of.
#[derive(Debug)]
pub struct ChatPrompt<'a> {
    /// A list of OpenAI's message objects.
    pub messages: &'a Value,
    /// A list of OpenAI's tool objects.
    pub tools: Option<&'a Value>,
    pub add_generation_prompt: bool,
    /// Extra template variables.
    pub kwargs: &'a Map<String, Value>,
}

/// The tokenizer and the chat template of a model. It is a trait, so that this crate does not
/// depend on the model's, and tests can serve a made-up model.
pub trait TextCodec: Detokenize {
    /// The token ids of `text`. With `add_special` the tokenizer adds the tokens that begin and end
    /// a document (BOS); a rendered chat has them already.
    ///
    /// # Errors
    /// The tokenizer's own error.
    fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, String>;

    /// The token ids of `text`, in which what looks like a special token is text. With `add_special`
    /// the tokenizer adds the tokens that begin and end a document.
    ///
    /// # Errors
    /// The tokenizer's own error.
    fn encode_literally(&self, text: &str, add_special: bool) -> Result<Vec<u32>, String>;

    /// Bytes of the longest token: a text of more bytes than this times the context cannot fit,
    /// however it is tokenised.
    fn max_token_bytes(&self) -> usize;

    /// True if the model has a chat template.
    fn can_chat(&self) -> bool;

    /// The token ids of a text of [`render_chat`](Self::render_chat), in which special tokens
    /// that a message contained are text. With `add_special` the tokenizer adds the tokens that begin
    /// and end a document.
    ///
    /// # Errors
    /// The tokenizer's own error.
    fn encode_chat(&self, text: &str, add_special: bool) -> Result<Vec<u32>, String> {
        self.encode(text, add_special)
    }

    /// The prompt that the chat template makes of `chat`, for [`encode_chat`](Self::encode_chat).
    ///
    /// # Errors
    /// There is no template, or it refuses the messages.
    fn render_chat(&self, chat: &ChatPrompt<'_>) -> Result<String, String>;
}

/// Where and how the model runs, for `/server_info` and the banner.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ModelInfo {
    /// Directory or hub id; `embedded` for the built-in model.
    pub model_path: String,
    /// `auto` or `dummy`, as `--load-format` has it; `/server_info` shows it with the
    /// configuration.
    #[serde(skip)]
    pub load_format: &'static str,
    pub architecture: String,
    pub parameters: u64,
    /// Numbers in a hidden state, and so in an embedding.
    pub hidden_size: usize,
    /// As `vulkan:0 (NVIDIA H100)`.
    pub device: String,
    pub dtype: String,
    /// The format of the weight matrices where it is not `dtype`: `int8`, or `Q4_0, Q8_0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantization: Option<String>,
    /// The type of keys and values in the KV cache: that of `dtype`, or `int8`.
    pub kv_cache_dtype: String,
    /// Digest of the weights and the configuration; the same on servers that can use each other's
    /// keys and values.
    #[serde(skip)]
    pub digest: String,
    /// Sizes of keys and values: `layers=30 kv_heads=3 head_dim=64`.
    #[serde(skip)]
    pub kv_layout: String,
    pub weight_bytes: u64,
    pub kv_bytes: u64,
    /// Device memory that is left beside weights and KV cache; absent where it is not known.
    pub headroom_bytes: Option<u64>,
    /// The draft model of speculative decoding.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draft_model: Option<DraftModelInfo>,
}

/// The draft model of speculative decoding, for `/server_info` and the banner.
#[derive(Clone, Debug, Serialize)]
pub struct DraftModelInfo {
    /// Directory, file or hub id.
    pub model_path: String,
    pub architecture: String,
    pub parameters: u64,
    pub dtype: String,
    /// The format of the weight matrices where it is not `dtype`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantization: Option<String>,
    /// As in [`ModelInfo`].
    pub kv_cache_dtype: String,
    pub weight_bytes: u64,
    pub kv_bytes: u64,
}

impl ModelInfo {
    /// The number formats for people: `bf16`, or `bf16, weights in int8, KV cache in int8`.
    pub fn formats(&self) -> String {
        let mut formats = self.dtype.clone();
        if let Some(blocks) = &self.quantization {
            formats += &format!(", weights in {blocks}");
        }
        if self.kv_cache_dtype != self.dtype {
            formats += &format!(", KV cache in {}", self.kv_cache_dtype);
        }
        formats
    }
}

/// Where events of the prefix cache are published, for `/server_info`.
#[derive(Clone, Debug, Serialize)]
pub struct KvEventsInfo {
    pub publisher: &'static str,
    /// With `*` for all addresses of this machine.
    pub endpoint: String,
    /// Where missed batches can be asked for.
    pub replay_endpoint: Option<String>,
    pub topic: String,
    /// Tokens of a block.
    pub block_size: usize,
    pub dp_size: usize,
}

/// The values of fields that a request leaves out, as the checkpoint suggests them, and the tokens
/// that end an output.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Defaults {
    pub temperature: Option<f32>,
    pub top_p: Option<f32>,
    pub top_k: Option<u32>,
    pub min_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
    /// Most output tokens of a chat that sets no limit.
    pub max_tokens: Option<usize>,
    pub eos_token_ids: Vec<u32>,
}

impl Defaults {
    /// The sampling parameters of a request that sets none.
    pub fn params(&self) -> SamplingParams {
        let plain = SamplingParams::default();
        SamplingParams {
            temperature: self.temperature.unwrap_or(plain.temperature),
            top_p: self.top_p.unwrap_or(plain.top_p),
            top_k: self.top_k,
            min_p: self.min_p.unwrap_or(plain.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(plain.repetition_penalty),
            eos_token_ids: self.eos_token_ids.clone(),
            ..plain
        }
    }
}

/// How the model marks tool calls and reasoning in its text, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Formats {
    pub tools: Option<tools::Format>,
    pub reasoning: Option<reasoning::Format>,
}

/// A model that is ready to be served.
#[derive(Clone)]
pub struct Served {
    /// The name that answers have.
    pub id: String,
    /// Other names that requests may have for the same model.
    pub aliases: Vec<String>,
    pub engine: EngineHandle,
    pub text: Arc<dyn TextCodec>,
    pub defaults: Defaults,
    pub formats: Formats,
    pub grammars: Arc<Grammars>,
    pub info: ModelInfo,
    /// The adapters that requests may select.
    pub adapters: Arc<Adapters>,
    /// Which hidden states an embedding is made of.
    pub pooling: Pooling,
    /// The configuration that `engine` was started with.
    pub engine_config: EngineConfig,
    /// When the model became ready, in seconds since 1970.
    pub created: u64,
    /// The part that this server does of requests with a room.
    pub disaggregation: Disaggregation,
    /// Where events of the prefix cache are published, if they are.
    pub kv_events: Option<KvEventsInfo>,
    /// True while the device is gone.
    pub lost: Arc<AtomicBool>,
}

impl Served {
    /// True if the device is gone. Nothing is computed until it has been opened again.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// The base model or the adapters that a request computes with.
    ///
    /// # Errors
    /// The errors of [`Adapters::choose`].
    pub fn choose(&self, wanted: &Wanted<'_>) -> Result<Choice, ApiError> {
        let wanted = Wanted {
            model: wanted.model.map(|model| self.canonical(model)),
            ..wanted.clone()
        };
        self.adapters.choose(&self.id, &self.aliases, &wanted)
    }

    /// [`choose`](Self::choose) by the name of the model alone.
    ///
    /// # Errors
    /// The errors of [`Adapters::choose`].
    pub fn choose_model(&self, model: Option<&str>) -> Result<Choice, ApiError> {
        self.choose(&Wanted {
            model,
            ..Wanted::default()
        })
    }

    /// The model's id for each of its other names; any other name as it is.
    pub fn canonical<'a>(&'a self, model: &'a str) -> &'a str {
        match self.aliases.iter().any(|alias| alias == model) {
            true => &self.id,
            false => model,
        }
    }

    /// Most tokens of one sequence, prompt and output together.
    pub fn context(&self) -> usize {
        self.engine.context_limit()
    }

    /// The special token whose text is `mark`, if there is one. Text has such a mark only where
    /// special tokens are shown.
    pub fn special_token(&self, mark: &str) -> Option<u32> {
        match self.text.encode(mark, false).ok()?.as_slice() {
            [token] if self.text.is_special(*token) => Some(*token),
            _ => None,
        }
    }

    /// True if text has the marks of reasoning only where special tokens are shown.
    pub fn reasons_in_special(&self) -> bool {
        let marks = self
            .formats
            .reasoning
            .map_or(&[][..], reasoning::Format::marks);
        marks.iter().any(|mark| self.special_token(mark).is_some())
    }

    /// A text of more bytes is too long for the context, which is known without tokenising it.
    pub fn max_prompt_bytes(&self) -> usize {
        self.context().saturating_mul(self.text.max_token_bytes())
    }
}

/// Hugging Face's `model_type` of an architecture: `llama` of `LlamaForCausalLM`.
pub fn model_type(architecture: &str) -> String {
    let family = architecture.split("For").next().unwrap_or_default();
    family.to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_of_a_model_is_its_family_in_lower_case() {
        assert_eq!(model_type("LlamaForCausalLM"), "llama");
        assert_eq!(model_type("Qwen3ForCausalLM"), "qwen3");
        assert_eq!(model_type(""), "");
    }
}
