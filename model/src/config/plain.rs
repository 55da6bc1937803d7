//! The fields that all families share, read into the description of a plain block.

use serde_json::Value;

use super::bounds::{MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_VOCAB, MAX_WIDTH};
use super::defaults::{Defaults, KvHeads};
use super::error::ConfigError;
use super::family::Architecture;
use super::fields::Fields;
use super::{
    Activation, AttentionBias, LayerConfig, Mlp, ModelConfig, NormPlacement, QkNorms, RopeConfig,
};
use crate::dtype::Dtype;

/// Fields that change the arithmetic in some family, with the value under which they change nothing.
/// A family that does not read such a field refuses any other value, because a model that is computed
/// without it answers nonsense.
pub(super) const ARITHMETIC: &[(&str, Neutral)] = &[
    ("alibi", Neutral::False),
    ("attention_chunk_size", Neutral::Absent),
    ("attention_multiplier", Neutral::Absent),
    ("attention_sink", Neutral::False),
    ("attn_logit_softcapping", Neutral::Absent),
    ("attn_output_gate", Neutral::False),
    ("clip_qkv", Neutral::Absent),
    ("embedding_multiplier", Neutral::One),
    ("final_logit_softcapping", Neutral::Absent),
    ("first_k_dense_replace", Neutral::Absent),
    ("hidden_activation", Neutral::Absent),
    ("kv_lora_rank", Neutral::Absent),
    ("layer_types", Neutral::Full),
    ("lm_head_bias", Neutral::False),
    ("logit_scale", Neutral::One),
    ("logits_scaling", Neutral::One),
    ("max_window_layers", Neutral::Any),
    ("moe_intermediate_size", Neutral::Absent),
    ("n_routed_experts", Neutral::Absent),
    ("no_rope_layer_interval", Neutral::Absent),
    ("no_rope_layers", Neutral::Absent),
    ("num_experts", Neutral::None),
    ("num_experts_per_tok", Neutral::None),
    ("num_kv_shared_layers", Neutral::None),
    ("num_local_experts", Neutral::None),
    ("q_lora_rank", Neutral::Absent),
    ("query_pre_attn_scalar", Neutral::Absent),
    ("residual_multiplier", Neutral::One),
    ("rope_interleaved", Neutral::False),
    ("rope_local_base_freq", Neutral::Absent),
    ("sliding_window", Neutral::Absent),
    ("sliding_window_pattern", Neutral::Absent),
    ("swiglu_limit", Neutral::Absent),
    ("use_bidirectional_attention", Neutral::False),
    ("use_qk_norm", Neutral::False),
    ("use_sliding_window", Neutral::False),
];

/// The value under which a field changes nothing; so does `null`.
#[derive(Clone, Copy)]
pub(super) enum Neutral {
    /// The field is absent.
    Absent,
    /// Any value: the field has a meaning only beside another one of the list.
    Any,
    False,
    /// 0
    None,
    /// 1
    One,
    /// A list in which each layer has full attention.
    Full,
}

impl Neutral {
    fn holds(self, value: &Value) -> bool {
        match self {
            Self::Absent => false,
            Self::Any => true,
            Self::False => value == &Value::Bool(false),
            Self::None => value.as_f64() == Some(0.0),
            Self::One => value.as_f64() == Some(1.0),
            Self::Full => value.as_array().is_some_and(|types| {
                types
                    .iter()
                    .all(|kind| kind.as_str() == Some("full_attention"))
            }),
        }
    }

    fn bound(self) -> &'static str {
        match self {
            Self::Absent | Self::Any => "absent in this architecture",
            Self::False => "absent or false in this architecture",
            Self::None => "absent or 0 in this architecture",
            Self::One => "absent or 1 in this architecture",
            Self::Full => "absent or \"full_attention\" for each layer in this architecture",
        }
    }
}

/// Refuses fields of [`ARITHMETIC`] that are not among those that a family `reads`.
pub(super) fn refuse_unread(config: Fields<'_>, reads: &[&str]) -> Result<(), ConfigError> {
    for (key, neutral) in ARITHMETIC {
        if let Some(value) = config.value(key)
            && !reads.contains(key)
            && !neutral.holds(value)
        {
            return Err(config.bad(key, neutral.bound()));
        }
    }
    Ok(())
}

