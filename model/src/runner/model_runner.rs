//! Forward passes of a loaded model on one of Burn's backends.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::{DType, Tensor};
use hearth_forward::{
    Adapter, CopyDirection, Executor, ExecutorLimits, ForwardBatch, ForwardError, ForwardOutput,
    KvCopy, SampleRequests, WindowLimits,
};
use hearth_shaders::{Kernels, Summation};

use super::check::{below, check, length};
use super::read_back::{all_to_host, to_host};
use super::sample::{SampledTokens, Sampling};
use crate::config::ModelConfig;
use crate::decoder::{Decoder, Submission};
use crate::host_pool::HostPool;
use crate::kv_rows::KvRows;
use crate::report::Report;
use crate::transformer::{AdapterStacks, DeviceBatch, DeviceOutput, PagedContext, Transformer};

/// A loaded model on the backend `B`.
pub(super) struct ModelRunner<B: Kernels> {
    pub config: ModelConfig,
    pub transformer: Transformer<B>,
    pub context: PagedContext<B>,
    pub rows: KvRows,
    pub host: Option<HostPool>,
    /// The slots for adapters, if there are any.
    pub adapters: Option<AdapterStacks<B>>,
    pub summation: Summation,
    /// Rows of logits that the device binds at once.
    pub rows_at_once: usize,
    /// The tokens that the latest submission samples.
    pub sampled: SampledTokens<B>,
    pub device: B::Device,
    pub report: Report,
}

impl<B: Kernels> Executor for ModelRunner<B> {
    type Submission = Submission;

    fn limits(&self) -> ExecutorLimits {
        ExecutorLimits {
            kv_slots: self.report.kv_slots,
            max_model_len: self.report.max_model_len,
            vocab_size: self.report.vocab_size,
        }
    }

    fn submit(
        &mut self,
        batch: &ForwardBatch,
        sample_requests: &mut SampleRequests<'_>,
    ) -> Result<Submission, ForwardError> {
        check(batch, &self.report, self.adapter_slots())?;
        if !B::samples_on_device() {
            length("sample rows", batch.sample_rows.len(), 0)?;
        }
        let carried = self.sampled.carry(&batch.carried_rows, &self.device)?;
        self.sampled = SampledTokens::none();
        if batch.tokens.is_empty() {
            return Ok(Box::new(|| Ok(ForwardOutput::default())));
        }
        let layout = self.context.layout;
        let uploaded = DeviceBatch::upload(
            batch,
            carried,
            layout,
            self.summation,
            self.rows_at_once,
            &self.device,
        );
        let DeviceOutput {
            logits,
            hidden,
            to_sample,
        } = self.transformer.forward_paged(
            &self.config,
            uploaded,
            self.adapters.as_ref(),
            &mut self.context,
        );
        let device = self.device.clone();
        if logits.is_empty() && hidden.is_none() && to_sample.is_empty() {
            // A device reports a failed launch only when something waits for it. Without this
            // wait, later forward passes would attend to KV that was never written.
            return Ok(Box::new(move || {
                B::sync(&device)
                    .map(|()| ForwardOutput::default())
                    .map_err(|error| ForwardError::Device(format!("{error:?}")))
            }));
        }
        let mut sampling = Sampling::default();
        if !to_sample.is_empty() {
            // The launches that wait in a queue run while the scheduler prepares the requests.
            B::flush(&device);
            (sampling, self.sampled) = Sampling::enqueue(to_sample, sample_requests(), &device)?;
        }
        Ok(Box::new(move || {
            let (sampled, sample_logits) = sampling.read()?;
            Ok(ForwardOutput {
                logits: all_to_host(logits)?,
                hidden: hidden.map_or_else(|| Ok(Vec::new()), to_host)?,
                sampled,
                sample_logits,
            })
        }))
    }

    fn complete(&mut self, submission: Submission) -> Result<ForwardOutput, ForwardError> {
        submission()
    }

    fn samples_on_device(&self) -> bool {
        B::samples_on_device()
    }

    fn window(&self) -> Option<WindowLimits> {
        self.report.window
    }

    fn host_slots(&self) -> usize {
        self.report.host_slots
    }

