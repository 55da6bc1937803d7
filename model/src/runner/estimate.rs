//! The memory that a model takes, without its weights being read.

use hearth_shaders::{BlockFormat, Kernels};

use super::formats::stored_blocks;
use crate::checkpoint::Checkpoint;
use crate::device::{Api, DeviceSpec};
use crate::dtype::Dtype;
use crate::kv_pool::bytes_per_token;
use crate::load_error::LoadError;
use crate::load_options::LoadOptions;
use crate::memory::WindowPlan;
use crate::transformer::{Blocks, Quantized};

/// The memory that a model takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// The number of parameters, tied embeddings counted once.
    pub parameters: u64,
    /// Bytes of all parameters.
    pub weight_bytes: u64,
    /// Bytes of the keys and values of one token over all layers.
    pub token_bytes: u64,
    windows: WindowPlan,
}

impl Estimate {
    /// Bytes of a KV pool of `slots` slots.
    pub fn kv_bytes(&self, slots: usize) -> u64 {
        let window = self.windows.limits(slots);
        self.windows.bytes(slots, window, self.token_bytes)
    }

    /// True if layers that attend a window get slots of their own where that saves memory.
    pub fn divides(&self) -> bool {
        self.windows.divides()
    }
}

/// The memory of `checkpoint` on the backend `B`, with the formats of `options` or, where they leave
/// them open, those of the checkpoint.
///
/// # Errors
/// The options do not fit the model.
pub(super) fn estimate<B: Kernels>(
    checkpoint: &Checkpoint,
    options: &LoadOptions,
) -> Result<Estimate, LoadError> {
    let (config, weights) = (&checkpoint.config, &checkpoint.weights);
    let dtype = options.dtype.or(weights.dtype()).unwrap_or(Dtype::F32);
    let is_cpu = matches!(options.device, DeviceSpec::Named { api: Api::Cpu, .. });
    let blocks = Blocks {
        quantized: match options.quantization {
            Some(quantization) => Quantized::Rounded(quantization),
            None => stored_blocks(dtype, is_cpu),
        },
        bf16: dtype == Dtype::Bf16 && B::packs(&[BlockFormat::Bf16]),
    };
    Ok(Estimate {
        parameters: config.parameters(),
        weight_bytes: blocks.weight_bytes::<B>(config, weights, dtype),
        token_bytes: bytes_per_token(config, options.kv_dtype.format(dtype, config)?),
        windows: WindowPlan::new(config, options),
    })
}
