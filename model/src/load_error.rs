//! Why a model could not be loaded.

use crate::device::DeviceError;
use crate::dtype::Dtype;
use crate::load_options::HeadsDoNotFit;
use crate::memory::MemoryError;
use crate::weights::{Quantization, WeightError};

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Weights(#[from] WeightError),
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error("--dtype {dtype} does not run on {device}: {reason}")]
    Dtype {
        dtype: Dtype,
        device: String,
        reason: &'static str,
    },
    #[error(transparent)]
    KvFormat(#[from] HeadsDoNotFit),
    #[error("--quantization {given} does not work {reason}")]
    Quantization { given: Quantization, reason: String },
    #[error("{device} is refused, because it computes wrongly: {reason} (see hearth doctor)")]
    WrongKernel { device: String, reason: String },
    #[error(
        "{device} failed while kernels were timed: {reason} (the next start leaves that kernel out, \
         and with --no-autotune none is timed)"
    )]
    Tuning { device: String, reason: String },
    #[error("{device} failed while the model was loaded: {reason}")]
    DeviceFailed { device: String, reason: String },
}
