//! The names of devices: `auto`, `cpu`, `cuda`, `vulkan:1`.

use std::fmt;

use super::error::DeviceError;

/// An API through which a device is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Api {
    Cpu,
    Cuda,
    Vulkan,
    Metal,
    Dx12,
    /// Kernels in WGSL, through the graphics API that the adapter has.
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

/// The device that `--device` selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceSpec {
    /// CUDA if its driver and compiler are there, else the best hardware adapter
    /// of wgpu, else the CPU.
    #[default]
    Auto,
    /// The `index`th device of an API, or its best device without an index.
    Named { api: Api, index: Option<usize> },
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_device_is_refused_with_the_choices() {
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
