//! Keys and values of single slots as bytes: out of the device's pool, and into it. Where the pool
//! lies in the host's memory, they are copied as they are.

use std::ops::Range;

use burn::tensor::{Int, Tensor, TensorData};
use hearth_shaders::{Kernels, KvFormat};
use rayon::prelude::*;

use crate::config::ModelConfig;
use crate::kv_pool::{KvPool, bytes_per_token};
use crate::slot_runs::SlotRuns;
use crate::transformer::indices;

/// Bytes that are copied to or from the device at once. This bounds the memory that the device
/// needs beside its own pool.
const CHUNK: usize = 32 << 20;

/// How slots are stored, and how they are copied. A plane is all that a layer has of the keys or
/// of the values; the planes are the keys of the first layer, its values, the keys of the second
/// layer, and so on.
pub struct KvRows {
    planes: usize,
    row_bytes: usize,
}

impl KvRows {
    pub fn new(config: &ModelConfig, format: KvFormat) -> Self {
        let planes = 2 * config.layers.len();
        Self {
            planes,
            row_bytes: bytes_per_token(config, format) as usize / planes,
        }
    }

    /// Bytes of a token over all planes.
    pub fn token_bytes(&self) -> usize {
        self.planes * self.row_bytes
    }

    /// Bytes of a token in one plane.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    pub fn planes(&self) -> usize {
        self.planes
    }

    /// `count` slots, in parts that are copied at once.
    fn parts(&self, count: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let most = (CHUNK / self.token_bytes()).max(1);
        (0..count)
            .step_by(most)
            .map(move |start| start..count.min(start + most))
    }

    /// Copies the slots `from` of `pool` to the slots `to` of `planes`, arrays in the host's memory,
    /// one for each plane.
    ///
    /// # Errors
    /// The device's own message.
    pub fn fetch<B: Kernels>(
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
            let data = read(pool, &from[part.clone()], device)?;
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
    pub fn restore<B: Kernels>(
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
            write(pool, &to[part], row_of, device);
        }
        sync::<B>(device)
    }
}

/// Writes `row_of(plane, i)`, the bytes of a token in a plane, to slot `slots[i]`, for every plane and
/// every `i`.
fn write<'a, B: Kernels>(
    pool: &mut KvPool<B>,
    slots: &[u32],
    row_of: impl Fn(usize, usize) -> &'a [u8],
    device: &B::Device,
) {
    let ids = indices::<B>(slots, device);
    for (plane, pool) in pool.planes().enumerate() {
        let rows = (0..slots.len()).flat_map(|slot| row_of(plane, slot).as_chunks::<4>().0);
        let words: Vec<u32> = rows.map(|word| u32::from_le_bytes(*word)).collect();
        let shape = [slots.len(), words.len() / slots.len().max(1)];
        let words = indices::<B>(&words, device).reshape(shape);
        B::write_slots(pool, ids.clone().into_primitive(), words.into_primitive());
    }
}

/// The bytes of `slots`, `[planes, slots, row_bytes]`.
///
/// # Errors
/// The device's own message.
fn read<B: Kernels>(
    pool: &mut KvPool<B>,
    slots: &[u32],
    device: &B::Device,
) -> Result<TensorData, String> {
    let ids = indices::<B>(slots, device);
    let rows = pool.planes().map(|pool| {
        let rows = B::read_slots(pool, ids.clone().into_primitive());
        Tensor::<B, 2, Int>::from_primitive(rows)
    });
    // One transfer for all layers.
    let data = Tensor::cat(rows.collect(), 0);
    data.try_into_data().map_err(|error| error.to_string())
}

/// Waits for all writes. Without this wait a failed launch would show only after later forward
/// passes had read the slots.
///
/// # Errors
/// The device's own message.
fn sync<B: Kernels>(device: &B::Device) -> Result<(), String> {
    B::sync(device).map_err(|error| format!("{error:?}"))
}
