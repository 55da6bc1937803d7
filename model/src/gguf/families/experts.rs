//! Mixtral, Qwen2-MoE, Qwen3-MoE and GPT-OSS. Files say how many experts there are; how their weights
//! are made follows from the architecture.

use serde_json::{Value as Json, json};

use super::{Family, Fields, PLAIN};
use crate::gguf::error::GgufError;
use crate::gguf::keys::Keys;

const COUNT: &str = "expert_count";
const WINDOW: &str = "attention.sliding_window";

/// Converted under the name of Llama.
pub(super) const MIXTRAL: Family = Family {
    name: "llama",
    class_name: "MixtralForCausalLM",
    experts: true,
    paired: true,
    reads: &[COUNT, WINDOW],
    describe: count,
};

pub(super) const QWEN2_MOE: Family = Family {
    name: "qwen2moe",
    class_name: "Qwen2MoeForCausalLM",
    experts: true,
    reads: &[COUNT, WINDOW],
    describe: |keys, config| qwen(keys, config, false),
    ..PLAIN
};

pub(super) const QWEN3_MOE: Family = Family {
    name: "qwen3moe",
    class_name: "Qwen3MoeForCausalLM",
    experts: true,
    reads: &[COUNT, WINDOW],
    describe: |keys, config| qwen(keys, config, true),
    ..PLAIN
};

pub(super) const GPT_OSS: Family = Family {
    name: "gpt-oss",
    class_name: "GptOssForCausalLM",
    experts: true,
    reads: &[COUNT, WINDOW],
    describe: gpt_oss,
    ..PLAIN
};

fn count(keys: &Keys<'_>, config: &mut Fields) -> Result<(), GgufError> {
    for (name, key) in [
        ("num_experts", COUNT),
        ("num_experts_per_tok", "expert_used_count"),
    ] {
        config.insert(name.to_owned(), json!(keys.required(key)?));
    }
    Ok(())
}

/// `normed`: the weights of the chosen experts add up to 1. No key says so.
fn qwen(keys: &Keys<'_>, config: &mut Fields, normed: bool) -> Result<(), GgufError> {
    count(keys, config)?;
    config.insert("norm_topk_prob".to_owned(), json!(normed));
    for (name, key) in [
        ("moe_intermediate_size", "expert_feed_forward_length"),
        (
            "shared_expert_intermediate_size",
            "expert_shared_feed_forward_length",
        ),
    ] {
        // Older files lack the keys, and their tensors have the sizes.
        let of_tensor = || {
            let suffix = if key.contains("shared") {
                "shexp"
            } else {
                "exps"
            };
            let down = format!("blk.0.ffn_down_{suffix}.weight");
            keys.tensors.shape(&down)?.last().map(|side| *side as u64)
        };
        if let Some(width) = keys.count(key)?.or_else(of_tensor) {
            config.insert(name.to_owned(), json!(width));
        }
    }
    Ok(())
}

fn gpt_oss(keys: &Keys<'_>, config: &mut Fields) -> Result<(), GgufError> {
    count(keys, config)?;
    if let Some(width) = keys.count("expert_feed_forward_length")? {
        config.insert("intermediate_size".to_owned(), json!(width));
    }
    config.insert("sliding_window".to_owned(), json!(keys.required(WINDOW)?));
    let layers = keys.required("block_count")?;
    config.insert(
        "layer_types".to_owned(),
        super::gemma::types(keys, layers, 2)?,
    );
    // The ends of YaRN's ramp are not rounded.
    if let Some(Json::Object(rope)) = config.get_mut("rope_parameters")
        && rope.get("rope_type") == Some(&json!("yarn"))
    {
        rope.insert("truncate".to_owned(), json!(false));
    }
    Ok(())
}
