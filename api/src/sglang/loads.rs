//! The load of the server, for routers that balance by it.

use std::sync::atomic::Ordering;

use actix_web::HttpResponse;
use actix_web::web::{Data, Query};
use hearth_engine::EngineStats;
use serde::Deserialize;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::error::{ApiError, out_of_bounds};
use crate::served::Served;
use crate::state::AppState;
use crate::status::VERSION;

/// SGLang's `gb` are of 2^30 bytes.
const GIB: f64 = (1u64 << 30) as f64;

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
        "num_tokens": used(&stats),
    }])))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadsQuery {
    dp_rank: Option<i64>,
    include: Option<String>,
    format: Option<String>,
}

/// The sections of SGLang's `/v1/loads`. The first is always there.
const SECTIONS: [&str; 7] = ["core", "memory", "spec", "lora", "disagg", "queues", "all"];

/// `/v1/loads`, with the names and the units of SGLang 0.5.23. docs/API.md says where each value
/// comes from.
///
/// # Errors
/// 400 for an unknown section or format, 503 without a model.
pub async fn loads(
    state: Data<AppState>,
    query: Result<Query<LoadsQuery>, actix_web::Error>,
) -> Result<HttpResponse, ApiError> {
    let Query(query) = query.map_err(|error| ApiError::bad_request(error.to_string()))?;
    if let Some(rank) = query.dp_rank.filter(|&rank| rank != 0) {
        return Err(out_of_bounds("dp_rank", "0, the only one", rank));
    }
    if let Some(format) = query.format.as_deref().filter(|&format| format != "json") {
        return Err(out_of_bounds("format", "json", format!("{format:?}")));
    }
    let include = query.include.as_deref().unwrap_or("all");
    let sections: Vec<&str> = include.split(',').map(str::trim).collect();
    if let Some(other) = sections.iter().find(|section| !SECTIONS.contains(section)) {
        let bound = format!("a list of {}", SECTIONS.join(", "));
        return Err(out_of_bounds("include", &bound, format!("{other:?}")));
    }
    let served = state.served()?;
    let now = OffsetDateTime::now_utc().format(&Rfc3339);
    Ok(HttpResponse::Ok().json(json!({
        "timestamp": now.map_err(|error| ApiError::internal(error.to_string()))?,
        "version": VERSION,
        "accelerator": served.info.device,
        "num_accelerators": 1,
        "loads": [load(&state, served, &sections)],
    })))
}

fn load(state: &AppState, served: &Served, sections: &[&str]) -> Value {
    let wants = |section| sections.contains(&section) || sections.contains(&"all");
    let stats = served.engine.stats();
    let rates = state.telemetry.rates().unwrap_or_default();
    let used = used(&stats);
    let waiting_tokens = state.waiting_tokens.load(Ordering::Relaxed);
    // SGLang estimates it like this, unless its queue is ordered by cached prefixes.
    let uncached = (waiting_tokens as f64 * (1.0 - rates.last_hit_rate)).round() as u64;
    let mut load = json!({
        "dp_rank": 0,
        "num_running_reqs": stats.running,
        "num_waiting_reqs": stats.waiting,
        "num_total_reqs": stats.running + stats.waiting,
        "num_waiting_uncached_tokens": uncached,
        "num_used_tokens": used,
        "num_total_tokens": used + waiting_tokens,
        "num_active_tokens": used + waiting_tokens,
        "num_prealloc_ready_tokens": 0,
        "max_total_num_tokens": stats.kv.total,
        "max_running_requests": served.engine_config.max_running,
        "token_usage": used as f64 / stats.kv.total.max(1) as f64,
        "gen_throughput": rates.generation_throughput,
        "cache_hit_rate": rates.last_hit_rate,
        "utilization": 0.0,
        "total_prefill_uncached_tokens": stats.prompt_tokens.saturating_sub(stats.cached_tokens),
        "total_prefill_busy_us": null,
        "decode_moments": null,
    });
    if wants("memory") {
        let info = &served.info;
        let draft = info.draft_model.as_ref();
        let (weights, kv) = draft.map_or((0, 0), |draft| (draft.weight_bytes, draft.kv_bytes));
        load["memory"] = json!({
            "weight_gb": (info.weight_bytes + weights) as f64 / GIB,
            "kv_cache_gb": (info.kv_bytes + kv) as f64 / GIB,
            "graph_gb": 0.0,
            "token_capacity": stats.kv.total,
            "cached_tokens": stats.kv.cached(),
            "free_tokens": stats.kv.free,
        });
    }
    if wants("disagg") {
        load["disaggregation"] = json!({
            "mode": served.disaggregation.mode(),
            "prefill_bootstrap_queue_reqs": 0,
            "prefill_inflight_queue_reqs": match served.disaggregation.receives() {
                true => 0,
                false => stats.transferring,
            },
            "decode_prealloc_queue_reqs": 0,
            "decode_transfer_queue_reqs": match served.disaggregation.receives() {
                true => stats.transferring,
                false => 0,
            },
            "decode_retracted_queue_reqs": 0,
            "kv_transfer_speed_gb_s": 0.0,
            "kv_transfer_latency_ms": 0.0,
        });
    }
    if wants("queues") {
        load["queues"] = json!({
            "waiting": stats.waiting,
            "grammar": 0,
            "paused": if stats.paused { stats.running } else { 0 },
            "retracted": 0,
            "prealloc_ready": 0,
        });
    }
    load
}

/// Tokens whose slots no other request can have.
fn used(stats: &EngineStats) -> usize {
    stats.kv.held + stats.kv.protected
}