    fn copy_kv(&mut self, copy: &KvCopy) -> Result<(), ForwardError> {
        let KvCopy {
            direction,
            device,
            host,
        } = copy;
        length("host slots", host.len(), device.len())?;
        below("slot", device, self.report.kv_slots)?;
        below("host slot", host, self.report.host_slots)?;
        let Some(pool) = &mut self.host else {
            return Ok(());
        };
        let kv = &mut self.context.pool;
        match direction {
            CopyDirection::ToHost => pool.fetch(&self.rows, kv, device, host, &self.device),
            CopyDirection::ToDevice => pool.restore(&self.rows, kv, host, device, &self.device),
        }
        .map_err(ForwardError::Device)
    }

    fn kv_token_bytes(&self) -> usize {
        match self.report.window {
            Some(_) => 0,
            None => self.rows.token_bytes(),
        }
    }

    fn read_kv(&mut self, slots: &[u32]) -> Result<Vec<u8>, ForwardError> {
        self.one_pool()?;
        below("slot", slots, self.report.kv_slots)?;
        let rows = &self.rows;
        let mut bytes = vec![0; rows.token_bytes() * slots.len()];
        let plane = (slots.len() * rows.row_bytes()).max(1);
        let mut planes: Vec<_> = bytes.chunks_exact_mut(plane).collect();
        let (pool, order) = (&mut self.context.pool, in_order(slots));
        rows.fetch(pool, slots, &mut planes, &order, &self.device)
            .map_err(ForwardError::Device)?;
        Ok(bytes)
    }

    fn write_kv(&mut self, slots: &[u32], bytes: &[u8]) -> Result<(), ForwardError> {
        self.one_pool()?;
        below("slot", slots, self.report.kv_slots)?;
        let rows = &self.rows;
        length("bytes", bytes.len(), rows.token_bytes() * slots.len())?;
        let plane = (slots.len() * rows.row_bytes()).max(1);
        let planes: Vec<_> = bytes.chunks_exact(plane).collect();
        let (pool, order) = (&mut self.context.pool, in_order(slots));
        rows.restore(pool, slots, &planes, &order, &self.device)
            .map_err(ForwardError::Device)
    }

    fn adapter_slots(&self) -> usize {
        self.adapters.as_ref().map_or(0, AdapterStacks::slots)
    }

    fn table_slots(&self) -> usize {
        self.adapters.as_ref().map_or(0, AdapterStacks::table_slots)
    }

    fn load_adapter(&mut self, slot: u32, adapter: &Adapter) -> Result<(), ForwardError> {
        let (Some(stacks), Some(slot)) = (&mut self.adapters, slot.checked_sub(1)) else {
            return Err(ForwardError::other("this model has no slot for adapters"));
        };
        stacks
            .load(&self.config, slot as usize, adapter, &self.device)
            .map_err(ForwardError::Other)?;
        // Without this wait a failed copy would show only after forward passes had read the slot.
        B::sync(&self.device).map_err(|error| ForwardError::Device(format!("{error:?}")))
    }
}

impl<B: Kernels> ModelRunner<B> {
    /// # Errors
    /// Layers that attend a window have slots of their own, so that a slot is not all that is stored
    /// for a token.
    fn one_pool(&self) -> Result<(), ForwardError> {
        match self.report.window {
            Some(_) => Err(ForwardError::other(
                "a KV pool with window slots can be neither read nor written",
            )),
            None => Ok(()),
        }
    }
}

/// The place of each of `slots` in an array that has nothing else.
fn in_order(slots: &[u32]) -> Vec<u32> {
    (0..slots.len() as u32).collect()
}

impl<B: Kernels> Decoder for ModelRunner<B> {
    fn report(&self) -> &Report {
        &self.report
    }

    fn reserved_bytes(&self) -> Option<u64> {
        B::reserved_bytes(&self.device)
    }

    fn is_alive(&mut self) -> bool {
        let sum = || {
            let numbers = Tensor::<B, 1>::from_data([1.0f32, 2.0, 4.0], (&self.device, DType::F32));
            let data = numbers.sum().try_into_data().ok()?;
            data.convert::<f32>().into_vec::<f32>().ok()
        };
        matches!(catch_unwind(AssertUnwindSafe(sum)), Ok(Some(sum)) if sum == [7.0])
    }
}
