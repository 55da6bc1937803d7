//! The instruments of [`crate::catalog`], made in a meter, with what records to them.

mod grammar;
mod http;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use opentelemetry::KeyValue;
use opentelemetry::metrics::{BoundCounter, BoundHistogram, Counter, Histogram, Meter};

use crate::catalog::{
    ERROR, Instrument, Kind, MODEL, OPERATION, PHASE, PROVIDER, REASON, REJECTION, SOURCE, STATE,
    STREAM, find,
};
pub use grammar::GrammarSnapshot;
pub(crate) use grammar::observe_grammars;
pub use http::{HttpInstruments, HttpOutcome};

use crate::bounds::Bounds;
use crate::process::{self, ProcessStats};

pub const PROVIDER_NAME: &str = "hearth";
/// `/proc` is read once for all instruments of a scrape.
const FRESH: Duration = Duration::from_millis(50);

/// The engine at a moment; see the instruments that it fills.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineSnapshot {
    pub running: usize,
    pub waiting: usize,
    pub kv_total: usize,
    pub kv_free: usize,
    pub kv_evictable: usize,
    pub kv_protected: usize,
    pub kv_held: usize,
    /// Tokens that the cache in the host's memory has room for, and has.
    pub host_total: usize,
    pub host_used: usize,
    pub demoted_tokens: u64,
    pub loaded_tokens: u64,
    pub steps: u64,
    /// Prompt tokens of started requests, cached ones included.
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub computed_tokens: u64,
    pub generated_tokens: u64,
    pub preemptions: u64,
    /// Since the last step of an engine that has work.
    pub heartbeat_age: Duration,
}

impl EngineSnapshot {
    /// Part of the KV cache that cannot be had, 0 to 1.
    pub fn kv_usage(&self) -> f64 {
        (self.kv_protected + self.kv_held) as f64 / self.kv_total.max(1) as f64
    }
}

/// What does not change about the engine.
#[derive(Clone, Debug, Default)]
pub struct EngineFacts {
    /// Prompt + output tokens of one sequence.
    pub context: usize,
    pub max_running: usize,
    pub max_waiting: usize,
    pub kv_slots: usize,
    pub kv_dtype: String,
    /// Tokens of a page of the KV cache.
    pub page_size: usize,
    /// `lru` and the like.
    pub eviction: String,
    pub prefix_cache: bool,
    /// `CPU` or `GPU`, for the log line.
    pub device: &'static str,
}

pub type ReadEngine = Arc<dyn Fn() -> EngineSnapshot + Send + Sync>;
/// Rates and the like, which are derived from several snapshots.
pub type ReadDerived = Arc<dyn Fn(&EngineSnapshot) -> Derived + Send + Sync>;

/// What is computed from snapshots.
#[derive(Clone, Copy, Debug, Default)]
pub struct Derived {
    pub prompt_throughput: f64,
    pub generation_throughput: f64,
    pub last_hit_rate: f64,
}

fn told(name: &str) -> &'static Instrument {
    find(name).unwrap_or_else(|| panic!("{name} is not in the catalog"))
}

fn histogram(meter: &Meter, name: &'static str, bounds: &Bounds) -> Histogram<f64> {
    let instrument = told(name);
    meter
        .f64_histogram(name)
        .with_unit(instrument.unit)
        .with_description(instrument.help)
        .with_boundaries(bounds.of_instrument(name))
        .build()
}

fn counter(meter: &Meter, name: &'static str) -> Counter<u64> {
    let instrument = told(name);
    meter
        .u64_counter(name)
        .with_unit(instrument.unit)
        .with_description(instrument.help)
        .build()
}

