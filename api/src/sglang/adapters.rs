//! Loading and unloading adapters while the server runs, as in SGLang.

use std::time::Duration;

use actix_web::web::{Data, Payload, block};
use actix_web::{HttpRequest, HttpResponse};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::adapters::{AdapterError, Registration};
use crate::body;
use crate::error::ApiError;
use crate::served::Served;
use crate::state::AppState;

/// How often an unloading looks whether the last request with the adapter has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// SGLang's `LoadLoRAAdapterReqInput`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadRequest {
    lora_name: String,
    /// Below `--lora-dir`.
    lora_path: String,
    /// The adapter stays in the host's memory.
    pinned: Option<bool>,
}

/// SGLang's `UnloadLoRAAdapterReqInput`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnloadRequest {
    lora_name: String,
}

/// # Errors
/// 4xx for a body that is no such request, 503 without a model.
pub async fn load(
    request: HttpRequest,
    payload: Payload,
    state: Data<AppState>,
) -> Result<HttpResponse, ApiError> {
    let bytes = body::read(&request, payload, state.config.max_body_bytes).await?;
    let LoadRequest {
        lora_name,
        lora_path,
        pinned,
    } = body::parse(&bytes)?;
    let served = state.served()?.clone();
    let path = match served.adapters.path_of_a_request(&lora_path) {
        Ok(path) => path,
        Err(error) => return Ok(answer(&served, Err(error))),
    };
    let given = Registration {
        name: lora_name,
        path,
        pinned: pinned.unwrap_or(false),
        ..Registration::default()
    };
    // Files are read outside of the threads that serve connections.
    let reader = served.clone();
    let loaded = block(move || reader.adapters.register(given, &reader.id, false)).await;
    let loaded = loaded.map_err(|_| ApiError::internal("reading the adapter failed"))?;
    Ok(answer(&served, loaded))
}

/// Waits until no request uses the adapter any more.
///
/// # Errors
/// 4xx for a body that is no such request, 503 without a model.
pub async fn unload(
    request: HttpRequest,
    payload: Payload,
    state: Data<AppState>,
) -> Result<HttpResponse, ApiError> {
    let bytes = body::read(&request, payload, state.config.max_body_bytes).await?;
    let UnloadRequest { lora_name } = body::parse(&bytes)?;
    let served = state.served()?;
    let Some(used) = served.adapters.unregister(&lora_name) else {
        let message = format!("LoRA with name {lora_name} does not exist in loaded LoRAs");
        return Ok(answer(served, Err(AdapterError::NotFound(message))));
    };
    while used.is_in_use() {
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    Ok(answer(served, Ok(())))
}

/// SGLang's answer: 200, or 400 with the reason.
fn answer(served: &Served, outcome: Result<(), AdapterError>) -> HttpResponse {
    let loaded = served.adapters.list().into_iter();
    let loaded: Map<String, Value> = loaded
        .map(|adapter| (adapter.name, adapter.path.into()))
        .collect();
    let (mut response, error) = match outcome {
        Ok(()) => (HttpResponse::Ok(), None),
        Err(error) => (HttpResponse::BadRequest(), Some(error.to_string())),
    };
    response.json(json!({
        "success": error.is_none(),
        "error_message": error.unwrap_or_default(),
        "loaded_adapters": loaded,
    }))
}
