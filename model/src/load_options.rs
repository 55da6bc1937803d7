//! How to load a checkpoint.

use std::path::PathBuf;

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
    /// Slots of the KV pool. `None` takes as many as fit.
    pub kv_tokens: Option<usize>,
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
