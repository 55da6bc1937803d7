//! The executor with the steps that were submitted to it and are not complete.

use std::collections::VecDeque;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::Receiver;
use std::time::Instant;

use hearth_forward::{
    Executor, ForwardBatch, ForwardError, ForwardOutput, KvCopy, SampleRequest, panic_text,
};

use super::output_check::{SampleCounts, check_output};
use super::work::{Completion, StepWork};
use crate::adapters::AdapterLoad;
use crate::transfer::{KvTransfer, TransferError};

const LOST: &str = "the device is lost";

pub(super) struct Worker<E: Executor> {
    pub executor: E,
    /// Oldest first.
    submitted: VecDeque<SubmittedStep<E::Submission>>,
}

struct SubmittedStep<S> {
    work: StepWork,
    copied: Result<(), String>,
    forward: Result<SubmittedForward<S>, String>,
    /// Whether the device was lost before the step was submitted.
    refused: bool,
}

/// A forward pass that was submitted, if the step has one.
struct SubmittedForward<S> {
    submission: Option<S>,
    counts: SampleCounts,
}

impl<E: Executor> Worker<E> {
    pub fn new(executor: E) -> Self {
        Self {
            executor,
            submitted: VecDeque::new(),
        }
    }

    /// Makes the transfers and copies of `work`, and submits its forward pass to the executor.
    pub fn submit(&mut self, mut work: StepWork) {
        if self.executor.is_lost() {
            return self.refuse(work);
        }
        let before_failed = self
            .submitted
            .back()
            .is_none_or(|step| step.forward.is_err());
        let executor = &mut self.executor;
        // The copies come between the two. A slot that is read may be evicted already, and a copy
        // may be about to overwrite it. A slot that is written may have been another prefix's, of
        // which a copy still has to be made.
        let is_read = |transfer: &mut KvTransfer| matches!(transfer, KvTransfer::Read { .. });
        for read in work.transfers.extract_if(.., is_read) {
            transfer_kv(executor, read);
        }
        let copied = copy(executor, &work.copies);
        for write in work.transfers.drain(..) {
            transfer_kv(executor, write);
        }
        let forward = if !work.forward.carried_rows.is_empty() && before_failed {
            Err("the forward before it failed".to_owned())
        } else {
            load_adapters(&mut self.executor, &work.adapter_loads).and_then(|()| {
                submit_forward(&mut self.executor, &work.forward, &work.sample_requests)
            })
        };
        self.submitted.push_back(SubmittedStep {
            work,
            copied,
            forward,
            refused: false,
        });
    }

    /// Takes work that a lost device cannot carry out.
    pub fn refuse(&mut self, mut work: StepWork) {
        for transfer in work.transfers.drain(..) {
            transfer.refuse(LOST);
        }
        self.submitted.push_back(SubmittedStep {
            copied: match work.copies.is_empty() {
                true => Ok(()),
                false => Err(LOST.to_owned()),
            },
            forward: Err(LOST.to_owned()),
            refused: true,
            work,
        });
    }

    /// Waits for the oldest step. If the device is lost, all steps complete.
    pub fn complete(&mut self) -> Vec<Completion> {
        let mut completions: Vec<Completion> = Vec::new();
        while completions.last().is_none_or(|completion| completion.lost)
            && let Some(step) = self.submitted.pop_front()
        {
            let after_loss = !completions.is_empty();
            completions.push(self.complete_step(step, after_loss));
        }
        completions
    }

    fn complete_step(
        &mut self,
        step: SubmittedStep<E::Submission>,
        after_loss: bool,
    ) -> Completion {
        let SubmittedStep {
            work,
            copied,
            forward,
            refused,
        } = step;
        let is_lost = after_loss || self.executor.is_lost();
        let output = forward.and_then(|forward| match is_lost {
            // Dropping the submission may fail in a dead driver, which does not matter.
            true => guarded(|| {
                drop(forward);
                Err::<ForwardOutput, _>(LOST)
            }),
            false => complete_forward(&mut self.executor, forward, &work.forward),
        });
        if let Err(error) = &output
            && !refused
        {
            let batch = &work.forward;
            let (requests, tokens) = (batch.sequences.len(), batch.tokens.len());
            tracing::error!(requests, tokens, "forward failed: {error}");
        }
        let lost = refused || is_lost || self.executor.is_lost();
        Completion {
            copied,
            output,
            lost,
            lost_here: lost && !refused && !after_loss,
            work,
            at: Instant::now(),
        }
    }
}

