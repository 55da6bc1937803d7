//! The CPU as a device.

use super::host_memory::available;
use super::report::{DeviceReport, Kind};
use super::spec::Api;

/// The description of this machine's CPU.
pub fn report() -> DeviceReport {
    DeviceReport {
        api: Api::Cpu,
        index: 0,
        name: format!(
            "{} threads",
            std::thread::available_parallelism().map_or(1, usize::from)
        ),
        kind: Kind::Software,
        driver: std::env::consts::ARCH.to_owned(),
        memory: available(),
        max_binding: u64::MAX,
        subgroups: false,
        f16: true,
        bf16: true,
        unusable: None,
    }
}
