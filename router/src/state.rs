//! The state that all requests share.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hearth_otel::Traces;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use tokio::runtime::Handle;

use crate::breaker::BreakerSettings;
use crate::config::{PolicyKind, RouterConfig};
use crate::metrics::Metrics;
use crate::policy::policy;
use crate::queue::Queue;
use crate::registry::Registry;
use crate::request_id::outbound_address;
use crate::retry::RetrySettings;
use crate::select::Pool;
use crate::stored::Stored;
use crate::upstream::Upstream;
use crate::worker::Role;

#[derive(Debug)]
pub struct Router {
    pub config: RouterConfig,
    pub metrics: Arc<Metrics>,
    pub registry: Registry,
    pub queue: Queue,
    pub retry: RetrySettings,
    pub breaker: BreakerSettings,
    pub regular: Pool,
    pub prefill: Pool,
    pub decode: Pool,
    pub stored: Stored,
    /// Absent where nobody collects traces.
    pub traces: Option<Traces>,
    /// The address of this host in ids of requests.
    pub address: IpAddr,
    /// Health checks and drains run here, whichever thread starts them.
    pub background: Handle,
    /// The client of health checks.
    pub probe: Upstream,
    stopping: AtomicBool,
}

/// Why a router could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    #[error("the HTTP client of the workers could not be set up")]
    Client(#[from] reqwest::Error),
    #[error("the metrics could not be set up")]
    Metrics(#[from] prometheus::Error),
}

impl Router {
    /// A router without workers. Must be called in an async runtime, which has to live as long as
    /// the router.
    ///
    /// # Errors
    /// The HTTP client or the metrics cannot be set up.
    pub fn new(config: RouterConfig, traces: Option<Traces>) -> Result<Self, SetupError> {
        let metrics = Arc::new(Metrics::new()?);
        let pool = |role, kind: PolicyKind| Pool {
            role,
            kind,
            policy: policy(kind, &config),
        };
        let prefill = Role::Prefill {
            bootstrap_port: None,
        };
        Ok(Self {
            registry: Registry::default(),
            queue: Queue::new(&config, Arc::clone(&metrics)),
            retry: RetrySettings::new(&config),
            breaker: BreakerSettings::new(&config),
            regular: pool(Role::Regular, config.policy),
            prefill: pool(prefill, config.prefill_policy()),
            decode: pool(Role::Decode, config.decode_policy()),
            stored: Stored::default(),
            traces,
            address: outbound_address(),
            background: Handle::current(),
            probe: Upstream::new(Duration::from_secs_f64(config.request_timeout_secs))?,
            stopping: AtomicBool::new(false),
            metrics,
            config,
        })
    }

    pub fn is_pd(&self) -> bool {
        self.config.pd_disaggregation
    }

    /// The workers that answer requests which need one worker.
    pub fn single(&self) -> &Pool {
        if self.is_pd() {
            &self.prefill
        } else {
            &self.regular
        }
    }

    /// Headers of the router's own requests to workers.
    pub fn own_headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let bearer = self.config.api_key.as_ref().map(|key| key.bearer());
        let value = bearer.and_then(|bearer| HeaderValue::from_str(&bearer).ok());
        headers.extend(value.map(|value| (AUTHORIZATION, value)));
        headers
    }

    /// `/readiness` answers 503 from now on.
    pub fn start_stopping(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }
}
