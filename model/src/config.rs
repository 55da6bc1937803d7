//! `config.json` of the supported families, read into one description of a decoder.
//!
//! The difference between families is data: [`ModelConfig`] says everything that the transformer does,
//! and a file for each family (`config/families`) turns the fields of `config.json` into it.
//!
//! Defaults are those of transformers' config classes, so that a missing field has the same
//! meaning in both. The sizes that every file has are required: a default for them would only
//! turn a damaged file into a puzzling shape error later.

mod bounds;
mod defaults;
mod error;
mod experts;
mod families;
mod family;
mod fields;
#[cfg(test)]
mod goldens;
#[cfg(test)]
mod hostile;
mod layers;
mod plain;
mod rope;
mod tensors;
#[cfg(test)]
mod tests;

use serde_json::Value;

use crate::dtype::Dtype;
pub use error::ConfigError;
pub use experts::{ExpertMatrix, ExpertNames, ExpertTensors, ExpertsConfig};
pub use families::FAMILIES;
pub use family::{Architecture, Family};
use fields::Fields;
pub(crate) use fields::shorten;
pub use hearth_shaders::Activation;
pub use rope::{RopeConfig, RopeScaling};
pub use tensors::{LayerTensors, Linear, MlpTensors, Packing, SharedTensors, Stack, TensorNames};

/// Which attention projections have a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionBias {
    /// The projections of queries, keys and values.
    pub qkv: bool,
    /// The output projection.
    pub output: bool,
}

impl AttentionBias {
    /// All projections have a bias, or none has.
    fn all(has: bool) -> Self {
        Self {
            qkv: has,
            output: has,
        }
    }
}

/// Where a layer's norms are, relative to its attention and its MLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormPlacement {
    /// Before: `x + attention(norm(x))` (Llama).
    Before,
    /// After: `x + norm(attention(x))` (OLMo 2, arXiv 2501.00656).
    After,
    /// Before and after: `x + norm(attention(norm(x)))` (Gemma 2, arXiv 2408.00118).
    Both,
}

/// RMSNorm of queries and keys before the rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNorms {
    None,
    /// Over each head, with weights `[head_dim]` (Qwen3).
    Heads,
    /// Over all heads of a token together, with weights `[heads * head_dim]` and `[kv_heads *
    /// head_dim]` (OLMo 2).
    Projections,
}

/// The second half of a layer.
#[derive(Debug, Clone, PartialEq)]
pub enum Mlp {
    /// A gated MLP: `down(activation(gate(x)) * up(x))`.
    Dense {
        /// The number of its gates.
        width: usize,
    },
    Experts(ExpertsConfig),
}

/// The properties in which the layers of a model may differ.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerConfig {
    /// `Some(w)` if a token attends only the last `w` positions, its own included.
    pub window: Option<u32>,
    /// The index of its rotation in [`ModelConfig::ropes`]; `None` if heads are not rotated.
    pub rope: Option<usize>,
    /// Each query head has a sink: a further score that takes a share of the softmax and has no value.
    pub sinks: bool,
    pub mlp: Mlp,
}

/// A decoder-only transformer: RMSNorm, grouped-query attention with rotary positions, gated MLP.
/// Each difference between families is a field.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    pub architecture: Architecture,
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub layers: Vec<LayerConfig>,
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
    /// The projections of the MLP have a bias.
    pub mlp_bias: bool,
    pub norms: NormPlacement,
    /// Checkpoints store the weights of norms as their difference from 1 (Gemma).
    pub norms_from_one: bool,
    pub qk_norms: QkNorms,
    pub activation: Activation,
    /// Activations may be beyond the range of f16, which ends at 65504 (Gemma).
    pub exceeds_f16: bool,
    /// The factor of embedded tokens.
    pub embedding_scale: f32,
    /// The factor of what attention and MLP add to the residual stream.
    pub residual_scale: f32,
    /// The factor of the products of queries and keys.
    pub attention_scale: f32,
    /// Bounds a score `s` of attention to `cap * tanh(s / cap)`.
    pub attention_cap: Option<f32>,
    /// The divisor of logits.
    pub logit_divisor: f32,
    /// Bounds a logit as `attention_cap` bounds a score.
    pub logit_cap: Option<f32>,
    /// The rotations that layers choose from.
    pub ropes: Vec<RopeConfig>,
    pub names: TensorNames,
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
        families::read(config)
    }

    /// The number of gates of the widest MLP that all tokens take; 0 if there is none.
    pub fn widest_mlp(&self) -> usize {
        let widths = self.layers.iter().map(|layer| match layer.mlp {
            Mlp::Dense { width } => width,
            Mlp::Experts(experts) => experts.shared.unwrap_or(0),
        });
        widths.max().unwrap_or(0)
    }

    /// True if heads are rotated by the factors for long contexts where sequences have up to `positions`
    /// tokens. Keys of servers that differ in this are different.
    pub fn rotates_for_long(&self, positions: usize) -> bool {
        self.ropes.iter().any(|rope| match rope.scaling {
            RopeScaling::LongRope {
                original_max_position,
                ..
            } => positions > original_max_position,
            _ => false,
        })
    }

    /// True if logits are more than the product with the output projection.
    pub fn scales_logits(&self) -> bool {
        self.logit_divisor != 1.0 || self.logit_cap.is_some()
    }
}
