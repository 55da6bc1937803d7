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
    /// An API whose library does not load or that has no device, for `reason`.
    pub(super) fn absent(api: Api, name: &str, reason: String) -> Self {
        Self {
            api,
            index: 0,
            name: name.to_owned(),
            kind: Kind::Other,
            driver: String::new(),
            memory: None,
            max_binding: 0,
            subgroups: false,
            f16: false,
            bf16: false,
            unusable: Some(reason),
        }
    }

    /// True if no driver describes the device: the report only says why the API has none.
    pub fn is_absent(&self) -> bool {
        self.unusable.is_some() && self.driver.is_empty()
    }

    pub fn is_cpu(&self) -> bool {
        self.api == Api::Cpu
    }
}

/// `vulkan:0 (NVIDIA H100)`, or `cuda (NVIDIA)` for an API that has no device.
impl fmt::Display for DeviceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (api, name) = (self.api.name(), &self.name);
        match self.is_absent() {
            true => write!(f, "{api} ({name})"),
            false => write!(f, "{api}:{} ({name})", self.index),
        }
    }
}
