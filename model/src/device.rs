//! Devices: what this machine has, which one to take, and opening it.
//!
//! Burn panics on a runtime thread when a driver is missing, so nothing is opened
//! that was not found by asking the driver first.

mod cuda;
mod gpu;

use std::fmt;
use std::path::Path;

use burn_cuda::CudaDevice;
use burn_wgpu::WgpuDevice;

/// A way to reach a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Api {
    Cpu,
    Cuda,
    Vulkan,
    Metal,
    Dx12,
    /// WGSL kernels through whatever graphics API the adapter has.
    WebGpu,
}

impl Api {
    pub const ALL: [Api; 6] = [
        Api::Cpu,
        Api::Cuda,
        Api::Vulkan,
        Api::Metal,
        Api::Dx12,
        Api::WebGpu,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Api::Cpu => "cpu",
            Api::Cuda => "cuda",
            Api::Vulkan => "vulkan",
            Api::Metal => "metal",
            Api::Dx12 => "dx12",
            Api::WebGpu => "webgpu",
        }
    }
}

/// What `--device` asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceSpec {
    /// CUDA if its driver and compiler are there, else the best hardware adapter
    /// of wgpu, else the CPU.
    #[default]
    Auto,
    /// The `index`th device of an API; the best one when not given.
    Named { api: Api, index: Option<usize> },
}

/// What kind of machine answers behind an API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Discrete,
    Integrated,
    Virtual,
    /// A rasteriser in software (lavapipe, WARP), or the CPU itself.
    Software,
    Other,
}

/// One device as its driver describes it.
#[derive(Debug, Clone)]
pub struct DeviceReport {
    pub api: Api,
    /// Among the devices of its API.
    pub index: usize,
    pub name: String,
    pub kind: Kind,
    pub driver: String,
    /// Bytes of memory; `None` where the driver does not tell.
    pub memory: Option<u64>,
    /// Bytes of the largest buffer that a kernel can be given.
    pub max_binding: u64,
    pub subgroups: bool,
    pub f16: bool,
    pub bf16: bool,
    /// Why it cannot be used as this machine is set up.
    pub unusable: Option<String>,
}

impl DeviceReport {
    pub fn is_cpu(&self) -> bool {
        self.api == Api::Cpu
    }
}

/// `vulkan:0 (NVIDIA H100)`
impl fmt::Display for DeviceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{} ({})", self.api.name(), self.index, self.name)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    #[error("--device must be auto, {choices}, with an optional :index, got {given:?}")]
    Unparsable { given: String, choices: String },
    #[error("--device {asked}: there is no such device; found: {found}")]
    NotFound { asked: String, found: String },
    #[error("--device {asked}: {device} cannot be used: {reason}")]
    Unusable {
        asked: String,
        device: String,
        reason: String,
    },
    #[error(transparent)]
    Open(#[from] hearth_shaders::device::OpenError),
}

impl DeviceSpec {
    /// Reads `auto`, `cpu`, `cuda`, `vulkan:1`.
    ///
    /// # Errors
    /// The text is none of these.
    pub fn parse(text: &str) -> Result<Self, DeviceError> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let (name, index) = match text.split_once(':') {
            Some((name, index)) => (name, Some(index)),
            None => (text, None),
        };
        let unparsable = || DeviceError::Unparsable {
            given: text.to_owned(),
            choices: Api::ALL.map(Api::name).join(", "),
        };
        let api = Api::ALL
            .into_iter()
            .find(|api| api.name() == name)
            .ok_or_else(unparsable)?;
        let index = index
            .map(str::parse)
            .transpose()
            .map_err(|_| unparsable())?;
        Ok(Self::Named { api, index })
    }
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceSpec::Auto => f.write_str("auto"),
            DeviceSpec::Named { api, index: None } => f.write_str(api.name()),
            DeviceSpec::Named {
                api,
                index: Some(index),
            } => write!(f, "{}:{index}", api.name()),
        }
    }
}

