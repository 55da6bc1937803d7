//! From scheduled requests to the ragged batch of one forward pass.

use std::ops::Range;
use std::time::Duration;

use hearth_forward::{ForwardBatch, KvCopy, SampleRequest, SequenceSpan};

use crate::adapters::AdapterLoad;
use crate::kv::RequestKv;
use crate::running::Running;
use crate::slot_table::{TableLayout, Tables};
use crate::transfer::KvTransfer;

/// A request's share of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    /// Index into the running requests.
    pub request: usize,
    /// The request's number.
    pub id: u64,
    /// Tokens to compute.
    pub tokens: usize,
    /// Rows of logits for the log-probabilities of tokens that are not sampled.
    pub scored_rows: usize,
    /// Rows of hidden states for the request's embedding.
    pub hidden_rows: usize,
    /// How the token after the last row is sampled, if it is.
    pub sampling: Option<Sampling>,
    /// The rows of the draft, which follow those of `tokens`. Each has a row of logits.
    pub draft: Range<usize>,
}

/// Where the next token of a request is sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sampling {
    /// By the engine, from one more row of logits.
    OnHost,
    /// By the executor, at one of the `sample_rows`.
    OnDevice,
}

/// Tokens of a request that this step copies from the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostLoad {
    /// Index into the running requests.
    pub request: usize,
    pub tokens: usize,
}

/// What the executor returns for one of the `sample_rows`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SampleKind {
    Token,
    Logits,
    Nothing,
}

impl From<&SampleRequest> for SampleKind {
    fn from(request: &SampleRequest) -> Self {
        match request {
            SampleRequest::Token(_) => Self::Token,
            SampleRequest::Logits => Self::Logits,
            SampleRequest::Nothing => Self::Nothing,
        }
    }
}

/// The forward pass of one step, and the requests whose tokens are in it. Batches are reused
/// from step to step.
#[derive(Debug, Default)]
pub(crate) struct StepBatch {
    pub forward: ForwardBatch,
    pub grants: Vec<Grant>,
    pub loads: Vec<HostLoad>,
    /// To be made before the forward pass, in this order.
    pub copies: Vec<KvCopy>,
    /// To be made before the copies, in this order.
    pub transfers: Vec<KvTransfer>,
    /// How long the draft model took to make the drafts.
    pub drafting: Duration,
    /// To be made before the forward pass.
    pub adapter_loads: Vec<AdapterLoad>,
    /// One for each of the `sample_rows`, once their sample requests are known.
    pub sample_kinds: Vec<SampleKind>,
    executor_samples: bool,
    layout: TableLayout,
    /// Which of a request's [`spans`](RequestKv::spans) is in this batch's slot table.
    table: usize,
}

impl StepBatch {
    /// An empty batch. `executor_samples` says whether the executor samples on the device.
    /// `table` is 0 for one of the two batches, and 1 for the other.
    pub fn new(executor_samples: bool, table: usize) -> Self {
        Self {
            executor_samples,
            table,
            ..Self::default()
        }
    }

    pub fn clear(&mut self) {
        let ForwardBatch {
            tokens,
            carried_rows,
            positions,
            write_slots,
            window_write_slots,
            sequences,
            adapters,
            slot_table,
            window_table,
            logit_rows,
            hidden_rows,
            sample_rows,
        } = &mut self.forward;
        for values in [
            tokens,
            carried_rows,
            positions,
            write_slots,
            window_write_slots,
            adapters,
            logit_rows,
            hidden_rows,
            sample_rows,
        ] {
            values.clear();
        }
        sequences.clear();
        self.layout.begin(Tables {
            slots: slot_table,
            window: window_table,
        });
        self.grants.clear();
        self.loads.clear();
        self.copies.clear();
        self.transfers.clear();
        self.drafting = Duration::ZERO;
        self.adapter_loads.clear();
        self.sample_kinds.clear();
    }

    /// Whether the device has nothing to do.
    pub fn is_empty(&self) -> bool {
        self.grants.is_empty() && self.copies.is_empty() && self.transfers.is_empty()
    }

    pub fn tokens(&self) -> usize {
        self.forward.tokens.len()
    }

