//! Drafts of the draft model, for all requests at once.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use hearth_forward::{ExecutorLimits, ForwardBatch, ForwardError, SequenceSpan, panic_text};
use hearth_radix::KvUsage;

use super::costs::StepCosts;
use super::draft_kv::DraftKv;
use super::draft_model::DraftModel;

/// A request with no more tokens than this to compute is computed whatever the others have.
const FEW: usize = 16;

/// After so many failures in a row the draft model is not used any more.
const MOST_FAILURES: u32 = 8;

/// A request that a draft is wanted for.
#[derive(Debug)]
pub(crate) struct Wish<'a> {
    pub id: u64,
    pub namespace: &'a str,
    /// Prompt and output.
    pub tokens: &'a [u32],
    /// The most tokens to draft; at least one.
    pub most: usize,
    /// The draft.
    pub draft: Vec<u32>,
}

/// The work of the draft model since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DraftWork {
    pub forwards: u64,
    pub tokens: u64,
    pub failures: u64,
    pub time: Duration,
}

/// The draft model with its slots. The tokens of a request that it has not seen are computed
/// first; then it drafts one token of all requests in each forward pass.
pub(crate) struct ModelDrafter {
    model: Box<dyn DraftModel>,
    sizes: ExecutorLimits,
    /// The most tokens to compute in a step for requests that have many.
    chunk: usize,
    kv: DraftKv,
    costs: StepCosts,
    batch: ForwardBatch,
    pub work: DraftWork,
    failures_in_a_row: u32,
}

impl fmt::Debug for ModelDrafter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelDrafter")
            .field("sizes", &self.sizes)
            .field("work", &self.work)
            .finish_non_exhaustive()
    }
}

/// A wish in the forward passes of a step.
struct Row {
    /// Index into the wishes.
    wish: usize,
    /// The first of its entries in the slot table.
    first_slot: usize,
    /// The position of the next token to compute.
    position: usize,
    /// Tokens to compute in the next forward pass.
    tokens: usize,
}

impl ModelDrafter {
    pub fn new(model: Box<dyn DraftModel>, chunk: usize) -> Self {
        let sizes = model.sizes();
        Self {
            kv: DraftKv::new(sizes.kv_slots),
            model,
            sizes,
            chunk,
            costs: StepCosts::new(),
            batch: ForwardBatch::default(),
            work: DraftWork::default(),
            failures_in_a_row: 0,
        }
    }

    /// How long forward passes take by their rows.
    pub fn costs(&self) -> &StepCosts {
        &self.costs
    }

    /// How many of `tokens`, the tokens of the request `id`, have to be computed before the first
    /// one can be drafted. `None` if nothing can be drafted for the request.
    pub fn missing(&mut self, id: u64, namespace: &str, tokens: &[u32]) -> Option<usize> {
        let can_draft = self.failures_in_a_row < MOST_FAILURES
            && tokens.len() <= self.sizes.max_model_len.min(self.sizes.kv_slots);
        can_draft.then(|| tokens.len() - self.kv.computed(id, namespace, tokens))
    }

