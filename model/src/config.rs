//! `config.json` of the supported families, read into one description of a decoder.
//!
//! Defaults are those of transformers' config classes, so that a missing field has the same
//! meaning in both. The sizes that every file has are required: a default for them would only
//! turn a damaged file into a puzzling shape error later.

mod bounds;
mod error;
mod fields;
#[cfg(test)]
mod goldens;
mod rope;
mod tensors;
#[cfg(test)]
mod tests;

use std::fmt;

use serde_json::Value;

use crate::dtype::Dtype;
use bounds::{MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_VOCAB, MAX_WIDTH};
pub use error::ConfigError;
use fields::Fields;
pub use rope::{RopeConfig, RopeScaling};

/// A family of decoder-only transformers, named as in `architectures`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Architecture {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
}

impl Architecture {
    pub const ALL: [Architecture; 4] = [
        Architecture::Llama,
        Architecture::Mistral,
        Architecture::Qwen2,
        Architecture::Qwen3,
    ];

    /// The class name in `architectures`.
    pub fn class_name(self) -> &'static str {
        match self {
            Architecture::Llama => "LlamaForCausalLM",
            Architecture::Mistral => "MistralForCausalLM",
            Architecture::Qwen2 => "Qwen2ForCausalLM",
            Architecture::Qwen3 => "Qwen3ForCausalLM",
        }
    }

    /// The name in `model_type`.
    pub fn model_type(self) -> &'static str {
        match self {
            Architecture::Llama => "llama",
            Architecture::Mistral => "mistral",
            Architecture::Qwen2 => "qwen2",
            Architecture::Qwen3 => "qwen3",
        }
    }

    fn parse(config: Fields<'_>) -> Result<Self, ConfigError> {
        let supported = || Self::ALL.map(Self::class_name).join(", ");
        let unsupported = |given: String| ConfigError::UnsupportedArchitecture {
            given,
            supported: supported(),
        };
        if let Some(value) = config.value("architectures") {
            let names = value
                .as_array()
                .filter(|names| names.iter().all(Value::is_string))
                .ok_or_else(|| config.bad("architectures", "a list of class names"))?;
            if let Some(name) = names.first().and_then(Value::as_str) {
                return Self::ALL
                    .into_iter()
                    .find(|architecture| architecture.class_name() == name)
                    .ok_or_else(|| unsupported(name.to_owned()));
            }
        }
        // Files written from a bare config (without a model) have only `model_type`.
        let model_type = config
            .text("model_type")?
            .ok_or_else(|| config.missing("architectures"))?;
        Self::ALL
            .into_iter()
            .find(|architecture| architecture.model_type() == model_type)
            .ok_or_else(|| unsupported(format!("of model_type {model_type:?}")))
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.class_name())
    }
}

/// Which attention projections have a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionBias {
    /// `q_proj`, `k_proj` and `v_proj`.
    pub qkv: bool,
    /// `o_proj`.
    pub output: bool,
}

/// A decoder-only transformer: pre-norm RMSNorm, grouped-query attention with rotary positions,
/// SwiGLU. Each difference between the four families is a field.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    pub architecture: Architecture,
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub layers: usize,
    /// Query heads; a multiple of `kv_heads`.
    pub heads: usize,
    pub kv_heads: usize,
    /// Width of one head; `heads * head_dim` need not be `hidden_size`.
    pub head_dim: usize,
    pub rms_norm_eps: f32,
    /// The output projection is the embedding matrix; then there is no `lm_head.weight`.
    pub tie_word_embeddings: bool,
    /// Longest sequence, in tokens, that the model was made for.
    pub max_position_embeddings: usize,
    pub attention_bias: AttentionBias,
    /// `gate_proj`, `up_proj` and `down_proj` have a bias.
    pub mlp_bias: bool,
    /// RMSNorm over each query and key head (`head_dim` wide) before the rotation.
    pub qk_norm: bool,
    /// `[layers]`: `Some(w)` if a token attends only the last `w` positions, its own included.
    pub sliding_window: Vec<Option<u32>>,
    pub rope: RopeConfig,
    /// The format of the weights according to the file. The weights themselves decide.
    pub torch_dtype: Option<Dtype>,
    pub bos_token_id: Option<u32>,
    /// `generation_config.json` overrides these.
    pub eos_token_ids: Vec<u32>,
}

