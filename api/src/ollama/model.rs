//! The routes that Ollama's tools ask first: the list of models, one model, the version.

use std::time::{Duration, SystemTime};

use actix_web::web::{Data, Payload};
use actix_web::{HttpRequest, HttpResponse, Responder};
use serde_json::{Value, json};

use crate::adapters::NO_MODEL;
use crate::body;
use crate::error::ApiError;
use crate::numbers::count_text;
use crate::ollama::request::{ShowRequest, check_model, named};
use crate::ollama::stream::timestamp;
use crate::served::{Served, model_type};
use crate::state::AppState;

pub async fn version() -> impl Responder {
    HttpResponse::Ok().json(json!({"version": env!("CARGO_PKG_VERSION")}))
}

/// # Errors
/// 503 without a model.
pub async fn tags(state: Data<AppState>) -> Result<HttpResponse, ApiError> {
    let served = state.served()?;
    let adapters = served.adapters.list().into_iter();
    let adapters = adapters.map(|adapter| adapter_card(served, &adapter.name));
    let models: Vec<Value> = [card(served)].into_iter().chain(adapters).collect();
    Ok(HttpResponse::Ok().json(json!({"models": models})))
}

/// `/api/ps`: the models in memory. It is the served one, which stays loaded. Adapters, which share
/// its memory, are only in `/api/tags`.
///
/// # Errors
/// 503 without a model.
pub async fn running(state: Data<AppState>) -> Result<HttpResponse, ApiError> {
    let served = state.served()?;
    let mut card = card(served);
    card["size_vram"] = (served.info.weight_bytes + served.info.kv_bytes).into();
    card["context_length"] = served.context().into();
    Ok(HttpResponse::Ok().json(json!({"models": [card]})))
}

/// # Errors
/// 4xx for a faulty request, 404 for another model, 503 without a model.
pub async fn show(
    request: HttpRequest,
    payload: Payload,
    state: Data<AppState>,
) -> Result<HttpResponse, ApiError> {
    let served = state.served()?;
    let bytes = body::read_any_type(&request, payload, state.config.max_body_bytes).await?;
    let request: ShowRequest = body::parse(&bytes)?;
    check_model(served, &request.model)?;
    request.refuse_unsupported()?;
    let mut described = description(served);
    let name = named(served, &request.model);
    if name != served.id && name != NO_MODEL {
        described["details"]["parent_model"] = served.id.clone().into();
    }
    Ok(HttpResponse::Ok().json(described))
}

fn card(served: &Served) -> Value {
    json!({
        "name": served.id,
        "model": served.id,
        "modified_at": loaded_at(served),
        "size": served.info.weight_bytes,
        "digest": "",
        "details": details(served),
    })
}

/// An adapter as a model, which it is for clients: requests name it in `model`.
fn adapter_card(served: &Served, name: &str) -> Value {
    let mut card = card(served);
    (card["name"], card["model"]) = (name.into(), name.into());
    card["details"]["parent_model"] = served.id.clone().into();
    card
}

fn description(served: &Served) -> Value {
    let family = model_type(&served.info.architecture);
    let context = format!("{family}.context_length");
    let (formats, mut capabilities) = (served.formats, vec!["completion"]);
    capabilities.extend(formats.tools.map(|_| "tools"));
    capabilities.extend(formats.reasoning.map(|_| "thinking"));
    let info = json!({
        "general.architecture": family,
        "general.parameter_count": served.info.parameters,
        context: served.context(),
    });
    json!({
        "modelfile": "",
        "parameters": "",
        "template": "",
        "details": details(served),
        "model_info": info,
        "capabilities": capabilities,
        "modified_at": loaded_at(served),
    })
}

fn details(served: &Served) -> Value {
    let family = model_type(&served.info.architecture);
    json!({
        "parent_model": "",
        "format": "safetensors",
        "family": family,
        "families": [family],
        "parameter_size": count_text(served.info.parameters),
        "quantization_level": served.info.dtype.to_uppercase(),
    })
}

fn loaded_at(served: &Served) -> String {
    timestamp(SystemTime::UNIX_EPOCH + Duration::from_secs(served.created))
}
