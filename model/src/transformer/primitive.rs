//! Conversions between Burn's tensors and the primitives that `hearth_shaders` takes.

use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{Int, Tensor, TensorPrimitive};

/// Copies `values` to the device.
pub(crate) fn indices<B: Backend>(values: &[u32], device: &B::Device) -> Tensor<B, 1, Int> {
    Tensor::from_primitive(hearth_shaders::indices::<B>(values, device))
}

pub(crate) fn primitive<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> FloatTensor<B> {
    tensor.into_primitive().tensor()
}

pub(crate) fn tensor<B: Backend, const D: usize>(primitive: FloatTensor<B>) -> Tensor<B, D> {
    Tensor::from_primitive(TensorPrimitive::Float(primitive))
}
