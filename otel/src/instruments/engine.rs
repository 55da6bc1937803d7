//! Instruments whose values are read from the engine at each collection.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::Meter;

use super::build::observed;
use crate::catalog::{MODEL, SOURCE, STATE, TIER, WAIT_REASON};

/// The most tokens of a draft.
pub const DRAFT_POSITIONS: usize = 16;

/// The state of the engine at one moment. Totals count from the start of the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineSnapshot {
    pub running: usize,
    pub waiting: usize,
    /// The part of `waiting` that waits for something else than room.
    pub deferred: usize,
    pub kv_total: usize,
    pub kv_free: usize,
    pub kv_evictable: usize,
    pub kv_protected: usize,
    pub kv_held: usize,
    /// Slots of layers that attend a window, if these have a pool of their own.
    pub window_total: usize,
    pub window_free: usize,
    pub window_evictable: usize,
    /// Tokens that the cache in host memory can hold.
    pub host_total: usize,
    /// Tokens that it holds.
    pub host_used: usize,
    pub demoted_tokens: u64,
    pub loaded_tokens: u64,
    /// Tokens of cached prefixes that were read for files, and those that were read from files.
    pub saved_tokens: u64,
    pub restored_tokens: u64,
    /// Requests that only hold slots during a transfer.
    pub transferring: usize,
    pub sent_tokens: u64,
    pub received_tokens: u64,
    pub steps: u64,
    /// Prompt tokens of started requests, cached ones included.
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    /// The part of `cached_tokens` that came from host memory.
    pub host_tokens: u64,
    pub computed_tokens: u64,
    pub generated_tokens: u64,
    pub preemptions: u64,
    /// How often tokens were drafted for a request, by speculative decoding.
    pub drafts: u64,
    pub drafted_tokens: u64,
    pub accepted_tokens: u64,
    /// The part of `accepted_tokens` at each place of a draft, from the first.
    pub accepted_at: [u64; DRAFT_POSITIONS],
    /// Forward passes of the draft model.
    pub draft_forwards: u64,
    pub draft_failures: u64,
    pub draft_model_tokens: u64,
    pub draft_time: Duration,
    /// Time since the last step while the engine has work; zero if it has none.
    pub heartbeat_age: Duration,
}

impl EngineSnapshot {
    /// Window slots that are in use and cannot be evicted.
    fn window_used(&self) -> f64 {
        let unused = self.window_free + self.window_evictable;
        self.window_total.saturating_sub(unused) as f64
    }

    /// Fraction of the KV slots that are in use and cannot be evicted, 0 to 1.
    pub fn kv_usage(&self) -> f64 {
        (self.kv_protected + self.kv_held) as f64 / self.kv_total.max(1) as f64
    }

    /// Cached prompt tokens that were on the device.
    fn device_hits(&self) -> u64 {
        self.cached_tokens.saturating_sub(self.host_tokens)
    }
}

/// Facts about the engine that do not change while it runs.
#[derive(Clone, Debug, Default)]
pub struct EngineFacts {
    /// Longest sequence in tokens, prompt and output together.
    pub context: usize,
    pub max_running: usize,
    pub max_waiting: usize,
    pub kv_slots: usize,
    /// Slots of layers that attend a window; 0 if these have the slots of the other layers.
    pub window_slots: usize,
    /// Token slots of the cache in host memory.
    pub host_slots: usize,
    /// `f32`, `f16`, `bf16` or `int8`.
    pub kv_dtype: String,
    /// Tokens of a page of the KV cache.
    pub page_size: usize,
    /// Name of the eviction policy, such as `lru`.
    pub eviction: String,
    pub prefix_cache: bool,
    /// The most tokens of a draft as configured; 0 without speculative decoding.
    pub draft_positions: usize,
    /// True if a draft model makes drafts.
    pub draft_model: bool,
    /// `CPU` or `GPU`, for the statistics log line.
    pub device: &'static str,
}

pub type ReadEngine = Arc<dyn Fn() -> EngineSnapshot + Send + Sync>;
/// Computes rates from the given snapshot and earlier ones.
pub type ReadDerived = Arc<dyn Fn(&EngineSnapshot) -> Derived + Send + Sync>;

/// Values computed from several snapshots.
#[derive(Clone, Copy, Debug, Default)]
pub struct Derived {
    /// Prompt tokens computed per second; `generation_throughput` likewise.
    pub prompt_throughput: f64,
    pub generation_throughput: f64,
    /// Fraction of the prompt tokens that were cached, over the requests started last.
    pub last_hit_rate: f64,
}

