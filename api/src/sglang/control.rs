//! Routes for operators: emptying the cache, aborting requests, pausing the engine.

use std::time::{Duration, Instant};

use actix_web::http::StatusCode;
use actix_web::web::{Data, Payload, Query};
use actix_web::{HttpRequest, HttpResponse};
use hearth_engine::{AbortTarget, PauseMode};
use serde::Deserialize;
use serde_json::json;

use crate::body;
use crate::clients::Caller;
use crate::error::{ApiError, out_of_bounds};
use crate::generate::owned_id;
use crate::served::Served;
use crate::state::AppState;

/// How often a flush checks whether the running requests have finished.
const FLUSH_AGAIN: Duration = Duration::from_millis(20);
/// Longest wait. After more than this a client has given up.
const MAX_FLUSH_SECONDS: f64 = 600.0;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlushQuery {
    /// Seconds to wait until nothing runs.
    timeout: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AbortRequest {
    rid: Option<String>,
    abort_all: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PauseRequest {
    mode: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ContinueRequest {
    /// Empties PyTorch's allocator in SGLang. Here it has no effect.
    torch_empty_cache: Option<bool>,
}

/// # Errors
/// 400 while requests run, 503 without a model.
pub async fn flush_cache(
    state: Data<AppState>,
    query: Result<Query<FlushQuery>, actix_web::Error>,
) -> Result<HttpResponse, ApiError> {
    let Query(query) = query.map_err(|error| ApiError::field("timeout", error.to_string()))?;
    let timeout = query.timeout.unwrap_or(0.0);
    if !(0.0..=MAX_FLUSH_SECONDS).contains(&timeout) {
        let bound = format!("between 0 and {MAX_FLUSH_SECONDS} seconds");
        return Err(out_of_bounds("timeout", &bound, timeout));
    }
    let deadline = Instant::now() + Duration::from_secs_f64(timeout);
    let engine = &loaded(&state)?.engine;
    let tokens = loop {
        match engine.flush_cache().wait().await.map_err(stopped)? {
            Ok(tokens) => break tokens,
            Err(in_use) if Instant::now() >= deadline => {
                let error = ApiError::bad_request(in_use.to_string());
                return Err(error.code("cache_in_use"));
            }
            Err(_) => tokio::time::sleep(FLUSH_AGAIN).await,
        }
    };
    tracing::info!(tokens, "the cache was flushed");
    Ok(HttpResponse::Ok()
        .content_type("text/plain; charset=utf-8")
        .body(format!("Cache flushed: {tokens} tokens.\n")))
}

/// # Errors
/// 400 for a body that names nothing, 503 without a model.
pub async fn abort_request(
    request: HttpRequest,
    payload: Payload,
    state: Data<AppState>,
) -> Result<HttpResponse, ApiError> {
    let bytes = body::read(&request, payload, state.config.max_body_bytes).await?;
    let AbortRequest { rid, abort_all } = body::parse(&bytes)?;
    let caller = Caller::of(&request);
    let target = match (rid, abort_all.unwrap_or(false)) {
        (_, true) if !caller.admin => {
            let message = "`abort_all` must be left out: only an administrator's API key ends the \
                           requests of others";
            return Err(ApiError {
                status: StatusCode::FORBIDDEN,
                ..ApiError::field("abort_all", message)
            });
        }
        (_, true) => AbortTarget::All,
        (Some(rid), false) if !rid.is_empty() => match &caller.client {
            _ if caller.admin => AbortTarget::Prefix(rid),
            client => {
                let name = client.as_ref().map(|client| client.name.as_str());
                AbortTarget::Id(owned_id(&rid, name))
            }
        },
        _ => {
            let message = "`rid` must be the beginning of a request's id, or `abort_all` true";
            return Err(ApiError::field("rid", message));
        }
    };
    let engine = &loaded(&state)?.engine;
    let aborted = engine.abort(target).wait().await.map_err(stopped)?;
    tracing::info!(aborted, "requests were aborted");
    Ok(HttpResponse::Ok().json(json!({"aborted": aborted})))
}

/// # Errors
/// 400 for an unknown mode, 503 without a model.
pub async fn pause_generation(
    request: HttpRequest,
    payload: Payload,
    state: Data<AppState>,
) -> Result<HttpResponse, ApiError> {
    let PauseRequest { mode } = optional(&request, payload, &state).await?;
    let mode = match mode.as_deref() {
        None | Some("abort") => PauseMode::Abort,
        Some("in_place") => PauseMode::InPlace,
        Some("retract") => PauseMode::Retract,
        Some(other) => {
            let given = format!("{other:?}");
            let bound = "one of abort, in_place, retract";
            return Err(out_of_bounds("mode", bound, given));
        }
    };
    let engine = &loaded(&state)?.engine;
    engine.pause(mode).wait().await.map_err(stopped)?;
    tracing::info!("generation is paused");
    Ok(HttpResponse::Ok().json(json!({"status": "ok", "message": "Generation paused."})))
}

/// # Errors
/// 400 for a malformed body, 503 without a model.
pub async fn continue_generation(
    request: HttpRequest,
    payload: Payload,
    state: Data<AppState>,
) -> Result<HttpResponse, ApiError> {
    let ContinueRequest { torch_empty_cache } = optional(&request, payload, &state).await?;
    if torch_empty_cache == Some(true) {
        return Err(ApiError::unsupported("torch_empty_cache"));
    }
    let engine = &loaded(&state)?.engine;
    engine.resume().wait().await.map_err(stopped)?;
    tracing::info!("generation goes on");
    Ok(HttpResponse::Ok().json(json!({"status": "ok", "message": "Generation continued."})))
}

/// The model for a command. The engine takes commands while the server is shutting down, too.
fn loaded(state: &AppState) -> Result<&Served, ApiError> {
    match state.loaded() {
        Some(served) => Ok(served),
        None => state.served(),
    }
}

fn stopped(error: impl std::fmt::Display) -> ApiError {
    ApiError::unavailable("engine_stopped", error.to_string())
}

/// The body, or its default where there is none.
async fn optional<T: Default + serde::de::DeserializeOwned>(
    request: &HttpRequest,
    payload: Payload,
    state: &AppState,
) -> Result<T, ApiError> {
    let bytes = body::read(request, payload, state.config.max_body_bytes).await?;
    if bytes.is_empty() {
        return Ok(T::default());
    }
    body::parse(&bytes)
}
