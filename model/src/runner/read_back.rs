//! Rows of a matrix on the device, copied to the host.

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use hearth_forward::ForwardError;

/// The values of `rows`, row-major.
pub(super) fn to_host<B: Backend>(rows: Tensor<B, 2>) -> Result<Vec<f32>, ForwardError> {
    let data = rows
        .try_into_data()
        .map_err(|error| ForwardError::Device(error.to_string()))?;
    data.convert::<f32>()
        .into_vec()
        .map_err(|error| ForwardError::Device(format!("{error:?}")))
}

/// The values of a matrix that is in `parts`, one below another.
pub(super) fn all_to_host<B: Backend>(parts: Vec<Tensor<B, 2>>) -> Result<Vec<f32>, ForwardError> {
    let mut rows = Vec::new();
    for part in parts {
        let part = to_host(part)?;
        if rows.is_empty() {
            rows = part;
        } else {
            rows.extend(part);
        }
    }
    Ok(rows)
}