/// Every device of this machine, the CPU last.
pub fn list() -> Vec<DeviceReport> {
    let mut reports = cuda::list();
    reports.extend(gpu::list().into_iter().map(|found| found.report));
    reports.push(cpu());
    reports
}

fn cpu() -> DeviceReport {
    DeviceReport {
        api: Api::Cpu,
        index: 0,
        name: format!(
            "{} threads",
            std::thread::available_parallelism().map_or(1, usize::from)
        ),
        kind: Kind::Software,
        driver: std::env::consts::ARCH.to_owned(),
        memory: crate::memory::cpu_available(),
        max_binding: u64::MAX,
        subgroups: false,
        f16: true,
        bf16: true,
        unusable: None,
    }
}

/// Which of `devices` a spec means, and why.
///
/// # Errors
/// There is none, or it cannot be used; `auto` always finds the CPU.
pub fn choose<'a>(
    spec: &DeviceSpec,
    devices: &'a [DeviceReport],
) -> Result<(&'a DeviceReport, String), DeviceError> {
    let usable = |device: &&DeviceReport| device.unusable.is_none();
    match spec {
        DeviceSpec::Auto => {
            let mut passed_over = Vec::new();
            for api in [Api::Cuda, Api::Vulkan, Api::Metal, Api::Dx12, Api::Cpu] {
                let mut of_api: Vec<_> = devices.iter().filter(|d| d.api == api).collect();
                of_api.sort_by_key(|device| rank(device.kind));
                for device in of_api {
                    if device.unusable.is_none()
                        && (api == Api::Cpu || device.kind != Kind::Software)
                    {
                        let reason = match passed_over.as_slice() {
                            [] if api == Api::Cpu => "no GPU driver was found".to_owned(),
                            [] => "the fastest device found".to_owned(),
                            over => format!("passed over {}", over.join("; ")),
                        };
                        return Ok((device, reason));
                    }
                    let why = device.unusable.as_deref().unwrap_or("renders in software");
                    passed_over.push(format!("{device}: {why}"));
                }
            }
            Err(not_found(spec, devices))
        }
        DeviceSpec::Named { api, index } => {
            let mut of_api: Vec<_> = devices.iter().filter(|d| d.api == *api).collect();
            of_api.sort_by_key(|device| rank(device.kind));
            let device = match index {
                Some(index) => of_api.iter().find(|device| device.index == *index),
                None => of_api
                    .iter()
                    .find(|device| usable(device))
                    .or(of_api.first()),
            };
            let device = device.ok_or_else(|| not_found(spec, devices))?;
            match &device.unusable {
                None => Ok((device, format!("--device {spec}"))),
                Some(reason) => Err(DeviceError::Unusable {
                    asked: spec.to_string(),
                    device: device.to_string(),
                    reason: reason.clone(),
                }),
            }
        }
    }
}

fn rank(kind: Kind) -> u8 {
    match kind {
        Kind::Discrete => 0,
        Kind::Integrated => 1,
        Kind::Virtual => 2,
        Kind::Other => 3,
        Kind::Software => 4,
    }
}

fn not_found(spec: &DeviceSpec, devices: &[DeviceReport]) -> DeviceError {
    let found: Vec<_> = devices.iter().map(ToString::to_string).collect();
    DeviceError::NotFound {
        asked: spec.to_string(),
        found: found.join(", "),
    }
}

/// A device that Burn can be given.
pub(crate) enum Handle {
    Cpu,
    Cuda(CudaDevice),
    Wgpu(WgpuDevice),
}

pub(crate) struct Opened {
    pub report: DeviceReport,
    pub handle: Handle,
}

