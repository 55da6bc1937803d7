//! The formats of weights as configured, for the model and the draft model.

use hearth_model::checkpoint;
use hearth_model::dtype::Dtype as ModelDtype;
use hearth_model::weights::Quantization as ModelQuantization;
use hearth_model::{KvDtype, LoadOptions};

use crate::config::{Config, Dtype, KvCacheDtype, LoadFormat, Quantization};

/// The seed of random weights, fixed so that they are the same model every time.
const DUMMY_SEED: u64 = 0;

/// Where weights come from.
pub fn load_format(config: &Config) -> checkpoint::LoadFormat {
    match config.load_format {
        LoadFormat::Auto => checkpoint::LoadFormat::Safetensors,
        LoadFormat::Dummy => checkpoint::LoadFormat::Dummy { seed: DUMMY_SEED },
    }
}

/// The number formats in which a model is loaded, and no other option.
pub fn formats_to_load(config: &Config) -> LoadOptions {
    LoadOptions {
        dtype: match config.dtype {
            Dtype::Auto => None,
            Dtype::F32 => Some(ModelDtype::F32),
            Dtype::F16 => Some(ModelDtype::F16),
            Dtype::Bf16 => Some(ModelDtype::Bf16),
        },
        quantization: config.quantization.map(|quantization| match quantization {
            Quantization::Int8 => ModelQuantization::Int8,
            Quantization::Int4 => ModelQuantization::Int4,
        }),
        kv_dtype: match config.kv_cache_dtype {
            KvCacheDtype::Auto => KvDtype::Auto,
            KvCacheDtype::Int8 => KvDtype::Int8,
        },
        ..LoadOptions::default()
    }
}
