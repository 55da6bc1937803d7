//! KV pools with known values.

use burn::tensor::ops::{FloatTensor, IntTensor};
use burn::tensor::{DType, Int, Tensor, TensorData};

use super::super::reference;
use crate::{Kernels, KvFormat, indices};

/// A KV pool on a device.
#[derive(Clone)]
pub struct Pool<B: Kernels> {
    pub tensor: FloatTensor<B>,
    slots: usize,
    format: KvFormat,
    head_dim: usize,
    device: B::Device,
}

impl<B: Kernels> Pool<B> {
    /// A pool with `values` `[slots, kv_heads, head_dim]`, rounded to `format`.
    pub fn of(
        values: &[f32],
        [slots, kv_heads, head_dim]: [usize; 3],
        format: KvFormat,
        device: &B::Device,
    ) -> Self {
        let bytes = match format {
            KvFormat::Int8 => {
                let words = values
                    .chunks(head_dim)
                    .flat_map(|head| reference::to_int8(head).0);
                words.flat_map(u32::to_le_bytes).collect()
            }
            KvFormat::Floats(dtype) => {
                let data = TensorData::new(values.to_vec(), [values.len()]).convert_dtype(dtype);
                data.as_bytes().to_vec()
            }
        };
        let shape = [slots, kv_heads, format.head_width(head_dim)];
        let mut tensor = B::empty_pool(device, shape, format.dtype());
        match B::in_memory(&mut tensor) {
            Some(memory) => memory.copy_from_slice(&bytes),
            None => {
                let words = bytes.as_chunks::<4>().0.iter().copied();
                let words: Vec<u32> = words.map(u32::from_le_bytes).collect();
                let words = Tensor::<B, 1, Int>::from_primitive(indices::<B>(&words, device));
                let rows = words.reshape([slots as i32, -1]).into_primitive();
                B::write_slots(&mut tensor, all::<B>(slots, device), rows);
            }
        }
        Self {
            tensor,
            slots,
            format,
            head_dim,
            device: device.clone(),
        }
    }

    /// The values, `[slots, kv_heads, head_dim]`.
    pub fn into_values(mut self) -> Vec<f32> {
        let bytes = match B::in_memory(&mut self.tensor) {
            Some(memory) => memory.to_vec(),
            None => {
                let rows = B::read_slots(&self.tensor, all::<B>(self.slots, &self.device));
                let rows = Tensor::<B, 2, Int>::from_primitive(rows).into_data();
                rows.as_bytes().to_vec()
            }
        };
        match self.format {
            KvFormat::Int8 => {
                let words = bytes.as_chunks::<4>().0.iter().copied();
                let words: Vec<u32> = words.map(u32::from_le_bytes).collect();
                let heads = words.chunks(self.format.head_width(self.head_dim));
                heads.flat_map(reference::from_int8).collect()
            }
            KvFormat::Floats(dtype) => {
                let count = bytes.len() / dtype.size();
                let data = TensorData::from_bytes_vec(bytes, [count], dtype);
                let data = data.convert_dtype(DType::F32);
                data.into_vec().expect("converted to f32")
            }
        }
    }
}

fn all<B: Kernels>(slots: usize, device: &B::Device) -> IntTensor<B> {
    indices::<B>(&(0..slots as u32).collect::<Vec<_>>(), device)
}
