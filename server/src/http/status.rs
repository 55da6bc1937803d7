//! Routes that look and change nothing: health, readiness, version, models, state.

use actix_web::web::{Data, Path};
use actix_web::{HttpResponse, Responder};
use serde_json::{Value, json};

use super::error::ApiError;
use super::sglang::model::server_args;
use super::state::AppState;
use crate::served::Served;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The process answers, and its device has not been lost.
pub async fn health(state: Data<AppState>) -> impl Responder {
    match state.loaded().is_some_and(Served::is_lost) {
        true => HttpResponse::ServiceUnavailable().json(json!({"status": "device_lost"})),
        false => HttpResponse::Ok().json(json!({"status": "ok"})),
    }
}

/// The model is loaded and warm, and requests are taken.
pub async fn ready(state: Data<AppState>) -> Result<HttpResponse, ApiError> {
    let served = state.served()?;
    Ok(HttpResponse::Ok().json(json!({"status": "ready", "model": served.id})))
}

/// Tools look here whether anybody is at home.
pub async fn root() -> impl Responder {
    HttpResponse::Ok()
        .content_type("text/plain; charset=utf-8")
        .body("Hearth is running")
}

pub async fn version() -> impl Responder {
    HttpResponse::Ok().json(json!({"version": VERSION}))
}

pub async fn models(state: Data<AppState>) -> Result<HttpResponse, ApiError> {
    let card = model_card(state.served()?);
    Ok(HttpResponse::Ok().json(json!({"object": "list", "data": [card]})))
}

pub async fn model(state: Data<AppState>, id: Path<String>) -> Result<HttpResponse, ApiError> {
    let served = state.served()?;
    AppState::check_model(served, Some(&id))?;
    Ok(HttpResponse::Ok().json(model_card(served)))
}

fn model_card(served: &Served) -> Value {
    json!({
        "id": served.id,
        "object": "model",
        "created": served.created,
        "owned_by": "hearth",
        "root": served.info.model_path,
        "parent": null,
        "max_model_len": served.context(),
    })
}

/// Configuration, model and the engine's counters, under SGLang's name.
pub async fn server_info(state: Data<AppState>) -> impl Responder {
    let loaded = state.loaded();
    let mut info = json!({
        "version": VERSION,
        "uptime_seconds": state.started.elapsed().as_secs_f64(),
        "config": state.config.without_keys(),
        "served_model_name": loaded.map(|served| &served.id),
        // SGLang's router takes a `model` here for the id, and it has to be a string.
        "model": loaded.map(|served| &served.id),
        "model_info": loaded.map(|served| &served.info),
        "max_model_len": loaded.map(Served::context),
        "internal_states": loaded.map(engine_state).into_iter().collect::<Vec<_>>(),
    });
    let args = loaded.map(server_args).unwrap_or_default();
    if let (Some(info), Value::Object(args)) = (info.as_object_mut(), args) {
        info.extend(args);
    }
    HttpResponse::Ok().json(info)
}

/// `kv`: `free + cached + held == total` at every moment; `evictable` and
/// `protected` are the two kinds of `cached`.
fn engine_state(served: &Served) -> Value {
    let stats = served.engine.stats();
    json!({
        "waiting": stats.waiting,
        "running": stats.running,
        "kv": {
            "total": stats.kv.total,
            "free": stats.kv.free,
            "cached": stats.kv.cached(),
            "evictable": stats.kv.evictable,
            "protected": stats.kv.protected,
            "held": stats.kv.held,
        },
        "host_kv": {
            "total": stats.host.total,
            "free": stats.host.free,
            "cached": stats.host.cached(),
            "demoted_tokens": stats.demoted_tokens,
            "loaded_tokens": stats.loaded_tokens,
        },
        "steps": stats.steps,
        "prompt_tokens": stats.prompt_tokens,
        "cached_tokens": stats.cached_tokens,
        "generated_tokens": stats.generated_tokens,
        "forced_tokens": stats.forced_tokens,
        "computed_tokens": stats.computed_tokens,
        "finished": stats.finished,
        "cancelled": stats.cancelled,
        "failed": stats.failed,
        "preemptions": stats.preemptions,
    })
}
