//! The result of one forward pass.

/// The result of a forward pass for the rows that the batch listed, in their order. All
/// matrices are row-major.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ForwardOutput {
    /// `[logit_rows, vocab_size]`
    pub logits: Vec<f32>,
    /// `[hidden_rows, hidden_size]`: the input of the output projection, after the last norm.
    pub hidden: Vec<f32>,
    /// One for each [`SampleRequest::Token`](crate::SampleRequest::Token): the sampled token,
    /// or `None` where no token may be sampled.
    pub sampled: Vec<Option<u32>>,
    /// `[rows, vocab_size]`, one row for each
    /// [`SampleRequest::Logits`](crate::SampleRequest::Logits).
    pub sample_logits: Vec<f32>,
}
