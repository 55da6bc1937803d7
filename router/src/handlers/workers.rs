//! The list of workers, and changes to it.

use std::sync::Arc;

use actix_web::HttpResponse;
use actix_web::http::StatusCode;
use actix_web::web::{Bytes, Data, Path};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::control;
use crate::error::RouterError;
use crate::state::Router;
use crate::worker::{Role, UNKNOWN_MODEL, Worker};

/// A worker as sglang-router shows it, and what this router knows beyond that.
fn shown(router: &Router, worker: &Worker) -> Value {
    let models = worker.models();
    let model = models.first().map_or(UNKNOWN_MODEL, |model| model);
    let mut value = json!({
        "id": worker.id,
        "url": worker.url,
        "model_id": model,
        "models": &models[..],
        "worker_type": worker.role.name(),
        "is_healthy": worker.is_healthy(),
        "is_draining": worker.is_draining(),
        "circuit_breaker": worker.breaker_state().name(),
        "load": worker.load(),
        "connection_mode": "HTTP",
        "disable_health_check": router.config.disable_health_check,
    });
    let kv = worker.kv.state();
    value["kv_events"] = kv.map_or(
        Value::Null,
        |(blocks, complete)| json!({"blocks": blocks, "complete": complete}),
    );
    if let Role::Prefill { bootstrap_port } = worker.role {
        value["bootstrap_port"] = json!(bootstrap_port);
    }
    value
}

pub async fn list(router: Data<Router>) -> HttpResponse {
    let all = router.registry.all();
    let count = |name: &str| all.iter().filter(|w| w.role.name() == name).count();
    let workers: Vec<Value> = all.iter().map(|worker| shown(&router, worker)).collect();
    HttpResponse::Ok().json(json!({
        "workers": workers,
        "total": all.len(),
        "stats": {
            "prefill_count": count("prefill"),
            "decode_count": count("decode"),
            "regular_count": count("regular"),
        },
    }))
}

/// The URLs alone.
pub async fn urls(router: Data<Router>) -> HttpResponse {
    let all = router.registry.all();
    let urls: Vec<&str> = all.iter().map(|worker| worker.url.as_str()).collect();
    HttpResponse::Ok().json(json!({"urls": urls}))
}

fn find(router: &Router, id: &str) -> Result<Arc<Worker>, RouterError> {
    router.registry.get(id).ok_or_else(|| {
        let message = format!("There is no worker with the id {id:?}. GET /workers lists them.");
        RouterError::new(StatusCode::NOT_FOUND, "worker_not_found", message)
    })
}

/// # Errors
/// 404 for an unknown id.
pub async fn get(router: Data<Router>, id: Path<String>) -> Result<HttpResponse, RouterError> {
    let worker = find(&router, &id)?;
    Ok(HttpResponse::Ok().json(shown(&router, &worker)))
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum WorkerType {
    Regular,
    Prefill,
    Decode,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Added {
    url: String,
    worker_type: Option<WorkerType>,
    bootstrap_port: Option<u16>,
}

/// # Errors
/// 400 if a field is unknown or out of bounds; 409 if the URL is registered already.
pub async fn add(router: Data<Router>, body: Bytes) -> Result<HttpResponse, RouterError> {
    let added: Added = serde_json::from_slice(&body).map_err(|error| {
        RouterError::bad_request(format!(
            "The body must be an object with `url`, `worker_type` (regular, prefill or decode) and \
             `bootstrap_port` of a prefill worker: {error}."
        ))
    })?;
    let role = match added.worker_type {
        None | Some(WorkerType::Regular) => Role::Regular,
        Some(WorkerType::Prefill) => Role::Prefill {
            bootstrap_port: added.bootstrap_port,
        },
        Some(WorkerType::Decode) => Role::Decode,
    };
    if added.bootstrap_port == Some(0) {
        let message = "`bootstrap_port` must be from 1 to 65535, got 0.";
        return Err(RouterError::field("bootstrap_port", message));
    }
    if added.bootstrap_port.is_some() && !matches!(role, Role::Prefill { .. }) {
        let message = "`bootstrap_port` must be left out, except for a prefill worker.";
        return Err(RouterError::field("bootstrap_port", message));
    }
    let worker = control::add(&router.into_inner(), &added.url, role)?;
    Ok(HttpResponse::Accepted().json(json!({
        "status": "accepted",
        "worker_id": worker.id,
        "url": worker.url,
        "location": format!("/workers/{}", worker.id),
        "message": "The worker gets requests as soon as a health check succeeds.",
    })))
}

/// # Errors
/// 404 for an unknown id.
pub async fn remove(router: Data<Router>, id: Path<String>) -> Result<HttpResponse, RouterError> {
    let worker = find(&router, &id)?;
    control::drain(&router.into_inner(), Arc::clone(&worker));
    Ok(HttpResponse::Accepted().json(json!({
        "status": "accepted",
        "worker_id": worker.id,
        "message": "The worker gets no new requests, and is removed when its last one has ended.",
    })))
}
