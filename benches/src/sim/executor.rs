//! An executor that takes the time of a device, by a formula.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hearth_forward::{
    Executor, ExecutorLimits, ForwardBatch, ForwardError, ForwardOutput, KvCopy, SampleRequests,
};

use super::cost::SEVEN_B;
use super::driver::SharedDriver;
use super::vocab::VOCAB;

/// The nanoseconds of copying the KV of one token, half a megabyte, over a bus with 25 GB/s.
const COPY_NS: u64 = 20_000;

/// Simulated nanoseconds since the start.
#[derive(Clone, Debug, Default)]
pub struct Clock(Arc<AtomicU64>);

impl Clock {
    pub fn seconds(&self) -> f64 {
        self.0.load(Ordering::Relaxed) as f64 / 1e9
    }
}

pub struct SimExecutor {
    kv_slots: usize,
    host_slots: usize,
    clock: Clock,
    driver: SharedDriver,
    steps: u64,
    rows: u64,
}

impl SimExecutor {
    pub fn new(kv_slots: usize, host_slots: usize, clock: Clock, driver: SharedDriver) -> Self {
        Self {
            kv_slots,
            host_slots,
            clock,
            driver,
            steps: 0,
            rows: 0,
        }
    }
}

impl Executor for SimExecutor {
    type Submission = ForwardOutput;

    fn limits(&self) -> ExecutorLimits {
        ExecutorLimits {
            kv_slots: self.kv_slots,
            max_model_len: usize::MAX,
            vocab_size: VOCAB,
        }
    }

    fn host_slots(&self) -> usize {
        self.host_slots
    }

    fn copy_kv(&mut self, copy: &KvCopy) -> Result<(), ForwardError> {
        let time = copy.device.len() as u64 * COPY_NS;
        self.clock.0.fetch_add(time, Ordering::Relaxed);
        Ok(())
    }

    fn complete(&mut self, output: ForwardOutput) -> Result<ForwardOutput, ForwardError> {
        Ok(output)
    }

    fn submit(
        &mut self,
        batch: &ForwardBatch,
        _: &mut SampleRequests<'_>,
    ) -> Result<ForwardOutput, ForwardError> {
        let context = batch.sequences.iter().map(|s| u64::from(s.context));
        let time = SEVEN_B.step_ns(batch.tokens.len() as u64, context.sum());
        self.clock.0.fetch_add(time, Ordering::Relaxed);
        // The answers of the step before lead to the next requests.
        self.driver
            .advance(self.steps)
            .map_err(ForwardError::other)?;
        self.steps += 1;
        // One token per row is certain, a different one each time.
        let mut logits = vec![0.0; batch.logit_rows.len() * VOCAB];
        for row in logits.chunks_exact_mut(VOCAB) {
            self.rows += 1;
            row[(self.rows.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 54) as usize % VOCAB] = 1.0;
        }
        Ok(ForwardOutput {
            logits,
            ..ForwardOutput::default()
        })
    }
}