/// Calls `work` and turns its error into the text for the clients. A panic is an error like
/// others, because drivers panic where they should return an error.
fn guarded<T, E: Display>(work: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work))
        .map_err(|panic| format!("the model panicked: {}", panic_text(&*panic)))
        .and_then(|result| result.map_err(|error| error.to_string()))
}

/// The text of an executor's error for the clients.
fn model_failed(error: ForwardError) -> String {
    format!("the model failed: {error}")
}

fn copy(executor: &mut impl Executor, copies: &[KvCopy]) -> Result<(), String> {
    let mut copy_all = || copies.iter().try_for_each(|copy| executor.copy_kv(copy));
    guarded(|| copy_all().map_err(model_failed))
        .inspect_err(|error| tracing::error!("copying KV failed: {error}"))
}

/// Puts adapters into their slots. Without one of them, the forward pass would compute something
/// else than was asked for.
fn load_adapters(executor: &mut impl Executor, loads: &[AdapterLoad]) -> Result<(), String> {
    let mut load_all = || {
        let mut loads = loads.iter();
        loads.try_for_each(|load| executor.load_adapter(load.slot, &load.adapter))
    };
    guarded(|| load_all().map_err(model_failed))
        .inspect_err(|error| tracing::error!("loading an adapter failed: {error}"))
}

/// Reads or writes slots, and replies to the caller that asked for it.
fn transfer_kv(executor: &mut impl Executor, transfer: KvTransfer) {
    // A caller that has given up needs no reply.
    match transfer {
        KvTransfer::Read { slots, reply } => {
            let read = guarded(|| executor.read_kv(&slots).map_err(model_failed));
            let _ = reply.send(read.map_err(TransferError::Device));
        }
        KvTransfer::Write {
            slots,
            bytes,
            reply,
        } => {
            let written = guarded(|| executor.write_kv(&slots, &bytes).map_err(model_failed));
            let _ = reply.send(written.map_err(TransferError::Device));
        }
    }
}

fn submit_forward<E: Executor>(
    executor: &mut E,
    batch: &ForwardBatch,
    sample_requests: &Receiver<Vec<SampleRequest>>,
) -> Result<SubmittedForward<E::Submission>, String> {
    if batch.tokens.is_empty() {
        return Ok(SubmittedForward {
            submission: None,
            counts: SampleCounts::default(),
        });
    }
    // An executor that never asks for the sample requests fails the check of its output.
    let mut counts = SampleCounts {
        tokens: batch.sample_rows.len(),
        logits: 0,
    };
    let mut ask = || {
        // If the engine thread is gone, no answer will be read.
        let nothing = |_| vec![SampleRequest::Nothing; batch.sample_rows.len()];
        let requests = sample_requests.recv().unwrap_or_else(nothing);
        counts = SampleCounts::of(&requests);
        requests
    };
    let submission = guarded(|| executor.submit(batch, &mut ask).map_err(model_failed))?;
    Ok(SubmittedForward {
        submission: Some(submission),
        counts,
    })
}

/// The output of `forward`, whose batch is `batch`.
fn complete_forward<E: Executor>(
    executor: &mut E,
    forward: SubmittedForward<E::Submission>,
    batch: &ForwardBatch,
) -> Result<ForwardOutput, String> {
    let Some(submission) = forward.submission else {
        return Ok(ForwardOutput::default());
    };
    let vocab_size = executor.limits().vocab_size;
    let output = guarded(|| executor.complete(submission).map_err(model_failed))?;
    check_output(&output, batch, forward.counts, vocab_size)?;
    Ok(output)
}
