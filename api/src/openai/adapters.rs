//! Loading and unloading adapters while the server runs, as in vLLM, and llama-server's list of them.

use actix_web::http::StatusCode;
use actix_web::web::{Data, Payload, block};
use actix_web::{HttpRequest, HttpResponse};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::adapters::{AdapterError, Registration, ScaleError};
use crate::body;
use crate::error::ApiError;
use crate::fields::adapters::{ScaledAdapters, scaled};
use crate::state::AppState;

/// vLLM's `LoadLoRAAdapterRequest`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadRequest {
    #[serde(default)]
    lora_name: String,
    /// Below `--lora-dir`.
    #[serde(default)]
    lora_path: String,
    /// Replaces the adapter of this name.
    load_inplace: Option<bool>,
}

/// vLLM's `UnloadLoRAAdapterRequest`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnloadRequest {
    #[serde(default)]
    lora_name: String,
}

/// # Errors
/// 400 for a name that is taken or a path that is not below `--lora-dir`, 404 for a path without an
/// adapter.
pub async fn load(
    request: HttpRequest,
    payload: Payload,
    state: Data<AppState>,
) -> Result<HttpResponse, ApiError> {
    let bytes = body::read(&request, payload, state.config.max_body_bytes).await?;
    let LoadRequest {
        lora_name,
        lora_path,
        load_inplace,
    } = body::parse(&bytes)?;
    if lora_name.is_empty() || lora_path.is_empty() {
        let message = "Both 'lora_name' and 'lora_path' must be provided.";
        return Err(invalid(message.to_owned()));
    }
    let served = state.served()?.clone();
    let path = served
        .adapters
        .path_of_a_request(&lora_path)
        .map_err(refusal)?;
    let given = Registration {
        name: lora_name.clone(),
        path,
        ..Registration::default()
    };
    let replace = load_inplace.unwrap_or(false);
    // Files are read outside of the threads that serve connections.
    let loaded = block(move || served.adapters.register(given, &served.id, replace)).await;
    let loaded = loaded.map_err(|_| ApiError::internal("reading the adapter failed"))?;
    loaded.map_err(refusal)?;
    tracing::info!(name = lora_name, path = lora_path, "an adapter was loaded");
    Ok(text(format!(
        "Success: LoRA adapter '{lora_name}' added successfully."
    )))
}

/// # Errors
/// 404 for a name that no adapter has.
pub async fn unload(
    request: HttpRequest,
    payload: Payload,
    state: Data<AppState>,
) -> Result<HttpResponse, ApiError> {
    let bytes = body::read(&request, payload, state.config.max_body_bytes).await?;
    let UnloadRequest { lora_name } = body::parse(&bytes)?;
    if lora_name.is_empty() {
        return Err(invalid("'lora_name' must be provided.".to_owned()));
    }
    let served = state.served()?;
    if served.adapters.unregister(&lora_name).is_none() {
        let message = format!("The lora adapter '{lora_name}' cannot be found.");
        return Err(with_kind(StatusCode::NOT_FOUND, "NotFoundError", message));
    }
    tracing::info!(name = lora_name, "an adapter was unloaded");
    Ok(text(format!(
        "Success: LoRA adapter '{lora_name}' removed successfully."
    )))
}

/// llama-server's list of adapters, with their factors in requests that select nothing.
///
/// # Errors
/// 503 without a model.
pub async fn list(state: Data<AppState>) -> Result<HttpResponse, ApiError> {
    let adapters = state.served()?.adapters.list().into_iter();
    let adapters = adapters.map(|adapter| {
        json!({
            "id": adapter.id,
            "path": adapter.path,
            "scale": adapter.scale,
            // Not kept: nothing here uses them.
            "task_name": "",
            "prompt_prefix": "",
            "name": adapter.name,
        })
    });
    Ok(HttpResponse::Ok().json(adapters.collect::<Vec<Value>>()))
}

/// Sets the factors of all adapters in requests that select nothing.
///
/// # Errors
/// 400 for an id that no adapter has, or for an adapter with whole tables among others or with another
/// factor than 1.
pub async fn set_scales(
    request: HttpRequest,
    payload: Payload,
    state: Data<AppState>,
) -> Result<HttpResponse, ApiError> {
    let bytes = body::read(&request, payload, state.config.max_body_bytes).await?;
    let given: ScaledAdapters = body::parse_any(&bytes)?;
    let scales = scaled("", &given)?;
    let scales: Vec<(usize, f32)> = scales.iter().map(|s| (s.id, s.scale)).collect();
    let set = state.served()?.adapters.set_scales(&scales);
    set.map_err(|error| {
        let message = match error {
            ScaleError::Unknown(id) => {
                format!("`id` must be one of an adapter of /lora-adapters, got {id}")
            }
            ScaleError::NotAlone(id) => format!(
                "the adapter of `id` {id} has whole tables (`modules_to_save`), so `scale` must be 1 for \
                 it and 0 for all others"
            ),
        };
        ApiError::field("id", message)
    })?;
    Ok(HttpResponse::Ok().json(json!({"success": true})))
}

fn text(message: String) -> HttpResponse {
    HttpResponse::Ok()
        .content_type("text/plain; charset=utf-8")
        .body(message)
}

fn invalid(message: String) -> ApiError {
    with_kind(StatusCode::BAD_REQUEST, "InvalidUserInput", message)
}

/// An error with vLLM's name of its kind.
fn with_kind(status: StatusCode, kind: &'static str, message: String) -> ApiError {
    ApiError {
        status,
        kind,
        ..ApiError::bad_request(message)
    }
}

fn refusal(error: AdapterError) -> ApiError {
    match error {
        AdapterError::NotFound(message) => {
            with_kind(StatusCode::NOT_FOUND, "NotFoundError", message)
        }
        AdapterError::Name(message) | AdapterError::Refused(message) => invalid(message),
    }
}
