//! A request that holds slots.

use crate::active::ActiveRequest;
use crate::kv::RequestKv;

#[derive(Debug)]
pub(crate) struct Running {
    pub request: ActiveRequest,
    pub kv: RequestKv,
    /// The slot of its adapter, counted from 1; 0 for the base model.
    pub adapter_slot: u32,
    /// Whether the tokens that were computed last are to be cached at the end of the step.
    pub to_cache: bool,
}

impl Running {
    /// Tokens to compute before the next one can be sampled; 1 for a request that decodes.
    pub fn pending(&self) -> usize {
        self.request.tokens.len() - self.kv.computed
    }
}
