//! Forwards of every size that serving will ask for, before the first client waits for one: a
//! GPU's kernels are compiled by size class when they first run.

use hearth_engine::{
    Choice, CopyDirection, Executor, ExecutorError, ExecutorLimits, ForwardBatch, KvCopy, Sequence,
    TokenChoice,
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

/// Rows up to which products have a kernel for each number.
const FEW: usize = 8;
/// Numbers of rows between which products of more do not change.
const MANY: [usize; 5] = [9, 16, 31, 32, 64];
/// A context that is long for attention: its positions are split over the device.
const LONG: usize = 2048;
/// Tokens of the end of a prompt after a long context: enough for cooperative matrices.
const LAST: usize = 64;
/// Slots that are copied to the host together, from which on nothing changes.
const SLOTS: usize = 64;

/// The batches to run, so that whatever comes later finds its kernels compiled: of products for
/// numbers of rows, in the layers and of what is wanted of them; of attention for short and long
/// contexts, of one token and of several; of what the host does not see, for all ways to carry.
pub fn batches(limits: ExecutorLimits, sizes: Sizes, chooses: bool) -> Vec<ForwardBatch> {
    let most = sizes.tokens.min(limits.max_model_len).min(limits.kv_slots);
    let running = sizes.running.min(limits.kv_slots);
    let mut batches = Vec::new();
    for rows in together(running) {
        let mut batch = decoding(rows, 1, chooses);
        if chooses {
            if rows > 1 {
                // As a step that is launched ahead: of the tokens that the one before chose, in
                // another order.
                batch.carried = vec![0; rows];
            }
            batches.push(batch.clone());
            // In the same order they are taken as they are.
            batch.carried = (0..rows as u32).collect();
        }
        batches.push(batch);
    }
    let long = LONG.min(limits.max_model_len);
    let mut last = decoding(1, long, chooses);
    if chooses {
        last.carried = vec![0];
    }
    batches.push(last);

    let powers = (FEW.ilog2()..usize::BITS).map(|power| 1usize << power);
    let lengths = powers.flat_map(|power| [power, power + power / 2 + 1]);
    let lengths = lengths.filter(|length| *length > FEW);
    let lengths = lengths.take_while(|length| *length < most).chain([most]);
    batches.extend(lengths.map(|length| chunk(length, length, chooses)));
    // Few and many tokens after it have kernels of their own.
    for length in [2, LAST] {
        if length <= most.min(long) {
            batches.push(chunk(length, long, chooses));
        }
    }

    // A prompt may have, and be asked about, numbers of tokens that never decode together.
    let rows = (1..=FEW).chain(MANY).filter(|rows| *rows <= most);
    for rows in rows.filter(|rows| *rows > running) {
        let mut batch = chunk(rows, rows, false);
        batch.logit_rows = (0..rows as u32).collect();
        batch.hidden_rows = batch.logit_rows.clone();
        batches.push(batch);
    }
    if chooses {
        // And beside the row to choose at.
        let mut batch = chunk(1, 1, true);
        batch.logit_rows = vec![0];
        batches.push(batch);
    }
    batches
}

/// How many sequences to decode together where up to `running` may. Carried tokens are read as
/// many at once as divide their number, 1, 2 or 4, and by more units from powers of two on.
fn together(running: usize) -> impl Iterator<Item = usize> {
    let powers = (FEW.ilog2() + 1..usize::BITS).map(|power| 1usize << power);
    let many = powers.flat_map(|power| [power, power + 1, power + 2]);
    let rows = (1..=FEW + 2).chain(many);
    rows.take_while(move |rows| *rows <= running)
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
        if chooses {
            batch.choice_rows.push(row);
        } else {
            batch.logit_rows.push(row);
        }
    }
    batch
}

/// The last `length` tokens of a sequence of `context`. What is before them lies all in the slot
/// of the first.
fn chunk(length: usize, context: usize, chooses: bool) -> ForwardBatch {
    let before = context - length;
    let slots = 0..length as u32;
    let last = vec![length as u32 - 1];
    let (logit_rows, choice_rows) = match chooses {
        true => (Vec::new(), last),
        false => (last, Vec::new()),
    };
    ForwardBatch {
        tokens: vec![0; length],
        carried: Vec::new(),
        positions: (before as u32..context as u32).collect(),
        write_slots: slots.clone().collect(),
        sequences: vec![Sequence {
            first_token: 0,
            tokens: length as u32,
            context: context as u32,
            first_slot: 0,
        }],
        slot_table: std::iter::repeat_n(0, before).chain(slots).collect(),
        logit_rows,
        hidden_rows: Vec::new(),
        choice_rows,
    }
}

