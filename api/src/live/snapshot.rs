//! The events of `/live`. docs/API.md describes their fields.

use std::time::Duration;

use hearth_engine::{KvStats, NodeState, Outline, OutlinedNode, Picture, RunningRequest};
use hearth_otel::StepSums;
use serde::Serialize;
use serde_json::json;

use crate::sse;
use crate::state::AppState;
use crate::status::VERSION;

/// The first event.
pub fn hello(state: &AppState, text: bool) -> Vec<u8> {
    let served = state.loaded();
    let mut out = Vec::new();
    let hello = json!({
        "version": VERSION,
        "text": text,
        "model": served.map(|served| &served.id),
        "device": served.map(|served| &served.info.device),
        "formats": served.map(|served| served.info.formats()),
        "parameters": served.map(|served| served.info.parameters),
        "context": served.map(|served| served.context()),
        "kv_slots": served.map(|served| served.engine.limits().kv_slots),
        "max_running": served.map(|served| served.engine_config.max_running),
        "max_queue": served.map(|served| served.engine_config.max_queue),
        "page_size": served.map(|served| served.engine_config.page_size),
    });
    sse::push_named(&mut out, "hello", &hello);
    out
}

/// A snapshot while the model is loading.
pub fn loading(state: &AppState) -> Vec<u8> {
    let mut out = Vec::new();
    let snapshot = json!({"time": seconds(state.started.elapsed()), "state": "loading"});
    sse::push_named(&mut out, "snapshot", &snapshot);
    out
}

#[derive(Serialize)]
struct Snapshot {
    /// Seconds since the start of the server.
    time: f64,
    state: &'static str,
    /// Seconds for which the engine has not answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    late: Option<f64>,
    waiting: usize,
    deferred: usize,
    running: usize,
    kv: Kv,
    #[serde(skip_serializing_if = "Option::is_none")]
    host_kv: Option<Kv>,
    counters: Counters,
    steps: Steps,
    /// Request and tokens.
    batch: Vec<(u64, usize)>,
    /// Request, prompt tokens, cached tokens of the prompt, computed tokens, all tokens.
    requests: Vec<(u64, usize, usize, usize, usize)>,
}

#[derive(Serialize)]
struct Kv {
    total: usize,
    free: usize,
    evictable: usize,
    protected: usize,
    held: usize,
}

impl From<&KvStats> for Kv {
    fn from(stats: &KvStats) -> Self {
        Self {
            total: stats.total,
            free: stats.free,
            evictable: stats.evictable,
            protected: stats.protected,
            held: stats.held,
        }
    }
}

/// They count from the start of the server.
#[derive(Serialize)]
struct Counters {
    steps: u64,
    prompt_tokens: u64,
    cached_tokens: u64,
    computed_tokens: u64,
    generated_tokens: u64,
    forced_tokens: u64,
    accepted_tokens: u64,
    finished: u64,
    cancelled: u64,
    failed: u64,
    preemptions: u64,
}

/// The steps since the snapshot before, with their times in milliseconds.
#[derive(Serialize)]
struct Steps {
    count: usize,
    scheduler: f64,
    forward: f64,
    execute: f64,
    prefill_tokens: usize,
    decode_rows: usize,
}

/// A snapshot. `late` is how long the engine has not answered, if it has not.
pub fn snapshot(
    state: &AppState,
    picture: &Picture,
    steps: &StepSums,
    late: Option<Duration>,
) -> Vec<u8> {
    let stats = &picture.stats;
    let request = |request: &RunningRequest| {
        let &RunningRequest {
            id,
            prompt,
            cached,
            computed,
            tokens,
        } = request;
        (id, prompt, cached, computed, tokens)
    };
    let snapshot = Snapshot {
        time: seconds(state.started.elapsed()),
        state: match state.served() {
            Ok(_) if stats.paused => "paused",
            Ok(_) => "ready",
            Err(_) => "unavailable",
        },
        late: late.map(seconds),
        waiting: stats.waiting,
        deferred: stats.deferred,
        running: stats.running,
        kv: Kv::from(&stats.kv),
        host_kv: (stats.host.total > 0).then(|| Kv::from(&stats.host)),
        counters: Counters {
            steps: stats.steps,
            prompt_tokens: stats.prompt_tokens,
            cached_tokens: stats.cached_tokens,
            computed_tokens: stats.computed_tokens,
            generated_tokens: stats.generated_tokens,
            forced_tokens: stats.forced_tokens,
            accepted_tokens: stats.accepted_tokens,
            finished: stats.finished,
            cancelled: stats.cancelled,
            failed: stats.failed,
            preemptions: stats.preemptions,
        },
        steps: Steps {
            count: steps.steps,
            scheduler: milliseconds(steps.scheduler),
            forward: milliseconds(steps.forward),
            execute: milliseconds(steps.execute),
            prefill_tokens: steps.prefill_tokens,
            decode_rows: steps.decode_rows,
        },
        batch: picture.batch.clone(),
        requests: picture.running.iter().map(request).collect(),
    };
    let mut out = Vec::new();
    sse::push_named(&mut out, "snapshot", &snapshot);
    out
}

#[derive(Serialize)]
struct Tree {
    /// Nodes and tokens of the whole tree.
    nodes: usize,
    tokens: usize,
    /// Id, place of the parent in this list, tokens, state, children that are not in this list.
    shown: Vec<(String, Option<usize>, usize, u8, usize)>,
}

/// The prefix cache.
pub fn tree(cache: &Outline) -> Vec<u8> {
    let node = |node: &OutlinedNode| {
        let state = match node.state {
            NodeState::Cached => 0,
            NodeState::InUse => 1,
            NodeState::EvictedSoon => 2,
        };
        let id = format!("{:x}", node.id);
        (id, node.parent, node.tokens, state, node.hidden_children)
    };
    let tree = Tree {
        nodes: cache.total_nodes,
        tokens: cache.total_tokens,
        shown: cache.nodes.iter().map(node).collect(),
    };
    let mut out = Vec::new();
    sse::push_named(&mut out, "tree", &tree);
    out
}

fn seconds(time: Duration) -> f64 {
    milliseconds(time) / 1e3
}

/// Rounded to microseconds, which keeps the text short.
fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}
