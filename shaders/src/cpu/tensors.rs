//! The memory of tensors, for the kernels that read it as slices.

use burn::tensor::{DType, TensorData};
use burn_flex::FlexTensor;

use super::blocks;
use super::simd::Stored;

/// Runs `$body` with `$slice` bound to the tensor's elements in the type they are stored in. The
/// caller imports [`DType`] and [`elements`].
macro_rules! with_stored {
    ($tensor:expr, $slice:ident => $body:expr) => {
        match $tensor.dtype() {
            DType::F32 => {
                let $slice = elements::<f32>($tensor);
                $body
            }
            DType::BF16 => {
                let $slice = elements::<half::bf16>($tensor);
                $body
            }
            DType::F16 => {
                let $slice = elements::<half::f16>($tensor);
                $body
            }
            other => panic!("the CPU kernels take f32, bf16 and f16, not {other:?}"),
        }
    };
}
pub(super) use with_stored;

/// The tensor type of a packed matrix: bytes, which [`View`](super::blocks::View) interprets.
pub const BLOCKS: DType = DType::U8;

/// Bytes of a matrix of weights, packed or not.
pub fn bytes_of(matrix: &FlexTensor) -> usize {
    if matrix.dtype() == BLOCKS {
        return elements::<u8>(matrix).len();
    }
    matrix.layout().num_elements() * matrix.dtype().size()
}

/// Rows and columns of a matrix of weights, packed or not.
pub fn matrix_dims(matrix: &FlexTensor) -> [usize; 2] {
    if matrix.dtype() == BLOCKS {
        return blocks::shape(elements(matrix));
    }
    dims(matrix)
}

/// The elements of a contiguous tensor.
pub fn elements<E: burn::tensor::Element + bytemuck::Pod>(tensor: &FlexTensor) -> &[E] {
    let (start, end) = tensor
        .layout()
        .contiguous_offsets()
        .expect("the kernels' inputs are contiguous");
    &tensor.storage::<E>()[start..end]
}

/// A small parameter (the weight of a norm, a bias), as f32.
pub fn widened(tensor: FlexTensor) -> Vec<f32> {
    let tensor = tensor.to_contiguous();
    with_stored!(&tensor, values => values.iter().map(|value| value.widen()).collect())
}

/// Rows and columns of a tensor of floats.
pub fn dims(tensor: &FlexTensor) -> [usize; 2] {
    let shape = tensor.layout().shape();
    [shape[0], shape[1]]
}

/// A tensor of f32 with this shape.
pub fn tensor(values: Vec<f32>, shape: [usize; 2]) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(values, shape))
}
