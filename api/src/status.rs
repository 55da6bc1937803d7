//! Routes that report and change nothing: health, readiness, version, models.

use actix_web::web::{Data, Path};
use actix_web::{HttpResponse, Responder};
use serde_json::{Value, json};

use crate::adapters::Listed;
use crate::error::ApiError;
use crate::served::Served;
use crate::state::AppState;

pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// `/health`: 200 while the process answers and its device has not been lost.
pub async fn health(state: Data<AppState>) -> impl Responder {
    match state.loaded().is_some_and(Served::is_lost) {
        true => HttpResponse::ServiceUnavailable().json(json!({"status": "device_lost"})),
        false => HttpResponse::Ok().json(json!({"status": "ok"})),
    }
}

/// `/ready`: 200 once the model is loaded and warm, and requests are taken.
///
/// # Errors
/// The errors of [`AppState::served`].
pub async fn ready(state: Data<AppState>) -> Result<HttpResponse, ApiError> {
    let served = state.served()?;
    Ok(HttpResponse::Ok().json(json!({"status": "ready", "model": served.id})))
}

pub async fn version() -> impl Responder {
    HttpResponse::Ok().json(json!({"version": VERSION}))
}

pub async fn models(state: Data<AppState>) -> Result<HttpResponse, ApiError> {
    let served = state.served()?;
    let adapters = served.adapters.list();
    let adapters = adapters.iter().map(|adapter| adapter_card(served, adapter));
    let aliases = served.aliases.iter().map(|alias| alias_card(served, alias));
    let names = std::iter::once(model_card(served)).chain(aliases);
    let cards: Vec<Value> = names.chain(adapters).collect();
    Ok(HttpResponse::Ok().json(json!({"object": "list", "data": cards})))
}

pub async fn model(state: Data<AppState>, id: Path<String>) -> Result<HttpResponse, ApiError> {
    let served = state.served()?;
    if *id == served.id {
        return Ok(HttpResponse::Ok().json(model_card(served)));
    }
    if served.aliases.contains(&id) {
        return Ok(HttpResponse::Ok().json(alias_card(served, &id)));
    }
    let adapters = served.adapters.list();
    match adapters.iter().find(|adapter| adapter.name == *id) {
        Some(adapter) => Ok(HttpResponse::Ok().json(adapter_card(served, adapter))),
        None => Err(ApiError::model_not_found(&id, &served.id, &served.aliases)),
    }
}

/// The model under another of its names.
fn alias_card(served: &Served, alias: &str) -> Value {
    let mut card = model_card(served);
    card["id"] = alias.into();
    card
}

/// An adapter as vLLM lists it: a model with a parent.
fn adapter_card(served: &Served, adapter: &Listed) -> Value {
    let mut card = model_card(served);
    card["id"] = adapter.name.as_str().into();
    card["root"] = adapter.path.as_str().into();
    card["parent"] = served.id.as_str().into();
    card
}

fn model_card(served: &Served) -> Value {
    json!({
        "id": served.id,
        "object": "model",
        "created": served.created,
        // Routers look here for the API that a server speaks. smg takes a server with a name that it
        // does not know and with `/version` for vLLM, and would read its load from the metrics and
        // send vLLM's fields to pair prefill with decode. Hearth speaks SGLang's API for both, and
        // this is the value that SGLang has.
        "owned_by": "sglang",
        "root": served.info.model_path,
        "parent": null,
        "max_model_len": served.context(),
    })
}
