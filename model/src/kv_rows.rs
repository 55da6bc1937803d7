//! Keys and values of single slots as bytes: out of the device's pool, and into it. Where the pool
//! lies in the host's memory, they are copied as they are.

use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor, TensorData};
use hearth_forward::SequenceSpan;
use hearth_shaders::{HeadLayout, Kernels, RaggedIndex, RopeTable, Summation, upload};
use rayon::prelude::*;

use crate::config::ModelConfig;
use crate::dtype::Dtype;
use crate::kv_pool::{KvPool, bytes_per_token};
use crate::slot_runs::SlotRuns;
use crate::transformer::{indices, primitive, tensor};

/// Bytes that are copied to or from the device at once. This bounds the memory that the device
/// needs beside its own pool.
const CHUNK: usize = 32 << 20;

/// How slots are stored, and how they are copied. A plane is all that a layer has of the keys or
/// of the values; the planes are the keys of the first layer, its values, the keys of the second
/// layer, and so on.
pub struct KvRows<B: Backend> {
    planes: usize,
    dtype: Dtype,
    /// The type in which the device's kernels take rows.
    vector: Dtype,
    kv_heads: usize,
    head_dim: usize,
    token_bytes: usize,
    /// A rotation by zero, so that the kernel that rotates and stores keys stores them unchanged.
    rope: RopeTable<B>,
}

impl<B: Kernels> KvRows<B> {
    pub fn new(config: &ModelConfig, dtype: Dtype, vector: Dtype, device: &B::Device) -> Self {
        let angle = |value: f32| {
            let data = TensorData::new(vec![value], [1, 1]);
            primitive(upload::<B, 2>(data, DType::F32, device))
        };
        Self {
            planes: 2 * config.layers.len(),
            dtype,
            vector,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            token_bytes: bytes_per_token(config, dtype) as usize,
            rope: RopeTable {
                cos: angle(1.0),
                sin: angle(0.0),
                rotary_dim: 0,
            },
        }
    }

    /// Bytes of a token over all planes.
    pub fn token_bytes(&self) -> usize {
        self.token_bytes
    }

    /// Bytes of a token in one plane.
    pub fn row_bytes(&self) -> usize {
        self.kv_heads * self.head_dim * self.dtype.size()
    }

    pub fn planes(&self) -> usize {
        self.planes
    }

    /// `count` slots, in parts that are copied at once.
    fn parts(&self, count: usize) -> impl Iterator<Item = std::ops::Range<usize>> + use<B> {
        let most = (CHUNK / self.token_bytes).max(1);
        (0..count)
            .step_by(most)
            .map(move |start| start..count.min(start + most))
    }

    /// Copies the slots `from` of `pool` to the slots `to` of `planes`, arrays in the host's memory,
    /// one for each plane.
    ///
    /// # Errors
    /// The device's own message.
    pub fn fetch(
        &self,
        pool: &mut KvPool<B>,
        from: &[u32],
        planes: &mut [&mut [u8]],
        to: &[u32],
        device: &B::Device,
    ) -> Result<(), String> {
        let row = self.row_bytes();
        if let Some(pool) = pool.in_memory() {
            let runs = SlotRuns::new(from, to, row);
            let copies = pool.into_par_iter().zip(planes);
            copies.for_each(|(from, to)| runs.copy(from, to));
            return Ok(());
        }
        for part in self.parts(from.len()) {
            let data = self.read(pool, &from[part.clone()], device)?;
            let runs = SlotRuns::new(
                &(0..part.len() as u32).collect::<Vec<_>>(),
                &to[part.clone()],
                row,
            );
            let parts = data.as_bytes().chunks_exact(part.len() * row);
            planes
                .iter_mut()
                .zip(parts)
                .for_each(|(to, from)| runs.copy(from, to));
        }
        Ok(())
    }

    /// Copies the slots `from` of `planes` to the slots `to` of `pool`, the other way round.
    ///
    /// # Errors
    /// The device's own message.
    pub fn restore(
        &self,
        pool: &mut KvPool<B>,
        to: &[u32],
        planes: &[&[u8]],
        from: &[u32],
        device: &B::Device,
    ) -> Result<(), String> {
        let row = self.row_bytes();
        if let Some(pool) = pool.in_memory() {
            let runs = SlotRuns::new(from, to, row);
            let copies = pool.into_par_iter().zip(planes);
            copies.for_each(|(to, from)| runs.copy(from, to));
            return Ok(());
        }
        for part in self.parts(from.len()) {
            let from = &from[part.clone()];
            let row_of = |plane: usize, i: usize| &planes[plane][from[i] as usize * row..][..row];
            self.write(pool, &to[part], row_of, device);
        }
        self.sync(device)
    }

    /// The bytes of `slots`, `[planes, slots, kv_heads, head_dim]`.
    ///
    /// # Errors
    /// The device's own message.
    fn read(
        &self,
        pool: &mut KvPool<B>,
        slots: &[u32],
        device: &B::Device,
    ) -> Result<TensorData, String> {
        let width = self.kv_heads * self.head_dim;
        let ids = indices::<B>(slots, device);
        let rows = (0..self.planes / 2).flat_map(|layer| {
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
        let data = Tensor::cat(rows.collect(), 0);
        let data = data.try_into_data().map_err(|error| error.to_string())?;
        Ok(data.convert_dtype(DType::from(self.dtype)))
    }

    /// Writes `row_of(plane, i)`, the bytes of a token in a plane, to slot `slots[i]`, for every
    /// plane and every `i`.
    fn write<'a>(
        &self,
        pool: &mut KvPool<B>,
        slots: &[u32],
        row_of: impl Fn(usize, usize) -> &'a [u8],
        device: &B::Device,
    ) {
        let row = self.row_bytes();
        let layout = HeadLayout {
            // The kernel takes queries as well, but its result is not used.
            heads: self.kv_heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
        };
        let zeros = vec![0; slots.len()];
        let span = SequenceSpan {
            context: slots.len() as u32,
            tokens: slots.len() as u32,
            first_slot: 0,
        };
        // The order of sums does not matter, because this kernel sums nothing.
        let order = Summation::Fastest;
        let index = RaggedIndex::upload(&zeros, slots, &[span], slots, layout, order, device);
        for layer in 0..self.planes / 2 {
            let mut bytes = Vec::with_capacity(3 * row * slots.len());
            for slot in 0..slots.len() {
                bytes.resize(bytes.len() + row, 0);
                bytes.extend_from_slice(row_of(2 * layer, slot));
                bytes.extend_from_slice(row_of(2 * layer + 1, slot));
            }
            let shape = [slots.len(), layout.qkv_width()];
            let data = TensorData::from_bytes_vec(bytes, shape, DType::from(self.dtype));
            let qkv = upload::<B, 2>(data, DType::from(self.vector), device);
            let (k, v) = pool.layer(layer);
            B::rope_and_store(primitive(qkv), layout, None, &self.rope, &index, k, v);
        }
    }

    /// Waits for all writes. Without this wait a failed launch would show only after later forward
    /// passes had read the slots.
    ///
    /// # Errors
    /// The device's own message.
    fn sync(&self, device: &B::Device) -> Result<(), String> {
        B::sync(device).map_err(|error| format!("{error:?}"))
    }
}
