//! A model without arithmetic: it stores in a slot a hash of the whole prefix that it read
//! through the slot table, and its logits are a function of what it reads there. A wrong slot, a
//! stale one, or one that was freed too early changes every token that follows.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};

use hearth_forward::{
    Adapter, CopyDirection, Executor, ExecutorLimits, ForwardBatch, ForwardError, ForwardOutput,
    KvCopy, SampleRequest, SampleRequests, SequenceSpan, WindowLimits,
};

use super::sample;

pub const VOCAB: usize = 101;
pub const ADAPTER_SLOTS: usize = 2;
/// Width of the hidden states.
pub const HIDDEN: usize = 3;
/// A token after which no token can be sampled.
pub const SILENT: u32 = 98;
/// A token whose forward pass fails.
pub const FAILS: u32 = 99;
/// A token whose forward pass panics.
pub const PANICS: u32 = 100;

pub fn mix(hash: u64, value: u64) -> u64 {
    let mut x = (hash ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x ^= x >> 29;
    x = x.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x ^ (x >> 32)
}

/// The KV of `token` after a prefix with the KV `before`, computed with an adapter.
fn store(before: Option<u64>, token: u32, adapter: u64) -> u64 {
    mix(before.unwrap_or(0x5eed) ^ adapter, u64::from(token) + 1)
}

/// The change that an adapter with this `digest` makes.
fn change(digest: &str) -> u64 {
    digest
        .bytes()
        .fold(0xada, |hash, byte| mix(hash, u64::from(byte)))
}

/// `[VOCAB]` logits after a context whose slots hold `kv`. The tokens with special meanings are
/// never likely.
fn logits_of(kv: impl Iterator<Item = u64>) -> Vec<f32> {
    let context = kv.fold(7, mix);
    let logit = |token: u64| (mix(context, token) >> 40) as f32 / (1 << 24) as f32 * 8.0;
    let mut logits: Vec<f32> = (0..VOCAB as u64).map(logit).collect();
    logits[SILENT as usize] = -1e9;
    logits[FAILS as usize] = -1e9;
    logits[PANICS as usize] = -1e9;
    logits
}

/// The greedy continuation, computed without slots, batches or an engine.
pub fn expected(prompt: &[u32], max_tokens: usize) -> Vec<u32> {
    expected_of(None, prompt, max_tokens)
}

/// [`expected`] with the adapter of a digest.
pub fn expected_of(adapter: Option<&str>, prompt: &[u32], max_tokens: usize) -> Vec<u32> {
    let adapter = adapter.map_or(0, change);
    let mut kv = Vec::new();
    let push = |kv: &mut Vec<u64>, token| kv.push(store(kv.last().copied(), token, adapter));
    prompt.iter().for_each(|&token| push(&mut kv, token));
    let mut output = Vec::new();
    for _ in 0..max_tokens {
        let logits = logits_of(kv.iter().copied());
        // The sampler takes the first of equal logits, and so does min_by.
        let best = (0..VOCAB)
            .min_by(|&a, &b| logits[b].total_cmp(&logits[a]))
            .unwrap();
        output.push(best as u32);
        push(&mut kv, best as u32);
    }
    output
}

/// `[prompt.len(), HIDDEN]`: the hidden states of a prompt, computed like [`expected`].
pub fn expected_hidden(prompt: &[u32]) -> Vec<Vec<f32>> {
    let mut kv = Vec::new();
    let states = prompt.iter().map(|&token| {
        kv.push(store(kv.last().copied(), token, 0));
        let mut state = logits_of(kv.iter().copied());
        state.truncate(HIDDEN);
        state
    });
    states.collect()
}

/// The sizes of one forward pass.
#[derive(Clone, Debug)]
pub struct Step {
    pub tokens: usize,
    pub sequences: usize,
    pub prefills: usize,
    /// Rows of logits.
    pub rows: usize,
    /// Tokens that the executor sampled.
    pub sampled: usize,
    /// Rows whose logits were returned because their sample requests were late.
    pub late_rows: usize,
    /// Whether it was submitted before the one before it had completed.
    pub overlaps: bool,
    /// The last token of each prefill, by which a test recognises the request.
    pub ends: Vec<u32>,
}

/// The copies between the device and the host.
#[derive(Clone)]
pub struct Copies {
    pub done: Arc<Mutex<Vec<KvCopy>>>,
    /// Whether the next copies fail.
    pub fail: Arc<AtomicBool>,
    /// Whether the gate is in force.
    pub gated: Arc<AtomicBool>,
}

impl Default for Copies {
    fn default() -> Self {
        Self {
            done: Arc::default(),
            fail: Arc::default(),
            gated: Arc::new(AtomicBool::new(true)),
        }
    }
}

/// The calls of the executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// The number of the forward pass, and whether its tokens are carried from the one before it.
    Submit(usize, bool),
    Complete(usize),
}