/// An instrument whose values are read when somebody looks.
fn observed(
    meter: &Meter,
    name: &'static str,
    read: impl Fn() -> Vec<(Vec<KeyValue>, f64)> + Send + Sync + 'static,
) {
    let instrument = told(name);
    let (unit, help) = (instrument.unit, instrument.help);
    match instrument.kind {
        Kind::Counter => drop(
            meter
                .u64_observable_counter(name)
                .with_unit(unit)
                .with_description(help)
                .with_callback(move |observer| {
                    for (attributes, value) in read() {
                        observer.observe(value as u64, &attributes);
                    }
                })
                .build(),
        ),
        Kind::Seconds => drop(
            meter
                .f64_observable_counter(name)
                .with_unit(unit)
                .with_description(help)
                .with_callback(move |observer| {
                    for (attributes, value) in read() {
                        observer.observe(value, &attributes);
                    }
                })
                .build(),
        ),
        Kind::Level => drop(
            meter
                .i64_observable_up_down_counter(name)
                .with_unit(unit)
                .with_description(help)
                .with_callback(move |observer| {
                    for (attributes, value) in read() {
                        observer.observe(value as i64, &attributes);
                    }
                })
                .build(),
        ),
        Kind::Gauge => drop(
            meter
                .f64_observable_gauge(name)
                .with_unit(unit)
                .with_description(help)
                .with_callback(move |observer| {
                    for (attributes, value) in read() {
                        observer.observe(value, &attributes);
                    }
                })
                .build(),
        ),
        Kind::Histogram => unreachable!("{name}: histograms are recorded, not observed"),
    }
}

/// Makes the instruments that are there before the model.
pub fn server_instruments(
    meter: &Meter,
    bounds: &Bounds,
    dropped: Arc<dyn Fn() -> u64 + Send + Sync>,
) -> HttpInstruments {
    let cache = Mutex::new(None::<(Instant, Option<ProcessStats>)>);
    let stats = Arc::new(move || {
        let mut cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
        match *cache {
            Some((at, stats)) if at.elapsed() < FRESH => stats,
            _ => {
                let stats = process::stats();
                *cache = Some((Instant::now(), stats));
                stats
            }
        }
    });
    let of_process = |name, value: fn(&ProcessStats) -> f64| {
        let stats = Arc::clone(&stats);
        observed(meter, name, move || {
            let value = stats().map(|stats| (Vec::new(), value(&stats)));
            value.into_iter().collect()
        });
    };
    of_process("process.cpu.time", |stats| stats.cpu_seconds);
    of_process("process.memory.usage", |stats| stats.resident_bytes as f64);
    of_process("process.memory.virtual", |stats| stats.virtual_bytes as f64);
    of_process("process.unix.file_descriptor.count", |stats| {
        stats.open_fds as f64
    });
    of_process("process.thread.count", |stats| stats.threads as f64);
    of_process("hearth.process.file_descriptor.limit", |stats| {
        stats.max_fds as f64
    });
    let started = Instant::now();
    observed(meter, "process.uptime", move || {
        vec![(Vec::new(), started.elapsed().as_secs_f64())]
    });
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |since| since.as_secs_f64());
    observed(meter, "hearth.process.start_time", move || {
        vec![(Vec::new(), since_epoch)]
    });
    observed(meter, "hearth.telemetry.dropped", move || {
        vec![(Vec::new(), dropped() as f64)]
    });
    HttpInstruments::new(meter, bounds)
}

/// How a continuation ended, in vLLM's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Stop,
    Length,
    Abort,
    Error,
}

impl Ending {
    const ALL: [Self; 4] = [Self::Stop, Self::Length, Self::Abort, Self::Error];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Abort => "abort",
            Self::Error => "error",
        }
    }
}

/// Numbers of a continuation that ended; times in seconds where they are known.
#[derive(Clone, Copy, Debug)]
pub struct RequestNumbers {
    /// `chat` or `text_completion`.
    pub operation: &'static str,
    pub stream: bool,
    pub ending: Ending,
    pub duration: f64,
    pub queue: Option<f64>,
    pub prefill: Option<f64>,
    pub decode: Option<f64>,
    pub inference: Option<f64>,
    pub prompt_tokens: usize,
    pub cached_tokens: usize,
    pub completion_tokens: usize,
    pub max_tokens: usize,
    pub preemptions: u64,
}

