//! Phi-3 and Phi-4-mini: factors of LongRoPE are in two tensors.

use serde_json::{Value as Json, json};

use super::{Family, Fields, PLAIN};
use crate::gguf::error::GgufError;
use crate::gguf::keys::{Keys, shortest};

const LONG: &str = "rope_factors_long.weight";
const SHORT: &str = "rope_factors_short.weight";
const SCALE: &str = "rope.scaling.attn_factor";
const ORIGINAL: &str = "rope.scaling.original_context_length";

pub(super) const FAMILY: Family = Family {
    name: "phi3",
    class_name: "Phi3ForCausalLM",
    reads: &["attention.sliding_window", SCALE],
    describe,
    ..PLAIN
};

fn describe(keys: &Keys<'_>, config: &mut Fields) -> Result<(), GgufError> {
    // Phi-4 has 0 for no window.
    let window = keys.count("attention.sliding_window")?.filter(|w| *w > 0);
    config.insert("sliding_window".to_owned(), json!(window));
    let original = keys.count(ORIGINAL)?;
    if let Some(original) = original {
        config.insert(
            "original_max_position_embeddings".to_owned(),
            json!(original),
        );
    }
    if ![LONG, SHORT].iter().any(|name| keys.tensors.contains(name)) {
        return Ok(());
    }
    let [long, short] = [LONG, SHORT].map(|name| {
        let missing = || GgufError::Missing {
            key: format!("tensor {name}"),
        };
        keys.factors(name)?.ok_or_else(missing)
    });
    let (long, short) = (long?, short?);
    let mut rope = keys.rotation(keys.head_dim()?)?;
    let numbers = |factors: Vec<f32>| -> Json {
        factors
            .into_iter()
            .map(|f| shortest(f64::from(f)))
            .collect()
    };
    rope.insert("rope_type".to_owned(), json!("longrope"));
    rope.insert("long_factor".to_owned(), numbers(long));
    rope.insert("short_factor".to_owned(), numbers(short));
    let original = original.ok_or_else(|| keys.missing(ORIGINAL))?;
    rope.insert(
        "original_max_position_embeddings".to_owned(),
        json!(original),
    );
    if let Some(factor) = keys.field(SCALE)? {
        rope.insert("attention_factor".to_owned(), factor);
    }
    config.insert("rope_parameters".to_owned(), Json::Object(rope));
    Ok(())
}
