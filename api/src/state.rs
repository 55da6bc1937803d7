//! The state that all routes share: the configuration, and the model once it is loaded.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use hearth_otel::Telemetry;

use crate::clients::{Clients, KeysError};
use crate::config::HttpConfig;
use crate::error::ApiError;
use crate::live::Live;
use crate::openai::responses::Responses;
use crate::served::Served;
use crate::telemetry;

pub struct AppState {
    pub config: HttpConfig,
    /// The callers who have a key for this server.
    pub clients: Clients,
    pub started: Instant,
    pub telemetry: Telemetry,
    /// The conversations that `/v1/responses` stores.
    pub responses: Responses,
    /// Prompt tokens of requests that were submitted and have not started.
    pub waiting_tokens: Arc<AtomicUsize>,
    /// The viewers of `/live`.
    pub live: Live,
    served: OnceLock<Served>,
    draining: AtomicBool,
}

impl AppState {
    /// # Errors
    /// The file of `--api-keys-file` cannot be used.
    pub fn new(config: HttpConfig, telemetry: Telemetry) -> Result<Self, KeysError> {
        let clients = Clients::new(config.api_key.clone(), config.api_keys_file.clone())?;
        Ok(Self {
            config,
            clients,
            started: Instant::now(),
            telemetry,
            responses: Responses::default(),
            live: Live::default(),
            served: OnceLock::new(),
            waiting_tokens: Arc::default(),
            draining: AtomicBool::new(false),
        })
    }

    /// Brings the model: from now on requests are answered. A second call has no effect.
    pub fn set_ready(&self, served: Served) {
        if let Err(error) = telemetry::attach(&self.telemetry, &served) {
            tracing::warn!(%error, "the engine is not measured");
        }
        let _ = self.served.set(served);
    }

    /// From now on new requests get 503; those in flight go on.
    pub fn start_draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// The model, for a new request.
    ///
    /// # Errors
    /// 503 while the model is loading, when the server is shutting down, and when the engine or the
    /// device is gone.
    pub fn served(&self) -> Result<&Served, ApiError> {
        if self.is_draining() {
            return Err(ApiError::unavailable(
                "shutting_down",
                "the server is shutting down",
            ));
        }
        let loading = || ApiError::unavailable("model_loading", "the model is still loading");
        let served = self.served.get().ok_or_else(loading)?;
        if !served.engine.is_running() {
            let message = "the engine has stopped; this server will not answer again";
            return Err(ApiError::unavailable("engine_stopped", message));
        }
        if served.is_lost() {
            return Err(device_lost());
        }
        Ok(served)
    }

    /// The model, to look at it and not to run it; also while the server is shutting down.
    pub fn loaded(&self) -> Option<&Served> {
        self.served.get()
    }

    /// Refuses the name of a model that is neither the served one nor an adapter of it. A request may
    /// leave the name out, or have the name that routers write for it.
    ///
    /// # Errors
    /// 404 `model_not_found`.
    pub fn check_model(served: &Served, given: Option<&str>) -> Result<(), ApiError> {
        let given = given.map(|given| served.canonical(given));
        served
            .adapters
            .check_model(&served.id, &served.aliases, given)
    }
}

/// 503 for requests that come while the device is gone.
pub fn device_lost() -> ApiError {
    let message = "the device is lost (its driver was reset, or it is gone); the server tries to \
                   open it again";
    ApiError::unavailable("device_lost", message)
}

/// Seconds since 1970.
pub fn unix_time() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
