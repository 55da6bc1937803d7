//! Checks the shape of an executor's output before anything reads it.

use hearth_forward::{ForwardBatch, ForwardOutput, SampleRequest};

/// How many sample requests of a batch are answered with a token, and how many with a row of
/// logits.
#[derive(Clone, Copy, Default)]
pub(super) struct SampleCounts {
    pub tokens: usize,
    pub logits: usize,
}

impl SampleCounts {
    pub fn of(requests: &[SampleRequest]) -> Self {
        let count = |is: fn(&SampleRequest) -> bool| requests.iter().filter(|r| is(r)).count();
        Self {
            tokens: count(|request| matches!(request, SampleRequest::Token(_))),
            logits: count(|request| matches!(request, SampleRequest::Logits)),
        }
    }
}

/// # Errors
/// What is wrong with the output of `batch`: the text reaches the clients.
pub(super) fn check_output(
    output: &ForwardOutput,
    batch: &ForwardBatch,
    counts: SampleCounts,
    vocab_size: usize,
) -> Result<(), String> {
    let (given, rows) = (output.logits.len(), batch.logit_rows.len());
    if given != rows * vocab_size {
        return Err(format!(
            "the model gave {given} logits for {rows} rows of {vocab_size}"
        ));
    }
    let (given, rows) = (output.hidden.len(), batch.hidden_rows.len());
    if (rows == 0) != (given == 0) || (rows > 0 && !given.is_multiple_of(rows)) {
        return Err(format!(
            "the model gave {given} values of hidden states for {rows} rows"
        ));
    }
    let (given, rows) = (output.sampled.len(), counts.tokens);
    let is_token = |token: &Option<u32>| token.is_none_or(|token| (token as usize) < vocab_size);
    if given != rows || !output.sampled.iter().all(is_token) {
        return Err(format!(
            "the model sampled {given} tokens for {rows} rows, or tokens beyond its vocabulary"
        ));
    }
    let (given, rows) = (output.sample_logits.len(), counts.logits);
    if given != rows * vocab_size {
        return Err(format!(
            "the model gave {given} logits for {rows} sampled rows of {vocab_size}"
        ));
    }
    Ok(())
}
