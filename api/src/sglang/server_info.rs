//! `/server_info`: configuration, model and the engine's counters, under SGLang's name.

use actix_web::web::Data;
use actix_web::{HttpResponse, Responder};
use serde_json::{Value, json};

use crate::served::Served;
use crate::state::AppState;
use crate::status::VERSION;

/// `/server_info`, which answers also before the model is loaded.
pub async fn server_info(state: Data<AppState>) -> impl Responder {
    let loaded = state.loaded();
    let mut info = json!({
        "version": VERSION,
        "uptime_seconds": state.started.elapsed().as_secs_f64(),
        "config": state.config.shown,
        "served_model_name": loaded.map(|served| &served.id),
        // SGLang's router reads the model's id here, and it must be a string.
        "model": loaded.map(|served| &served.id),
        "model_info": loaded.map(|served| &served.info),
        "kv_events": loaded.and_then(|served| served.kv_events.as_ref()),
        "max_model_len": loaded.map(Served::context),
        "internal_states": loaded.map(engine_state).into_iter().collect::<Vec<_>>(),
    });
    let args = loaded.map(server_args).unwrap_or_default();
    if let (Some(info), Value::Object(args)) = (info.as_object_mut(), args) {
        info.extend(args);
    }
    HttpResponse::Ok().json(info)
}

/// The engine's counters. In `kv`, `free + cached + held == total` at every moment, and `cached` is
/// `evictable + protected`.
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
        "window_kv": {
            "total": stats.window.total,
            "free": stats.window.free,
            "cached": stats.window.cached(),
            "evictable": stats.window.evictable,
            "protected": stats.window.protected,
            "held": stats.window.held,
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
        "drafts": stats.drafts,
        "drafted_tokens": stats.drafted_tokens,
        "accepted_tokens": stats.accepted_tokens,
        "draft_model": served.info.draft_model.as_ref().map(|_| json!({
            "forwards": stats.draft_forwards,
            "failures": stats.draft_failures,
            "computed_tokens": stats.draft_model_tokens,
            "seconds": stats.draft_time.as_secs_f64(),
            "kv": {
                "total": stats.draft_kv.total,
                "free": stats.draft_kv.free,
                "cached": stats.draft_kv.cached(),
                "held": stats.draft_kv.held,
            },
        })),
        "sent_tokens": stats.sent_tokens,
        "received_tokens": stats.received_tokens,
        "kv_token_bytes": served.engine.kv_token_bytes(),
        "finished": stats.finished,
        "cancelled": stats.cancelled,
        "failed": stats.failed,
        "preemptions": stats.preemptions,
    })
}

/// The keys of `/server_info` that SGLang's router and smg read.
fn server_args(served: &Served) -> Value {
    json!({
        "model_path": served.info.model_path,
        "tokenizer_path": served.info.model_path,
        "tp_size": 1,
        "dp_size": 1,
        "disaggregation_mode": served.disaggregation.mode(),
        "pp_size": 1,
        "context_length": served.context(),
        "max_running_requests": served.engine_config.max_running,
        "weight_version": "default",
        "max_total_num_tokens": served.engine.limits().kv_slots,
        "max_req_input_len": served.context().saturating_sub(1),
        "status": "ready",
    })
}
