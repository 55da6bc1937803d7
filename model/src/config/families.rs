//! The table of families, each of which has a file.

mod gemma2;
mod gemma3;
mod gpt_oss;
mod granite;
mod granite4;
mod llama;
mod mistral;
mod mixtral;
mod olmo2;
mod phi3;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen3_moe;
mod smollm3;

use serde_json::Value;

use super::error::ConfigError;
use super::family::{Architecture, Family};
use super::fields::Fields;
use super::plain::refuse_unread;
use super::{ModelConfig, plain};

/// Every family that can be loaded.
pub const FAMILIES: &[Family] = &[
    llama::FAMILY,
    mistral::FAMILY,
    qwen2::FAMILY,
    qwen3::FAMILY,
    mixtral::FAMILY,
    qwen2_moe::FAMILY,
    qwen3_moe::FAMILY,
    gpt_oss::FAMILY,
    smollm3::FAMILY,
    granite::FAMILY,
    granite4::FAMILY,
    olmo2::FAMILY,
    phi3::FAMILY,
    gemma2::FAMILY,
    gemma3::TEXT,
    gemma3::WITH_IMAGES,
];

/// Reads a `config.json` of any family.
pub(super) fn read(file: Fields<'_>) -> Result<ModelConfig, ConfigError> {
    let family = family(file)?;
    let config = match &family.part {
        None => file,
        Some(part) => {
            let map = file.object(part.key)?;
            let map = map.ok_or_else(|| file.missing(part.key))?;
            Fields::new(map, part.prefix)
        }
    };
    refuse_unread(config, family.reads)?;
    let mut model = plain::read(file, config, Architecture::of(family), &family.defaults)?;
    (family.describe)(config, &mut model)?;
    Ok(model)
}

fn family(file: Fields<'_>) -> Result<&'static Family, ConfigError> {
    let unsupported = |given: String| ConfigError::UnsupportedArchitecture {
        given,
        supported: FAMILIES
            .iter()
            .map(|family| family.class_name)
            .collect::<Vec<_>>()
            .join(", "),
    };
    if let Some(value) = file.value("architectures") {
        let names = value
            .as_array()
            .filter(|names| names.iter().all(Value::is_string))
            .ok_or_else(|| file.bad("architectures", "a list of class names"))?;
        if let Some(name) = names.first().and_then(Value::as_str) {
            return FAMILIES
                .iter()
                .find(|family| family.class_name == name)
                .ok_or_else(|| unsupported(name.to_owned()));
        }
    }
    // Files written from a bare config (without a model) have only `model_type`.
    let model_type = file
        .text("model_type")?
        .ok_or_else(|| file.missing("architectures"))?;
    FAMILIES
        .iter()
        .find(|family| family.model_type == model_type)
        .ok_or_else(|| unsupported(format!("of model_type {model_type:?}")))
}
