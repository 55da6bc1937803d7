//! The KV cache on the device: per layer one flat pool of keys and one of values,
//! `[slots, kv_heads, head_dim]`, a slot per token.
//!
//! A sequence's KV is a list of slot indices, so that sequences with a common
//! prefix share memory by sharing indices. Who owns which slot is not known here.

use burn::tensor::DType;
use burn::tensor::ops::FloatTensor;
use hearth_shaders::Kernels;

use crate::config::ModelConfig;
use crate::dtype::Dtype;

pub struct KvPool<B: burn::tensor::backend::Backend> {
    layers: Vec<(FloatTensor<B>, FloatTensor<B>)>,
}

impl<B: Kernels> KvPool<B> {
    pub fn new(config: &ModelConfig, slots: usize, dtype: Dtype, device: &B::Device) -> Self {
        let shape = [slots, config.kv_heads, config.head_dim];
        let pool = || B::empty_pool(device, shape, DType::from(dtype));
        Self {
            layers: (0..config.layers).map(|_| (pool(), pool())).collect(),
        }
    }

    /// The keys and values of a layer. They are written in place, so each pool must
    /// have no other owner.
    pub fn layer(&mut self, index: usize) -> (&mut FloatTensor<B>, &mut FloatTensor<B>) {
        let (k, v) = &mut self.layers[index];
        (k, v)
    }
}

/// Bytes of keys and values of one token over all layers.
pub fn bytes_per_token(config: &ModelConfig, dtype: Dtype) -> u64 {
    (2 * config.layers * config.kv_heads * config.head_dim * dtype.size()) as u64
}