impl ModelConfig {
    /// Reads the text of a `config.json`.
    ///
    /// # Errors
    /// [`ConfigError`] names the field, the bound and the value of the first thing wrong.
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        let value: Value =
            serde_json::from_str(text).map_err(|error| ConfigError::Json(error.to_string()))?;
        let map = value
            .as_object()
            .ok_or_else(|| ConfigError::Json("the top level is not an object".to_owned()))?;
        let config = Fields::new(map, "");
        let architecture = Architecture::parse(config)?;
        if config.value("quantization_config").is_some() {
            return Err(config.bad(
                "quantization_config",
                "absent: weights are bf16, f16 or f32",
            ));
        }
        if let Some(act) = config.text("hidden_act")?
            && !matches!(act, "silu" | "swish")
        {
            return Err(config.bad("hidden_act", "\"silu\""));
        }

        let required =
            |key: &str, max: usize| config.count(key, max)?.ok_or_else(|| config.missing(key));
        let vocab_size = required("vocab_size", MAX_VOCAB)?;
        let hidden_size = required("hidden_size", MAX_WIDTH)?;
        let intermediate_size = required("intermediate_size", MAX_WIDTH)?;
        let layers = required("num_hidden_layers", MAX_LAYERS)?;
        let heads = required("num_attention_heads", MAX_HEADS)?;
        let kv_heads = Self::parse_kv_heads(config, architecture, heads)?;
        let head_dim = Self::parse_head_dim(config, architecture, hidden_size, heads)?;
        let max_position_embeddings = config
            .count("max_position_embeddings", MAX_POSITIONS)?
            .unwrap_or(match architecture {
                Architecture::Llama => 2048,
                Architecture::Mistral => 4096 * 32,
                Architecture::Qwen2 | Architecture::Qwen3 => 32768,
            });
        let rms_norm_eps = config.number("rms_norm_eps")?.unwrap_or(1e-6);
        if !(0.0..1.0).contains(&rms_norm_eps) {
            return Err(config.bad("rms_norm_eps", "from 0 to below 1"));
        }

