//! How the executor samples a token on the device.

use std::sync::Arc;

/// The tokens that may be sampled, one bit each: bit `t % 32` of word `t / 32` is token `t`.
/// Tokens beyond the last word may not be sampled.
pub type TokenMask = Arc<[u32]>;

/// What the scheduler wants of one of a batch's
/// [`sample_rows`](crate::ForwardBatch::sample_rows).
#[derive(Clone, Debug, PartialEq)]
pub enum SampleRequest {
    /// Sample a token.
    Token(SampleParams),
    /// Return the row of logits: the grammar's mask is not known yet, so the scheduler
    /// samples later.
    Logits,
    /// Return nothing: the request needs no token from this row any more.
    Nothing,
}

/// How to sample a token from one row of logits.
///
/// The steps, in this order: keep the tokens of `mask`; apply `edits`; divide by
/// `temperature`; filter by min-p, then top-k, then top-p, which is a share of the
/// probability that the first two filters left; choose by `draw`. A token whose logit is NaN
/// or minus infinity is never sampled.
#[derive(Clone, Debug, PartialEq)]
pub struct SampleParams {
    /// 0 takes the first of the most likely tokens, and the filters and `draw` have no effect.
    pub temperature: f32,
    /// `None` keeps all tokens.
    pub top_k: Option<u32>,
    /// In (0, 1].
    pub top_p: f32,
    /// In [0, 1].
    pub min_p: f32,
    /// A random number in [0, 1): the point in the cumulative probability of the remaining
    /// tokens, in the order of their ids, at which the token lies.
    pub draw: f64,
    /// The tokens that may be sampled; `None` for all.
    pub mask: Option<TokenMask>,
    /// At most one for each token. Edits of tokens beyond the vocabulary have no effect.
    pub edits: Vec<LogitEdit>,
}

impl SampleParams {
    /// Takes the most likely token (greedy decoding).
    pub const GREEDY: Self = Self {
        temperature: 0.0,
        top_k: None,
        top_p: 1.0,
        min_p: 0.0,
        draw: 0.0,
        mask: None,
        edits: Vec::new(),
    };
}

/// A change to the logit of `token`, for logit bias and penalties: `bias` is added; the sum
/// is divided by `factor` if it is positive, and multiplied by it otherwise (the repetition
/// penalty); then `amount` is subtracted (the presence and frequency penalties).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogitEdit {
    pub token: u32,
    pub bias: f32,
    pub factor: f32,
    pub amount: f32,
}

/// Returns one request for each of a batch's
/// [`sample_rows`](crate::ForwardBatch::sample_rows). The executor calls it at most once, when
/// the whole forward pass has been handed to the device, because it may wait for masks that
/// grammars are still computing.
pub type SampleRequests<'a> = dyn FnMut() -> Vec<SampleRequest> + 'a;
