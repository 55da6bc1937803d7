//! The bound of concurrent requests, and the bounded queue in front of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use actix_web::http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::config::RouterConfig;
use crate::error::RouterError;
use crate::metrics::Metrics;

#[derive(Debug)]
pub struct Queue {
    /// `None` if concurrency is not bounded.
    running: Option<Arc<Semaphore>>,
    most_waiting: usize,
    waiting: AtomicUsize,
    patience: Duration,
    metrics: Arc<Metrics>,
}

/// The right to run a request, until it is dropped.
#[derive(Debug)]
pub struct Permit {
    _held: Option<OwnedSemaphorePermit>,
}

/// Counts a waiting request, also if the client goes away meanwhile.
struct Waiting<'a>(&'a Queue);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
        self.0.metrics.queue_waiting.dec();
    }
}

impl Queue {
    pub fn new(config: &RouterConfig, metrics: Arc<Metrics>) -> Self {
        let most = usize::try_from(config.max_concurrent_requests).ok();
        Self {
            running: most.map(|most| Arc::new(Semaphore::new(most))),
            most_waiting: config.queue_size,
            waiting: AtomicUsize::new(0),
            patience: Duration::from_secs_f64(config.queue_timeout_secs),
            metrics,
        }
    }

    /// Waits for the right to run a request.
    ///
    /// # Errors
    /// 429 if the queue is full, 503 if the wait is too long.
    pub async fn enter(&self) -> Result<Permit, RouterError> {
        let Some(running) = &self.running else {
            return Ok(Permit { _held: None });
        };
        if let Ok(permit) = Arc::clone(running).try_acquire_owned() {
            self.count("allowed");
            return Ok(Permit {
                _held: Some(permit),
            });
        }
        let room = |waiting| (waiting < self.most_waiting).then_some(waiting + 1);
        let order = Ordering::SeqCst;
        if self.waiting.fetch_update(order, order, room).is_err() {
            self.count("rejected");
            let message = format!(
                "The router runs as many requests as max_concurrent_requests allows, and \
                 queue_size = {} others wait already.",
                self.most_waiting
            );
            let status = StatusCode::TOO_MANY_REQUESTS;
            return Err(RouterError::new(status, "queue_full", message));
        }
        self.metrics.queue_waiting.inc();
        let _waiting = Waiting(self);
        match timeout(self.patience, Arc::clone(running).acquire_owned()).await {
            Ok(Ok(permit)) => {
                self.count("allowed");
                Ok(Permit {
                    _held: Some(permit),
                })
            }
            // The semaphore is never closed.
            Ok(Err(_)) | Err(_) => {
                self.count("timeout");
                let seconds = self.patience.as_secs_f64();
                let message = format!("The request waited for queue_timeout_secs = {seconds}.");
                let status = StatusCode::SERVICE_UNAVAILABLE;
                Err(RouterError::new(status, "queue_timeout", message))
            }
        }
    }

    fn count(&self, result: &str) {
        self.metrics.rejected.with_label_values(&[result]).inc();
    }
}
