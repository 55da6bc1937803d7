//! Forward passes of every size that serving will ask for, before the first client waits for one:
//! a GPU's kernels are compiled by size class when they first run.

use std::time::{Duration, Instant};

use hearth_forward::{
    CopyDirection, Executor, ExecutorLimits, ForwardBatch, ForwardError, KvCopy, SampleParams,
    SampleRequest, SequenceSpan, WindowLimits,
};
use hearth_model::size_classes::{
    FEW_TOKENS, LONG_CONTEXT, MANY_TOKENS, TILED_TOKENS, chunk_tokens, copied_slots, decode_rows,
};

/// The largest forward pass that the engine may ask for.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Sequences that decode together.
    pub running: usize,
    /// Tokens, of prompts and outputs together.
    pub tokens: usize,
    /// How long one may take; `None` for no bound.
    pub max_submission: Option<Duration>,
}

/// The batches to run, so that all later ones find their kernels compiled: the matrix
/// multiplications of every class of row numbers, in the layers and in the output projection;
/// attention over short and long contexts, of one token and of several; and carried tokens, in
/// the same order and in another.
pub fn batches(limits: ExecutorLimits, sizes: Sizes, samples_on_device: bool) -> Vec<ForwardBatch> {
    let most = sizes.tokens.min(limits.max_model_len).min(limits.kv_slots);
    let running = sizes.running.min(limits.kv_slots);
    let mut batches = Vec::new();
    for rows in decode_rows(running) {
        let mut batch = decoding(rows, 1, samples_on_device);
        if samples_on_device {
            if rows > 1 {
                // As with overlap scheduling: the tokens that the previous step sampled, in
                // another order.
                batch.carried_rows = vec![0; rows];
            }
            batches.push(batch.clone());
            // In the same order no kernel reorders them.
            batch.carried_rows = (0..rows as u32).collect();
        }
        batches.push(batch);
    }
    let long = LONG_CONTEXT.min(limits.max_model_len);
    let mut last = decoding(1, long, samples_on_device);
    if samples_on_device {
        last.carried_rows = vec![0];
    }
    batches.push(last);

    batches.extend(chunk_tokens(most).map(|length| chunk(length, length, samples_on_device)));
    // After a long context, few and many tokens have kernels of their own.
    for length in [2, TILED_TOKENS] {
        if length <= most.min(long) {
            batches.push(chunk(length, long, samples_on_device));
        }
    }

    // A prompt may have a number of tokens, and of requested logits, that never decode together.
    let rows = (1..=FEW_TOKENS).chain(MANY_TOKENS);
    for rows in rows.filter(|rows| (running + 1..=most).contains(rows)) {
        let mut batch = chunk(rows, rows, false);
        batch.logit_rows = (0..rows as u32).collect();
        batch.hidden_rows = batch.logit_rows.clone();
        batches.push(batch);
    }
    if samples_on_device {
        // Logits of one row beside another row to sample at.
        let mut batch = chunk(1, 1, true);
        batch.logit_rows = vec![0];
        batches.push(batch);
    }
    batches
}

/// `rows` sequences with one token each. All positions of a sequence lie in the slot of its token,
/// because their values do not matter.
fn decoding(rows: usize, context: usize, samples_on_device: bool) -> ForwardBatch {
    let mut batch = ForwardBatch::default();
    for row in 0..rows as u32 {
        batch.sequences.push(SequenceSpan {
            tokens: 1,
            context: context as u32,
            first_slot: batch.slot_table.len() as u32,
        });
        batch.tokens.push(0);
        batch.positions.push(context as u32 - 1);
        batch.write_slots.push(row);
        batch.slot_table.extend(std::iter::repeat_n(row, context));
        if samples_on_device {
            batch.sample_rows.push(row);
        } else {
            batch.logit_rows.push(row);
        }
    }
    batch
}