    /// Makes the drafts of `wishes`. A draft has fewer tokens than wanted, or none, where the
    /// request has too many tokens to compute first, where slots are missing or the model fails.
    pub fn draft(&mut self, wishes: &mut [Wish<'_>]) {
        let started = Instant::now();
        self.make_drafts(wishes);
        self.work.time += started.elapsed();
    }

    fn make_drafts(&mut self, wishes: &mut [Wish<'_>]) {
        self.kv.begin_step();
        let mut rows = self.first_rows(wishes);
        while !rows.is_empty() {
            let drafted = match self.forward(&rows, wishes) {
                Ok(drafted) => drafted,
                Err(error) => return self.failed(&rows, wishes, &error),
            };
            self.failures_in_a_row = 0;
            let mut drafted = drafted.into_iter();
            rows.retain_mut(|row| {
                let wish = &mut wishes[row.wish];
                let was_catching_up = wish.draft.is_empty();
                row.position += row.tokens;
                let sequence = self.kv.sequence(wish.id);
                if was_catching_up {
                    sequence.extend(wish.tokens, row.position);
                } else if let Some(&last) = wish.draft.last() {
                    sequence.push(last);
                }
                if row.position < wish.tokens.len() {
                    return false;
                }
                if was_catching_up && row.tokens > FEW {
                    self.kv.share(wish.id);
                }
                row.tokens = 1;
                let Some(token) = drafted.next().flatten() else {
                    return false;
                };
                wish.draft.push(token);
                wish.draft.len() < wish.most
            });
        }
    }

    /// The rows of the first forward pass, which computes what is missing. Requests with few
    /// missing tokens come first, and the others share `chunk`.
    fn first_rows(&mut self, wishes: &mut [Wish<'_>]) -> Vec<Row> {
        let mut order = Vec::with_capacity(wishes.len());
        for (index, wish) in wishes.iter().enumerate() {
            if let Some(missing) = self.missing(wish.id, wish.namespace, wish.tokens) {
                self.kv.touch(wish.id);
                order.push((missing, index));
            }
        }
        order.sort_unstable();
        let mut left = self.chunk;
        let mut rows = Vec::new();
        self.batch.slot_table.clear();
        for (missing, index) in order {
            let wish = &mut wishes[index];
            let len = wish.tokens.len();
            let tokens = match missing <= FEW {
                true => missing,
                false => missing.min(left),
            };
            // The last drafted token is not computed.
            let most = wish.most.min(self.sizes.max_model_len - len + 1);
            wish.most = most;
            let slots = match tokens == missing {
                true => len + most - 1,
                false => len - missing + tokens,
            };
            if tokens == 0 || !self.kv.reserve(wish.id, slots) {
                continue;
            }
            left -= tokens.min(left);
            let table = &mut self.batch.slot_table;
            rows.push(Row {
                wish: index,
                first_slot: table.len(),
                position: len - missing,
                tokens,
            });
            table.extend_from_slice(&self.kv.sequence(wish.id).slots()[..slots]);
        }
        rows
    }

    /// Computes `rows`. Returns the most likely next token of each request whose tokens are all
    /// computed then.
    fn forward(
        &mut self,
        rows: &[Row],
        wishes: &[Wish<'_>],
    ) -> Result<Vec<Option<u32>>, ForwardError> {
        let started = Instant::now();
        let batch = &mut self.batch;
        for values in [
            &mut batch.tokens,
            &mut batch.positions,
            &mut batch.write_slots,
            &mut batch.logit_rows,
        ] {
            values.clear();
        }
        batch.sequences.clear();
        for row in rows {
            let wish = &wishes[row.wish];
            let end = row.position + row.tokens;
            let table = &batch.slot_table[row.first_slot..];
            batch
                .write_slots
                .extend_from_slice(&table[row.position..end]);
            batch.positions.extend(id(row.position)..id(end));
            match wish.draft.last() {
                Some(&last) => batch.tokens.push(last),
                None => batch
                    .tokens
                    .extend_from_slice(&wish.tokens[row.position..end]),
            }
            batch.sequences.push(SequenceSpan {
                tokens: id(row.tokens),
                context: id(end),
                first_slot: id(row.first_slot),
            });
            if end >= wish.tokens.len() {
                batch.logit_rows.push(id(batch.tokens.len() - 1));
            }
        }
        let tokens = batch.tokens.len();
        self.work.forwards += 1;
        self.work.tokens += tokens as u64;
        let vocab_size = self.sizes.vocab_size;
        let model = &mut self.model;
        let logits = catch_unwind(AssertUnwindSafe(|| model.logits(batch)))
            .unwrap_or_else(|panic| Err(ForwardError::other(panic_text(&*panic))))?;
        let expected = batch.logit_rows.len() * vocab_size;
        if logits.len() != expected {
            return Err(ForwardError::Length {
                what: "logits",
                given: logits.len(),
                expected,
            });
        }
        let drafted = logits.chunks_exact(vocab_size).map(most_likely).collect();
        self.costs.record(tokens, started.elapsed().as_secs_f32());
        Ok(drafted)
    }

    /// No draft is made in this step, and what the requests of `rows` had in their slots is
    /// computed again.
    fn failed(&mut self, rows: &[Row], wishes: &mut [Wish<'_>], error: &ForwardError) {
        for row in rows {
            self.kv.discard(wishes[row.wish].id);
        }
        for wish in wishes {
            wish.draft.clear();
        }
        self.work.failures += 1;
        self.failures_in_a_row += 1;
        match self.failures_in_a_row < MOST_FAILURES {
            true => tracing::warn!("the draft model failed, nothing is drafted: {error}"),
            false => tracing::error!(
                failures = MOST_FAILURES,
                "the draft model failed again and is not used any more: {error}"
            ),
        }
    }

    /// The request `id` has ended or was preempted.
    pub fn end(&mut self, id: u64) {
        self.kv.end(id);
    }

    /// Forgets everything that no request uses.
    pub fn flush(&mut self) {
        self.kv.flush();
    }

    /// The states of the slots, and how many of them belong to requests.
    pub fn usage(&mut self) -> (KvUsage, usize) {
        (self.kv.usage(), self.kv.held())
    }
}

fn id(value: usize) -> u32 {
    u32::try_from(value).expect("positions and slots are bounded by the slots, whose ids are u32")
}

/// The first of the most likely tokens; `None` if no logit is a number.
fn most_likely(logits: &[f32]) -> Option<u32> {
    let mut best: Option<(u32, f32)> = None;
    for (token, &logit) in (0..).zip(logits) {
        if best.is_none_or(|(_, most)| logit > most) && logit > f32::NEG_INFINITY {
            best = Some((token, logit));
        }
    }
    best.map(|(token, _)| token)
}
