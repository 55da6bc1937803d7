//! From scheduled requests to the ragged batch of one forward.

mod table;

use hearth_radix::KvCopy;

use crate::active::Running;
use crate::executor::{Choice, ForwardBatch, Sequence};
use table::Layout;

pub(crate) use table::Row;

/// A request's share of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    /// Index into the running requests.
    pub request: usize,
    /// The request's number.
    pub id: u64,
    pub tokens: usize,
    /// Rows of logits for the log-probabilities of tokens that are not sampled.
    pub scored_rows: usize,
    /// Hidden states for its embedding.
    pub hidden_rows: usize,
    /// Whether one more row is there to sample from.
    pub samples: bool,
    /// Whether the executor chooses in its place, which gives a token and no row.
    pub chooses: bool,
}

/// Tokens of a request that this step copies from the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    /// Index into the running requests.
    pub request: usize,
    pub tokens: usize,
}

/// What the executor gives for a row where it chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Token,
    Logits,
    Nothing,
}

impl From<&Choice> for Asked {
    fn from(choice: &Choice) -> Self {
        match choice {
            Choice::Token(_) => Self::Token,
            Choice::Logits => Self::Logits,
            Choice::Nothing => Self::Nothing,
        }
    }
}

/// The forward of one step and whose rows it has; reused from step to step.
#[derive(Debug, Default)]
pub(crate) struct StepBatch {
    pub forward: ForwardBatch,
    pub grants: Vec<Grant>,
    pub loads: Vec<Load>,
    /// To be carried out before the forward, in this order.
    pub copies: Vec<KvCopy>,
    /// What the executor was asked for at the rows where it chooses.
    pub asked: Vec<Asked>,
    executor_chooses: bool,
    layout: Layout,
}

impl StepBatch {
    /// An empty one; `executor_chooses` where it may be asked for tokens.
    pub fn new(executor_chooses: bool) -> Self {
        Self {
            executor_chooses,
            ..Self::default()
        }
    }

    pub fn clear(&mut self) {
        let ForwardBatch {
            tokens,
            positions,
            write_slots,
            sequences,
            slot_table,
            logit_rows,
            hidden_rows,
            choice_rows,
        } = &mut self.forward;
        for values in [
            tokens,
            positions,
            write_slots,
            logit_rows,
            hidden_rows,
            choice_rows,
        ] {
            values.clear();
        }
        sequences.clear();
        self.layout.begin(slot_table);
        self.grants.clear();
        self.loads.clear();
        self.copies.clear();
        self.asked.clear();
    }

    /// Whether there is nothing to do for the device.
    pub fn asks_for_nothing(&self) -> bool {
        self.grants.is_empty() && self.copies.is_empty()
    }

    pub fn tokens(&self) -> usize {
        self.forward.tokens.len()
    }

    /// Adds the next `count` pending tokens of `running`, the request at index
    /// `request`.
    pub fn push(&mut self, request: usize, running: &mut Running, count: usize) {
        let Running {
            request: active,
            kv,
            ..
        } = running;
        let (start, end) = (kv.computed, kv.computed + count);
        let batch = &mut self.forward;
        let first_token = batch.tokens.len();
        let first_slot = self
            .layout
            .write(&mut batch.slot_table, &mut kv.row, &kv.slots, end);
        batch.sequences.push(Sequence {
            first_token: index(first_token),
            tokens: index(count),
            context: index(end),
            first_slot: index(first_slot),
        });
        batch.tokens.extend_from_slice(&active.tokens[start..end]);
        batch.positions.extend(index(start)..index(end));
        batch.write_slots.extend_from_slice(&kv.slots[start..end]);
        let rows = batch.logit_rows.len();
        let wanted = active.wanted_logprobs(start, end);
        batch
            .logit_rows
            .extend(wanted.map(|position| index(first_token + position - start)));
        let scored_rows = batch.logit_rows.len() - rows;
        let pooled = active.wanted_hidden(start, end);
        let hidden_rows = pooled.len();
        batch
            .hidden_rows
            .extend(pooled.map(|position| index(first_token + position - start)));
        let next = end == active.tokens.len() && active.samples_next();
        let chooses = next && self.executor_chooses && active.needs_no_logits();
        let last = index(first_token + count - 1);
        if chooses {
            batch.choice_rows.push(last);
        } else if next {
            batch.logit_rows.push(last);
        }
        self.grants.push(Grant {
            request,
            id: active.id.number(),
            tokens: count,
            scored_rows,
            hidden_rows,
            samples: next && !chooses,
            chooses,
        });
    }
}

fn index(value: usize) -> u32 {
    u32::try_from(value).expect("a batch is bounded by the KV slots, whose ids are 32 bits wide")
}