        let flag = |key: &str| Ok::<bool, ConfigError>(config.boolean(key)?.unwrap_or(false));
        let attention_bias = match architecture {
            Architecture::Llama | Architecture::Qwen3 => {
                let bias = flag("attention_bias")?;
                AttentionBias {
                    qkv: bias,
                    output: bias,
                }
            }
            Architecture::Mistral => AttentionBias {
                qkv: false,
                output: false,
            },
            Architecture::Qwen2 => AttentionBias {
                qkv: true,
                output: false,
            },
        };
        let (bos, eos) = match architecture {
            Architecture::Llama | Architecture::Mistral => (Some(1), vec![2]),
            Architecture::Qwen2 | Architecture::Qwen3 => (None, Vec::new()),
        };
        Ok(Self {
            architecture,
            vocab_size,
            hidden_size,
            intermediate_size,
            layers,
            heads,
            kv_heads,
            head_dim,
            rms_norm_eps: rms_norm_eps as f32,
            tie_word_embeddings: flag("tie_word_embeddings")?,
            max_position_embeddings,
            attention_bias,
            mlp_bias: architecture == Architecture::Llama && flag("mlp_bias")?,
            qk_norm: architecture == Architecture::Qwen3,
            sliding_window: Self::parse_sliding_window(config, architecture, layers)?,
            rope: RopeConfig::parse(config, head_dim, max_position_embeddings)?,
            torch_dtype: config
                .text(if config.value("dtype").is_some() {
                    "dtype"
                } else {
                    "torch_dtype"
                })?
                .and_then(Dtype::parse),
            bos_token_id: match config.token_ids("bos_token_id")? {
                Some(ids) => ids.first().copied(),
                None => bos,
            },
            eos_token_ids: config.token_ids("eos_token_id")?.unwrap_or(eos),
        })
    }

    fn parse_kv_heads(
        config: Fields<'_>,
        architecture: Architecture,
        heads: usize,
    ) -> Result<usize, ConfigError> {
        let key = "num_key_value_heads";
        let kv_heads = match config.count(key, MAX_HEADS)? {
            Some(kv_heads) => kv_heads,
            // An explicit `null` means plain multi-head attention in every family.
            None if config.raw(key).is_some() => heads,
            None => match architecture {
                Architecture::Llama => heads,
                Architecture::Mistral => 8,
                Architecture::Qwen2 | Architecture::Qwen3 => 32,
            },
        };
        if !heads.is_multiple_of(kv_heads) {
            return Err(ConfigError::Invalid {
                field: key.to_owned(),
                bound: format!("a divisor of num_attention_heads = {heads}"),
                given: kv_heads.to_string(),
            });
        }
        Ok(kv_heads)
    }

    fn parse_head_dim(
        config: Fields<'_>,
        architecture: Architecture,
        hidden_size: usize,
        heads: usize,
    ) -> Result<usize, ConfigError> {
        let key = "head_dim";
        let head_dim = match config.count(key, MAX_HEAD_DIM)? {
            Some(head_dim) => head_dim,
            None if architecture == Architecture::Qwen3 && config.raw(key).is_none() => 128,
            None if hidden_size.is_multiple_of(heads) => hidden_size / heads,
            None => {
                let bound = format!("a multiple of num_attention_heads = {heads}");
                return Err(config.bad("hidden_size", bound));
            }
        };
        if !head_dim.is_multiple_of(2) || head_dim > MAX_HEAD_DIM {
            return Err(ConfigError::Invalid {
                field: key.to_owned(),
                bound: format!("even and at most {MAX_HEAD_DIM}"),
                given: head_dim.to_string(),
            });
        }
        Ok(head_dim)
    }

    fn parse_sliding_window(
        config: Fields<'_>,
        architecture: Architecture,
        layers: usize,
    ) -> Result<Vec<Option<u32>>, ConfigError> {
        let key = "sliding_window";
        let window = || {
            let window = match config.count(key, MAX_POSITIONS)? {
                // Mistral and Qwen configs that leave the field out mean 4096.
                None if config.raw(key).is_none() => Some(4096),
                window => window,
            };
            Ok::<_, ConfigError>(window.map(|window| window as u32))
        };
        match architecture {
            Architecture::Llama => Ok(vec![None; layers]),
            Architecture::Mistral => Ok(vec![window()?; layers]),
            Architecture::Qwen2 | Architecture::Qwen3 => {
                if !config.boolean("use_sliding_window")?.unwrap_or(false) {
                    return Ok(vec![None; layers]);
                }
                let window = window()?;
                let Some(value) = config.value("layer_types") else {
                    let first = config
                        .integer("max_window_layers", 0, usize::MAX)?
                        .unwrap_or(28);
                    return Ok((0..layers).map(|i| window.filter(|_| i >= first)).collect());
                };
                let types = value
                    .as_array()
                    .filter(|types| types.len() == layers)
                    .ok_or_else(|| config.bad("layer_types", format!("a list of {layers}")))?;
                types
                    .iter()
                    .map(|layer_type| match layer_type.as_str() {
                        Some("full_attention") => Ok(None),
                        Some("sliding_attention") if window.is_some() => Ok(window),
                        Some("sliding_attention") => Err(config.missing(key)),
                        _ => Err(config.bad(
                            "layer_types",
                            "a list of \"full_attention\" and \"sliding_attention\"",
                        )),
                    })
                    .collect()
            }
        }
    }
}