pub struct FakeModel {
    pub limits: ExecutorLimits,
    pub kv: Vec<Option<u64>>,
    /// A second pool with the same contents, for the positions that a window shows.
    pub window: Option<WindowLimits>,
    pub window_kv: Vec<Option<u64>>,
    pub host: Vec<Option<u64>>,
    pub copies: Copies,
    pub steps: Arc<Mutex<Vec<Step>>>,
    pub calls: Arc<Mutex<Vec<Call>>>,
    pub submitted: usize,
    /// What the latest forward pass sampled at each of its rows.
    pub latest: Vec<Option<u32>>,
    pub samples_on_device: bool,
    /// The change that the adapter in each slot makes.
    pub adapters: [Option<u64>; ADAPTER_SLOTS],
    /// The digests of the adapters that were loaded.
    pub loaded: Arc<Mutex<Vec<(u32, String)>>>,
    /// True if the next load of an adapter fails.
    pub fail_load: Arc<AtomicBool>,
    /// With a gate, the completion of each forward pass waits for one permit, until the sender is
    /// gone.
    pub gate: Option<Receiver<()>>,
}

impl Executor for FakeModel {
    type Submission = (usize, ForwardOutput);

    fn limits(&self) -> ExecutorLimits {
        self.limits
    }

    fn window(&self) -> Option<WindowLimits> {
        self.window
    }

    fn host_slots(&self) -> usize {
        self.host.len()
    }

    fn samples_on_device(&self) -> bool {
        self.samples_on_device
    }

    fn copy_kv(&mut self, copy: &KvCopy) -> Result<(), ForwardError> {
        if copy.direction == CopyDirection::ToDevice {
            self.pass_gate();
        }
        if self.copies.fail.load(Ordering::SeqCst) {
            return Err(ForwardError::other("the bus is gone"));
        }
        for (&device, &host) in copy.device.iter().zip(&copy.host) {
            let (device, host) = (&mut self.kv[device as usize], &mut self.host[host as usize]);
            match copy.direction {
                CopyDirection::ToHost => *host = *device,
                CopyDirection::ToDevice => *device = *host,
            }
        }
        self.copies.done.lock().unwrap().push(copy.clone());
        Ok(())
    }

    fn adapter_slots(&self) -> usize {
        ADAPTER_SLOTS
    }

    fn table_slots(&self) -> usize {
        1
    }

    fn load_adapter(&mut self, slot: u32, adapter: &Adapter) -> Result<(), ForwardError> {
        let index = slot as usize - 1;
        self.adapters[index] = None;
        assert!(index < self.table_slots() || !adapter.has_tables());
        if self.fail_load.swap(false, Ordering::SeqCst) {
            return Err(ForwardError::other("no memory for an adapter"));
        }
        self.adapters[index] = Some(change(&adapter.digest));
        let load = (slot, adapter.digest.clone());
        self.loaded.lock().unwrap().push(load);
        Ok(())
    }

    fn kv_token_bytes(&self) -> usize {
        8
    }

    fn read_kv(&mut self, slots: &[u32]) -> Result<Vec<u8>, ForwardError> {
        let kv = slots.iter().map(|&slot| self.kv[slot as usize]);
        Ok(kv
            .flat_map(|kv| kv.expect("KV is written").to_le_bytes())
            .collect())
    }

    fn write_kv(&mut self, slots: &[u32], bytes: &[u8]) -> Result<(), ForwardError> {
        if bytes.len() != 8 * slots.len() {
            return Err(ForwardError::Length {
                what: "bytes",
                given: bytes.len(),
                expected: 8 * slots.len(),
            });
        }
        let values = bytes
            .as_chunks::<8>()
            .0
            .iter()
            .copied()
            .map(u64::from_le_bytes);
        for (&slot, value) in slots.iter().zip(values) {
            self.kv[slot as usize] = Some(value);
        }
        Ok(())
    }

    fn complete(
        &mut self,
        (number, output): Self::Submission,
    ) -> Result<ForwardOutput, ForwardError> {
        self.calls.lock().unwrap().push(Call::Complete(number));
        self.pass_gate();
        Ok(output)
    }