/// The last `length` tokens of a sequence of `context`. All positions before them lie in the slot
/// of the first token.
fn chunk(length: usize, context: usize, samples_on_device: bool) -> ForwardBatch {
    let before = context - length;
    let slots = 0..length as u32;
    let last = vec![length as u32 - 1];
    let (logit_rows, sample_rows) = match samples_on_device {
        true => (Vec::new(), last),
        false => (last, Vec::new()),
    };
    ForwardBatch {
        tokens: vec![0; length],
        positions: (before as u32..context as u32).collect(),
        write_slots: slots.clone().collect(),
        sequences: vec![SequenceSpan {
            tokens: length as u32,
            context: context as u32,
            first_slot: 0,
        }],
        slot_table: std::iter::repeat_n(0, before).chain(slots).collect(),
        logit_rows,
        sample_rows,
        ..ForwardBatch::default()
    }
}

/// `batch`, with the ids of its slots as window slots if the executor has any.
pub fn with_window(batch: ForwardBatch, window: Option<WindowLimits>) -> ForwardBatch {
    if window.is_none() {
        return batch;
    }
    ForwardBatch {
        window_write_slots: batch.write_slots.clone(),
        window_table: batch.slot_table.clone(),
        ..batch
    }
}

/// Runs all of [`batches`] and reports after each one to `progress` how many of how many are done.
/// Batches that would take longer than a forward pass may are left out: the engine makes none of
/// them, and the driver may reset the device. Then it copies slots to the host and back, if the host
/// has any.
///
/// # Errors
/// A forward pass or a copy fails, so this model cannot serve.
pub fn warm_up(
    executor: &mut impl Executor,
    sizes: Sizes,
    mut progress: impl FnMut(usize, usize),
) -> Result<(), ForwardError> {
    let (mut limits, window) = (executor.limits(), executor.window());
    if let Some(window) = window {
        limits.kv_slots = limits.kv_slots.min(window.slots);
    }
    let batches: Vec<_> = batches(limits, sizes, executor.samples_on_device())
        .into_iter()
        .map(|batch| with_window(batch, window))
        .collect();
    let bound = sizes.max_submission.unwrap_or(Duration::MAX);
    // The time of a token in the largest batch that took a good part of the bound.
    let mut token = Duration::ZERO;
    for (done, batch) in batches.iter().enumerate() {
        let tokens = batch.tokens.len() as u32;
        if token.saturating_mul(tokens) > bound {
            tracing::debug!(tokens, "not warmed up: it would take too long");
            continue;
        }
        // The first time counts the compilation of kernels, too.
        let took = timed(executor, batch)?;
        if took > bound / 4 && tokens >= LEAST_MEASURED {
            token = timed(executor, batch)? / tokens;
        }
        progress(done + 1, batches.len());
    }
    let slots = executor.host_slots().min(executor.limits().kv_slots);
    for count in copied_slots(slots) {
        for direction in [CopyDirection::ToHost, CopyDirection::ToDevice] {
            executor.copy_kv(&KvCopy {
                direction,
                device: (0..count as u32).collect(),
                host: (0..count as u32).collect(),
            })?;
        }
    }
    Ok(())
}

/// Fewer tokens take as long as one, because reading the weights takes most of the time.
const LEAST_MEASURED: u32 = 16;

