//! Opening a device.

use std::path::Path;

use burn_cuda::CudaDevice;
use burn_wgpu::WgpuDevice;

use super::choose::{choose, not_found};
use super::error::DeviceError;
use super::report::DeviceReport;
use super::spec::{Api, DeviceSpec};
use super::{adapters, cpu, cuda};

/// A device in the form that Burn takes.
#[cfg_attr(
    test,
    expect(dead_code, reason = "unit tests compute on the CPU alone")
)]
pub(crate) enum Handle {
    Cpu,
    Cuda(CudaDevice),
    Wgpu(WgpuDevice),
}

pub(crate) struct Opened {
    pub report: DeviceReport,
    pub handle: Handle,
}

/// Finds and opens the device that `spec` means. Kernels that are compiled for it are kept below
/// `kernel_cache`, if that is given.
///
/// # Errors
/// There is no such device, or it cannot be used or opened.
pub(crate) fn open(spec: &DeviceSpec, kernel_cache: Option<&Path>) -> Result<Opened, DeviceError> {
    // No driver needs to be asked about the CPU.
    if let DeviceSpec::Named {
        api: Api::Cpu,
        index: None | Some(0),
    } = spec
    {
        return Ok(Opened {
            report: cpu::report(),
            handle: Handle::Cpu,
        });
    }
    let mut reports = cuda::list();
    let gpus = adapters::list();
    reports.extend(gpus.iter().map(|found| found.report.clone()));
    reports.push(cpu::report());
    let (report, reason) = choose(spec, &reports)?;
    tracing::info!(device = %report, reason, "device chosen");
    if let Some(directory) = kernel_cache.filter(|_| !report.is_cpu()) {
        hearth_shaders::device::keep_kernels(directory.join(cache_name(report)));
    }
    let handle = match report.api {
        Api::Cpu => Handle::Cpu,
        Api::Cuda => Handle::Cuda(CudaDevice {
            index: report.index,
        }),
        api => {
            let is_it = |found: &adapters::Found| {
                found.report.api == api && found.report.index == report.index
            };
            let found = gpus
                .into_iter()
                .find(is_it)
                .ok_or_else(|| not_found(spec, &reports))?;
            Handle::Wgpu(hearth_shaders::device::open(
                found.instance,
                found.adapter,
                found.language,
            )?)
        }
    };
    Ok(Opened {
        report: report.clone(),
        handle,
    })
}

/// A device and its driver as the name of a directory: kernels compiled for one may not run on
/// another.
fn cache_name(report: &DeviceReport) -> String {
    let name = format!("{} {} {}", report.api.name(), report.name, report.driver);
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || c == '.' {
            c
        } else {
            '-'
        }
    };
    name.chars().map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_keep_their_kernels_apart_and_below_the_given_directory() {
        let a = DeviceReport {
            api: Api::Cuda,
            ..cpu::report()
        };
        let b = DeviceReport {
            name: "../NVIDIA H100/..".to_owned(),
            driver: "compute capability 9.0".to_owned(),
            ..a.clone()
        };
        assert_ne!(cache_name(&a), cache_name(&b));
        assert_eq!(
            cache_name(&b),
            "cuda-..-NVIDIA-H100-..-compute-capability-9.0"
        );
    }
}
