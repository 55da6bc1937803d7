//! Adapters in GGUF files.

use super::error::GgufError;
use super::families;
use super::metadata::Metadata;
use super::tensors::Tensors;
use crate::config::ModelConfig;
use crate::weights::StoredTensor;

/// An adapter (LoRA) of a GGUF file.
pub(crate) struct GgufAdapter {
    pub architecture: String,
    pub alpha: f64,
    /// Under Hugging Face's names, with the suffix `.lora_a` or `.lora_b`.
    pub tensors: Vec<(String, StoredTensor)>,
}

/// Reads the adapter of a file for the model of `config`.
pub(super) fn read(
    metadata: &Metadata<'_>,
    tensors: Tensors<'_>,
    config: &ModelConfig,
) -> Result<GgufAdapter, GgufError> {
    for (key, only) in [("general.type", "adapter"), ("adapter.type", "lora")] {
        let given = metadata.required(key, Metadata::text)?;
        if given != only {
            return Err(metadata.invalid(key, format!("{only:?}")));
        }
    }
    let key = "adapter.alora.invocation_tokens";
    if metadata.get(key).is_some() {
        return Err(GgufError::Unsupported {
            key: key.to_owned(),
            given: "a list".to_owned(),
            supported: "adapters of the whole prompt".to_owned(),
        });
    }
    let architecture = metadata.architecture()?.to_owned();
    // Rows of changes lie as the rows of queries and keys do.
    let paired = families::is_paired(&architecture);
    Ok(GgufAdapter {
        alpha: metadata.required("adapter.lora.alpha", Metadata::number)?,
        tensors: tensors.renamed_changes(config, paired)?,
        architecture,
    })
}
