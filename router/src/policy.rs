//! Policies: which of the available workers gets a request.

mod cache_aware;
mod power_of_two;
mod random;
mod round_robin;

use std::fmt;
use std::sync::Arc;

use hearth_radix::PrefixLock;

use crate::config::{PolicyKind, RouterConfig};
use crate::prompt::Prompt;
use crate::worker::Worker;
use cache_aware::CacheAware;
use power_of_two::PowerOfTwo;
use random::Random;
use round_robin::RoundRobin;

pub trait Policy: fmt::Debug + Send + Sync {
    /// The index of the worker that gets a request with this prompt; `None` if there are none. All
    /// `workers` are available.
    fn select(&self, workers: &[Arc<Worker>], prompt: &Prompt) -> Option<usize>;

    /// Notes that `worker` gets a request with this prompt; the result is kept while it runs.
    fn remember(&self, _worker: &Worker, _prompt: &Prompt) -> Option<PrefixLock> {
        None
    }

    /// Whether [`select`](Self::select) looks at the prompt.
    fn needs_prompt(&self) -> bool {
        false
    }
}

/// The policy of a kind, with its thresholds.
pub fn policy(kind: PolicyKind, config: &RouterConfig) -> Box<dyn Policy> {
    match kind {
        PolicyKind::Random => Box::new(Random),
        PolicyKind::RoundRobin => Box::new(RoundRobin::default()),
        PolicyKind::PowerOfTwo => Box::new(PowerOfTwo),
        PolicyKind::CacheAware => Box::new(CacheAware::new(config)),
    }
}