/// Runs `batch`, and returns how long that took.
fn timed(executor: &mut impl Executor, batch: &ForwardBatch) -> Result<Duration, ForwardError> {
    let started = Instant::now();
    // All sample parameters use the same kernels.
    let greedy = SampleRequest::Token(SampleParams::GREEDY);
    executor.forward(batch, &mut || vec![greedy.clone(); batch.sample_rows.len()])?;
    Ok(started.elapsed())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use hearth_forward::{ForwardOutput, SampleRequests};

    use super::*;

    fn sizes_of(kv_slots: usize, max_model_len: usize, sizes: Sizes) -> Vec<(usize, u32)> {
        let limits = ExecutorLimits {
            kv_slots,
            max_model_len,
            vocab_size: 10,
        };
        let batches = batches(limits, sizes, true);
        let mut sampled = 0;
        for batch in &batches {
            assert!(
                batch
                    .carried_rows
                    .iter()
                    .all(|row| (*row as usize) < sampled),
                "{:?} of {sampled}",
                batch.carried_rows
            );
            sampled = batch.sample_rows.len();
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
            assert_eq!(slots.len(), tokens, "a slot is written twice");
        }
        let shape = |batch: &ForwardBatch| (batch.tokens.len(), batch.sequences[0].context);
        batches.iter().map(shape).collect()
    }

    #[test]
    fn every_size_class_is_run_and_none_is_larger_than_serving_allows() {
        let sizes = Sizes {
            running: 64,
            tokens: 576,
            max_submission: None,
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

    /// The numbers of rows of the matrix multiplications of `batches`: in the layers, and in the
    /// output projection.
    fn matrix_rows(batches: &[ForwardBatch]) -> [BTreeSet<usize>; 2] {
        let projected = |batch: &ForwardBatch| batch.logit_rows.len() + batch.sample_rows.len();
        [
            batches.iter().map(|batch| batch.tokens.len()).collect(),
            batches.iter().map(projected).collect(),
        ]
    }

    #[test]
    fn few_rows_come_in_every_number_however_few_sequences_may_run() {
        let limits = ExecutorLimits {
            kv_slots: 2048,
            max_model_len: 512,
            vocab_size: 10,
        };
        for (running, samples) in [1, 3, 8, 64]
            .into_iter()
            .flat_map(|n| [(n, false), (n, true)])
        {
            let tokens = 24 + running;
            let sizes = Sizes {
                running,
                tokens,
                max_submission: None,
            };
            let batches = batches(limits, sizes, samples);
            for numbers in matrix_rows(&batches) {
                let few = numbers.range(..=9).copied();
                assert!(few.eq(1..=9), "{running}, {samples}: {numbers:?}");
            }
        }
    }

    #[test]
    fn tokens_are_carried_in_order_and_out_of_order_for_every_divisor_of_their_number() {
        let limits = ExecutorLimits {
            kv_slots: 2048,
            max_model_len: 512,
            vocab_size: 10,
        };
        let sizes = Sizes {
            running: 5,
            tokens: 29,
            max_submission: None,
        };
        let batches = batches(limits, sizes, true);
        let mut seen = BTreeSet::new();
        for pair in batches
            .windows(2)
            .filter(|pair| !pair[1].carried_rows.is_empty())
        {
            let before = pair[0].sample_rows.len() as u32;
            let carried = &pair[1].carried_rows;
            let divisor = 1 << carried.len().trailing_zeros();
            seen.insert((divisor, (0..before).eq(carried.iter().copied())));
        }
        let all = [1, 2, 4].map(|divisor| [(divisor, false), (divisor, true)]);
        assert_eq!(seen, all.into_iter().flatten().collect());
    }

    /// An executor whose forward passes take a tenth of a millisecond for each token.
    struct Slow {
        longest: usize,
    }

    impl Executor for Slow {
        type Submission = ();

        fn limits(&self) -> ExecutorLimits {
            ExecutorLimits {
                kv_slots: 2048,
                max_model_len: 512,
                vocab_size: 10,
            }
        }

        fn submit(
            &mut self,
            batch: &ForwardBatch,
            _: &mut SampleRequests<'_>,
        ) -> Result<(), ForwardError> {
            self.longest = self.longest.max(batch.tokens.len());
            std::thread::sleep(Duration::from_micros(100 * batch.tokens.len() as u64));
            Ok(())
        }

        fn complete(&mut self, (): ()) -> Result<ForwardOutput, ForwardError> {
            Ok(ForwardOutput::default())
        }
    }

    #[test]
    fn batches_that_would_take_too_long_are_left_out() {
        for (max_submission, most) in [(None, 257), (Some(Duration::from_millis(10)), 100)] {
            let sizes = Sizes {
                running: 1,
                tokens: 257,
                max_submission,
            };
            let mut executor = Slow { longest: 0 };
            warm_up(&mut executor, sizes, |_, _| {}).unwrap();
            assert!(executor.longest <= most, "{}", executor.longest);
            assert!(executor.longest > most / 4, "{}", executor.longest);
        }
    }

    #[test]
    fn small_pools_and_short_models_bound_the_batches() {
        let sizes = Sizes {
            running: 64,
            tokens: 576,
            max_submission: None,
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