/// What is recorded while requests run, bound to their attributes.
#[derive(Debug)]
struct Live {
    prompt_tokens: BoundCounter<u64>,
    generation_tokens: BoundCounter<u64>,
}

/// Instruments of the engine and of requests.
#[derive(Debug)]
pub struct EngineInstruments {
    model: String,
    first_token: Histogram<f64>,
    duration: Histogram<f64>,
    per_token: Histogram<f64>,
    inter_token: BoundHistogram<f64>,
    queue: BoundHistogram<f64>,
    prefill: BoundHistogram<f64>,
    decode: BoundHistogram<f64>,
    inference: BoundHistogram<f64>,
    tokenize: BoundHistogram<f64>,
    request_prompt: BoundHistogram<f64>,
    request_generation: BoundHistogram<f64>,
    computed: BoundHistogram<f64>,
    longest: BoundHistogram<f64>,
    max_tokens: BoundHistogram<f64>,
    copies: BoundHistogram<f64>,
    preemptions: BoundHistogram<f64>,
    forward_time: BoundHistogram<f64>,
    execute_time: BoundHistogram<f64>,
    requests: Counter<u64>,
    without_decode: BoundCounter<u64>,
    rejections: BoundCounter<u64>,
    /// Whole answers, then streams.
    live: [Live; 2],
    iteration_tokens: BoundHistogram<f64>,
    step_scheduler: BoundHistogram<f64>,
    step_forward: BoundHistogram<f64>,
    step_execute: BoundHistogram<f64>,
    step_prefills: BoundHistogram<f64>,
    step_decodes: BoundHistogram<f64>,
}

/// A duration that can be recorded: clamped where clocks or bugs say nonsense.
fn sane(seconds: f64) -> f64 {
    if seconds.is_finite() {
        seconds.max(0.0)
    } else {
        0.0
    }
}

impl EngineInstruments {
    pub fn new(
        meter: &Meter,
        model: &str,
        facts: &EngineFacts,
        bounds: &Bounds,
        read: &ReadEngine,
        derived: &ReadDerived,
    ) -> Self {
        let model_attribute = [KeyValue::new(MODEL, model.to_owned())];
        let bound = |name| histogram(meter, name, bounds).bind(&model_attribute);
        let bound_with = |name, key: &'static str, value: &'static str| {
            let [model] = &model_attribute;
            histogram(meter, name, bounds).bind(&[model.clone(), KeyValue::new(key, value)])
        };
        let requests = counter(meter, "llm.requests");
        // vLLM's reasons are there from the start, so that rates have a beginning.
        for reason in Ending::ALL
            .map(Ending::as_str)
            .into_iter()
            .chain(["repetition"])
        {
            for stream in [false, true] {
                requests.add(0, &request_attributes(model, reason, stream));
            }
        }
        let live = [false, true].map(|stream| {
            let [model] = &model_attribute;
            let attributes = [model.clone(), KeyValue::new(STREAM, stream)];
            let live = Live {
                prompt_tokens: counter(meter, "llm.prompt_tokens").bind(&attributes),
                generation_tokens: counter(meter, "llm.generation_tokens").bind(&attributes),
            };
            live.prompt_tokens.add(0);
            live.generation_tokens.add(0);
            live
        });
        let [model_only] = &model_attribute;
        let rejections = counter(meter, "llm.admission_rejections").bind(&[
            model_only.clone(),
            KeyValue::new(REJECTION, "max_num_queued_reqs"),
        ]);
        rejections.add(0);
        let without_decode = counter(meter, "llm.requests_without_decode").bind(&model_attribute);
        without_decode.add(0);
        observe_engine(meter, model, facts, read, derived);
        Self {
            model: model.to_owned(),
            first_token: histogram(meter, "gen_ai.server.time_to_first_token", bounds),
            duration: histogram(meter, "gen_ai.server.request.duration", bounds),
            per_token: histogram(meter, "gen_ai.server.time_per_output_token", bounds),
            inter_token: bound("llm.inter_token_latency"),
            queue: bound("llm.request.queue_time"),
            prefill: bound("llm.request.prefill_time"),
            decode: bound("llm.request.decode_time"),
            inference: bound("llm.request.inference_time"),
            tokenize: bound("llm.request.tokenize_time"),
            request_prompt: bound("llm.request.prompt_tokens"),
            request_generation: bound("llm.request.generation_tokens"),
            computed: bound("llm.request.prefill_kv_computed_tokens"),
            longest: bound("llm.request.max_num_generation_tokens"),
            max_tokens: bound("llm.request.params_max_tokens"),
            copies: bound("llm.request.params_n"),
            preemptions: bound("llm.request.num_preemptions"),
            forward_time: bound("llm.request.model_forward_time"),
            execute_time: bound("llm.request.model_execute_time"),
            requests,
            without_decode,
            rejections,
            live,
            iteration_tokens: bound("llm.iteration_tokens"),
            step_scheduler: bound("llm.engine.step.scheduler_time"),
            step_forward: bound("llm.engine.step.forward_time"),
            step_execute: bound("llm.engine.step.execute_time"),
            step_prefills: bound_with("llm.engine.step.rows", PHASE, "prefill"),
            step_decodes: bound_with("llm.engine.step.rows", PHASE, "decode"),
        }
    }

