//! The values of absent fields, which depend on the family.

use super::rope::RopeDefaults;
use super::{Activation, TensorNames};

/// The number of KV heads where `num_key_value_heads` is absent.
pub(super) enum KvHeads {
    /// As many as query heads.
    All,
    Number(usize),
}

/// The values of absent fields.
pub(super) struct Defaults {
    /// `None` if the field is required.
    pub vocab_size: Option<usize>,
    /// `None` if the field is required.
    pub heads: Option<usize>,
    pub kv_heads: KvHeads,
    /// `None` for `hidden_size / num_attention_heads`.
    pub head_dim: Option<usize>,
    pub max_position_embeddings: usize,
    pub rms_norm_eps: f64,
    /// The field that names the activation of the MLP.
    pub activation_field: &'static str,
    pub activation: Activation,
    pub tie_word_embeddings: bool,
    pub rope: RopeDefaults,
    pub bos: Option<u32>,
    pub eos: &'static [u32],
    pub names: TensorNames,
}

impl Defaults {
    pub const LLAMA: Defaults = Defaults {
        vocab_size: None,
        heads: None,
        kv_heads: KvHeads::All,
        head_dim: None,
        max_position_embeddings: 2048,
        rms_norm_eps: 1e-6,
        activation_field: "hidden_act",
        activation: Activation::Silu,
        tie_word_embeddings: false,
        rope: RopeDefaults::LLAMA,
        bos: Some(1),
        eos: &[2],
        names: TensorNames::LLAMA,
    };
}
