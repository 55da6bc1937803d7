//! Checks of a batch, before anything is written.

use hearth_forward::{ForwardBatch, ForwardError};

use crate::report::Report;

/// Checks that all of `values` are below `bound`.
pub(super) fn below(what: &'static str, values: &[u32], bound: usize) -> Result<(), ForwardError> {
    match values.iter().find(|value| **value as usize >= bound) {
        Some(value) => Err(ForwardError::OutOfRange {
            what,
            value: *value as usize,
            bound,
        }),
        None => Ok(()),
    }
}

/// Checks that a list has the expected length.
pub(super) fn length(
    what: &'static str,
    given: usize,
    expected: usize,
) -> Result<(), ForwardError> {
    if given == expected {
        Ok(())
    } else {
        Err(ForwardError::Length {
            what,
            given,
            expected,
        })
    }
}

/// Checks every value of a batch that a kernel uses as an index. In debug builds it also checks
/// that no slot is written twice.
pub(super) fn check(
    batch: &ForwardBatch,
    report: &Report,
    adapter_slots: usize,
) -> Result<(), ForwardError> {
    let tokens = batch.tokens.len();
    length("positions", batch.positions.len(), tokens)?;
    length("write_slots", batch.write_slots.len(), tokens)?;
    let spanned = batch
        .sequences
        .iter()
        .map(|sequence| sequence.tokens as usize)
        .sum();
    length("sequences", spanned, tokens)?;
    below("token", &batch.tokens, report.vocab_size)?;
    if !batch.adapters.is_empty() {
        length("adapters", batch.adapters.len(), batch.sequences.len())?;
        below("adapter", &batch.adapters, adapter_slots + 1)?;
    }
    if !batch.carried_rows.is_empty() {
        length("carried rows", batch.carried_rows.len(), tokens)?;
    }
    below("position", &batch.positions, report.max_model_len)?;
    below("slot", &batch.write_slots, report.kv_slots)?;
    below("slot", &batch.slot_table, report.kv_slots)?;
    let (window_tokens, window_entries, window_slots) = match report.window {
        Some(window) => (tokens, batch.slot_table.len(), window.slots),
        None => (0, 0, 0),
    };
    length(
        "window slots",
        batch.window_write_slots.len(),
        window_tokens,
    )?;
    length("window table", batch.window_table.len(), window_entries)?;
    below("window slot", &batch.window_write_slots, window_slots)?;
    below("window slot", &batch.window_table, window_slots)?;
    below("logit row", &batch.logit_rows, tokens)?;
    below("hidden row", &batch.hidden_rows, tokens)?;
    below("sample row", &batch.sample_rows, tokens)?;
    let mut token = 0;
    for sequence in &batch.sequences {
        // Both are u32 and their sum need not be one.
        let end = sequence.first_slot as usize + sequence.context as usize;
        if end > batch.slot_table.len() {
            let bound = batch.slot_table.len() + 1;
            return Err(ForwardError::OutOfRange {
                what: "end of slots",
                value: end,
                bound,
            });
        }
        let rows = &batch.positions[token..token + sequence.tokens as usize];
        below("position in its sequence", rows, sequence.context as usize)?;
        token += sequence.tokens as usize;
    }
    if cfg!(debug_assertions) {
        distinct(&batch.write_slots)?;
        distinct(&batch.window_write_slots)?;
    }
    Ok(())
}

/// Checks that no slot occurs twice.
fn distinct(slots: &[u32]) -> Result<(), ForwardError> {
    let mut slots = slots.to_vec();
    slots.sort_unstable();
    match slots.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(ForwardError::RepeatedSlot { slot: pair[0] }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use hearth_forward::SequenceSpan;

    use super::*;
    use crate::dtype::Dtype;

    fn report() -> Report {
        Report {
            architecture: String::new(),
            parameters: 0,
            vocab_size: 10,
            hidden_size: 1,
            device: String::new(),
            dtype: Dtype::F32,
            quantization: None,
            kv_dtype: "f32".to_owned(),
            kv_slots: 8,
            window: None,
            host_slots: 0,
            max_model_len: 8,
            weight_bytes: 0,
            kv_bytes: 0,
            headroom_bytes: None,
        }
    }

    /// Two tokens of one sequence.
    fn batch() -> ForwardBatch {
        ForwardBatch {
            tokens: vec![1, 2],
            positions: vec![0, 1],
            write_slots: vec![5, 3],
            sequences: vec![SequenceSpan {
                tokens: 2,
                context: 2,
                first_slot: 0,
            }],
            slot_table: vec![5, 3],
            logit_rows: vec![1],
            ..ForwardBatch::default()
        }
    }

    #[test]
    fn a_slot_that_is_written_twice_is_an_error_in_debug_builds() {
        assert_eq!(check(&batch(), &report(), 0), Ok(()));
        let twice = ForwardBatch {
            write_slots: vec![3, 3],
            ..batch()
        };
        let repeated = Err(ForwardError::RepeatedSlot { slot: 3 });
        assert_eq!(distinct(&twice.write_slots), repeated);
        let checked = check(&twice, &report(), 0);
        match cfg!(debug_assertions) {
            true => assert_eq!(checked, repeated),
            false => assert_eq!(checked, Ok(())),
        }
    }

    #[test]
    fn an_adapter_beyond_the_slots_is_an_error() {
        let with = |adapters: &[u32]| ForwardBatch {
            adapters: adapters.to_vec(),
            ..batch()
        };
        assert_eq!(check(&with(&[2]), &report(), 2), Ok(()));
        for (adapters, slots) in [(vec![1], 0), (vec![3], 2), (vec![0, 0], 2)] {
            assert!(check(&with(&adapters), &report(), slots).is_err());
        }
    }

    #[test]
    fn the_end_of_a_sequences_slots_does_not_wrap_around() {
        let mut wrapped = batch();
        wrapped.sequences[0].first_slot = u32::MAX - 1;
        let error = check(&wrapped, &report(), 0).unwrap_err();
        let end = ForwardError::OutOfRange {
            what: "end of slots",
            value: u32::MAX as usize + 1,
            bound: 3,
        };
        assert_eq!(error, end);
    }
}
