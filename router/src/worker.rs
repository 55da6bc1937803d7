//! A worker: its URL and role, its health, its requests in flight, its circuit breaker.
//!
//! - `lease`: a request in flight.

mod lease;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;

use reqwest::Url;
use tokio::sync::Notify;
use uuid::Uuid;

use crate::breaker::{Breaker, BreakerSettings, BreakerState, Transition};
use crate::kv_index::KvIndex;
use crate::metrics::Metrics;
pub use lease::Lease;

/// The id of a worker's model while the worker has not named one.
pub const UNKNOWN_MODEL: &str = "unknown";

/// The part that a worker plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Regular,
    Prefill { bootstrap_port: Option<u16> },
    Decode,
}

impl Role {
    /// The role's name in metrics and in `/workers`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Regular => "regular",
            Self::Prefill { .. } => "prefill",
            Self::Decode => "decode",
        }
    }

    /// Whether both are the same kind of worker.
    pub fn is_kind_of(self, other: Self) -> bool {
        self.name() == other.name()
    }
}

/// Results of health checks in a row.
#[derive(Debug, Default)]
struct Checks {
    /// Whether any check has succeeded yet.
    answered: bool,
    failures: u32,
    successes: u32,
}

/// How many checks in a row change the health.
#[derive(Clone, Copy, Debug)]
pub struct HealthThresholds {
    pub failures: u32,
    pub successes: u32,
}

#[derive(Debug)]
pub struct Worker {
    pub id: String,
    /// Without a slash at its end.
    pub url: String,
    /// The host of `url`, as it stands there.
    pub host: String,
    pub role: Role,
    metrics: Arc<Metrics>,
    healthy: AtomicBool,
    checks: Mutex<Checks>,
    draining: AtomicBool,
    load: AtomicUsize,
    /// Notified when the last request in flight ends.
    idle: Notify,
    breaker: Mutex<Breaker>,
    models: RwLock<Arc<[String]>>,
    /// The pages that the worker has cached, if it says so.
    pub kv: KvIndex,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that panics runs under these locks, and the data is valid at every moment.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Worker {
    /// A worker that is not healthy yet. `url` must be a valid URL.
    pub fn new(url: String, role: Role, breaker: BreakerSettings, metrics: Arc<Metrics>) -> Self {
        let parsed = Url::parse(&url).ok();
        let host = parsed.as_ref().and_then(Url::host_str).unwrap_or_default();
        Self {
            id: Uuid::now_v7().to_string(),
            host: host.to_owned(),
            url,
            role,
            metrics,
            healthy: AtomicBool::new(false),
            checks: Mutex::default(),
            draining: AtomicBool::new(false),
            load: AtomicUsize::new(0),
            idle: Notify::new(),
            breaker: Mutex::new(Breaker::new(breaker)),
            models: RwLock::new(Arc::from(Vec::new())),
            kv: KvIndex::default(),
        }
    }

    pub fn is_healthy(&self) -> bool {
        self.healthy.load(Ordering::Relaxed)
    }

    /// Takes the worker to be healthy without a check.
    pub fn assume_healthy(&self) {
        self.healthy.store(true, Ordering::Relaxed);
    }

    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Healthy, not draining, and its breaker lets requests through.
    pub fn is_available(&self) -> bool {
        self.is_healthy() && !self.is_draining() && self.breaker_state() != BreakerState::Open
    }

    /// Requests in flight.
    pub fn load(&self) -> usize {
        self.load.load(Ordering::SeqCst)
    }

    pub fn breaker_state(&self) -> BreakerState {
        let (state, change) = locked(&self.breaker).advance(Instant::now());
        self.count_transition(change);
        state
    }

    /// Failures and successes of requests in a row.
    pub fn consecutive(&self) -> (u32, u32) {
        locked(&self.breaker).consecutive()
    }

    /// Whether a health check has ever succeeded.
    pub fn has_answered(&self) -> bool {
        locked(&self.checks).answered
    }

    /// Takes in a health check. Returns the new health if it changed. The first success makes a
    /// new worker healthy; later on it takes as many in a row as `thresholds` says.
    pub fn checked(&self, ok: bool, thresholds: HealthThresholds) -> Option<bool> {
        let result = if ok { "success" } else { "failure" };
        let counter = &self.metrics.health_checks;
        counter.with_label_values(&[self.role.name(), result]).inc();
        let mut checks = locked(&self.checks);
        let (failures, successes) = match ok {
            true => (0, checks.successes.saturating_add(1)),
            false => (checks.failures.saturating_add(1), 0),
        };
        (checks.failures, checks.successes) = (failures, successes);
        let first = ok && !checks.answered;
        checks.answered |= ok;
        let healthy = match self.is_healthy() {
            true => failures < thresholds.failures,
            false => first || successes >= thresholds.successes,
        };
        let changed = self.healthy.swap(healthy, Ordering::Relaxed) != healthy;
        changed.then_some(healthy)
    }

    pub fn models(&self) -> Arc<[String]> {
        let models = self.models.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&models)
    }

