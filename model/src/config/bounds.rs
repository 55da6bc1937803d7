//! Bounds on the sizes of a model.
//!
//! They are far above any published model, and low enough that products of them cannot overflow.

pub(super) const MAX_WIDTH: usize = 1 << 20;
pub(super) const MAX_LAYERS: usize = 1 << 12;
pub(super) const MAX_HEADS: usize = 1 << 12;
pub(super) const MAX_HEAD_DIM: usize = 1 << 12;
pub(super) const MAX_VOCAB: usize = 1 << 24;
pub(super) const MAX_EXPERTS: usize = 1 << 12;
/// Experts of all layers together: each has tensors with names of their own.
pub(super) const MAX_ALL_EXPERTS: usize = 1 << 16;
pub(super) const MAX_POSITIONS: usize = 1 << 30;
