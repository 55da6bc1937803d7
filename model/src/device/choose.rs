//! The choice among the devices of this machine.

use super::error::DeviceError;
use super::report::{DeviceReport, Kind};
use super::spec::{Api, DeviceSpec};

/// Finds the one of `devices` that a spec means. Also returns the reason for the choice, for the
/// log.
///
/// # Errors
/// There is no such device, or it cannot be used. `auto` always finds the CPU.
pub fn choose<'a>(
    spec: &DeviceSpec,
    devices: &'a [DeviceReport],
) -> Result<(&'a DeviceReport, String), DeviceError> {
    let usable = |device: &&DeviceReport| device.unusable.is_none();
    match spec {
        DeviceSpec::Auto => {
            let mut passed_over = Vec::new();
            for api in [Api::Cuda, Api::Vulkan, Api::Metal, Api::Dx12, Api::Cpu] {
                let is_of_api = |device: &&DeviceReport| device.api == api && !device.is_absent();
                let mut of_api: Vec<_> = devices.iter().filter(is_of_api).collect();
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
                Some(index) => of_api
                    .iter()
                    .find(|device| device.index == *index || device.is_absent()),
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

/// The order of preference, best first.
fn rank(kind: Kind) -> u8 {
    match kind {
        Kind::Discrete => 0,
        Kind::Integrated => 1,
        Kind::Virtual => 2,
        Kind::Other => 3,
        Kind::Software => 4,
    }
}

pub(super) fn not_found(spec: &DeviceSpec, devices: &[DeviceReport]) -> DeviceError {
    let there = devices.iter().filter(|device| !device.is_absent());
    let found: Vec<_> = there.map(ToString::to_string).collect();
    DeviceError::NotFound {
        asked: spec.to_string(),
        found: found.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cpu::report as cpu;

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
    fn auto_prefers_cuda_then_other_hardware_and_never_a_software_rasteriser() {
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
    fn a_software_rasteriser_is_taken_when_named() {
        let all = [device(Api::Vulkan, 0, Kind::Software), cpu()];
        assert_eq!(chosen("vulkan", &all), "vulkan:0");
        assert_eq!(chosen("vulkan:0", &all), "vulkan:0");
    }

    #[test]
    fn an_api_whose_library_does_not_load_says_so_and_is_no_device() {
        let reason = "libcuda.so.1: cannot open shared object file".to_owned();
        let all = [DeviceReport::absent(Api::Cuda, "NVIDIA", reason), cpu()];
        for spec in ["cuda", "cuda:0", "cuda:1"] {
            let message = chosen(spec, &all);
            assert!(message.contains("libcuda.so.1: cannot open"), "{message}");
        }
        assert!(!chosen("metal", &all).contains("NVIDIA"));
        let (_, reason) = choose(&DeviceSpec::Auto, &all).unwrap();
        assert_eq!(reason, "no GPU driver was found");
    }

    #[test]
    fn the_error_for_a_missing_device_is_one_line_with_the_devices_found() {
        let message = chosen("metal", &[device(Api::Vulkan, 0, Kind::Discrete), cpu()]);
        assert!(message.contains("--device metal"), "{message}");
        assert!(
            message.contains("vulkan:0") && message.contains("cpu:0"),
            "{message}"
        );
        assert!(!message.contains('\n'));
    }
}
