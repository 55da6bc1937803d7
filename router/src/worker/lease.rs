//! A request in flight at a worker, and its outcome.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use hearth_radix::PrefixLock;

use super::{Worker, locked};
use crate::metrics::HTTP;

/// A request in flight at a worker. Dropping it ends the request; without a call of
/// [`succeeded`](Self::succeeded) or [`failed`](Self::failed) the breaker counts neither, as for a
/// client that went away.
#[derive(Debug)]
pub struct Lease {
    worker: Arc<Worker>,
    /// Keeps what the policy remembers of the request for as long as it runs.
    remembered: Option<PrefixLock>,
}

impl Lease {
    /// The worker's load already counts the request.
    pub(super) fn new(worker: Arc<Worker>) -> Self {
        Self {
            worker,
            remembered: None,
        }
    }

    pub fn worker(&self) -> &Arc<Worker> {
        &self.worker
    }

    /// Keeps `remembered` until the request ends.
    pub fn remember(&mut self, remembered: Option<PrefixLock>) {
        self.remembered = remembered;
    }

    pub fn succeeded(&self) {
        let change = locked(&self.worker.breaker).succeeded(Instant::now());
        self.worker.count_outcome("success", change);
    }

    /// `error` is the kind of failure, for the metrics.
    pub fn failed(&self, error: &str) {
        let values = [self.worker.role.name(), HTTP, error];
        let errors = &self.worker.metrics.worker_errors;
        errors.with_label_values(&values).inc();
        let change = locked(&self.worker.breaker).failed(Instant::now());
        self.worker.count_outcome("failure", change);
    }

    /// Counts the status of a response: server errors are failures of the worker; 408 and 429 say
    /// nothing about it; anything else is a success.
    pub fn responded(&self, status: u16) {
        match status {
            408 | 429 => {}
            500.. => self.failed("server_error"),
            _ => self.succeeded(),
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.worker.load.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.worker.idle.notify_waiters();
        }
    }
}
