//! A loaded model as the HTTP routes and the chat see it: an engine, and text in
//! and out of its tokens.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hearth_engine::detokenize::Detokenize;
use hearth_engine::{EngineHandle, Pooling};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::grammars::Grammars;
use crate::http::openai::sampling::Defaults;
use crate::{reasoning, tools};

/// A chat to be made into a prompt.
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

/// The tokenizer and chat template of a model. A trait so that tests serve
/// models of a few lines.
pub trait TextCodec: Detokenize {
    /// Token ids of `text`; `add_special` frames it as the tokenizer would a
    /// document (BOS), which a rendered chat does by itself.
    ///
    /// # Errors
    /// What the tokenizer says.
    fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, String>;

    /// The longest `token_bytes`: a text of more bytes than this times the
    /// context cannot fit, whatever it says.
    fn max_token_bytes(&self) -> usize;

    /// Whether there is a chat template.
    fn can_chat(&self) -> bool;

    /// # Errors
    /// There is no template, or it refuses the messages.
    fn render_chat(&self, chat: &ChatPrompt<'_>) -> Result<String, String>;
}

/// Where and how the model runs, for `/server_info` and the banner.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ModelInfo {
    /// Directory or hub id; `embedded` for the built-in model.
    pub model_path: String,
    pub architecture: String,
    pub parameters: u64,
    /// Width of the hidden states, and with it of an embedding.
    pub hidden_size: usize,
    /// `vulkan:0 (NVIDIA H100)`
    pub device: String,
    pub dtype: String,
    /// What matrices are in where that is not `dtype`: `int8`, `Q4_0, Q8_0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantization: Option<String>,
    pub weight_bytes: u64,
    pub kv_bytes: u64,
    /// Device memory left beside both; absent where it is not known.
    pub headroom_bytes: Option<u64>,
}

impl ModelInfo {
    /// `bf16`, or `bf16, weights in int8`.
    pub fn formats(&self) -> String {
        match &self.quantization {
            Some(blocks) => format!("{}, weights in {blocks}", self.dtype),
            None => self.dtype.clone(),
        }
    }
}

/// What the model writes beside plain text, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Formats {
    pub tools: Option<tools::Format>,
    pub reasoning: Option<reasoning::Format>,
}

/// A model that is ready.
#[derive(Clone)]
pub struct Served {
    pub id: String,
    pub engine: EngineHandle,
    pub text: Arc<dyn TextCodec>,
    pub defaults: Defaults,
    pub formats: Formats,
    pub grammars: Arc<Grammars>,
    pub info: ModelInfo,
    /// Which hidden states make an embedding.
    pub pooling: Pooling,
    /// Sequences that may wait; a request of more could never be taken.
    pub max_queue: usize,
    /// When it became ready, in seconds since 1970.
    pub created: u64,
    /// Set while the device is gone.
    pub lost: Arc<AtomicBool>,
}

impl Served {
    /// Whether the device is gone: nothing is computed until it is open again.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// Prompt + output tokens of one sequence.
    pub fn context(&self) -> usize {
        self.engine.context_limit()
    }

    /// The token that `mark` is, if it is a special one: text has it only where special
    /// tokens are shown.
    pub fn special_token(&self, mark: &str) -> Option<u32> {
        match self.text.encode(mark, false).ok()?.as_slice() {
            [token] if self.text.is_special(*token) => Some(*token),
            _ => None,
        }
    }

    /// Whether the marks of reasoning are in a text only where special tokens are shown.
    pub fn reasons_in_special(&self) -> bool {
        let marks = [reasoning::OPEN, reasoning::CLOSE];
        marks.iter().any(|mark| self.special_token(mark).is_some())
    }

    /// Texts beyond this many bytes are too long without being tokenised.
    pub fn max_prompt_bytes(&self) -> usize {
        self.context().saturating_mul(self.text.max_token_bytes())
    }
}