    pub fn set_models(&self, models: Vec<String>) {
        let mut own = self.models.write().unwrap_or_else(PoisonError::into_inner);
        *own = models.into();
    }

    /// The first model's id, for metrics.
    pub fn model(&self) -> String {
        let models = self.models();
        models.first().map_or(UNKNOWN_MODEL, |m| m).to_owned()
    }

    pub fn serves(&self, model: &str) -> bool {
        self.models().iter().any(|own| own == model)
    }

    /// Counts a request to this worker for as long as the lease lives; `None` if the worker began
    /// to drain.
    pub fn lease(self: &Arc<Self>) -> Option<Lease> {
        // The order matters: either this sees that the worker drains, or the drain sees the load.
        self.load.fetch_add(1, Ordering::SeqCst);
        let lease = Lease::new(Arc::clone(self));
        (!self.is_draining()).then_some(lease)
    }

    /// Gives the worker no new requests.
    pub fn start_draining(&self) {
        self.draining.store(true, Ordering::SeqCst);
    }

    /// Waits until no request is in flight.
    pub async fn idle(&self) {
        loop {
            let mut notified = std::pin::pin!(self.idle.notified());
            notified.as_mut().enable();
            if self.load() == 0 {
                return;
            }
            notified.await;
        }
    }

    fn count_transition(&self, change: Option<Transition>) {
        if let Some((from, to)) = change {
            tracing::info!(
                worker = self.url,
                from = from.name(),
                to = to.name(),
                "the circuit breaker changed its state"
            );
            let values = [self.url.as_str(), from.name(), to.name()];
            self.metrics.cb_transitions.with_label_values(&values).inc();
        }
    }

    fn count_outcome(&self, outcome: &str, change: Option<Transition>) {
        let values = [self.url.as_str(), outcome];
        self.metrics.cb_outcomes.with_label_values(&values).inc();
        self.count_transition(change);
    }
}

#[cfg(test)]
pub mod tests {
    use std::time::Duration;

    use super::*;

    /// A healthy worker for tests of policies.
    pub fn worker(url: &str) -> Arc<Worker> {
        let settings = BreakerSettings {
            enabled: true,
            failure_threshold: 3,
            success_threshold: 1,
            timeout: Duration::from_secs(60),
            window: Duration::from_secs(60),
        };
        let metrics = Arc::new(Metrics::new().unwrap());
        let worker = Worker::new(url.to_owned(), Role::Regular, settings, metrics);
        worker.assume_healthy();
        Arc::new(worker)
    }

    #[test]
    fn health_changes_after_enough_checks_in_a_row() {
        let thresholds = HealthThresholds {
            failures: 3,
            successes: 2,
        };
        let worker = worker("http://a:1");
        worker.healthy.store(false, Ordering::Relaxed);
        let check = |ok| worker.checked(ok, thresholds);
        assert_eq!(check(false), None);
        // The first success is enough for a new worker.
        assert_eq!(check(true), Some(true));
        assert_eq!((check(false), check(false)), (None, None));
        assert_eq!(check(true), None);
        assert_eq!((check(false), check(false)), (None, None));
        assert_eq!(check(false), Some(false));
        assert_eq!((check(true), check(false), check(true)), (None, None, None));
        assert_eq!(check(true), Some(true));
    }

    #[test]
    fn a_draining_worker_gives_no_lease_and_counts_none() {
        let worker = worker("http://a:1");
        let lease = worker.lease().unwrap();
        assert_eq!(worker.load(), 1);
        worker.start_draining();
        assert!(worker.lease().is_none());
        assert_eq!(worker.load(), 1);
        drop(lease);
        assert_eq!(worker.load(), 0);
    }

    #[test]
    fn failures_make_a_worker_unavailable_and_an_unfinished_lease_does_not() {
        let worker = worker("http://a:1");
        (0..10).for_each(|_| drop(worker.lease()));
        assert!(worker.is_available());
        for status in [500, 429, 503, 400, 502] {
            assert!(worker.is_available());
            worker.lease().unwrap().responded(status);
        }
        assert!(!worker.is_available());
    }
}
