//! One device as its driver describes it.

use std::fmt;

use super::spec::Api;

/// The kind of hardware behind an API.
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
    /// Position among the devices of the API.
    pub index: usize,
    pub name: String,
    pub kind: Kind,
    pub driver: String,
    /// Bytes of memory: of a GPU all of it, of the CPU what is available; `None` where the driver
    /// does not tell.
    pub memory: Option<u64>,
    /// Bytes of the largest buffer that a kernel can be given.
    pub max_binding: u64,
    pub subgroups: bool,
    pub f16: bool,
    pub bf16: bool,
    /// Why the device cannot be used on this machine, for example because a library is missing.
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
