//! Adds, drains and removes workers while requests run.

use std::sync::Arc;

use actix_web::http::StatusCode;

use crate::config::{ConfigError, worker_url};
use crate::error::RouterError;
use crate::health;
use crate::kv_events;
use crate::state::Router;
use crate::worker::{Role, Worker};

/// Adds a worker. It gets requests as soon as a health check succeeds.
///
/// # Errors
/// 400 if the URL is invalid or the role does not fit the router's mode; 409 if the URL is
/// registered already.
pub fn add(router: &Arc<Router>, url: &str, role: Role) -> Result<Arc<Worker>, RouterError> {
    let url = worker_url("url", url).map_err(|error| {
        let ConfigError::Bound { bound, given, .. } = error;
        RouterError::field("url", format!("`url` must be one of {bound}, got {given}."))
    })?;
    if router.is_pd() == (role == Role::Regular) {
        let message = if router.is_pd() {
            "`worker_type` must be prefill or decode in prefill/decode mode."
        } else {
            "`worker_type` must be regular, because the router was not started with \
             --pd-disaggregation."
        };
        return Err(RouterError::field("worker_type", message));
    }
    let metrics = Arc::clone(&router.metrics);
    let worker = Arc::new(Worker::new(url, role, router.breaker, metrics));
    if let Err(own) = router.registry.add(Arc::clone(&worker)) {
        let message = format!("{} is registered already, as worker {}.", own.url, own.id);
        let status = StatusCode::CONFLICT;
        return Err(RouterError::new(status, "worker_exists", message));
    }
    tracing::info!(worker = worker.url, role = role.name(), "added a worker");
    health::watch(router, Arc::clone(&worker));
    kv_events::watch(router, Arc::clone(&worker));
    Ok(worker)
}

/// Gives a worker no new requests, and removes it when its last one has ended.
pub fn drain(router: &Arc<Router>, worker: Arc<Worker>) {
    if worker.is_draining() {
        return;
    }
    worker.start_draining();
    tracing::info!(
        worker = worker.url,
        load = worker.load(),
        "draining a worker"
    );
    let router = Arc::clone(router);
    router.background.clone().spawn(async move {
        worker.idle().await;
        router.registry.remove(&worker.id);
        tracing::info!(worker = worker.url, "removed a worker");
    });
}

/// Adds the workers that the settings name.
///
/// # Errors
/// A URL is invalid.
pub fn add_configured(router: &Arc<Router>) -> Result<(), ConfigError> {
    let config = &router.config;
    let regular = config.regular_workers()?.into_iter();
    let regular = regular.map(|url| (url, Role::Regular));
    let prefill = config.prefill_workers()?.into_iter().map(|worker| {
        let bootstrap_port = worker.bootstrap_port;
        (worker.url, Role::Prefill { bootstrap_port })
    });
    let decode = config.decode_workers()?.into_iter();
    let decode = decode.map(|url| (url, Role::Decode));
    for (url, role) in regular.chain(prefill).chain(decode) {
        // The settings were checked, so that no URL is there twice and all roles fit the mode.
        if let Err(error) = add(router, &url, role) {
            tracing::error!(url, error = error.message, "a worker was not added");
        }
    }
    Ok(())
}
