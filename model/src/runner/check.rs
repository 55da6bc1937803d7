//! What is asked for, before anything is written.

use super::{Batch, ForwardError, Report};

pub fn below(what: &'static str, values: &[u32], bound: usize) -> Result<(), ForwardError> {
    match values.iter().find(|value| **value as usize >= bound) {
        Some(value) => Err(ForwardError::OutOfRange {
            what,
            value: *value as usize,
            bound,
        }),
        None => Ok(()),
    }
}

pub fn length(what: &'static str, given: usize, expected: usize) -> Result<(), ForwardError> {
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

/// Everything that a kernel would index with, before it does.
pub fn check(batch: &Batch<'_>, report: &Report) -> Result<(), ForwardError> {
    let tokens = batch.tokens.len();
    length("positions", batch.positions.len(), tokens)?;
    length("write_slots", batch.write_slots.len(), tokens)?;
    let spanned = batch
        .sequences
        .iter()
        .map(|sequence| sequence.tokens as usize)
        .sum();
    length("sequences", spanned, tokens)?;
    below("token", batch.tokens, report.vocab_size)?;
    if !batch.carried.is_empty() {
        length("carried rows", batch.carried.len(), tokens)?;
    }
    below("position", batch.positions, report.max_model_len)?;
    below("slot", batch.write_slots, report.kv_slots)?;
    below("slot", batch.slot_table, report.kv_slots)?;
    below("logit row", batch.logit_rows, tokens)?;
    below("hidden row", batch.hidden_rows, tokens)?;
    below("choice row", batch.choice_rows, tokens)?;
    let mut token = 0;
    for sequence in batch.sequences {
        let end = (sequence.first_slot + sequence.context) as usize;
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
    Ok(())
}
