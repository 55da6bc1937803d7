//! Where the engine's numbers meet the instruments.

use std::sync::Arc;
use std::time::Duration;

use hearth_engine::{EngineStats, StepObserver, StepReport};
use hearth_grammar::{Problem, Stats};
use hearth_otel::{
    EngineFacts, EngineSnapshot, GrammarSnapshot, StepRecord, Telemetry, TelemetryError,
};

use crate::served::Served;

/// Connects `telemetry` to the engine and the grammars of `served`.
///
/// # Errors
/// The telemetry thread cannot be started.
pub fn attach(telemetry: &Telemetry, served: &Served) -> Result<(), TelemetryError> {
    let config = &served.engine_config;
    let limits = served.engine.limits();
    let on_cpu = served.info.device.is_empty() || served.info.device.starts_with("cpu");
    let facts = EngineFacts {
        context: served.context(),
        max_running: config.max_running,
        max_waiting: config.max_queue,
        kv_slots: limits.kv_slots,
        window_slots: served.engine.stats().window.total,
        host_slots: served.engine.stats().host.total,
        kv_dtype: served.info.kv_cache_dtype.clone(),
        page_size: config.page_size,
        eviction: format!("{:?}", config.eviction).to_lowercase(),
        prefix_cache: config.prefix_cache,
        draft_model: served.info.draft_model.is_some(),
        draft_positions: served.engine.speculation().map_or(0, |s| s.num_tokens),
        device: if on_cpu { "CPU" } else { "GPU" },
    };
    let engine = served.engine.watch();
    telemetry.serve_model(&served.id, facts, move || {
        snapshot(&engine.stats(), engine.heartbeat_age())
    })?;
    let grammars = served.grammars.stats();
    telemetry.serve_grammars(&served.id, move || grammar_snapshot(&grammars()));
    // As in vLLM, a server without adapters has no such metric.
    if served.adapters.is_on() {
        let adapters = Arc::clone(&served.adapters);
        telemetry.serve_adapters(adapters.slots(), move || adapters.in_use());
    }
    if telemetry.reads_steps() {
        served
            .engine
            .observe(observer(telemetry, config.prefix_cache));
    }
    Ok(())
}

/// Hands the steps of an engine over to `telemetry`, which has the model already. `cached` says
/// whether the engine has a prefix cache.
fn observer(telemetry: &Telemetry, cached: bool) -> StepObserver {
    let outbox = telemetry.steps();
    StepObserver {
        requests: telemetry.traces_steps(),
        observe: Box::new(move |reports| outbox.send(reports.map(|report| step(report, cached)))),
    }
}

fn grammar_snapshot(stats: &Stats) -> GrammarSnapshot {
    GrammarSnapshot {
        compilations: stats.compilations,
        compile_time: stats.compile_time,
        cache_hits: stats.cache_hits,
        cache_misses: stats.cache_misses,
        masks: stats.masks,
        mask_time: stats.mask_time,
        forced_tokens: stats.forced_tokens,
        forced_bytes: stats.forced_bytes,
        fallbacks: stats.fallbacks,
        refusals: [
            (Problem::Invalid.code(), stats.invalid),
            (Problem::Unsupported.code(), stats.unsupported),
            (Problem::TooComplex.code(), stats.too_complex),
        ],
    }
}

fn snapshot(stats: &EngineStats, heartbeat_age: Duration) -> EngineSnapshot {
    EngineSnapshot {
        running: stats.running,
        waiting: stats.waiting,
        deferred: stats.deferred,
        kv_total: stats.kv.total,
        kv_free: stats.kv.free,
        kv_evictable: stats.kv.evictable,
        kv_protected: stats.kv.protected,
        kv_held: stats.kv.held,
        window_total: stats.window.total,
        window_free: stats.window.free,
        window_evictable: stats.window.evictable,
        host_total: stats.host.total,
        host_used: stats.host.total - stats.host.free,
        demoted_tokens: stats.demoted_tokens,
        loaded_tokens: stats.loaded_tokens,
        saved_tokens: stats.saved_tokens,
        restored_tokens: stats.restored_tokens,
        transferring: stats.transferring,
        sent_tokens: stats.sent_tokens,
        received_tokens: stats.received_tokens,
        steps: stats.steps,
        prompt_tokens: stats.prompt_tokens,
        cached_tokens: stats.cached_tokens,
        host_tokens: stats.host_tokens,
        computed_tokens: stats.computed_tokens,
        generated_tokens: stats.generated_tokens,
        preemptions: stats.preemptions,
        drafts: stats.drafts,
        drafted_tokens: stats.drafted_tokens,
        accepted_tokens: stats.accepted_tokens,
        accepted_at: stats.accepted_at,
        draft_forwards: stats.draft_forwards,
        draft_failures: stats.draft_failures,
        draft_model_tokens: stats.draft_model_tokens,
        draft_time: stats.draft_time,
        heartbeat_age,
    }
}

fn step(report: StepReport, cached: bool) -> StepRecord {
    let after = report.occupancy;
    StepRecord {
        started: report.started,
        scheduled: report.scheduled,
        forwarded: report.forwarded,
        finished: report.finished,
        tokens: report.prefill_tokens + report.generated_tokens as usize,
        prefill_rows: report.prefill_rows,
        prefill_tokens: report.prefill_tokens,
        decode_rows: report.decode_rows,
        started_requests: report.started_requests,
        queried_tokens: if cached { report.queried_tokens } else { 0 },
        cached_tokens: report.cached_tokens,
        running: after.running,
        waiting: after.waiting,
        kv_used: after.kv_used,
        kv_usage: after.kv_used as f64 / after.kv_total.max(1) as f64,
        failed: report.failed,
        requests: report.requests,
    }
}
