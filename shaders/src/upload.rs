//! Numbers from the host.

use burn::tensor::backend::Backend;
use burn::tensor::ops::IntTensor;
use burn::tensor::{DType, Int, Tensor, TensorData};

/// A tensor whose rows follow each other without a gap, as kernels read them.
///
/// It is uploaded in one dimension, because CubeCL pads the rows of what has several on CUDA, and
/// a padded tensor is copied as a whole each time that a kernel is to read it.
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

/// Ids, positions and slots are far below 2^31: i32 is what every device indexes with.
pub fn indices<B: Backend>(values: &[u32], device: &B::Device) -> IntTensor<B> {
    let values: Vec<i32> = values.iter().map(|value| *value as i32).collect();
    let length = values.len();
    Tensor::<B, 1, Int>::from_data(TensorData::new(values, [length]), (device, DType::I32))
        .into_primitive()
}
