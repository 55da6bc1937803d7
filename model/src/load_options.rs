//! How to load a checkpoint.

use std::path::PathBuf;

use hearth_shaders::KvFormat;

use crate::config::ModelConfig;
use crate::device::DeviceSpec;
use crate::dtype::Dtype;
use crate::weights::Quantization;

/// The largest forward pass that serving will ask for.
#[derive(Debug, Clone, Copy, Default)]
pub struct LargestStep {
    pub tokens: usize,
    pub sequences: usize,
}

/// The slots for adapters on the device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AdapterSlots {
    /// 0 for none.
    pub slots: usize,
    /// The largest rank that an adapter may have.
    pub rank: usize,
    /// How many of the slots, the first ones, have room for an embedding and an output projection.
    pub tables: usize,
}

/// The heads of a model cannot be stored in the format of the KV cache.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "--kv-cache-dtype {format} needs a head_dim that is a multiple of 4, and the model has {head_dim}"
)]
pub struct HeadsDoNotFit {
    format: KvFormat,
    head_dim: usize,
}

/// The type of keys and values in the KV cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum KvDtype {
    /// The type that the model is computed in.
    #[default]
    Auto,
    /// 8-bit integers with a scale for each head of a token ([`KvFormat::Int8`]).
    Int8,
}

impl KvDtype {
    /// The format of a pool for a model that is computed in `dtype`.
    ///
    /// # Errors
    /// The heads of the model do not fit the format.
    pub(crate) fn format(
        self,
        dtype: Dtype,
        config: &ModelConfig,
    ) -> Result<KvFormat, HeadsDoNotFit> {
        let format = match self {
            KvDtype::Auto => KvFormat::Floats(dtype.into()),
            KvDtype::Int8 => KvFormat::Int8,
        };
        match format.fits(config.head_dim) {
            true => Ok(format),
            false => Err(HeadsDoNotFit {
                format,
                head_dim: config.head_dim,
            }),
        }
    }
}

/// How to load a checkpoint.
#[derive(Debug, Clone, Default)]
pub struct LoadOptions {
    pub device: DeviceSpec,
    /// The type to compute in. `None` takes the checkpoint's type if the device computes in it,
    /// and f32 otherwise.
    pub dtype: Option<Dtype>,
    /// How to quantize the matrices. `None` keeps them as the checkpoint stores them, quantized
    /// ones included if the device computes with them.
    pub quantization: Option<Quantization>,
    /// The type of keys and values in the KV pool, and in the second one.
    pub kv_dtype: KvDtype,
    /// Slots of the KV pool. `None` takes as many as fit.
    pub kv_tokens: Option<usize>,
    /// Slots for layers that attend a window, as a share of `kv_tokens`, if these layers are to have
    /// slots of their own. They keep less than a whole sequence then, and the pool can be neither
    /// copied to the host nor read. It has no effect on a model without such layers, or whose window
    /// is no shorter than a sequence.
    pub window_share: Option<f64>,
    /// Longest sequence in tokens. `None` takes the model's own limit, or the slots of the pool
    /// if these are fewer.
    pub max_model_len: Option<usize>,
    /// Slots of a second KV pool, in the host's memory.
    pub host_slots: usize,
    pub adapters: AdapterSlots,
    /// The bits of a token's logits must not depend on the rest of the batch.
    pub deterministic: bool,
    /// The largest matrix in bytes, if that is to be less than what the device binds at once.
    pub largest_matrix: Option<u64>,
    /// A GPU must prove that its kernels compute correctly before anything is loaded
    /// onto it.
    pub check_kernels: bool,
    /// The largest step, if a GPU is to time the kernels for matrix multiplications of many
    /// tokens and take the fastest.
    pub tuned_for: Option<LargestStep>,
    /// A directory in which compiled kernels and the tuning cache are kept for later starts of
    /// this build.
    pub kernel_cache: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_that_words_of_four_do_not_fill_are_refused_with_their_number() {
        let format = |head_dim: usize| {
            let json = format!(
                r#"{{"architectures": ["LlamaForCausalLM"], "vocab_size": 256, "hidden_size": 64,
                "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
                "head_dim": {head_dim}, "max_position_embeddings": 512}}"#
            );
            let config = ModelConfig::from_json(&json).unwrap();
            let format = KvDtype::Int8.format(Dtype::F32, &config);
            format.map_err(|error| error.to_string())
        };
        assert_eq!(format(20), Ok(KvFormat::Int8));
        let error = format(22).unwrap_err();
        assert!(
            error.contains("--kv-cache-dtype int8") && error.contains("the model has 22"),
            "{error}"
        );
    }
}
