//! Bounds that follow from the executor's sizes.

use hearth_forward::ExecutorLimits;

/// The longest sequence in tokens that a request can always finish when it runs alone.
pub(crate) fn context_limit(limits: ExecutorLimits) -> usize {
    limits.max_model_len.min(limits.kv_slots)
}
