//! A second KV pool, in the host's memory, for slots that were evicted from the device.

use std::collections::TryReserveError;

use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor, TensorData};
use hearth_forward::SequenceSpan;
use hearth_shaders::{HeadLayout, Kernels, RaggedIndex, RopeTable, Summation, upload};

use crate::config::ModelConfig;
use crate::dtype::Dtype;
use crate::kv_pool::{KvPool, bytes_per_token};
use crate::transformer::{indices, primitive, tensor};

/// Bytes that are copied to or from the device at once. This bounds the memory that the device
/// needs beside its own pool.
const CHUNK: usize = 32 << 20;

/// The pool and how its slots are stored.
pub struct HostPool<B: Backend> {
    /// The keys of the first layer, its values, the keys of the second layer, and so on:
    /// `[slots, kv_heads, head_dim]`.
    planes: Vec<Vec<u8>>,
    dtype: Dtype,
    /// The type in which the device's kernels take rows.
    vector: Dtype,
    kv_heads: usize,
    head_dim: usize,
    bytes_per_token: usize,
    /// A rotation by zero, so that the kernel that rotates and stores keys stores them unchanged.
    rope: RopeTable<B>,
}

impl<B: Kernels> HostPool<B> {
    /// # Errors
    /// The host has too little memory.
    pub fn new(
        config: &ModelConfig,
        slots: usize,
        dtype: Dtype,
        vector: Dtype,
        device: &B::Device,
    ) -> Result<Self, TryReserveError> {
        let bytes = slots * config.kv_heads * config.head_dim * dtype.size();
        let plane = || -> Result<Vec<u8>, TryReserveError> {
            let mut plane = Vec::new();
            plane.try_reserve_exact(bytes)?;
            plane.resize(bytes, 0);
            Ok(plane)
        };
        let angle = |value: f32| {
            let data = TensorData::new(vec![value], [1, 1]);
            primitive(upload::<B, 2>(data, DType::F32, device))
        };
        Ok(Self {
            planes: (0..2 * config.layers)
                .map(|_| plane())
                .collect::<Result<_, _>>()?,
            dtype,
            vector,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            bytes_per_token: bytes_per_token(config, dtype) as usize,
            rope: RopeTable {
                cos: angle(1.0),
                sin: angle(0.0),
                rotary_dim: 0,
            },
        })
    }

    /// Copies the slots `from` of `pool` to the slots `to` of this one.
    ///
    /// # Errors
    /// The device's own message.
    pub fn fetch(
        &mut self,
        pool: &mut KvPool<B>,
        from: &[u32],
        to: &[u32],
        device: &B::Device,
    ) -> Result<(), String> {
        let width = self.kv_heads * self.head_dim;
        let row = width * self.dtype.size();
        for (from, to) in self.chunks(from, to) {
            let ids = indices::<B>(from, device);
            let rows = (0..self.planes.len() / 2).flat_map(|layer| {
                let (k, v) = pool.layer(layer);
                [k, v].map(|plane| {
                    let plane = tensor::<B, 3>(plane.clone());
                    let slots = plane.dims()[0];
                    let table = plane.reshape([slots, width]);
                    let rows = B::embed(primitive(table), ids.clone().into_primitive());
                    tensor::<B, 2>(rows)
                })
            });
            // One transfer for all layers.
            let data = Tensor::cat(rows.collect(), 0)
                .try_into_data()
                .map_err(|error| error.to_string())?
                .convert_dtype(DType::from(self.dtype));
            let planes = data.as_bytes().chunks_exact(from.len() * row);
            for (plane, rows) in self.planes.iter_mut().zip(planes) {
                for (slot, bytes) in to.iter().zip(rows.chunks_exact(row)) {
                    plane[*slot as usize * row..][..row].copy_from_slice(bytes);
                }
            }
        }
        Ok(())
    }

    /// Copies the slots `from` of this pool to the slots `to` of `pool`.
    ///
    /// # Errors
    /// The device's own message.
    pub fn restore(
        &self,
        pool: &mut KvPool<B>,
        from: &[u32],
        to: &[u32],
        device: &B::Device,
    ) -> Result<(), String> {
        let row = self.kv_heads * self.head_dim * self.dtype.size();
        let layout = HeadLayout {
            // The kernel takes queries as well, but its result is not used.
            heads: self.kv_heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
        };
        for (from, to) in self.chunks(from, to) {
            let zeros = vec![0; to.len()];
            let span = SequenceSpan {
                context: to.len() as u32,
                tokens: to.len() as u32,
                first_slot: 0,
            };
            // The order of sums does not matter, because this kernel sums nothing.
            let order = Summation::Fastest;
            let index = RaggedIndex::upload(&zeros, to, &[span], to, layout, order, device);
            for (layer, planes) in self.planes.as_chunks::<2>().0.iter().enumerate() {
                let mut bytes = Vec::with_capacity(3 * row * from.len());
                for slot in from {
                    let at = *slot as usize * row..(*slot as usize + 1) * row;
                    bytes.resize(bytes.len() + row, 0);
                    planes
                        .iter()
                        .for_each(|plane| bytes.extend_from_slice(&plane[at.clone()]));
                }
                let shape = [from.len(), layout.qkv_width()];
                let data = TensorData::from_bytes_vec(bytes, shape, DType::from(self.dtype));
                let qkv = upload::<B, 2>(data, DType::from(self.vector), device);
                let (k, v) = pool.layer(layer);
                B::rope_and_store(primitive(qkv), layout, None, &self.rope, &index, k, v);
            }
        }
        // Without this wait a failed launch would show only after later forward passes had read
        // the slots.
        B::sync(device).map_err(|error| format!("{error:?}"))
    }

    fn chunks<'a>(
        &self,
        from: &'a [u32],
        to: &'a [u32],
    ) -> impl Iterator<Item = (&'a [u32], &'a [u32])> + use<'a, B> {
        let tokens = (CHUNK / self.bytes_per_token).max(1);
        from.chunks(tokens).zip(to.chunks(tokens))
    }
}
