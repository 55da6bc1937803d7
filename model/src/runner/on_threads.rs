//! A model on the CPU.

use burn_flex::Flex;

use super::{Batch, CopyWay, Decoder, Flight, ForwardError, LoadError, Report, Runner, Wishes};
use crate::cpu_threads::CpuThreads;

/// A runner on the CPU, which needs threads.
pub(super) struct OnThreads {
    runner: Runner<Flex>,
    threads: CpuThreads,
}

impl OnThreads {
    pub fn new(runner: Runner<Flex>) -> Result<Self, LoadError> {
        let threads = CpuThreads::start().map_err(|error| LoadError::DeviceFailed {
            device: runner.report.device.clone(),
            reason: error.to_string(),
        })?;
        Ok(Self { runner, threads })
    }
}

impl Decoder for OnThreads {
    fn report(&self) -> &Report {
        self.runner.report()
    }

    fn chooses(&self) -> bool {
        self.runner.chooses()
    }

    fn launch(&mut self, batch: &Batch<'_>, _: &mut Wishes<'_>) -> Result<Flight, ForwardError> {
        let runner = &mut self.runner;
        // It does not choose, and so asks for nothing.
        let outputs = self.threads.run(|| runner.forward(batch, &mut Vec::new))?;
        Ok(Box::new(|| Ok(outputs)))
    }

    fn copy(&mut self, way: CopyWay, device: &[u32], host: &[u32]) -> Result<(), ForwardError> {
        let runner = &mut self.runner;
        self.threads.run(|| runner.copy(way, device, host))
    }

    fn reserved_bytes(&self) -> Option<u64> {
        self.runner.reserved_bytes()
    }

    fn is_alive(&mut self) -> bool {
        self.runner.is_alive()
    }
}
