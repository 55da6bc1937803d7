//! `/metrics`: the router's own metrics.

use std::collections::BTreeMap;

use actix_web::HttpResponse;
use actix_web::http::StatusCode;
use actix_web::web::Data;

use crate::error::RouterError;
use crate::metrics::HTTP;
use crate::state::Router;

/// # Errors
/// 500 if a metric cannot be written.
pub async fn metrics(router: Data<Router>) -> Result<HttpResponse, RouterError> {
    gauges(&router);
    let text = router.metrics.text().map_err(|error| {
        let message = format!("The metrics could not be written: {error}.");
        RouterError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
    })?;
    Ok(HttpResponse::Ok()
        .content_type("text/plain; version=0.0.4; charset=utf-8")
        .body(text))
}

/// Sets the gauges about workers. Those of workers that are gone are forgotten.
fn gauges(router: &Router) {
    let metrics = &router.metrics;
    for gauge in [
        &metrics.pool_size,
        &metrics.requests_active,
        &metrics.health,
        &metrics.cb_state,
        &metrics.cb_failures,
        &metrics.cb_successes,
    ] {
        gauge.reset();
    }
    let mut pools: BTreeMap<(&str, String), i64> = BTreeMap::new();
    for worker in router.registry.all().iter() {
        let (failures, successes) = worker.consecutive();
        for (gauge, value) in [
            (&metrics.requests_active, worker.load() as i64),
            (&metrics.health, i64::from(worker.is_healthy())),
            (&metrics.cb_state, worker.breaker_state().number()),
            (&metrics.cb_failures, i64::from(failures)),
            (&metrics.cb_successes, i64::from(successes)),
        ] {
            gauge.with_label_values(&[worker.url.as_str()]).set(value);
        }
        *pools
            .entry((worker.role.name(), worker.model()))
            .or_default() += 1;
    }
    for ((role, model), count) in pools {
        let values = [role, HTTP, model.as_str()];
        metrics.pool_size.with_label_values(&values).set(count);
    }
}