    /// Adds the next `count` pending tokens of `running`, the request at index `request`, and its
    /// draft if they are all of its tokens.
    pub fn push(&mut self, request: usize, running: &mut Running, count: usize) {
        let Running {
            request: active,
            kv,
            adapter_slot,
            ..
        } = running;
        let slot = *adapter_slot;
        let (start, end) = (kv.computed, kv.computed + count);
        let samples_next = end == active.tokens.len() && active.samples_next();
        let on_device = self.executor_samples && active.needs_no_logits();
        let draft = match samples_next && !on_device {
            true => active.draft(),
            false => &[],
        };
        let tokens = &active.tokens[start..end];
        let first_row = self.push_sequence(kv, slot, start, tokens, draft);
        let row_at = |position| index(first_row + position - start);
        let batch = &mut self.forward;
        let scored = active.wanted_logprobs(start, end);
        let scored_rows = scored.len();
        batch.logit_rows.extend(scored.map(row_at));
        let hidden = active.wanted_hidden(start, end);
        let hidden_rows = hidden.len();
        batch.hidden_rows.extend(hidden.map(row_at));
        let sampling = samples_next.then(|| {
            if on_device {
                batch.sample_rows.push(row_at(end - 1));
                Sampling::OnDevice
            } else {
                let rows = end - 1..end + draft.len();
                batch.logit_rows.extend(rows.map(row_at));
                Sampling::OnHost
            }
        });
        let after = first_row + count;
        self.grants.push(Grant {
            request,
            id: active.id.number(),
            tokens: count,
            scored_rows,
            hidden_rows,
            sampling,
            draft: after..after + draft.len(),
        });
    }

    /// Adds the token of `running`, at index `request`, that the previous batch samples at
    /// index `row` of its `sample_rows`. The executor samples the token after it.
    pub fn push_carried(&mut self, request: usize, running: &mut Running, row: usize) {
        let Running {
            request: active,
            kv,
            adapter_slot,
            ..
        } = running;
        let slot = *adapter_slot;
        let own_row = self.push_sequence(kv, slot, active.tokens.len(), &[0], &[]);
        self.forward.carried_rows.push(index(row));
        self.forward.sample_rows.push(index(own_row));
        self.sample_kinds.push(SampleKind::Token);
        self.grants.push(Grant {
            request,
            id: active.id.number(),
            tokens: 1,
            scored_rows: 0,
            hidden_rows: 0,
            sampling: Some(Sampling::OnDevice),
            draft: 0..0,
        });
    }

    /// Adds a sequence with the adapter in `slot` of `tokens`, the first of which has the position `start`, and of the
    /// tokens of `draft` after them. Returns the row of the first token.
    fn push_sequence(
        &mut self,
        kv: &mut RequestKv,
        slot: u32,
        start: usize,
        tokens: &[u32],
        draft: &[u32],
    ) -> usize {
        let end = start + tokens.len() + draft.len();
        let batch = &mut self.forward;
        let first_row = batch.tokens.len();
        let span = &mut kv.spans[self.table];
        let tables = Tables {
            slots: &mut batch.slot_table,
            window: &mut batch.window_table,
        };
        let window = kv.window.as_ref().map(|window| window.slots.as_slice());
        let first_slot = self.layout.write(tables, span, &kv.slots, window, end);
        batch.sequences.push(SequenceSpan {
            tokens: index(end - start),
            context: index(end),
            first_slot: index(first_slot),
        });
        // Without adapters the list stays empty.
        if slot > 0 || !batch.adapters.is_empty() {
            batch.adapters.resize(batch.sequences.len() - 1, 0);
            batch.adapters.push(slot);
        }
        batch.tokens.extend_from_slice(tokens);
        batch.tokens.extend_from_slice(draft);
        batch.positions.extend(index(start)..index(end));
        batch.write_slots.extend_from_slice(&kv.slots[start..end]);
        if let Some(window) = window {
            let slots = &window[start..end];
            batch.window_write_slots.extend_from_slice(slots);
        }
        first_row
    }
}

fn index(value: usize) -> u32 {
    u32::try_from(value).expect("a batch is bounded by the KV slots, whose ids are 32 bits wide")
}
