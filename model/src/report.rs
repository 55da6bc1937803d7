//! The description of a loaded model.

use hearth_forward::WindowLimits;

use crate::dtype::Dtype;

/// A loaded model: its sizes, its device, and the memory that it uses.
#[derive(Debug, Clone)]
pub struct Report {
    pub architecture: String,
    pub parameters: u64,
    pub vocab_size: usize,
    pub hidden_size: usize,
    /// `cuda:0 (NVIDIA H100)`
    pub device: String,
    pub dtype: Dtype,
    /// The format of the matrices where that is not `dtype`: `int8`, `Q4_0, Q8_0`.
    pub quantization: Option<String>,
    /// The type of keys and values in the KV cache: that of `dtype`, or `int8`.
    pub kv_dtype: String,
    pub kv_slots: usize,
    /// The window slots, if layers that attend a window have a pool of their own.
    pub window: Option<WindowLimits>,
    /// Slots of the second pool, in the host's memory.
    pub host_slots: usize,
    pub max_model_len: usize,
    pub weight_bytes: u64,
    pub kv_bytes: u64,
    /// Device memory that weights and KV pool leave free; `None` where the device does not tell.
    pub headroom_bytes: Option<u64>,
}
