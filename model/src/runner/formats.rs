//! The choice of the type that a model is computed in and of the format of its matrices.

use crate::device::DeviceReport;
use crate::dtype::Dtype;
use crate::load_error::LoadError;
use crate::transformer::Quantized;
use crate::weights::{Quantization, Weights};

/// The type to compute in: the given type, or else the checkpoint's type if the device computes in
/// it, or else f32.
///
/// # Errors
/// The device does not compute in the given type.
pub(super) fn choose_dtype(
    asked: Option<Dtype>,
    stored: Option<Dtype>,
    at: &DeviceReport,
) -> Result<Dtype, LoadError> {
    let lacks = |dtype: Dtype| match dtype {
        Dtype::F32 => None,
        Dtype::F16 => (!at.f16).then_some("the device has no 16-bit floats"),
        Dtype::Bf16 => (!at.bf16).then_some("the device has no bf16; f16 or f32 may serve"),
    };
    match asked {
        Some(dtype) => match lacks(dtype) {
            Some(reason) => Err(LoadError::Dtype {
                dtype,
                device: at.to_string(),
                reason,
            }),
            None => Ok(dtype),
        },
        None => Ok(stored
            .filter(|dtype| lacks(*dtype).is_none())
            .unwrap_or(Dtype::F32)),
    }
}

/// The matrices that stay or become quantized: those that are stored in blocks which kernels
/// compute with, or all if that was asked for. The CPU rounds activations for quantized matrices,
/// so it keeps stored blocks only in bf16, which is the type that blocks count as.
///
/// # Errors
/// Quantization was asked for, and the weights are quantized already.
pub(super) fn choose_blocks(
    asked: Option<Quantization>,
    weights: &Weights,
    dtype: Dtype,
    at: &DeviceReport,
) -> Result<Quantized, LoadError> {
    let Some(given) = asked else {
        return Ok(if !at.is_cpu() || dtype == Dtype::Bf16 {
            Quantized::Stored
        } else {
            Quantized::None
        });
    };
    let refused = |reason| Err(LoadError::Quantization { given, reason });
    if let Some(already) = weights.quantized() {
        return refused(format!("on weights that are quantized already ({already})"));
    }
    Ok(Quantized::Rounded(given))
}
