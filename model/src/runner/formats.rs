//! What a model is computed in, and what its matrices are kept in.

use super::LoadError;
use crate::device::DeviceReport;
use crate::dtype::Dtype;
use crate::transformer::Quantized;
use crate::weights::{Quantization, Weights};

/// The type to compute in: what was asked for if the device can, else the
/// checkpoint's if the device can, else f32.
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

/// The matrices that are in blocks of small integers: those that are stored in some that kernels
/// compute with; or all, if that was asked for. The CPU rounds activations for them, so that there
/// they are kept under bf16 only, which is what they count as.
pub(super) fn choose_blocks(
    asked: Option<Quantization>,
    weights: &Weights,
    dtype: Dtype,
    at: &DeviceReport,
) -> Result<Quantized, LoadError> {
    let Some(given) = asked else {
        let kept = !at.is_cpu() || dtype == Dtype::Bf16;
        return Ok(if kept {
            Quantized::Stored
        } else {
            Quantized::None
        });
    };
    let refused = |reason| Err(LoadError::Quantization { given, reason });
    if let Some(blocks) = weights.blocks() {
        return refused(format!(
            "on weights that are quantized already ({blocks:?})"
        ));
    }
    Ok(Quantized::Rounded(given))
}