    fn submit(
        &mut self,
        batch: &ForwardBatch,
        sample_requests: &mut SampleRequests<'_>,
    ) -> Result<Self::Submission, ForwardError> {
        self.submitted += 1;
        let overlaps = !batch.carried_rows.is_empty();
        let call = Call::Submit(self.submitted, overlaps);
        self.calls.lock().unwrap().push(call);
        let latest = std::mem::take(&mut self.latest);
        let mut tokens = batch.tokens.clone();
        for (token, &row) in tokens.iter_mut().zip(&batch.carried_rows) {
            assert_eq!(*token, 0, "the token is not known yet");
            *token = latest[row as usize].unwrap_or(0);
        }
        let batch = &ForwardBatch {
            tokens,
            ..batch.clone()
        };
        self.steps.lock().unwrap().push(Step {
            tokens: batch.tokens.len(),
            sequences: batch.sequences.len(),
            prefills: batch.sequences.iter().filter(|s| s.tokens > 1).count(),
            rows: batch.logit_rows.len(),
            sampled: 0,
            late_rows: 0,
            overlaps,
            ends: with_rows(batch)
                .filter(|(_, tokens)| tokens.len() > 1)
                .map(|(_, tokens)| batch.tokens[tokens.end - 1])
                .collect(),
        });
        check_shape(batch);
        self.check_window_lists(batch);
        if batch
            .tokens
            .iter()
            .any(|token| [PANICS, FAILS].contains(token))
        {
            // It never completes.
            self.pass_gate();
        }
        if batch.tokens.contains(&PANICS) {
            panic!("the device is gone");
        }
        if batch.tokens.contains(&FAILS) {
            return Err(ForwardError::other("out of memory"));
        }
        let mut output = ForwardOutput::default();
        let mut rows_to_sample = Vec::new();
        for (index, (sequence, rows)) in with_rows(batch).enumerate() {
            let slot = batch.adapters.get(index).map_or(0, |slot| *slot as usize);
            let adapter = match slot {
                0 => 0,
                slot => self.adapters[slot - 1].expect("the adapter is loaded"),
            };
            let (start, context) = (sequence.first_slot as usize, sequence.context as usize);
            let table = &batch.slot_table[start..start + context];
            for row in rows {
                let position = batch.positions[row] as usize;
                let before = position.checked_sub(1);
                let before = before.map(|p| self.kv[table[p] as usize].expect("KV is written"));
                let slot = batch.write_slots[row];
                self.kv[slot as usize] = Some(store(before, batch.tokens[row], adapter));
                if self.window.is_some() {
                    let slot = batch.window_write_slots[row];
                    self.window_kv[slot as usize] = self.kv[batch.write_slots[row] as usize];
                    self.check_window(table, &batch.window_table[start..], position);
                }
                let read = table[..=position].iter();
                let mut logits = logits_of(read.map(|&s| self.kv[s as usize].unwrap()));
                if batch.tokens[row] == SILENT {
                    logits.fill(f32::NAN);
                }
                if batch.logit_rows.contains(&(row as u32)) {
                    output.logits.extend_from_slice(&logits);
                }
                if batch.sample_rows.contains(&(row as u32)) {
                    rows_to_sample.push(logits);
                }
                if batch.hidden_rows.contains(&(row as u32)) {
                    let read = table[..=position].iter();
                    let read = read.map(|&s| self.kv[s as usize].unwrap());
                    output.hidden.extend(logits_of(read).iter().take(HIDDEN));
                }
            }
        }
        if !rows_to_sample.is_empty() {
            let requests = sample_requests();
            assert_eq!(requests.len(), rows_to_sample.len());
            for (logits, request) in rows_to_sample.into_iter().zip(requests) {
                let mut token = None;
                match request {
                    SampleRequest::Token(params) => {
                        token = sample::sample(&logits, &params);
                        output.sampled.push(token);
                    }
                    SampleRequest::Logits => output.sample_logits.extend(logits),
                    SampleRequest::Nothing => {}
                }
                self.latest.push(token);
            }
        }
        if let Some(step) = self.steps.lock().unwrap().last_mut() {
            step.sampled = output.sampled.len();
            step.late_rows = output.sample_logits.len() / VOCAB;
        }
        Ok((self.submitted, output))
    }
}

/// The sequences of a batch, each with its rows.
fn with_rows(batch: &ForwardBatch) -> impl Iterator<Item = (&SequenceSpan, Range<usize>)> {
    let mut first = 0;
    batch.sequences.iter().map(move |sequence| {
        let rows = first..first + sequence.tokens as usize;
        first = rows.end;
        (sequence, rows)
    })
}