/// Builds the instruments; `read` and `derived` are called at each collection.
pub(super) fn observe_engine(
    meter: &Meter,
    model: &str,
    facts: &EngineFacts,
    read: &ReadEngine,
    derived: &ReadDerived,
) {
    let attribute = KeyValue::new(MODEL, model.to_owned());
    let single = |name, value: fn(&EngineSnapshot) -> f64| {
        let (read, attribute) = (Arc::clone(read), attribute.clone());
        observed(meter, name, move || {
            vec![(vec![attribute.clone()], value(&read()))]
        });
    };
    single("llm.num_requests_running", |s| s.running as f64);
    single("llm.num_requests_waiting", |s| s.waiting as f64);
    single("llm.kv_cache_usage", EngineSnapshot::kv_usage);
    single("llm.kv_cache_capacity", |s| s.kv_total as f64);
    if facts.window_slots > 0 {
        single("llm.window_kv_usage", |s| {
            s.window_used() / s.window_total.max(1) as f64
        });
        single("llm.window_kv_capacity", |s| s.window_total as f64);
    }
    single("llm.host_cache_usage", |s| {
        s.host_used as f64 / s.host_total.max(1) as f64
    });
    single("llm.host_cache_demoted_tokens", |s| s.demoted_tokens as f64);
    single("llm.host_cache_loaded_tokens", |s| s.loaded_tokens as f64);
    if facts.host_slots > 0 {
        single("llm.host_cache_tokens", |s| s.host_used as f64);
        single("llm.host_cache_capacity", |s| s.host_total as f64);
        single("llm.host_cache_hits", |s| s.host_tokens as f64);
        single("llm.host_cache_queries", |s| {
            s.prompt_tokens.saturating_sub(s.device_hits()) as f64
        });
    }
    single("llm.cache_dir.saved_tokens", |s| s.saved_tokens as f64);
    single("llm.cache_dir.restored_tokens", |s| {
        s.restored_tokens as f64
    });
    single("llm.num_requests_transferring", |s| s.transferring as f64);
    single("llm.kv_transfer.sent_tokens", |s| s.sent_tokens as f64);
    single("llm.kv_transfer.received_tokens", |s| {
        s.received_tokens as f64
    });
    single("llm.num_preemptions", |s| s.preemptions as f64);
    single("llm.engine.steps", |s| s.steps as f64);
    single("llm.engine.computed_tokens", |s| s.computed_tokens as f64);
    single("llm.engine.heartbeat_age", |s| {
        s.heartbeat_age.as_secs_f64()
    });
    // A prefix cache that is switched off receives no queries.
    if facts.prefix_cache {
        single("llm.prefix_cache_queries", |s| s.prompt_tokens as f64);
    } else {
        single("llm.prefix_cache_queries", |_| 0.0);
    }
    let several =
        |name, key: &'static str, values: fn(&EngineSnapshot) -> Vec<(&'static str, f64)>| {
            let (read, attribute) = (Arc::clone(read), attribute.clone());
            observed(meter, name, move || {
                let values = values(&read()).into_iter();
                values
                    .map(|(kind, value)| (vec![attribute.clone(), KeyValue::new(key, kind)], value))
                    .collect()
            });
        };
    several("llm.num_requests_waiting_by_reason", WAIT_REASON, |s| {
        vec![
            ("capacity", s.waiting.saturating_sub(s.deferred) as f64),
            ("deferred", s.deferred as f64),
        ]
    });
    several("llm.prefix_cache_hits", TIER, |s| {
        vec![
            ("device", s.device_hits() as f64),
            ("host", s.host_tokens as f64),
        ]
    });
    several("llm.kv_cache_tokens", STATE, |s| {
        vec![
            ("free", s.kv_free as f64),
            ("evictable", s.kv_evictable as f64),
            ("protected", s.kv_protected as f64),
            ("held", s.kv_held as f64),
        ]
    });
    if facts.window_slots > 0 {
        several("llm.window_kv_tokens", STATE, |s| {
            vec![
                ("free", s.window_free as f64),
                ("evictable", s.window_evictable as f64),
                ("used", s.window_used()),
            ]
        });
    }
    several("llm.prompt_tokens_by_source", SOURCE, |s| {
        vec![
            (
                "local_compute",
                s.prompt_tokens
                    .saturating_sub(s.cached_tokens + s.received_tokens) as f64,
            ),
            ("local_cache_hit", s.cached_tokens as f64),
            ("external_kv_transfer", s.received_tokens as f64),
        ]
    });
    let computed = |name, value: fn(&Derived) -> f64| {
        let (read, derived) = (Arc::clone(read), Arc::clone(derived));
        let attribute = attribute.clone();
        observed(meter, name, move || {
            vec![(vec![attribute.clone()], value(&derived(&read())))]
        });
    };
    computed("llm.engine.prompt_throughput", |d| d.prompt_throughput);
    computed("llm.engine.generation_throughput", |d| {
        d.generation_throughput
    });
    computed("llm.prefix_cache_last_hit_rate", |d| d.last_hit_rate);
    let constant = |name, value: usize| {
        let attribute = attribute.clone();
        observed(meter, name, move || {
            vec![(vec![attribute.clone()], value as f64)]
        });
    };
    constant("llm.context_length", facts.context);
    constant("llm.max_num_requests_running", facts.max_running);
    constant("llm.max_num_requests_waiting", facts.max_waiting);
    constant("llm.kv_cache_page_size", facts.page_size);
    constant(
        "llm.kv_cache_pages",
        facts.kv_slots / facts.page_size.max(1),
    );
    let information = vec![
        KeyValue::new("block_size", facts.page_size.to_string()),
        KeyValue::new("cache_dtype", facts.kv_dtype.clone()),
        // Python's spelling, as in vLLM's label.
        KeyValue::new(
            "enable_prefix_caching",
            if facts.prefix_cache { "True" } else { "False" },
        ),
        KeyValue::new(
            "num_gpu_blocks",
            (facts.kv_slots / facts.page_size.max(1)).to_string(),
        ),
        KeyValue::new(
            "num_cpu_blocks",
            (facts.host_slots / facts.page_size.max(1)).to_string(),
        ),
        KeyValue::new("kv_cache_layout", "slots"),
        // The pool's size is given in tokens and not as a part of the memory, and no weights are
        // offloaded.
        KeyValue::new("gpu_memory_utilization", "None"),
        KeyValue::new("cpu_offload_gb", "0"),
        // Integers have scales, which are computed with them.
        KeyValue::new(
            "calculate_kv_scales",
            if facts.kv_dtype == "int8" {
                "True"
            } else {
                "False"
            },
        ),
        KeyValue::new("eviction_policy", facts.eviction.clone()),
    ];
    observed(meter, "llm.cache_config_info", move || {
        vec![(information.clone(), 1.0)]
    });
}
