//! The files of the model in Hugging Face's format.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use half::bf16;
use hearth_model::config::ModelConfig;
use hearth_model::transformer::ExportedTensor;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

use crate::options::Shape;
use crate::tokenizer::{END_ID, PAD_ID, VOCAB_SIZE, tokenizer_config};

/// The context length in the config. Rows of training are shorter; see the model card.
pub const MAX_POSITIONS: usize = 1024;

/// config.json of a model of this size.
pub fn config_json(shape: &Shape) -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": MAX_POSITIONS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": null,
        "attention_bias": false,
        "mlp_bias": false,
        "attention_dropout": 0.0,
        "tie_word_embeddings": true,
        "initializer_range": 0.02,
        "use_cache": true,
        "bos_token_id": null,
        "eos_token_id": END_ID,
        "pad_token_id": PAD_ID,
        "torch_dtype": "bfloat16",
    })
}

/// The config that [`config_json`] describes.
pub fn model_config(shape: &Shape) -> Result<ModelConfig> {
    let text = config_json(shape).to_string();
    ModelConfig::from_json(&text).context("the options do not make a model")
}

fn generation_config() -> Value {
    json!({
        "eos_token_id": END_ID,
        "pad_token_id": PAD_ID,
        "do_sample": true,
        "temperature": 0.7,
        "top_p": 0.95,
    })
}

/// Writes `text` atomically.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let part = path.with_extension("part");
    fs::write(&part, bytes).with_context(|| format!("cannot write {}", part.display()))?;
    fs::rename(&part, path).with_context(|| format!("cannot write {}", path.display()))
}

pub fn write_json(path: &Path, value: &impl serde::Serialize) -> Result<()> {
    write(
        path,
        (serde_json::to_string_pretty(value)? + "\n").as_bytes(),
    )
}

pub fn write_tokenizer(dir: &Path, tokenizer: &str) -> Result<()> {
    write(&dir.join("tokenizer.json"), tokenizer.as_bytes())?;
    write_json(
        &dir.join("tokenizer_config.json"),
        &tokenizer_config(MAX_POSITIONS),
    )
}

/// Writes a whole checkpoint; the values are rounded to bf16.
pub fn save(dir: &Path, shape: &Shape, tensors: &[ExportedTensor]) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    write_json(&dir.join("config.json"), &config_json(shape))?;
    write_json(&dir.join("generation_config.json"), &generation_config())?;
    write_tokenizer(dir, crate::TOKENIZER_JSON)?;
    let bytes: Vec<Vec<u8>> = tensors
        .iter()
        .map(|t| {
            t.values
                .iter()
                .flat_map(|v| bf16::from_f32(*v).to_le_bytes())
                .collect()
        })
        .collect();
    let views = tensors
        .iter()
        .zip(&bytes)
        .map(|(t, bytes)| {
            Ok((
                t.name.as_str(),
                TensorView::new(Dtype::BF16, t.shape.clone(), bytes)?,
            ))
        })
        .collect::<Result<Vec<_>>>()?;
    let format = [("format".to_owned(), "pt".to_owned())]
        .into_iter()
        .collect();
    let file = safetensors::serialize(views, Some(format))?;
    write(&dir.join("model.safetensors"), &file)
}
