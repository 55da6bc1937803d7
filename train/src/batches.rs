//! Rows of packed conversations, prepared in advance on worker threads.
//!
//! Conversations are packed whole into rows of a fixed length, so that every step has the same
//! shapes (one round of kernel tuning) and hardly any padding. Earlier conversations of a row stay
//! visible to later ones. The model sees them as earlier turns, which it has to learn to ignore in
//! long conversations anyway.

use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use anyhow::{Result, anyhow};

use crate::corpus::Conversation;
use crate::corpus::mixture::{LONG, Mixture, SHORT};
use crate::tokenizer::{Encoded, Encoder, PAD_ID};

/// One step's input: `rows * length` tokens, the token after each, and where to learn.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    pub rows: usize,
    pub tokens: Vec<i32>,
    pub targets: Vec<i32>,
    /// 1 where the target belongs to an answer, else 0.
    pub weights: Vec<f32>,
    /// Sum of `weights` over the whole batch, even if this is a part of it.
    pub learnt: usize,
}

impl Batch {
    /// The batch in at most `parts` parts of whole rows.
    pub fn split(self, parts: usize) -> Vec<Batch> {
        let length = self.tokens.len() / self.rows;
        let rows = self.rows.div_ceil(parts);
        let starts = (0..self.rows).step_by(rows);
        let part = |start: usize| {
            let rows = rows.min(self.rows - start);
            let range = start * length..(start + rows) * length;
            Batch {
                rows,
                tokens: self.tokens[range.clone()].to_vec(),
                targets: self.targets[range.clone()].to_vec(),
                weights: self.weights[range].to_vec(),
                learnt: self.learnt,
            }
        };
        starts.map(part).collect()
    }
}

#[derive(Debug, Clone, Copy)]
pub struct BatchShape {
    pub rows: usize,
    pub length: usize,
    /// Every `long_every`th batch has a third of the rows, each three times as long, with longer
    /// conversations; 0 for none.
    pub long_every: u64,
    pub corpus: Corpus,
}

/// Conversation `index` of a seed, of a mixture of tasks.
pub type Corpus = fn(&Mixture, u64, u64) -> Conversation;

impl BatchShape {
    fn of_step(&self, step: u64) -> (usize, usize, &'static Mixture) {
        if self.long_every > 0 && step % self.long_every == self.long_every - 1 {
            (self.rows.div_ceil(3), 3 * self.length, &LONG)
        } else {
            (self.rows, self.length, &SHORT)
        }
    }
}

/// The number of conversations that a batch may draw from, far more than fit into it.
const STRIDE: u64 = 1 << 24;
/// A batch is full when this many conversations in a row found no room.
const MISSES: usize = 12;

/// Batch `step` of `seed`: a pure function of its arguments.
pub fn batch(encoder: &Encoder, shape: BatchShape, seed: u64, step: u64) -> Result<Batch> {
    let (row_count, length, mixture) = shape.of_step(step);
    // One token more than the length: targets are the tokens shifted by one.
    let mut rows: Vec<Encoded> = vec![
        Encoded {
            ids: vec![],
            learn: vec![]
        };
        row_count
    ];
    let mut misses = 0;
    for index in 0..STRIDE {
        let next = (shape.corpus)(mixture, seed, step * STRIDE + index);
        let encoded = encoder.conversation(&next)?;
        let room = |row: &Encoded| row.ids.len() + encoded.ids.len() <= length + 1;
        // The search starts at another row each time, because otherwise the first rows would get
        // only the short conversations.
        let first = index as usize % row_count;
        match (0..row_count)
            .map(|i| (first + i) % row_count)
            .find(|&i| room(&rows[i]))
        {
            Some(row) => {
                rows[row].ids.extend(&encoded.ids);
                rows[row].learn.extend(&encoded.learn);
                misses = 0;
            }
            None => misses += 1,
        }
        if misses == MISSES {
            break;
        }
    }
    let size = row_count * length;
    let mut out = Batch {
        rows: row_count,
        tokens: Vec::with_capacity(size),
        targets: Vec::with_capacity(size),
        weights: Vec::with_capacity(size),
        learnt: 0,
    };
    for row in &rows {
        let id = |i: usize| row.ids.get(i).copied().unwrap_or(PAD_ID) as i32;
        for i in 0..length {
            let learn = row.learn.get(i + 1).copied().unwrap_or(false);
            out.tokens.push(id(i));
            out.targets.push(id(i + 1));
            out.weights.push(f32::from(u8::from(learn)));
            out.learnt += usize::from(learn);
        }
    }
    Ok(out)
}