    fn gen_ai(&self, operation: &'static str, stream: bool) -> Vec<KeyValue> {
        vec![
            KeyValue::new(OPERATION, operation),
            KeyValue::new(PROVIDER, PROVIDER_NAME),
            KeyValue::new(MODEL, self.model.clone()),
            KeyValue::new(STREAM, stream),
        ]
    }

    pub fn started(&self, stream: bool, prompt_tokens: usize) {
        let live = &self.live[usize::from(stream)];
        live.prompt_tokens.add(prompt_tokens as u64);
    }

    pub fn first_token(&self, operation: &'static str, stream: bool, seconds: f64) {
        let attributes = self.gen_ai(operation, stream);
        self.first_token.record(sane(seconds), &attributes);
    }

    /// A token, and how long after the one before it.
    pub fn token(&self, stream: bool, since_last: Option<f64>) {
        self.live[usize::from(stream)].generation_tokens.add(1);
        if let Some(seconds) = since_last {
            self.inter_token.record(sane(seconds));
        }
    }

    /// Tokens that were generated and never seen, such as the one that ends a text.
    pub fn unseen_tokens(&self, stream: bool, tokens: usize) {
        let live = &self.live[usize::from(stream)];
        live.generation_tokens.add(tokens as u64);
    }

    pub fn tokenized(&self, seconds: f64) {
        self.tokenize.record(sane(seconds));
    }

    pub fn rejected(&self) {
        self.rejections.add(1);
    }

    pub fn accepted(&self, copies: usize) {
        self.copies.record(copies as f64);
    }

    /// All continuations of a request ended; the longest has so many tokens.
    pub fn longest(&self, tokens: usize) {
        self.longest.record(tokens as f64);
    }

