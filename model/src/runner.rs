//! Loads a model onto a device, behind the trait object [`Decoder`].
//!
//! The code that is generic over Burn's backends is compiled for each backend here, so that no
//! other crate waits for that.

mod check;
mod dequantised;
mod estimate;
mod formats;
mod model_runner;
mod on_threads;
mod prepare;
mod read_back;
mod sample;

#[cfg(not(test))]
use burn_cuda::Cuda;
use burn_flex::Flex;
#[cfg(not(test))]
use burn_wgpu::Wgpu;

use crate::checkpoint::Checkpoint;
use crate::decoder::Decoder;
#[cfg(not(test))]
use crate::device::DeviceReport;
use crate::device::{Handle, open};
#[cfg(not(test))]
use crate::driver_panic::caught;
use crate::load_error::LoadError;
use crate::load_options::LoadOptions;
pub use estimate::Estimate;
use on_threads::OnThreads;
use prepare::prepare;

/// The memory that `checkpoint` would take if it were loaded with the device and the formats of `options`.
/// No device is opened: blocks have the sizes that they have on the CPU, and with `auto` they are kept in
/// any type, as on a GPU.
///
/// # Errors
/// The options do not fit the model.
pub fn estimate(checkpoint: &Checkpoint, options: &LoadOptions) -> Result<Estimate, LoadError> {
    estimate::estimate::<Flex>(checkpoint, options)
}

/// Opens the device and loads the model onto it.
///
/// # Errors
/// [`LoadError`] names the device, the tensor or the amount of memory that is at fault.
pub fn load(checkpoint: &Checkpoint, options: &LoadOptions) -> Result<Box<dyn Decoder>, LoadError> {
    let opened = open(&options.device, options.kernel_cache.as_deref())?;
    let report = &opened.report;
    match &opened.handle {
        Handle::Cpu => {
            hearth_shaders::check_limit().map_err(|reason| LoadError::DeviceFailed {
                device: report.to_string(),
                reason,
            })?;
            let runner = prepare::<Flex>(checkpoint, options, report, &Default::default())?;
            Ok(Box::new(OnThreads::new(runner)?))
        }
        // The unit tests load models on the CPU alone. Without this condition their program would
        // compile the model for the other backends once more, which takes minutes.
        #[cfg(test)]
        Handle::Cuda(_) | Handle::Wgpu(_) => unreachable!("unit tests use the CPU"),
        #[cfg(not(test))]
        Handle::Cuda(cuda) => guarded(report, || {
            Ok(Box::new(prepare::<Cuda>(
                checkpoint, options, report, cuda,
            )?))
        }),
        #[cfg(not(test))]
        Handle::Wgpu(wgpu) => guarded(report, || {
            Ok(Box::new(prepare::<Wgpu>(
                checkpoint, options, report, wgpu,
            )?))
        }),
    }
}

#[cfg(not(test))]
/// Burn reports by a panic that a device refuses something; here that becomes an error.
fn guarded(
    report: &DeviceReport,
    load: impl FnOnce() -> Result<Box<dyn Decoder>, LoadError>,
) -> Result<Box<dyn Decoder>, LoadError> {
    caught(load).unwrap_or_else(|reason| {
        Err(LoadError::DeviceFailed {
            device: report.to_string(),
            reason,
        })
    })
}