/// Finds and opens what `spec` means. Kernels that are compiled for it are kept below
/// `kernel_cache`, where one is given.
pub(crate) fn open(spec: &DeviceSpec, kernel_cache: Option<&Path>) -> Result<Opened, DeviceError> {
    // The CPU needs no driver asked.
    if let DeviceSpec::Named {
        api: Api::Cpu,
        index: None | Some(0),
    } = spec
    {
        return Ok(Opened {
            report: cpu(),
            handle: Handle::Cpu,
        });
    }
    let mut reports = cuda::list();
    let gpus = gpu::list();
    reports.extend(gpus.iter().map(|found| found.report.clone()));
    reports.push(cpu());
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
            let is_it =
                |found: &gpu::Found| found.report.api == api && found.report.index == report.index;
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

/// A device and its driver as the name of a directory: what is compiled for one may not run on
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
    fn devices_keep_their_kernels_apart_and_below_the_directory_that_was_given() {
        let a = device(Api::Cuda, 0, Kind::Discrete);
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

    fn device(api: Api, index: usize, kind: Kind) -> DeviceReport {
        DeviceReport {
            api,
            index,
            kind,
            ..cpu()
        }
    }

    fn chosen(spec: &str, devices: &[DeviceReport]) -> String {
        let spec = DeviceSpec::parse(spec).unwrap();
        match choose(&spec, devices) {
            Ok((device, _)) => format!("{}:{}", device.api.name(), device.index),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn auto_prefers_cuda_then_hardware_and_never_a_rasteriser() {
        let lavapipe = device(Api::Vulkan, 0, Kind::Software);
        let integrated = device(Api::Vulkan, 1, Kind::Integrated);
        let discrete = device(Api::Vulkan, 2, Kind::Discrete);
        let cuda = device(Api::Cuda, 0, Kind::Discrete);
        assert_eq!(chosen("auto", &[lavapipe.clone(), cpu()]), "cpu:0");
        assert_eq!(
            chosen("auto", &[lavapipe.clone(), integrated.clone(), cpu()]),
            "vulkan:1"
        );
        let all = [lavapipe, integrated, discrete, cuda.clone(), cpu()];
        assert_eq!(chosen("auto", &all), "cuda:0");
        let broken = DeviceReport {
            unusable: Some("no libnvrtc".to_owned()),
            ..cuda
        };
        let all = [
            all[0].clone(),
            all[1].clone(),
            all[2].clone(),
            broken.clone(),
            cpu(),
        ];
        assert_eq!(chosen("auto", &all), "vulkan:2");
        let (_, reason) = choose(&DeviceSpec::Auto, &all).unwrap();
        assert!(reason.contains("no libnvrtc"), "{reason}");
        assert!(chosen("cuda", &[broken, cpu()]).contains("no libnvrtc"));
    }

    #[test]
    fn a_rasteriser_is_taken_when_named() {
        let all = [device(Api::Vulkan, 0, Kind::Software), cpu()];
        assert_eq!(chosen("vulkan", &all), "vulkan:0");
        assert_eq!(chosen("vulkan:0", &all), "vulkan:0");
    }

    #[test]
    fn a_missing_device_is_one_line_with_what_was_found() {
        let message = chosen("metal", &[device(Api::Vulkan, 0, Kind::Discrete), cpu()]);
        assert!(message.contains("--device metal"), "{message}");
        assert!(
            message.contains("vulkan:0") && message.contains("cpu:0"),
            "{message}"
        );
        assert!(!message.contains('\n'));
    }

    #[test]
    fn what_is_no_device_is_refused_with_the_choices() {
        for text in ["gpu", "cuda:x", "cuda:-1", "", "auto:1", "CPU"] {
            let error = DeviceSpec::parse(text).unwrap_err().to_string();
            assert!(error.contains("vulkan") && error.contains(text), "{error}");
        }
        let spec = DeviceSpec::parse("webgpu:3").unwrap();
        assert_eq!(
            spec,
            DeviceSpec::Named {
                api: Api::WebGpu,
                index: Some(3)
            }
        );
    }
}
