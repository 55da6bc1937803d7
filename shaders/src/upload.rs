//! Uploads numbers from the host.

use burn::tensor::backend::Backend;
use burn::tensor::ops::IntTensor;
use burn::tensor::{DType, Int, Tensor, TensorData};

/// Uploads a tensor as rows without gaps, as the kernels of this crate read them.
///
/// The upload is one-dimensional: on CUDA, CubeCL pads the rows of a tensor with more dimensions,
/// and a padded tensor is copied as a whole each time a kernel reads it.
pub fn upload<B: Backend, const D: usize>(
    data: TensorData,
    dtype: DType,
    device: &B::Device,
) -> Tensor<B, D> {
    let shape = data.shape.clone();
    let flat = TensorData {
        shape: [shape.num_elements()].into(),
        ..data
    };
    Tensor::<B, 1>::from_data(flat, (device, dtype)).reshape(shape)
}

/// Uploads ids, positions or slots, which are far below 2^31, as i32: every device indexes with
/// i32. Words of any other meaning keep their bits.
pub fn indices<B: Backend>(values: &[u32], device: &B::Device) -> IntTensor<B> {
    let values: Vec<i32> = values.iter().map(|value| *value as i32).collect();
    let length = values.len();
    Tensor::<B, 1, Int>::from_data(TensorData::new(values, [length]), (device, DType::I32))
        .into_primitive()
}