/// Runs all of [`batches`], telling `progress` after each how many are done, and copies slots to
/// the host and back where it has any.
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
    let slots = executor.host_slots().min(executor.limits().kv_slots);
    let powers = (0..=SLOTS.ilog2()).map(|power| 1u32 << power);
    for count in powers.take_while(|count| *count as usize <= slots) {
        for direction in [CopyDirection::ToHost, CopyDirection::ToDevice] {
            executor.copy(&KvCopy {
                direction,
                device: (0..count).collect(),
                host: (0..count).collect(),
            })?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn sizes_of(kv_slots: usize, max_model_len: usize, sizes: Sizes) -> Vec<(usize, u32)> {
        let limits = ExecutorLimits {
            kv_slots,
            max_model_len,
            vocab_size: 10,
        };
        let batches = batches(limits, sizes, true);
        let mut chosen = 0;
        for batch in &batches {
            assert!(
                batch.carried.iter().all(|row| (*row as usize) < chosen),
                "{:?} of {chosen}",
                batch.carried
            );
            chosen = batch.choice_rows.len();
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
    fn every_size_class_comes_and_none_is_larger_than_what_may_come() {
        let sizes = Sizes {
            running: 64,
            tokens: 576,
        };
        let run = sizes_of(100_000, 4096, sizes);
        for rows in [1, 8, 9, 64] {
            assert!(run.contains(&(rows, 1)), "{run:?}");
        }
        assert!(run.contains(&(1, 2048)) && run.contains(&(512, 512)) && run.contains(&(576, 576)));
        assert!(
            run.contains(&(2, 2048)),
            "several tokens after a long context"
        );
        assert!(run.iter().all(|(tokens, _)| *tokens <= 576));
    }

    /// Numbers of rows that products of `batches` have, of the layers and of what is wanted.
    fn products(batches: &[ForwardBatch]) -> [BTreeSet<usize>; 2] {
        let wanted = |batch: &ForwardBatch| batch.logit_rows.len() + batch.choice_rows.len();
        [
            batches.iter().map(|batch| batch.tokens.len()).collect(),
            batches.iter().map(wanted).collect(),
        ]
    }

    #[test]
    fn few_rows_come_in_every_number_however_few_sequences_may_run() {
        let limits = ExecutorLimits {
            kv_slots: 2048,
            max_model_len: 512,
            vocab_size: 10,
        };
        for (running, chooses) in [1, 3, 8, 64]
            .into_iter()
            .flat_map(|n| [(n, false), (n, true)])
        {
            let tokens = 24 + running;
            let batches = batches(limits, Sizes { running, tokens }, chooses);
            for numbers in products(&batches) {
                let few = numbers.range(..=9).copied();
                assert!(few.eq(1..=9), "{running}, {chooses}: {numbers:?}");
            }
        }
    }

    #[test]
    fn choices_are_carried_in_their_order_and_in_another_whatever_divides_their_number() {
        let limits = ExecutorLimits {
            kv_slots: 2048,
            max_model_len: 512,
            vocab_size: 10,
        };
        let sizes = Sizes {
            running: 5,
            tokens: 29,
        };
        let batches = batches(limits, sizes, true);
        let mut seen = BTreeSet::new();
        for pair in batches
            .windows(2)
            .filter(|pair| !pair[1].carried.is_empty())
        {
            let before = pair[0].choice_rows.len() as u32;
            let carried = &pair[1].carried;
            let divisor = 1 << carried.len().trailing_zeros();
            seen.insert((divisor, (0..before).eq(carried.iter().copied())));
        }
        let all = [1, 2, 4].map(|divisor| [(divisor, false), (divisor, true)]);
        assert_eq!(seen, all.into_iter().flatten().collect());
    }

    #[test]
    fn many_decode_together_in_numbers_that_1_2_and_4_divide_beyond_each_power_of_two() {
        let rows: Vec<usize> = together(40).filter(|rows| *rows > FEW).collect();
        assert_eq!(rows, [9, 10, 16, 17, 18, 32, 33, 34]);
        assert_eq!(together(3).collect::<Vec<_>>(), [1, 2, 3]);
    }

    #[test]
    fn small_pools_and_short_models_bound_what_is_run() {
        let sizes = Sizes {
            running: 64,
            tokens: 576,
        };
        assert!(sizes_of(1, 1, sizes).iter().all(|size| *size == (1, 1)));
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
