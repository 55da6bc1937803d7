//! A second KV pool, in the host's memory, for slots that were evicted from the device.

use std::collections::TryReserveError;

use hearth_shaders::Kernels;

use crate::kv_pool::KvPool;
use crate::kv_rows::KvRows;

pub struct HostPool {
    /// `[slots, row_bytes]` for each of the planes of [`KvRows`].
    planes: Vec<Vec<u8>>,
}

impl HostPool {
    /// # Errors
    /// The host has too little memory.
    pub fn new(rows: &KvRows, slots: usize) -> Result<Self, TryReserveError> {
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
        })
    }

    /// Copies the slots `from` of `pool` to the slots `to` of this one.
    ///
    /// # Errors
    /// The device's own message.
    pub fn fetch<B: Kernels>(
        &mut self,
        rows: &KvRows,
        pool: &mut KvPool<B>,
        from: &[u32],
        to: &[u32],
        device: &B::Device,
    ) -> Result<(), String> {
        let mut planes: Vec<_> = self.planes.iter_mut().map(Vec::as_mut_slice).collect();
        rows.fetch(pool, from, &mut planes, to, device)
    }

    /// Copies the slots `from` of this pool to the slots `to` of `pool`.
    ///
    /// # Errors
    /// The device's own message.
    pub fn restore<B: Kernels>(
        &self,
        rows: &KvRows,
        pool: &mut KvPool<B>,
        from: &[u32],
        to: &[u32],
        device: &B::Device,
    ) -> Result<(), String> {
        let planes: Vec<_> = self.planes.iter().map(Vec::as_slice).collect();
        rows.restore(pool, to, &planes, from, device)
    }
}
