//! Forwards of every size that serving will ask for, before the first client waits for one: a
//! GPU's kernels are compiled by size class when they first run.

use hearth_engine::{
    Choice, Executor, ExecutorError, ExecutorLimits, ForwardBatch, Sequence, TokenChoice,
};

/// What the engine may put into one forward.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Sequences decoding together.
    pub running: usize,
    /// Tokens, of prompts and outputs together.
    pub tokens: usize,
}

/// Whatever the choice is, the kernel is the same.
pub(crate) const LIKELIEST: TokenChoice = TokenChoice {
    temperature: 0.0,
    top_k: None,
    top_p: 1.0,
    min_p: 0.0,
    draw: 0.0,
    mask: None,
    edits: Vec::new(),
};

/// A context that is long for attention: its positions are split over the device.
const LONG: usize = 2048;

/// Tokens of the last chunk of a long prompt.
const LAST: usize = 64;

/// The batches to run: few rows one by one, as products of few rows have kernels of their own;
/// then sizes between which nothing changes; decoding, and the end of a prompt, with short and
/// long contexts.
pub fn batches(limits: ExecutorLimits, sizes: Sizes, chooses: bool) -> Vec<ForwardBatch> {
    let most = sizes.tokens.min(limits.max_model_len).min(limits.kv_slots);
    let rows = (1..=8usize)
        .chain([9, 16, 31, 32, 64])
        .filter(|rows| *rows <= sizes.running);
    let mut batches: Vec<ForwardBatch> = rows
        .filter(|rows| *rows <= limits.kv_slots)
        .map(|rows| decoding(rows, 1, chooses))
        .collect();
    let long = LONG.min(limits.max_model_len);
    batches.push(decoding(1, long, chooses));
    if chooses {
        // As a step that is launched ahead: of the tokens that the one before chose, in
        // another order.
        for batch in batches.iter_mut().skip(1) {
            batch.carried = vec![0; batch.tokens.len()];
        }
    }
    let powers = (0..usize::BITS).map(|power| 1usize << power);
    let lengths = powers.flat_map(|power| [power, power + power / 2 + 1]);
    let lengths = lengths.filter(|length| (2..most).contains(length));
    batches.extend(
        lengths
            .chain([most])
            .map(|length| prompt(length, length, chooses)),
    );
    if most >= LAST {
        batches.push(prompt(LAST, long, chooses));
    }
    batches
}

/// `rows` sequences with a token each. Their positions all lie in the slot of the token: what
/// is there does not matter, and is whoever's who gets the slot.
fn decoding(rows: usize, context: usize, chooses: bool) -> ForwardBatch {
    let mut batch = ForwardBatch::default();
    for row in 0..rows as u32 {
        batch.sequences.push(Sequence {
            first_token: row,
            tokens: 1,
            context: context as u32,
            first_slot: batch.slot_table.len() as u32,
        });
        batch.tokens.push(0);
        batch.positions.push(context as u32 - 1);
        batch.write_slots.push(row);
        batch.slot_table.extend(std::iter::repeat_n(row, context));
        batch.logit_rows.push(row);
        if chooses {
            batch.choice_rows.push(row);
        }
    }
    batch
}

/// The last `length` tokens of a prompt of `context`. What comes before them lies in one slot.
fn prompt(length: usize, context: usize, chooses: bool) -> ForwardBatch {
    let before = context - length;
    let slots: Vec<u32> = (0..length as u32).collect();
    ForwardBatch {
        tokens: vec![0; length],
        carried: Vec::new(),
        positions: (before as u32..context as u32).collect(),
        write_slots: slots.clone(),
        sequences: vec![Sequence {
            first_token: 0,
            tokens: length as u32,
            context: context as u32,
            first_slot: 0,
        }],
        slot_table: [vec![0; before], slots].concat(),
        logit_rows: vec![length as u32 - 1],
        hidden_rows: Vec::new(),
        choice_rows: if chooses {
            vec![length as u32 - 1]
        } else {
            Vec::new()
        },
    }
}

/// Runs all of [`batches`], telling `progress` after each how many are done.
///
/// # Errors
/// A forward fails: this model will not serve anybody.
pub fn warm_up(
    executor: &mut impl Executor,
    sizes: Sizes,
    mut progress: impl FnMut(usize, usize),
) -> Result<(), ExecutorError> {
    let batches = batches(executor.limits(), sizes, executor.chooses());
    for (done, batch) in batches.iter().enumerate() {
        let mut likeliest = || vec![Choice::Token(LIKELIEST); batch.choice_rows.len()];
        executor.forward(batch, &mut likeliest)?;
        progress(done + 1, batches.len());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes_of(kv_slots: usize, max_model_len: usize, sizes: Sizes) -> Vec<(usize, u32)> {
        let limits = ExecutorLimits {
            kv_slots,
            max_model_len,
            vocab_size: 10,
        };
        let batches = batches(limits, sizes, true);
        for batch in &batches {
            let tokens = batch.tokens.len();
            assert!(
                batch
                    .write_slots
                    .iter()
                    .all(|slot| (*slot as usize) < kv_slots)
            );
            assert!(
                batch
                    .slot_table
                    .iter()
                    .all(|slot| (*slot as usize) < kv_slots)
            );
            assert!(
                batch
                    .positions
                    .iter()
                    .all(|at| (*at as usize) < max_model_len)
            );
            assert_eq!(
                (batch.positions.len(), batch.write_slots.len()),
                (tokens, tokens)
            );
            let mut slots = batch.write_slots.clone();
            slots.dedup();
            assert_eq!(slots.len(), tokens, "a slot twice");
        }
        let shape = |batch: &ForwardBatch| (batch.tokens.len(), batch.sequences[0].context);
        batches.iter().map(shape).collect()
    }

    #[test]
    fn every_size_class_comes_once_and_none_is_larger_than_what_may_come() {
        let sizes = Sizes {
            running: 64,
            tokens: 576,
        };
        let run = sizes_of(100_000, 4096, sizes);
        for rows in [1, 8, 9, 64] {
            assert!(run.contains(&(rows, 1)), "{run:?}");
        }
        assert!(run.contains(&(1, 2048)) && run.contains(&(512, 512)) && run.contains(&(576, 576)));
        assert!(run.contains(&(64, 2048)));
        assert!(run.iter().all(|(tokens, _)| *tokens <= 576));
    }

    #[test]
    fn small_pools_and_short_models_bound_what_is_run() {
        let sizes = Sizes {
            running: 64,
            tokens: 576,
        };
        assert_eq!(sizes_of(1, 1, sizes), [(1, 1), (1, 1), (1, 1)]);
        let run = sizes_of(
            20,
            12,
            Sizes {
                running: 2,
                ..sizes
            },
        );
        assert!(
            run.iter()
                .all(|(tokens, context)| *tokens <= 12 && *context <= 12),
            "{run:?}"
        );
        assert!(run.contains(&(12, 12)));
    }
}
