//! The families as GGUF files have them: the name of the architecture, the order of rows, and the keys
//! that are more than a plain block. The names of tensors follow from the names that the family has in
//! Hugging Face checkpoints.

mod experts;
mod gemma;
mod phi3;

use serde_json::{Map, Value as Json, json};

use super::error::GgufError;
use super::keys::Keys;
use crate::config::Architecture;

/// The fields of a `config.json`.
pub(super) type Fields = Map<String, Json>;

/// One family.
pub(super) struct Family {
    /// The name in `general.architecture`.
    pub name: &'static str,
    /// The class in Hugging Face's `architectures`.
    pub class_name: &'static str,
    /// Files of the family have experts.
    pub experts: bool,
    /// llama.cpp's converter puts the rows of queries and keys into an order in which those that are
    /// rotated together lie in pairs.
    pub paired: bool,
    /// The keys of [`NEUTRAL`] that `describe` reads. The others may not change anything.
    pub reads: &'static [&'static str],
    /// Adds the fields that a plain block has not.
    pub describe: fn(&Keys<'_>, &mut Fields) -> Result<(), GgufError>,
}

/// Keys that change the model in ways that not every family has, each with the value that changes
/// nothing.
const NEUTRAL: [(&str, f64); 15] = [
    ("expert_count", 0.0),
    ("logit_scale", 1.0),
    ("residual_scale", 1.0),
    ("embedding_scale", 1.0),
    ("attention.scale", 0.0),
    ("attention.clamp_kqv", 0.0),
    ("attention.max_alibi_bias", 0.0),
    ("attention.sliding_window", 0.0),
    ("attn_logit_softcapping", 0.0),
    ("final_logit_softcapping", 0.0),
    ("rope.scaling.attn_factor", 1.0),
    ("rope.scaling.yarn_attn_factor", 1.0),
    ("rope.scaling.yarn_ext_factor", 1.0),
    ("rope.scaling.yarn_log_multiplier", 0.0),
    ("rope.freq_base_swa", 0.0),
];

const PLAIN: Family = Family {
    name: "",
    class_name: "",
    experts: false,
    paired: false,
    reads: &["attention.sliding_window"],
    describe: |_, _| Ok(()),
};

/// The families whose files are read.
pub(super) const FAMILIES: &[Family] = &[
    Family {
        name: "llama",
        class_name: "LlamaForCausalLM",
        paired: true,
        ..PLAIN
    },
    Family {
        name: "qwen2",
        class_name: "Qwen2ForCausalLM",
        ..PLAIN
    },
    Family {
        name: "qwen3",
        class_name: "Qwen3ForCausalLM",
        ..PLAIN
    },
    Family {
        name: "smollm3",
        class_name: "SmolLM3ForCausalLM",
        paired: true,
        reads: &[],
        describe: smollm3,
        ..PLAIN
    },
    Family {
        name: "granite",
        class_name: "GraniteForCausalLM",
        paired: true,
        reads: &[
            "logit_scale",
            "residual_scale",
            "embedding_scale",
            "attention.scale",
        ],
        describe: granite,
        ..PLAIN
    },
    Family {
        name: "olmo2",
        class_name: "Olmo2ForCausalLM",
        reads: &[],
        ..PLAIN
    },
    phi3::FAMILY,
    gemma::GEMMA2,
    gemma::GEMMA3,
    experts::MIXTRAL,
    experts::QWEN2_MOE,
    experts::QWEN3_MOE,
    experts::GPT_OSS,
];

/// The classes that are converted under the name of another one, and that one.
const CONVERTED_AS: [(&str, &str); 2] = [
    ("MistralForCausalLM", "LlamaForCausalLM"),
    ("Gemma3ForConditionalGeneration", "Gemma3ForCausalLM"),
];

/// The name in `general.architecture` of files that llama.cpp converts from models of `architecture`;
/// `None` if such files are not supported.
pub(crate) fn architecture_of(architecture: Architecture) -> Option<&'static str> {
    let class_name = architecture.class_name();
    let other = CONVERTED_AS.iter().find(|(class, _)| *class == class_name);
    let class_name = other.map_or(class_name, |(_, other)| other);
    let family = FAMILIES
        .iter()
        .find(|family| family.class_name == class_name)?;
    Some(family.name)
}

/// True if the rows of queries and keys lie in pairs in files of the architecture `name`.
pub(super) fn is_paired(name: &str) -> bool {
    let mut families = FAMILIES.iter();
    families.any(|family| family.name == name && family.paired)
}

impl Family {
    /// The family of the file.
    ///
    /// # Errors
    /// An architecture that is not supported, or a key that changes the model in another way than the
    /// family has.
    pub fn of(keys: &Keys<'_>) -> Result<&'static Self, GgufError> {
        let experts = keys.count("expert_count")?.is_some_and(|count| count > 0);
        let named = || {
            let families = FAMILIES.iter();
            families.filter(|family| family.name == keys.architecture)
        };
        let family = named()
            .find(|family| family.experts == experts)
            // The key that it lacks, or has, is reported below.
            .or_else(|| named().next())
            .ok_or_else(|| {
                let mut names: Vec<&str> = FAMILIES.iter().map(|family| family.name).collect();
                names.sort_unstable();
                names.dedup();
                let given: String = keys.architecture.chars().take(80).collect();
                GgufError::Unsupported {
                    key: "general.architecture".to_owned(),
                    supported: names.join(", ") + &crate::refused::advice(&given, &names),
                    given: format!("{given:?}"),
                }
            })?;
        for (key, neutral) in NEUTRAL {
            if family.reads.contains(&key) {
                continue;
            }
            let given = keys.number(key)?.filter(|given| *given != neutral);
            if let Some(given) = given {
                return Err(GgufError::Unsupported {
                    key: keys.name(key),
                    given: given.to_string(),
                    supported: neutral.to_string(),
                });
            }
        }
        let causal = keys.name("attention.causal");
        if keys.metadata.boolean(&causal)? == Some(false) {
            return Err(keys.metadata.invalid(&causal, "true"));
        }
        Ok(family)
    }
}

/// llama.cpp has no key for it: every fourth layer has no rotation.
fn smollm3(_: &Keys<'_>, config: &mut Fields) -> Result<(), GgufError> {
    config.insert("no_rope_layer_interval".to_owned(), json!(4));
    Ok(())
}

fn granite(keys: &Keys<'_>, config: &mut Fields) -> Result<(), GgufError> {
    for (name, key) in [
        ("embedding_multiplier", "embedding_scale"),
        ("residual_multiplier", "residual_scale"),
        ("attention_multiplier", "attention.scale"),
        ("logits_scaling", "logit_scale"),
    ] {
        let factor = keys.field(key)?.ok_or_else(|| keys.missing(key))?;
        config.insert(name.to_owned(), factor);
    }
    Ok(())
}
