//! `/props` and `/slots`, for tools that ask for the context length and for
//! what runs.

use actix_web::HttpResponse;
use actix_web::web::Data;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::state::AppState;
use crate::status::VERSION;

/// `/props`: the model and the bounds of requests.
///
/// # Errors
/// 503 without a model.
pub async fn props(state: Data<AppState>) -> Result<HttpResponse, ApiError> {
    let served = state.served()?;
    let defaults = served.defaults.params();
    Ok(HttpResponse::Ok().json(json!({
        "default_generation_settings": {
            "n_ctx": served.context(),
            "params": {
                "temperature": defaults.temperature,
                "top_p": defaults.top_p,
                "top_k": defaults.top_k.unwrap_or(0),
                "min_p": defaults.min_p,
                "repeat_penalty": defaults.repetition_penalty,
            },
        },
        "total_slots": served.engine_config.max_running,
        "model_alias": served.id,
        "model_path": served.info.model_path,
        "modalities": {"vision": false, "audio": false},
        "build_info": format!("hearth-{VERSION}"),
        "is_sleeping": false,
    })))
}

/// `/slots`: the requests that run, each in a slot of its own, and the free slots.
///
/// # Errors
/// 503 without a model.
pub async fn slots(state: Data<AppState>) -> Result<HttpResponse, ApiError> {
    let served = state.served()?;
    let stopped = |_| ApiError::unavailable("engine_stopped", "the engine has stopped");
    // Nodes of the cache are not wanted.
    let picture = served.engine.picture(0).wait().await.map_err(stopped)?;
    let context = served.context();
    let running = picture.running.iter().map(|running| {
        let decoded = running.tokens.saturating_sub(running.prompt);
        json!({
            "id_task": running.id,
            "n_ctx": context,
            "is_processing": true,
            "n_prompt_tokens": running.prompt,
            "n_prompt_tokens_cache": running.cached,
            "n_prompt_tokens_processed": running.computed.min(running.prompt),
            "next_token": [{"n_decoded": decoded}],
        })
    });
    let free = json!({"id_task": -1, "n_ctx": context, "is_processing": false});
    let slots = running.chain(std::iter::repeat(free));
    let slots = slots.take(served.engine_config.max_running).enumerate();
    let numbered = slots.map(|(id, mut slot)| {
        slot["id"] = id.into();
        slot
    });
    Ok(HttpResponse::Ok().json(numbered.collect::<Vec<Value>>()))
}
