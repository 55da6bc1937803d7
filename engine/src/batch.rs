//! From scheduled requests to the ragged batch of one forward.

mod table;

use hearth_forward::KvCopy;

use crate::active::Running;
use crate::executor::{Choice, ForwardBatch, Sequence};
use crate::kv::RequestKv;
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
    /// Which of a request's rows is in its table.
    table: usize,
}

impl StepBatch {
    /// An empty one; `executor_chooses` where it may be asked for tokens. `table` is 0 or 1,
    /// another one for each of two batches.
    pub fn new(executor_chooses: bool, table: usize) -> Self {
        Self {
            executor_chooses,
            table,
            ..Self::default()
        }
    }

    pub fn clear(&mut self) {
        let ForwardBatch {
            tokens,
            carried,
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
            carried,
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
        let tokens = &active.tokens[start..end];
        let first_token = self.place(kv, start, tokens);
        let batch = &mut self.forward;
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

    /// Adds the token of `running`, at index `request`, that the forward before chooses at its
    /// row `row`; the executor chooses the one after it.
    pub fn carry(&mut self, request: usize, running: &mut Running, row: usize) {
        let Running {
            request: active,
            kv,
            ..
        } = running;
        let token = self.place(kv, active.tokens.len(), &[0]);
        self.forward.carried.push(index(row));
        self.forward.choice_rows.push(index(token));
        self.asked.push(Asked::Token);
        self.grants.push(Grant {
            request,
            id: active.id.number(),
            tokens: 1,
            scored_rows: 0,
            hidden_rows: 0,
            samples: false,
            chooses: true,
        });
    }

    /// Adds a sequence of `tokens` that begin at the position `start`; returns where the first
    /// of them is in the batch.
    fn place(&mut self, kv: &mut RequestKv, start: usize, tokens: &[u32]) -> usize {
        let end = start + tokens.len();
        let batch = &mut self.forward;
        let first_token = batch.tokens.len();
        let row = &mut kv.rows[self.table];
        let table = &mut batch.slot_table;
        let first_slot = self.layout.write(table, row, &kv.slots, end);
        batch.sequences.push(Sequence {
            first_token: index(first_token),
            tokens: index(tokens.len()),
            context: index(end),
            first_slot: index(first_slot),
        });
        batch.tokens.extend_from_slice(tokens);
        batch.positions.extend(index(start)..index(end));
        batch.write_slots.extend_from_slice(&kv.slots[start..end]);
        first_token
    }
}

fn index(value: usize) -> u32 {
    u32::try_from(value).expect("a batch is bounded by the KV slots, whose ids are 32 bits wide")
}
