//! Selects a worker for a request: the available ones of a role, filtered by model, then the policy.

use std::sync::Arc;

use crate::config::PolicyKind;
use crate::error::RouterError;
use crate::metrics::{HTTP, Metrics};
use crate::policy::Policy;
use crate::prompt::Prompt;
use crate::registry::Registry;
use crate::worker::{Lease, Role, Worker};

/// The workers of one role under one policy.
#[derive(Debug)]
pub struct Pool {
    pub role: Role,
    pub kind: PolicyKind,
    pub policy: Box<dyn Policy>,
}

/// The model and the prompt that a request asks for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    pub model: Option<&'a str>,
    pub prompt: &'a Prompt,
}

impl Pool {
    /// Selects a worker and counts a request at it. Workers in `tried` have failed this request:
    /// they are selected only if there are no others.
    ///
    /// # Errors
    /// 503 if no worker is available.
    pub fn lease(
        &self,
        registry: &Registry,
        metrics: &Metrics,
        wanted: Wanted<'_>,
        tried: &[String],
    ) -> Result<Lease, RouterError> {
        let mut candidates = registry.of(self.role);
        candidates.retain(|worker| worker.is_available());
        let serves = |worker: &Arc<Worker>| wanted.model.is_some_and(|model| worker.serves(model));
        // A model that no worker names may still be an alias or an adapter: the worker decides.
        if candidates.iter().any(serves) {
            candidates.retain(serves);
        }
        let untried = |worker: &Arc<Worker>| !tried.contains(&worker.id);
        if candidates.iter().any(untried) {
            candidates.retain(untried);
        }
        while let Some(at) = self.policy.select(&candidates, wanted.prompt) {
            // A worker that began to drain in this moment gives no lease.
            let worker = candidates.swap_remove(at);
            if let Some(mut lease) = worker.lease() {
                lease.remember(self.policy.remember(lease.worker(), wanted.prompt));
                let model = worker.model();
                let values = [self.role.name(), HTTP, &model, self.kind.name()];
                metrics.selections.with_label_values(&values).inc();
                return Ok(lease);
            }
        }
        Err(RouterError::no_worker(match self.role {
            Role::Regular => "worker",
            Role::Prefill { .. } => "prefill worker",
            Role::Decode => "decode worker",
        }))
    }

    /// Whether there is an available worker that is neither in `tried` nor `worker`.
    pub fn has_another(&self, registry: &Registry, tried: &[String], worker: &str) -> bool {
        let candidates = registry.of(self.role);
        candidates.iter().any(|candidate| {
            candidate.is_available() && candidate.id != worker && !tried.contains(&candidate.id)
        })
    }
}