    pub fn ended(&self, numbers: &RequestNumbers) {
        let reason = numbers.ending.as_str();
        let attributes = request_attributes(&self.model, reason, numbers.stream);
        self.requests.add(1, &attributes);
        let mut attributes = self.gen_ai(numbers.operation, numbers.stream);
        if numbers.completion_tokens > 1
            && let Some(decode) = numbers.decode
        {
            let per_token = decode / (numbers.completion_tokens - 1) as f64;
            self.per_token.record(sane(per_token), &attributes);
        } else {
            self.without_decode.add(1);
        }
        match numbers.ending {
            Ending::Stop | Ending::Length => {}
            Ending::Abort => attributes.push(KeyValue::new(ERROR, "client_disconnect")),
            Ending::Error => attributes.push(KeyValue::new(ERROR, "internal_error")),
        }
        self.duration.record(sane(numbers.duration), &attributes);
        for (histogram, seconds) in [
            (&self.queue, numbers.queue),
            (&self.prefill, numbers.prefill),
            (&self.decode, numbers.decode),
            (&self.inference, numbers.inference),
        ] {
            if let Some(seconds) = seconds {
                histogram.record(sane(seconds));
            }
        }
        let computed = numbers.prompt_tokens.saturating_sub(numbers.cached_tokens);
        self.request_prompt.record(numbers.prompt_tokens as f64);
        self.request_generation
            .record(numbers.completion_tokens as f64);
        self.computed.record(computed as f64);
        self.max_tokens.record(numbers.max_tokens as f64);
        self.preemptions.record(numbers.preemptions as f64);
    }

    /// Sums over the steps of a request, in seconds.
    pub fn model_times(&self, forward: f64, execute: f64) {
        self.forward_time.record(sane(forward));
        self.execute_time.record(sane(execute));
    }

    pub fn step(&self, step: &crate::records::StepRecord) {
        self.iteration_tokens.record(step.tokens as f64);
        self.step_scheduler.record(step.scheduler().as_secs_f64());
        self.step_forward.record(step.forward().as_secs_f64());
        self.step_execute.record(step.execute().as_secs_f64());
        self.step_prefills.record(step.prefill_rows as f64);
        self.step_decodes.record(step.decode_rows as f64);
    }
}

fn request_attributes(model: &str, reason: &'static str, stream: bool) -> [KeyValue; 3] {
    [
        KeyValue::new(MODEL, model.to_owned()),
        KeyValue::new(REASON, reason),
        KeyValue::new(STREAM, stream),
    ]
}

/// The instruments that are read from the engine when somebody looks.
fn observe_engine(
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
    single("llm.host_cache_usage", |s| {
        s.host_used as f64 / s.host_total.max(1) as f64
    });
    single("llm.host_cache_demoted_tokens", |s| s.demoted_tokens as f64);
    single("llm.host_cache_loaded_tokens", |s| s.loaded_tokens as f64);
    single("llm.prefix_cache_hits", |s| s.cached_tokens as f64);
    single("llm.num_preemptions", |s| s.preemptions as f64);
    single("llm.engine.steps", |s| s.steps as f64);
    single("llm.engine.computed_tokens", |s| s.computed_tokens as f64);
    single("llm.engine.heartbeat_age", |s| {
        s.heartbeat_age.as_secs_f64()
    });
    // A cache that is switched off is not asked.
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
    several("llm.kv_cache_tokens", STATE, |s| {
        vec![
            ("free", s.kv_free as f64),
            ("evictable", s.kv_evictable as f64),
            ("protected", s.kv_protected as f64),
            ("held", s.kv_held as f64),
        ]
    });
    several("llm.prompt_tokens_by_source", SOURCE, |s| {
        vec![
            (
                "local_compute",
                s.prompt_tokens.saturating_sub(s.cached_tokens) as f64,
            ),
            ("local_cache_hit", s.cached_tokens as f64),
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
        // Python's words, which whoever reads vLLM's label compares with.
        KeyValue::new(
            "enable_prefix_caching",
            if facts.prefix_cache { "True" } else { "False" },
        ),
        KeyValue::new(
            "num_gpu_blocks",
            (facts.kv_slots / facts.page_size.max(1)).to_string(),
        ),
        KeyValue::new("num_cpu_blocks", "0"),
        KeyValue::new("kv_cache_layout", "slots"),
        KeyValue::new("eviction_policy", facts.eviction.clone()),
    ];
    observed(meter, "llm.cache_config_info", move || {
        vec![(information.clone(), 1.0)]
    });
}
