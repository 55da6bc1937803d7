//! Rows of packed conversations, made ahead on worker threads.
//!
//! Conversations are packed whole into rows of a fixed length, so that every step has the same
//! shapes (one round of kernel tuning) and hardly any padding. Earlier conversations of a row
//! stay visible to later ones: to the model they are turns long past, which it has to learn to
//! leave alone in a conversation of several turns anyway.

use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use anyhow::{Result, anyhow};

use crate::corpus::mixture::SHORT;
use crate::corpus::{Split, conversation};
use crate::tokenizer::{Encoded, Encoder, PAD_ID};

/// One step's input: `rows * length` tokens, the token after each, and where to learn.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    pub tokens: Vec<i32>,
    pub targets: Vec<i32>,
    /// 1 where the target belongs to an answer, else 0.
    pub weights: Vec<f32>,
    /// Sum of `weights`.
    pub learnt: usize,
}

#[derive(Debug, Clone, Copy)]
pub struct BatchShape {
    pub rows: usize,
    pub length: usize,
}

/// Conversations that a batch may draw on; far more than fit in any.
const STRIDE: u64 = 1 << 24;
/// A batch is full when this many conversations in a row found no room.
const MISSES: usize = 12;

/// Batch `step` of `seed`: a pure function of its arguments.
pub fn batch(encoder: &Encoder, shape: BatchShape, seed: u64, step: u64) -> Result<Batch> {
    // One token more than the length: targets are the tokens shifted by one.
    let mut rows: Vec<Encoded> = vec![
        Encoded {
            ids: vec![],
            learn: vec![]
        };
        shape.rows
    ];
    let mut misses = 0;
    for index in 0..STRIDE {
        let next = conversation(&SHORT, seed, Split::Train, step * STRIDE + index);
        let encoded = encoder.conversation(&next)?;
        let room = |row: &Encoded| row.ids.len() + encoded.ids.len() <= shape.length + 1;
        // Start at another row each time, or the first rows would hold the short ones only.
        let first = index as usize % shape.rows;
        match (0..shape.rows)
            .map(|i| (first + i) % shape.rows)
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
    let size = shape.rows * shape.length;
    let mut out = Batch {
        tokens: Vec::with_capacity(size),
        targets: Vec::with_capacity(size),
        weights: Vec::with_capacity(size),
        learnt: 0,
    };
    for row in &rows {
        let id = |i: usize| row.ids.get(i).copied().unwrap_or(PAD_ID) as i32;
        for i in 0..shape.length {
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

    const SHAPE: BatchShape = BatchShape {
        rows: 6,
        length: 256,
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
