//! The KV cache on the device: per layer one flat pool of keys and one of values,
//! `[slots, kv_heads, head_width]`, a slot per token. The width of a head depends on the format. Layers
//! that attend a window may have fewer slots than the others: window slots, which are given to other
//! tokens sooner.
//!
//! A sequence's KV is a list of slot indices, so that sequences with a common prefix share memory
//! by sharing indices. The scheduler knows which sequence owns which slot; this file does not.

use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use hearth_shaders::{Kernels, KvFormat};

use crate::config::{LayerConfig, ModelConfig};

/// The pools of all layers.
pub struct KvPool<B: Backend> {
    layers: Vec<(FloatTensor<B>, FloatTensor<B>)>,
}

impl<B: Kernels> KvPool<B> {
    /// Pools of `slots` slots, or of `window_slots` in layers that attend a window if these have
    /// slots of their own.
    pub fn new(
        config: &ModelConfig,
        slots: usize,
        window_slots: Option<usize>,
        format: KvFormat,
        device: &B::Device,
    ) -> Self {
        let pool = |layer: &LayerConfig| {
            let of_window = window_slots.filter(|_| layer.window.is_some());
            let slots = of_window.unwrap_or(slots);
            let shape = [slots, config.kv_heads, format.head_width(config.head_dim)];
            B::empty_pool(device, shape, format.dtype())
        };
        let layers = config.layers.iter();
        Self {
            layers: layers.map(|layer| (pool(layer), pool(layer))).collect(),
        }
    }

    /// The pools of keys and values of a layer. Kernels write to them in place, so there must be no
    /// other reference to them.
    pub fn layer(&mut self, index: usize) -> (&mut FloatTensor<B>, &mut FloatTensor<B>) {
        let (k, v) = &mut self.layers[index];
        (k, v)
    }

    /// All pools: the keys of the first layer, its values, the keys of the second layer, and so on.
    pub fn planes(&mut self) -> impl Iterator<Item = &mut FloatTensor<B>> {
        self.layers.iter_mut().flat_map(|(k, v)| [k, v])
    }

    /// The bytes of all pools where they lie in the host's memory, in the order of
    /// [`planes`](Self::planes). There must be no other reference to them.
    pub fn in_memory(&mut self) -> Option<Vec<&mut [u8]>> {
        self.planes().map(B::in_memory).collect()
    }
}

/// Bytes of keys and values of one token over all layers.
pub fn bytes_per_token(config: &ModelConfig, format: KvFormat) -> u64 {
    let head = format.head_bytes(config.head_dim);
    (2 * config.layers.len() * config.kv_heads * head) as u64
}