impl FakeModel {
    pub fn new(limits: ExecutorLimits, host_slots: usize) -> Self {
        Self {
            limits,
            kv: vec![None; limits.kv_slots],
            window: None,
            window_kv: Vec::new(),
            host: vec![None; host_slots],
            copies: Copies::default(),
            adapters: [None; ADAPTER_SLOTS],
            loaded: Arc::default(),
            fail_load: Arc::default(),
            steps: Arc::default(),
            calls: Arc::default(),
            submitted: 0,
            latest: Vec::new(),
            samples_on_device: true,
            gate: None,
        }
    }

    /// Empties every slot.
    pub fn forget(&mut self) {
        self.kv.fill(None);
        self.host.fill(None);
    }

    /// With window slots.
    pub fn with_window(self, window: Option<WindowLimits>) -> Self {
        Self {
            window,
            window_kv: vec![None; window.map_or(0, |window| window.slots)],
            ..self
        }
    }

    /// Checks the lists of window slots.
    fn check_window_lists(&self, batch: &ForwardBatch) {
        let lists = [&batch.window_write_slots, &batch.window_table];
        let Some(window) = self.window else {
            assert!(lists.iter().all(|list| list.is_empty()));
            return;
        };
        assert_eq!(batch.window_write_slots.len(), batch.tokens.len());
        assert_eq!(batch.window_table.len(), batch.slot_table.len());
        let valid = |list: &&Vec<u32>| list.iter().all(|&slot| (slot as usize) < window.slots);
        assert!(lists.iter().all(valid));
        let distinct: HashSet<_> = batch.window_write_slots.iter().collect();
        assert_eq!(
            distinct.len(),
            batch.tokens.len(),
            "no slot is written twice"
        );
    }

    /// Checks that the window of `position` has in its slots what the other layers have.
    fn check_window(&self, table: &[u32], window_table: &[u32], position: usize) {
        let tokens = self.window.map_or(0, |window| window.tokens);
        for seen in (position + 1).saturating_sub(tokens)..=position {
            let (slot, window_slot) = (table[seen] as usize, window_table[seen] as usize);
            assert_eq!(
                self.window_kv[window_slot], self.kv[slot],
                "window slot {window_slot} at position {seen}, read from {position}"
            );
        }
    }

    fn pass_gate(&mut self) {
        if self.copies.gated.load(Ordering::SeqCst)
            && let Some(gate) = &self.gate
            && gate.recv().is_err()
        {
            self.gate = None;
        }
    }
}

/// Checks what every executor may rely on.
fn check_shape(batch: &ForwardBatch) {
    let tokens = batch.tokens.len();
    assert!(tokens > 0, "an empty batch is not run");
    assert!(batch.carried_rows.is_empty() || batch.carried_rows.len() == tokens);
    assert_eq!(
        (batch.positions.len(), batch.write_slots.len()),
        (tokens, tokens)
    );
    let distinct: HashSet<u32> = batch.write_slots.iter().copied().collect();
    assert_eq!(distinct.len(), tokens, "no slot is written twice");
    assert!(batch.logit_rows.is_sorted_by(|a, b| a < b));
    assert!(batch.logit_rows.iter().all(|&row| (row as usize) < tokens));
    assert!(batch.sample_rows.is_sorted_by(|a, b| a < b));
    assert!(batch.sample_rows.iter().all(|&row| (row as usize) < tokens));
    assert!(batch.hidden_rows.is_sorted_by(|a, b| a < b));
    assert!(batch.hidden_rows.iter().all(|&row| (row as usize) < tokens));
    let mut end = 0;
    let mut spans = Vec::new();
    for (sequence, rows) in with_rows(batch) {
        assert!(sequence.tokens > 0 && sequence.tokens <= sequence.context);
        end = rows.end;
        let slot = sequence.first_slot + sequence.context;
        spans.push(sequence.first_slot..slot);
        let old = sequence.context - sequence.tokens;
        let positions: Vec<u32> = (old..sequence.context).collect();
        assert_eq!(batch.positions[rows.clone()], positions);
        let written = &batch.slot_table[(slot - sequence.tokens) as usize..slot as usize];
        assert_eq!(
            batch.write_slots[rows], *written,
            "new tokens are attended where they are written"
        );
    }
    assert_eq!(end, tokens);
    spans.sort_by_key(|span| span.start);
    assert!(
        spans.is_sorted_by(|a, b| a.end <= b.start),
        "no span overlaps another"
    );
    assert!(
        spans
            .iter()
            .all(|span| span.end as usize <= batch.slot_table.len())
    );
}