/// Reads what all families have. `config` has the fields of the decoder, which is `file` itself or a
/// part of it.
pub(super) fn read(
    file: Fields<'_>,
    config: Fields<'_>,
    architecture: Architecture,
    defaults: &Defaults,
) -> Result<ModelConfig, ConfigError> {
    let required = |key: &str, max: usize, default: Option<usize>| {
        let size = config.count(key, max)?.or(default);
        size.ok_or_else(|| config.missing(key))
    };
    let activation = activation(config, defaults)?;
    let vocab_size = required("vocab_size", MAX_VOCAB, defaults.vocab_size)?;
    let hidden_size = required("hidden_size", MAX_WIDTH, None)?;
    let width = required("intermediate_size", MAX_WIDTH, None)?;
    let layers = required("num_hidden_layers", MAX_LAYERS, None)?;
    let heads = required("num_attention_heads", MAX_HEADS, defaults.heads)?;
    let kv_heads = kv_heads(config, &defaults.kv_heads, heads)?;
    let head_dim = head_dim(config, defaults.head_dim, hidden_size, heads)?;
    let max_position_embeddings = config
        .count("max_position_embeddings", MAX_POSITIONS)?
        .unwrap_or(defaults.max_position_embeddings);
    let rms_norm_eps = config
        .number("rms_norm_eps")?
        .unwrap_or(defaults.rms_norm_eps);
    if !(0.0..1.0).contains(&rms_norm_eps) {
        return Err(config.bad("rms_norm_eps", "from 0 to below 1"));
    }
    let tied = config.boolean("tie_word_embeddings")?;
    let tied = match tied {
        Some(tied) => Some(tied),
        None => file.boolean("tie_word_embeddings")?,
    };
    let ids = |key: &str| match config.token_ids(key)? {
        Some(ids) => Ok::<_, ConfigError>(Some(ids)),
        None => file.token_ids(key),
    };
    let dtype = |fields: Fields<'_>| {
        let key = match fields.value("dtype") {
            Some(_) => "dtype",
            None => "torch_dtype",
        };
        Ok::<_, ConfigError>(fields.text(key)?.and_then(Dtype::parse))
    };
    let layer = LayerConfig {
        window: None,
        rope: Some(0),
        sinks: false,
        mlp: Mlp::Dense { width },
    };
    Ok(ModelConfig {
        architecture,
        vocab_size,
        hidden_size,
        layers: vec![layer; layers],
        heads,
        kv_heads,
        head_dim,
        rms_norm_eps: rms_norm_eps as f32,
        tie_word_embeddings: tied.unwrap_or(defaults.tie_word_embeddings),
        max_position_embeddings,
        attention_bias: AttentionBias::all(false),
        mlp_bias: false,
        norms: NormPlacement::Before,
        norms_from_one: false,
        qk_norms: QkNorms::None,
        activation,
        exceeds_f16: false,
        embedding_scale: 1.0,
        residual_scale: 1.0,
        attention_scale: 1.0 / (head_dim as f32).sqrt(),
        attention_cap: None,
        logit_divisor: 1.0,
        logit_cap: None,
        ropes: RopeConfig::read(config, head_dim, max_position_embeddings, &defaults.rope)?,
        names: defaults.names,
        torch_dtype: dtype(config)?.or(dtype(file)?),
        bos_token_id: match ids("bos_token_id")? {
            Some(ids) => ids.first().copied(),
            None => defaults.bos,
        },
        eos_token_ids: ids("eos_token_id")?.unwrap_or_else(|| defaults.eos.to_vec()),
    })
}

fn activation(config: Fields<'_>, defaults: &Defaults) -> Result<Activation, ConfigError> {
    let key = defaults.activation_field;
    match config.text(key)? {
        None => Ok(defaults.activation),
        Some("silu" | "swish") => Ok(Activation::Silu),
        Some("gelu_pytorch_tanh") => Ok(Activation::GeluTanh),
        Some(_) => Err(config.bad(key, "\"silu\" or \"gelu_pytorch_tanh\"")),
    }
}

fn kv_heads(config: Fields<'_>, default: &KvHeads, heads: usize) -> Result<usize, ConfigError> {
    let key = "num_key_value_heads";
    let kv_heads = match config.count(key, MAX_HEADS)? {
        Some(kv_heads) => kv_heads,
        // An explicit `null` means plain multi-head attention in every family.
        None if config.raw(key).is_some() => heads,
        None => match default {
            KvHeads::All => heads,
            KvHeads::Number(number) => *number,
        },
    };
    if !heads.is_multiple_of(kv_heads) {
        return Err(ConfigError::Invalid {
            field: config.name(key),
            bound: format!("a divisor of num_attention_heads = {heads}"),
            given: kv_heads.to_string(),
        });
    }
    Ok(kv_heads)
}

fn head_dim(
    config: Fields<'_>,
    default: Option<usize>,
    hidden_size: usize,
    heads: usize,
) -> Result<usize, ConfigError> {
    let key = "head_dim";
    let absent = default.filter(|_| config.raw(key).is_none());
    let head_dim = match config.count(key, MAX_HEAD_DIM)?.or(absent) {
        Some(head_dim) => head_dim,
        None if hidden_size.is_multiple_of(heads) => hidden_size / heads,
        None => {
            let bound = format!("a multiple of num_attention_heads = {heads}");
            return Err(config.bad("hidden_size", bound));
        }
    };
    if !head_dim.is_multiple_of(2) || head_dim > MAX_HEAD_DIM {
        return Err(ConfigError::Invalid {
            field: config.name(key),
            bound: format!("even and at most {MAX_HEAD_DIM}"),
            given: head_dim.to_string(),
        });
    }
    Ok(head_dim)
}
