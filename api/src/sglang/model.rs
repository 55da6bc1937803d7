//! Routes about the model and the load, for SGLang's clients and its router.

use std::time::Duration;

use actix_web::HttpResponse;
use actix_web::web::{Data, Query};
use futures_util::StreamExt;
use hearth_engine::SamplingParams;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::error::{ApiError, out_of_bounds};
use crate::generate::{Job, Update, submit};
use crate::served::{Served, model_type};
use crate::state::{AppState, unix_time};
use crate::{reasoning, tools};

/// A server that does not make one token in this time is not healthy (SGLang's bound).
const PROBE_TIMEOUT: Duration = Duration::from_secs(20);
/// Probes have a namespace of the prefix cache to themselves, which no request uses.
const PROBE_NAMESPACE: &str = "hearth-health";

/// # Errors
/// 503 without a model.
pub async fn model_info(state: Data<AppState>) -> Result<HttpResponse, ApiError> {
    let served = state.served()?;
    let info = &served.info;
    Ok(HttpResponse::Ok().json(json!({
        "model_path": info.model_path,
        "tokenizer_path": info.model_path,
        "served_model_name": served.id,
        "is_generation": true,
        "preferred_sampling_params": null,
        "weight_version": "default",
        "has_image_understanding": false,
        "has_audio_understanding": false,
        "model_type": model_type(&info.architecture),
        "architectures": [info.architecture],
        "max_model_len": served.context(),
        "load_format": info.load_format,
        "reasoning_parser": served.formats.reasoning.map(reasoning::Format::name),
        "tool_call_parser": served.formats.tools.map(tools::Format::name),
        "disaggregation_mode": "null",
    })))
}

/// `/get_load`: SGLang's older report of the load. Its router balances by it.
///
/// # Errors
/// 503 without a model.
pub async fn get_load(state: Data<AppState>) -> Result<HttpResponse, ApiError> {
    let served = state.served()?;
    let stats = served.engine.stats();
    Ok(HttpResponse::Ok().json(json!([{
        "dp_rank": 0,
        "num_reqs": stats.running + stats.waiting,
        "num_waiting_reqs": stats.waiting,
        "num_tokens": stats.kv.held + stats.kv.protected,
    }])))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadsQuery {
    dp_rank: Option<i64>,
    include: Option<String>,
    format: Option<String>,
}

/// The sections of `/v1/loads` that this server has.
const SECTIONS: [&str; 4] = ["core", "memory", "queues", "all"];

/// # Errors
/// 400 for an unknown section or format, 503 without a model.
pub async fn loads(
    state: Data<AppState>,
    query: Result<Query<LoadsQuery>, actix_web::Error>,
) -> Result<HttpResponse, ApiError> {
    let Query(query) = query.map_err(|error| ApiError::bad_request(error.to_string()))?;
    Ok(HttpResponse::Ok().json(report(state.served()?, &query)?))
}

fn report(served: &Served, query: &LoadsQuery) -> Result<Value, ApiError> {
    if let Some(rank) = query.dp_rank.filter(|&rank| rank != 0) {
        return Err(out_of_bounds("dp_rank", "0, the only one", rank));
    }
    if let Some(format) = query.format.as_deref().filter(|&format| format != "json") {
        return Err(out_of_bounds("format", "json", format!("{format:?}")));
    }
    let include = query.include.as_deref().unwrap_or("all");
    let sections: Vec<&str> = include.split(',').collect();
    if let Some(other) = sections.iter().find(|section| !SECTIONS.contains(section)) {
        let bound = format!("a list of {}", SECTIONS.join(", "));
        return Err(out_of_bounds("include", &bound, format!("{other:?}")));
    }
    let wants = |section| sections.contains(&section) || sections.contains(&"all");
    let stats = served.engine.stats();
    let used = stats.kv.held + stats.kv.protected;
    let mut load = json!({
        "dp_rank": 0,
        "num_running_reqs": stats.running,
        "num_waiting_reqs": stats.waiting,
        "num_total_reqs": stats.running + stats.waiting,
        "num_used_tokens": used,
        "max_total_num_tokens": stats.kv.total,
        "token_usage": used as f64 / stats.kv.total.max(1) as f64,
    });
    if wants("memory") {
        load["memory"] = json!({
            "weight_bytes": served.info.weight_bytes,
            "kv_cache_bytes": served.info.kv_bytes,
            "cached_tokens": stats.kv.cached(),
            "free_tokens": stats.kv.free,
        });
    }
    if wants("queues") {
        load["queues"] = json!({"waiting": stats.waiting});
    }
    Ok(json!({
        "timestamp": unix_time(),
        "version": env!("CARGO_PKG_VERSION"),
        "accelerator": served.info.device,
        "num_accelerators": 1,
        "loads": [load],
    }))
}

/// `/health_generate`: computes one token, which shows that the engine works and not only that it
/// exists.
///
/// # Errors
/// 503 without a model, when the queue is full, and when no token comes in time.
pub async fn health_generate(state: Data<AppState>) -> Result<HttpResponse, ApiError> {
    let served = state.served()?;
    let job = Job {
        prompts: vec![vec![0]],
        copies: 1,
        params: SamplingParams {
            max_tokens: 1,
            temperature: 0.0,
            ..SamplingParams::default()
        },
        namespace: Some(PROBE_NAMESPACE.to_owned()),
        prompt_field: "text",
        ..Job::default()
    };
    let mut updates = submit(served, job)?;
    let end = async {
        while let Some((_, update)) = updates.next().await {
            match update {
                Update::Failed(error) => return Err(error),
                Update::Finished(_) => return Ok(()),
                _ => {}
            }
        }
        Err(ApiError::internal("the probe's stream broke off"))
    };
    tokio::time::timeout(PROBE_TIMEOUT, end)
        .await
        .unwrap_or_else(|_| {
            let message = format!("no token came within {} s", PROBE_TIMEOUT.as_secs());
            Err(ApiError::unavailable("no_token", message))
        })?;
    Ok(HttpResponse::Ok().json(json!({"status": "ok"})))
}
