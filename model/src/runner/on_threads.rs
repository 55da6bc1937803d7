//! A model on the CPU, which computes on a thread pool.

use burn_flex::Flex;
use hearth_forward::{
    Adapter, Executor, ExecutorLimits, ForwardBatch, ForwardError, ForwardOutput, KvCopy,
    SampleRequests, WindowLimits,
};

use super::model_runner::ModelRunner;
use crate::cpu_threads::CpuThreads;
use crate::decoder::{Decoder, Submission};
use crate::load_error::LoadError;
use crate::report::Report;

/// A model on the CPU together with the threads that it computes on.
pub(super) struct OnThreads {
    runner: ModelRunner<Flex>,
    threads: CpuThreads,
}

impl OnThreads {
    pub fn new(runner: ModelRunner<Flex>) -> Result<Self, LoadError> {
        let threads = CpuThreads::start().map_err(|error| LoadError::DeviceFailed {
            device: runner.report().device.clone(),
            reason: error.to_string(),
        })?;
        Ok(Self { runner, threads })
    }
}

impl Executor for OnThreads {
    type Submission = Submission;

    fn limits(&self) -> ExecutorLimits {
        self.runner.limits()
    }

    fn submit(
        &mut self,
        batch: &ForwardBatch,
        _: &mut SampleRequests<'_>,
    ) -> Result<Submission, ForwardError> {
        let runner = &mut self.runner;
        // The CPU does not sample, so it never asks for sample requests.
        let output = self.threads.run(|| runner.forward(batch, &mut Vec::new))?;
        Ok(Box::new(|| Ok(output)))
    }

    fn complete(&mut self, submission: Submission) -> Result<ForwardOutput, ForwardError> {
        submission()
    }

    fn samples_on_device(&self) -> bool {
        self.runner.samples_on_device()
    }

    fn window(&self) -> Option<WindowLimits> {
        self.runner.window()
    }

    fn host_slots(&self) -> usize {
        self.runner.host_slots()
    }

    fn copy_kv(&mut self, copy: &KvCopy) -> Result<(), ForwardError> {
        let runner = &mut self.runner;
        self.threads.run(|| runner.copy_kv(copy))
    }

    fn kv_token_bytes(&self) -> usize {
        self.runner.kv_token_bytes()
    }

    fn read_kv(&mut self, slots: &[u32]) -> Result<Vec<u8>, ForwardError> {
        let runner = &mut self.runner;
        self.threads.run(|| runner.read_kv(slots))
    }

    fn write_kv(&mut self, slots: &[u32], bytes: &[u8]) -> Result<(), ForwardError> {
        let runner = &mut self.runner;
        self.threads.run(|| runner.write_kv(slots, bytes))
    }

    fn adapter_slots(&self) -> usize {
        self.runner.adapter_slots()
    }

    fn table_slots(&self) -> usize {
        self.runner.table_slots()
    }

    fn load_adapter(&mut self, slot: u32, adapter: &Adapter) -> Result<(), ForwardError> {
        let runner = &mut self.runner;
        self.threads.run(|| runner.load_adapter(slot, adapter))
    }
}

impl Decoder for OnThreads {
    fn report(&self) -> &Report {
        self.runner.report()
    }

    fn reserved_bytes(&self) -> Option<u64> {
        self.runner.reserved_bytes()
    }

    fn is_alive(&mut self) -> bool {
        self.runner.is_alive()
    }
}
