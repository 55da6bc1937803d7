//! What the routes share: the configuration, and the model once it is loaded.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use hearth_otel::Telemetry;

use super::error::ApiError;
use super::openai::responses::Responses;
use crate::config::Config;
use crate::served::Served;
use crate::telemetry;

pub struct AppState {
    pub config: Config,
    pub started: Instant,
    pub telemetry: Telemetry,
    /// What `/v1/responses` remembers.
    pub responses: Responses,
    served: OnceLock<Served>,
    draining: AtomicBool,
}

impl AppState {
    pub fn new(config: Config, telemetry: Telemetry) -> Self {
        Self {
            config,
            started: Instant::now(),
            telemetry,
            responses: Responses::default(),
            served: OnceLock::new(),
            draining: AtomicBool::new(false),
        }
    }

    /// From here on requests are answered. The first model stays.
    pub fn set_ready(&self, served: Served) {
        if let Err(error) = telemetry::attach(&self.telemetry, &served, &self.config) {
            tracing::warn!(%error, "the engine is not measured");
        }
        let _ = self.served.set(served);
    }

    /// From here on new requests get 503; those in flight go on.
    pub fn start_draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// The model, for a new request.
    ///
    /// # Errors
    /// 503 while it is loading, when the server is about to go and when the engine or the
    /// device is gone.
    pub fn served(&self) -> Result<&Served, ApiError> {
        if self.draining.load(Ordering::Relaxed) {
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

    /// The model, for a look at it; also while draining.
    pub fn loaded(&self) -> Option<&Served> {
        self.served.get()
    }

    /// Refuses a model name that is not the served one; none at all is fine.
    ///
    /// # Errors
    /// 404 `model_not_found`.
    pub fn check_model(served: &Served, given: Option<&str>) -> Result<(), ApiError> {
        match given {
            Some(given) if given != served.id => Err(ApiError::model_not_found(given, &served.id)),
            _ => Ok(()),
        }
    }
}

/// What is told to those whom nobody can answer until the device is there again.
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
