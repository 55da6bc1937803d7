//! A second KV pool, in the host's memory, for slots that were evicted from the device.

use std::collections::TryReserveError;

use hearth_shaders::Kernels;

use crate::kv_pool::KvPool;
use crate::kv_rows::KvRows;

pub struct HostPool {
    /// `[slots, kv_heads, head_dim]` for each of the planes of [`KvRows`].
    planes: Vec<Vec<u8>>,
    row_bytes: usize,
}

impl HostPool {
    /// # Errors
    /// The host has too little memory.
    pub fn new<B: Kernels>(rows: &KvRows<B>, slots: usize) -> Result<Self, TryReserveError> {
        let bytes = slots * rows.row_bytes();
        let plane = || -> Result<Vec<u8>, TryReserveError> {
            let mut plane = Vec::new();
            plane.try_reserve_exact(bytes)?;
            plane.resize(bytes, 0);
            Ok(plane)
        };
        Ok(Self {
            planes: (0..rows.planes())
                .map(|_| plane())
                .collect::<Result<_, _>>()?,
            row_bytes: rows.row_bytes(),
        })
    }

    /// Copies the slots `from` of `pool` to the slots `to` of this one.
    ///
    /// # Errors
    /// The device's own message.
    pub fn fetch<B: Kernels>(
        &mut self,
        rows: &KvRows<B>,
        pool: &mut KvPool<B>,
        from: &[u32],
        to: &[u32],
        device: &B::Device,
    ) -> Result<(), String> {
        let row = self.row_bytes;
        for part in rows.parts(from.len()) {
            let data = rows.read(pool, &from[part.clone()], device)?;
            let planes = data.as_bytes().chunks_exact(part.len() * row);
            for (plane, rows) in self.planes.iter_mut().zip(planes) {
                for (slot, bytes) in to[part.clone()].iter().zip(rows.chunks_exact(row)) {
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
    pub fn restore<B: Kernels>(
        &self,
        rows: &KvRows<B>,
        pool: &mut KvPool<B>,
        from: &[u32],
        to: &[u32],
        device: &B::Device,
    ) -> Result<(), String> {
        let row = self.row_bytes;
        for part in rows.parts(from.len()) {
            let from = &from[part.clone()];
            let row_of =
                |plane: usize, i: usize| &self.planes[plane][from[i] as usize * row..][..row];
            rows.write(pool, &to[part], row_of, device);
        }
        rows.sync(device)
    }
}
