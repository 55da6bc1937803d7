//! Mixture of experts (Shazeer et al., arXiv 1701.06538): a router chooses a few MLPs for each row.

use burn::tensor::backend::Backend;
use burn::tensor::ops::{FloatTensor, IntTensor};

/// The weights of a row's experts: a softmax of the router's logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExpertWeights {
    /// Over all experts, so that the weights of the chosen ones add up to at most 1.
    OfAll,
    /// Over the chosen experts alone. A softmax over all experts, divided by its sum over the
    /// chosen ones, is the same.
    OfChosen,
}

/// How a router chooses experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Routing {
    /// Experts of a row: those with the largest logits. Of equal logits, the lower index comes
    /// first.
    pub top: usize,
    /// The softmax that gives the weights.
    pub weights: ExpertWeights,
}

/// The experts of each row, by descending logit.
#[derive(Debug, Clone)]
pub struct ChosenExperts<B: Backend> {
    /// `[rows, top]`, i32
    pub ids: IntTensor<B>,
    /// `[rows, top]`, f32
    pub weights: FloatTensor<B>,
}

/// The gated activation of an expert.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ExpertActivation {
    /// `silu(gate) * up`
    Silu,
    /// `g * sigmoid(alpha * g) * (u + 1)`, where `g` is the gate, at most `limit`, and `u` is up,
    /// from `-limit` to `limit` (GPT-OSS).
    Clamped {
        alpha: f32,
        /// Positive.
        limit: f32,
    },
}

impl ExpertActivation {
    /// `alpha` and `limit` of [`ExpertActivation::Clamped`]; `None` for [`ExpertActivation::Silu`].
    pub(crate) fn clamp(self) -> Option<(f32, f32)> {
        match self {
            Self::Silu => None,
            Self::Clamped { alpha, limit } => Some((alpha, limit)),
        }
    }
}

/// The gated MLPs of a layer, stacked. The matrices may be packed in blocks of one format if the
/// rows of each expert are a multiple of [`GROUP_ROWS`](crate::GROUP_ROWS).
#[derive(Debug, Clone)]
pub struct Experts<B: Backend> {
    /// `[experts * 2 * width, hidden]`; the gates of an expert come before its other half.
    pub gate_up: FloatTensor<B>,
    /// `[experts * 2 * width]`
    pub gate_up_bias: Option<FloatTensor<B>>,
    /// `[experts * hidden, width]`
    pub down: FloatTensor<B>,
    /// `[experts * hidden]`
    pub down_bias: Option<FloatTensor<B>>,
    /// Rows of an expert in `down`: the elements that an MLP takes and returns.
    pub hidden: usize,
    /// Half of the rows of an expert in `gate_up`: the elements between the two products.
    pub width: usize,
    pub activation: ExpertActivation,
}
