//! The policy `cache_aware` without HTTP, for simulations of clusters.

use std::sync::Arc;

use hearth_events::{KvEvent, Update};

use crate::breaker::BreakerSettings;
use crate::config::{PolicyKind, RouterConfig};
use crate::kv_index::TokenPrompt;
use crate::metrics::Metrics;
use crate::policy::{Policy, policy};
use crate::prompt::Prompt;
use crate::worker::{Lease, Role, Worker};

/// A router in front of workers that a simulation plays.
#[derive(Debug)]
pub struct SimulatedRouter {
    workers: Vec<Arc<Worker>>,
    policy: Box<dyn Policy>,
    /// True if the workers publish KV events.
    events: bool,
}

/// A request that runs. It ends when this is dropped.
#[derive(Debug)]
pub struct Routed {
    /// The number of the worker.
    pub worker: usize,
    _lease: Lease,
}

impl SimulatedRouter {
    /// # Panics
    /// If two metrics have one name.
    pub fn new(workers: usize, kind: PolicyKind, events: bool) -> Self {
        let config = RouterConfig::default();
        let metrics = Arc::new(Metrics::new().expect("the names of metrics differ"));
        let worker = |number| {
            let url = format!("http://{number}");
            let breaker = BreakerSettings::new(&config);
            let worker = Worker::new(url, Role::Regular, breaker, Arc::clone(&metrics));
            worker.assume_healthy();
            if events {
                worker.kv.update(Update::Following { complete: true });
            }
            Arc::new(worker)
        };
        Self {
            workers: (0..workers).map(worker).collect(),
            policy: policy(kind, &config),
            events,
        }
    }

    /// Selects a worker for a prompt; `None` without workers.
    pub fn route(&self, tokens: &[u32]) -> Option<Routed> {
        let prompt = Prompt {
            units: tokens.to_vec(),
            tokens: true,
            known: self.events.then(|| TokenPrompt {
                namespace: String::new(),
                ids: tokens.to_vec(),
            }),
        };
        let at = self.policy.select(&self.workers, &prompt)?;
        let mut lease = self.workers[at].lease()?;
        lease.remember(self.policy.remember(lease.worker(), &prompt));
        Some(Routed {
            worker: at,
            _lease: lease,
        })
    }

    /// Takes in what a worker publishes.
    pub fn publish(&self, worker: usize, events: Vec<KvEvent>) {
        if self.events {
            self.workers[worker].kv.update(Update::Events(events));
        }
    }
}
