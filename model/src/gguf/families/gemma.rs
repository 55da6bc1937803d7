//! Gemma 2 and 3. llama.cpp knows from the number of layers what `config.json` says, and so has this
//! file to: the order of windows, the scale of attention, and the rotation of layers with a window.

use serde_json::{Value as Json, json};

use super::{Family, Fields, PLAIN};
use crate::gguf::error::GgufError;
use crate::gguf::keys::{Keys, shortest};
use crate::gguf::metadata::Value;

const WINDOW: &str = "attention.sliding_window";
const LOCAL_BASE: &str = "rope.freq_base_swa";
const PATTERN: &str = "attention.sliding_window_pattern";

pub(super) const GEMMA2: Family = Family {
    name: "gemma2",
    class_name: "Gemma2ForCausalLM",
    reads: &[WINDOW, "attn_logit_softcapping", "final_logit_softcapping"],
    describe: gemma2,
    ..PLAIN
};

pub(super) const GEMMA3: Family = Family {
    name: "gemma3",
    class_name: "Gemma3ForCausalLM",
    reads: &[WINDOW, LOCAL_BASE, "final_logit_softcapping"],
    describe: gemma3,
    ..PLAIN
};

fn gemma2(keys: &Keys<'_>, config: &mut Fields) -> Result<(), GgufError> {
    common(keys, config, 46)?;
    let window = keys.required(WINDOW)?;
    let layers = keys.required("block_count")?;
    config.insert("sliding_window".to_owned(), json!(window));
    config.insert("layer_types".to_owned(), types(keys, layers, 2)?);
    let cap = keys.field("attn_logit_softcapping")?;
    config.insert("attn_logit_softcapping".to_owned(), json!(cap));
    Ok(())
}

fn gemma3(keys: &Keys<'_>, config: &mut Fields) -> Result<(), GgufError> {
    common(keys, config, 62)?;
    let layers = keys.required("block_count")?;
    let window = keys.count(WINDOW)?.filter(|window| *window > 0);
    // Without a window every layer attends everything.
    let period = window.map_or(1, |_| 6);
    config.insert("layer_types".to_owned(), types(keys, layers, period)?);
    if let Some(window) = window {
        config.insert("sliding_window".to_owned(), json!(window));
    }
    let local = keys.number(LOCAL_BASE)?.unwrap_or(10_000.0);
    let full = config.remove("rope_parameters").unwrap_or_default();
    let ropes = json!({
        "full_attention": with_type(full),
        "sliding_attention": {"rope_type": "default", "rope_theta": shortest(local)},
    });
    config.insert("rope_parameters".to_owned(), ropes);
    Ok(())
}

fn with_type(mut rope: Json) -> Json {
    if let Some(rope) = rope.as_object_mut() {
        rope.entry("rope_type").or_insert_with(|| json!("default"));
    }
    rope
}

/// `largest`: the number of layers of the one model whose scale of attention follows from the width
/// of the model.
fn common(keys: &Keys<'_>, config: &mut Fields, largest: u64) -> Result<(), GgufError> {
    let scalar = match keys.required("block_count")? == largest {
        true => keys.required("embedding_length")? / keys.required("attention.head_count")?.max(1),
        false => keys.head_dim()?,
    };
    config.insert("query_pre_attn_scalar".to_owned(), json!(scalar));
    let cap = keys.field("final_logit_softcapping")?;
    config.insert("final_logit_softcapping".to_owned(), json!(cap));
    Ok(())
}

/// `layer_types`: one full layer at the end of each `period`, unless the file has a list or a period of
/// its own.
pub(super) fn types(keys: &Keys<'_>, layers: u64, period: u64) -> Result<Json, GgufError> {
    let name = keys.name(PATTERN);
    let (list, period) = match keys.metadata.get(&name) {
        Some(Value::Array(list)) => (Some(list), period),
        Some(given) => {
            let period_given = given.integer().filter(|period| *period > 0);
            let bad = || keys.metadata.invalid(&name, "a list or above 0");
            (None, period_given.ok_or_else(bad)?)
        }
        None => (None, period),
    };
    let sliding: Vec<bool> = match list {
        Some(list) => list
            .values()
            .map(|value| match value {
                Value::Bool(flag) => Some(flag),
                value => value.integer().map(|flag| flag != 0),
            })
            .collect::<Option<_>>()
            .ok_or_else(|| keys.metadata.invalid(&name, "a list of flags"))?,
        // A file's number of layers may be anything; ModelConfig bounds it.
        None => (1..=layers.min(1 << 16)).map(|n| n % period != 0).collect(),
    };
    let names = sliding.into_iter().map(|sliding| match sliding {
        true => "sliding_attention",
        false => "full_attention",
    });
    Ok(names.map(Json::from).collect())
}
