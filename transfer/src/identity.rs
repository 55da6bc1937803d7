//! The facts that two servers must have in common, so that one can use the keys and values of the
//! other.

use serde::{Deserialize, Serialize};

/// Everything that decides what the bytes of a slot mean.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// A digest of the model's configuration, weights and tokenizer.
    pub model: String,
    /// Number format of keys and values: `f32`, `f16`, `bf16` or `int8`.
    pub dtype: String,
    /// Number format in which the model is computed.
    pub computed_in: String,
    /// Order and sizes of the numbers: `layers=30 kv_heads=3 head_dim=64 little-endian`.
    pub layout: String,
    /// Bytes of one token over all layers.
    pub token_bytes: usize,
    /// Tokens that are cached together.
    pub page_size: usize,
}

/// The first fact in which two servers differ.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("the {what} of the prefill server is {prefill}, that of the decode server is {decode}")]
pub struct Mismatch {
    pub what: &'static str,
    pub prefill: String,
    pub decode: String,
}

/// # Errors
/// The first fact in which the two servers differ.
pub(crate) fn compare(prefill: &Identity, decode: &Identity) -> Result<(), Mismatch> {
    let number = |value: usize| value.to_string();
    let facts = |identity: &Identity| {
        [
            ("model digest", identity.model.clone()),
            ("KV number format", identity.dtype.clone()),
            ("number format", identity.computed_in.clone()),
            ("KV layout", identity.layout.clone()),
            ("KV size per token in bytes", number(identity.token_bytes)),
            ("page size", number(identity.page_size)),
        ]
    };
    for ((what, prefill), (_, decode)) in facts(prefill).into_iter().zip(facts(decode)) {
        if prefill != decode {
            return Err(Mismatch {
                what,
                prefill,
                decode,
            });
        }
    }
    Ok(())
}