/// Batches 0, 1, 2, … of a seed, in order, from `workers` threads.
pub struct Batches {
    receivers: Vec<Receiver<Result<Batch>>>,
    next: usize,
}

impl Batches {
    pub fn start(tokenizer: &'static str, shape: BatchShape, seed: u64, workers: usize) -> Self {
        let receivers = (0..workers)
            .map(|worker| {
                let (sender, receiver) = sync_channel(3);
                thread::spawn(move || {
                    let encoder = match Encoder::from_json(tokenizer) {
                        Ok(encoder) => encoder,
                        Err(error) => return drop(sender.send(Err(error))),
                    };
                    let mut step = worker as u64;
                    // The receiver goes away when training ends.
                    while sender.send(batch(&encoder, shape, seed, step)).is_ok() {
                        step += workers as u64;
                    }
                });
                receiver
            })
            .collect();
        Self { receivers, next: 0 }
    }

    pub fn next(&mut self) -> Result<Batch> {
        let worker = self.next;
        self.next = (self.next + 1) % self.receivers.len();
        self.receivers[worker]
            .recv()
            .map_err(|_| anyhow!("a corpus thread ended early"))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus::{Split, conversation};

    const SHAPE: BatchShape = BatchShape {
        rows: 6,
        length: 256,
        long_every: 4,
        corpus: |mixture, seed, index| conversation(mixture, seed, Split::Train, index),
    };

    #[test]
    fn batches_come_in_order_whatever_the_number_of_workers() {
        let encoder = Encoder::from_json(crate::TOKENIZER_JSON).unwrap();
        let mut batches = Batches::start(crate::TOKENIZER_JSON, SHAPE, 5, 3);
        for step in 0..7 {
            assert_eq!(
                batches.next().unwrap(),
                batch(&encoder, SHAPE, 5, step).unwrap()
            );
        }
    }

    #[test]
    fn every_fourth_batch_has_a_third_of_the_rows_and_each_is_three_times_as_long() {
        let encoder = Encoder::from_json(crate::TOKENIZER_JSON).unwrap();
        for step in 0..8 {
            let batch = batch(&encoder, SHAPE, 5, step).unwrap();
            assert_eq!(batch.rows, if step % 4 == 3 { 2 } else { 6 });
            assert_eq!(batch.tokens.len(), SHAPE.rows * SHAPE.length);
        }
    }

    #[test]
    fn parts_are_the_rows_in_order() {
        let encoder = Encoder::from_json(crate::TOKENIZER_JSON).unwrap();
        let whole = batch(&encoder, SHAPE, 5, 0).unwrap();
        for (count, rows) in [
            (1, vec![6]),
            (2, vec![3, 3]),
            (4, vec![2, 2, 2]),
            (9, vec![1; 6]),
        ] {
            let parts = whole.clone().split(count);
            assert_eq!(parts.iter().map(|part| part.rows).collect::<Vec<_>>(), rows);
            let tokens: Vec<i32> = parts.iter().flat_map(|part| part.tokens.clone()).collect();
            assert_eq!(tokens, whole.tokens);
            assert!(parts.iter().all(|part| part.learnt == whole.learnt));
        }
    }

    #[test]
    fn targets_are_the_next_tokens_and_rows_are_nearly_full() {
        let encoder = Encoder::from_json(crate::TOKENIZER_JSON).unwrap();
        let batch = batch(&encoder, SHAPE, 5, 0).unwrap();
        assert_eq!(batch.tokens.len(), SHAPE.rows * SHAPE.length);
        for row in 0..SHAPE.rows {
            let at = row * SHAPE.length;
            let (tokens, targets) = (&batch.tokens[at..], &batch.targets[at..]);
            assert_eq!(tokens[1..SHAPE.length], targets[..SHAPE.length - 1]);
        }
        let padding = batch.tokens.iter().filter(|&&t| t == PAD_ID as i32).count();
        assert!(padding * 10 < batch.tokens.len(), "{padding}");
        assert!(batch.learnt * 4 > batch.tokens.len(), "{}", batch.learnt);
    }
}
