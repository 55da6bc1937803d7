//! Devices: which ones this machine has, which one to take, and opening it.
//!
//! Burn panics on one of its own threads when a driver is missing, so a device is opened only
//! after its driver has reported it.

mod adapters;
mod choose;
mod cpu;
mod cuda;
mod error;
mod host_memory;
mod list;
mod open;
mod report;
mod spec;

pub use choose::choose;
pub use error::DeviceError;
pub(crate) use host_memory::available as available_host_memory;
pub use list::list;
pub(crate) use open::{Handle, open};
pub use report::{DeviceReport, Kind};
pub use spec::{Api, DeviceSpec};
