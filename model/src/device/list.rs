//! The devices of this machine.

use super::report::DeviceReport;
use super::{adapters, cpu, cuda};

/// Every device of this machine, the CPU last.
pub fn list() -> Vec<DeviceReport> {
    let mut reports = cuda::list();
    reports.extend(adapters::list().into_iter().map(|found| found.report));
    reports.push(cpu::report());
    reports
}
