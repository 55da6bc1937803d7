//! The canonical instruments: everything that is measured, under OpenTelemetry's names.
//!
//! OTLP exports exactly these. A name contains no colon and does not end in `_total`; the
//! other vocabularies are projections of these instruments ([`crate::rows`]).

use crate::buckets::Buckets;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Counts events or tokens; never falls.
    Counter,
    /// A sum of seconds; never falls.
    Seconds,
    /// A whole number that rises and falls.
    Level,
    /// A fraction or a rate.
    Gauge,
    Histogram,
}

#[derive(Clone, Copy, Debug)]
pub struct Instrument {
    pub name: &'static str,
    pub kind: Kind,
    /// A UCUM unit, as OpenTelemetry asks for: `s`, `By`, `{token}`.
    pub unit: &'static str,
    pub help: &'static str,
    pub attributes: &'static [&'static str],
    /// Bucket families of the instrument itself; it also records with the bounds of its
    /// projections.
    pub buckets: &'static [Buckets],
}

/// The value of [`PROVIDER`].
pub const PROVIDER_NAME: &str = "hearth";

pub const OPERATION: &str = "gen_ai.operation.name";
pub const PROVIDER: &str = "gen_ai.provider.name";
pub const MODEL: &str = "gen_ai.request.model";
pub const STREAM: &str = "gen_ai.request.stream";
pub const ERROR: &str = "error.type";
pub const METHOD: &str = "http.request.method";
pub const ROUTE: &str = "http.route";
pub const STATUS: &str = "http.response.status_code";
pub const SCHEME: &str = "url.scheme";
pub const REASON: &str = "llm.finish_reason";
pub const SOURCE: &str = "llm.prompt.source";
pub const STATE: &str = "llm.kv_cache.state";
pub const TIER: &str = "llm.cache.tier";
pub const WAIT_REASON: &str = "llm.wait.reason";
pub const PHASE: &str = "llm.phase";
pub const REJECTION: &str = "llm.rejection.reason";
pub const POSITION: &str = "llm.speculation.position";
pub const REFUSAL: &str = "llm.grammar.refusal.reason";
pub const CLIENT: &str = "llm.client";
pub const DROP_REASON: &str = "hearth.log.drop_reason";
/// Left out for requests of the base model.
pub const ADAPTER: &str = "llm.lora.adapter";

const GEN_AI: &[&str] = &[OPERATION, PROVIDER, MODEL, STREAM, ADAPTER];
const GEN_AI_ERROR: &[&str] = &[OPERATION, PROVIDER, MODEL, STREAM, ADAPTER, ERROR];
const HTTP: &[&str] = &[METHOD, SCHEME, ROUTE, STATUS, ERROR];
const HTTP_BODY: &[&str] = &[METHOD, SCHEME, ROUTE, STATUS];
const NONE: &[&str] = &[MODEL];
const OF_CLIENT: &[&str] = &[MODEL, CLIENT];
const PROCESS: &[&str] = &[];
const LOG_DROPPED: &[&str] = &[DROP_REASON];

const fn histogram(
    name: &'static str,
    unit: &'static str,
    attributes: &'static [&'static str],
    buckets: &'static [Buckets],
    help: &'static str,
) -> Instrument {
    Instrument {
        name,
        kind: Kind::Histogram,
        unit,
        help,
        attributes,
        buckets,
    }
}

const fn number(
    name: &'static str,
    kind: Kind,
    unit: &'static str,
    attributes: &'static [&'static str],
    help: &'static str,
) -> Instrument {
    Instrument {
        name,
        kind,
        unit,
        help,
        attributes,
        buckets: &[],
    }
}

/// HTTP and the process: instruments that exist before the model is loaded.
#[rustfmt::skip]
pub const SERVER: &[Instrument] = &[
    histogram("http.server.request.duration", "s", HTTP, &[Buckets::HttpServer],
        "Duration of HTTP requests, from the head of the request to the last byte of the answer, or to the disconnect (status 499)."),
    number("http.server.active_requests", Kind::Level, "{request}", &[METHOD, SCHEME, ROUTE],
        "HTTP requests whose answers are not complete."),
    histogram("http.server.request.body.size", "By", HTTP_BODY, &[Buckets::Bytes],
        "Declared size of request bodies; 0 where none is declared."),
    histogram("http.server.response.body.size", "By", HTTP_BODY, &[Buckets::Bytes],
        "Size of response bodies as sent, streams included."),
    number("process.cpu.time", Kind::Seconds, "s", PROCESS,
        "Total user and system CPU time spent in seconds."),
    number("process.memory.usage", Kind::Level, "By", PROCESS, "Resident memory size in bytes."),
    number("process.memory.virtual", Kind::Level, "By", PROCESS, "Virtual memory size in bytes."),
    number("process.unix.file_descriptor.count", Kind::Level, "{file_descriptor}", PROCESS,
        "Number of open file descriptors."),
    number("process.thread.count", Kind::Level, "{thread}", PROCESS, "Number of threads."),
    number("process.uptime", Kind::Gauge, "s", PROCESS, "Time since the server started."),
    number("hearth.process.start_time", Kind::Gauge, "s", PROCESS,
        "Start time of the process since the Unix epoch in seconds."),
    number("hearth.process.file_descriptor.limit", Kind::Level, "{file_descriptor}", PROCESS,
        "Maximum number of open file descriptors."),
    number("hearth.telemetry.dropped", Kind::Counter, "{record}", PROCESS,
        "Records of steps and requests that were dropped because telemetry could not keep up; serving never waits for it."),
    number("hearth.log.dropped", Kind::Counter, "{line}", LOG_DROPPED,
        "Log lines that were dropped, by reason: not_written (too many waited, or the stream did not take them) or rate_limit (over 100 warnings or refusals of one kind in 10 s)."),
];

/// The engine and its requests: instruments that exist once the model is loaded.
#[rustfmt::skip]
pub const ENGINE: &[Instrument] = &[
    histogram("gen_ai.server.time_to_first_token", "s", GEN_AI, &[Buckets::GenAiFirstToken],
        "Time from the arrival of a request to its first token, queue and prefill included."),
    histogram("gen_ai.server.request.duration", "s", GEN_AI_ERROR, &[Buckets::GenAiRequest],
        "Time from the arrival of a request to its end, however it ended."),
    histogram("gen_ai.server.time_per_output_token", "s", GEN_AI, &[Buckets::GenAiPerToken],
        "Mean time per output token after the first, of requests with two tokens or more."),
    histogram("llm.inter_token_latency", "s", NONE, &[],
        "Time between consecutive tokens of a request."),
    histogram("llm.request.queue_time", "s", NONE, &[],
        "Time from the queue to the first start of a request."),
    histogram("llm.request.prefill_time", "s", NONE, &[],
        "Time from the first start of a request to its first token, preemptions included."),
    histogram("llm.request.decode_time", "s", NONE, &[],
        "Time from the first token of a request to its last, preemptions included."),
    histogram("llm.request.inference_time", "s", NONE, &[],
        "Time from the first start of a request to its last token."),
    histogram("llm.request.latest_queue_time", "s", NONE, &[Buckets::RequestLatency],
        "Time from the queue to the most recent start of a request: it includes what ran before a preemption."),
    histogram("llm.request.latest_prefill_time", "s", NONE, &[Buckets::RequestLatency],
        "Time from the most recent start of a request to the first token after it."),
    histogram("llm.request.latest_decode_time", "s", NONE, &[Buckets::RequestLatency],
        "Time from the first token after the most recent start of a request to its last token."),
    histogram("llm.request.latest_inference_time", "s", NONE, &[Buckets::RequestLatency],
        "Time from the most recent start of a request to its last token."),
    histogram("llm.request.tokenize_time", "s", NONE, &[Buckets::Step],
        "Time spent turning the text of a request into tokens."),
    histogram("llm.request.prompt_tokens", "{token}", NONE, &[], "Prompt tokens of a request."),
    histogram("llm.request.generation_tokens", "{token}", NONE, &[], "Generated tokens of a request."),
    histogram("llm.request.prefill_kv_computed_tokens", "{token}", NONE, &[],
        "Prompt tokens of a request that were computed, cached ones excluded."),
    histogram("llm.request.max_num_generation_tokens", "{token}", NONE, &[],
        "Tokens of the longest continuation of a request."),
    histogram("llm.request.params_max_tokens", "{token}", NONE, &[],
        "Largest number of tokens that a request may generate."),
    histogram("llm.request.params_n", "{continuation}", NONE, &[],
        "Continuations that a request asks for."),
    histogram("llm.request.num_preemptions", "{preemption}", NONE, &[],
        "Times that a request was preempted."),
    histogram("llm.request.model_forward_time", "s", NONE, &[Buckets::ModelTime],
        "Time of all forwards that a request took part in (with --collect-detailed-traces)."),
    histogram("llm.request.model_execute_time", "s", NONE, &[Buckets::ModelTime],
        "Time of all forwards that a request took part in, with synchronisation and sampling (with --collect-detailed-traces)."),
    number("llm.requests", Kind::Counter, "{request}", &[MODEL, REASON, STREAM, ADAPTER],
        "Continuations that ended, by how they ended."),
    number("llm.requests_without_decode", Kind::Counter, "{request}", NONE,
        "Continuations that ended with one token or none, which have no time per output token."),
    number("llm.admission_rejections", Kind::Counter, "{request}", &[MODEL, REJECTION],
        "Requests refused because a limit of the queue was reached."),
    number("llm.client.requests", Kind::Counter, "{request}", OF_CLIENT,
        "Continuations that ended, by the name of the API key; nothing is counted where no key is needed, and keys beyond 1024 are one."),
    number("llm.client.refusals", Kind::Counter, "{request}", OF_CLIENT,
        "Requests that a limit of their API key refused."),
    number("llm.client.prompt_tokens", Kind::Counter, "{token}", OF_CLIENT,
        "Prompt tokens of these continuations, cached ones included."),
    number("llm.client.generation_tokens", Kind::Counter, "{token}", OF_CLIENT,
        "Tokens that these continuations generated."),
    number("llm.prompt_tokens", Kind::Counter, "{token}", &[MODEL, STREAM],
        "Prompt tokens of started requests, cached ones included."),
    number("llm.generation_tokens", Kind::Counter, "{token}", &[MODEL, STREAM], "Generated tokens."),
    number("llm.num_requests_running", Kind::Level, "{request}", NONE,
        "Requests that hold KV slots."),
    number("llm.num_requests_waiting", Kind::Level, "{request}", NONE, "Requests in the queue."),
    number("llm.num_requests_waiting_by_reason", Kind::Level, "{request}", &[MODEL, WAIT_REASON],
        "Requests in the queue by what they wait for: capacity, or deferred (a grammar, or a prefix that a running request is about to compute)."),
    number("llm.kv_cache_usage", Kind::Gauge, "", NONE,
        "Part of the KV cache that running requests use, 0 to 1; what is cached and evictable counts as free."),
    number("llm.kv_cache_tokens", Kind::Level, "{token}", &[MODEL, STATE],
        "KV slots by state: free, evictable (cached), protected (cached and in use), held (in use outside the cache)."),
    number("llm.kv_cache_capacity", Kind::Level, "{token}", NONE, "KV slots in all."),
    number("llm.window_kv_usage", Kind::Gauge, "", NONE,
        "Part of the slots of layers that attend a window that running requests use, 0 to 1."),
    number("llm.window_kv_tokens", Kind::Level, "{token}", &[MODEL, STATE],
        "Slots of layers that attend a window by state: free, evictable (cached), used."),
    number("llm.window_kv_capacity", Kind::Level, "{token}", NONE,
        "Slots of layers that attend a window; absent where these have the slots of the other layers."),
    number("llm.host_cache_usage", Kind::Gauge, "", NONE,
        "Part of the cache in the host's memory that is filled, 0 to 1; 0 where there is none."),
    number("llm.host_cache_demoted_tokens", Kind::Counter, "{token}", NONE,
        "Tokens copied to the host's memory when they were evicted from the device."),
    number("llm.host_cache_loaded_tokens", Kind::Counter, "{token}", NONE,
        "Tokens copied back from the host's memory to be used again."),
    number("llm.host_cache_tokens", Kind::Level, "{token}", NONE,
        "Tokens in the host's memory."),
    number("llm.host_cache_capacity", Kind::Level, "{token}", NONE,
        "Tokens that the host's memory can hold."),
    number("llm.host_cache_queries", Kind::Counter, "{token}", NONE,
        "Prompt tokens that the device's cache did not have, and that were looked for in the host's memory."),
    number("llm.host_cache_hits", Kind::Counter, "{token}", NONE,
        "Prompt tokens that came from the host's memory."),
    number("llm.cache_dir.saved_tokens", Kind::Counter, "{token}", NONE,
        "Tokens of cached prefixes that were read to be written to files."),
    number("llm.cache_dir.restored_tokens", Kind::Counter, "{token}", NONE,
        "Tokens that files put into the prefix cache when the server started."),
    number("llm.num_requests_transferring", Kind::Level, "{request}", NONE,
        "Running requests that only hold KV slots until these were sent to, or received from, another server."),
    number("llm.kv_transfer.sent_tokens", Kind::Counter, "{token}", NONE,
        "Tokens whose KV was read to be sent to a decode server."),
    number("llm.kv_transfer.received_tokens", Kind::Counter, "{token}", NONE,
        "Tokens whose KV came from a prefill server."),
    number("llm.kv_transfer.failures", Kind::Counter, "{request}", NONE,
        "Requests whose KV was not sent, or not received, so that the decode server computes it or the request fails."),
    histogram("llm.kv_transfer.bootstrap_time", "s", NONE, &[],
        "Time until a prefill and a decode server have found each other for a request: from the request, or from the reserved slots, to the connection."),
    histogram("llm.kv_transfer.duration", "s", NONE, &[],
        "Time from the first KV of a request that is sent or received to the end of its transfer. Where a prompt is computed in several chunks, it includes the computation of the later ones."),
    histogram("llm.kv_transfer.size", "By", NONE, &[],
        "KV of a request that was sent or received; nothing is recorded if the decode server had all of it cached."),
    histogram("llm.kv_transfer.rate", "By/s", NONE, &[],
        "Size of a transfer divided by its duration."),
    number("llm.kv_cache_page_size", Kind::Level, "{token}", NONE,
        "Tokens that are cached and matched together."),
    number("llm.kv_cache_pages", Kind::Level, "{page}", NONE, "Pages of the KV cache in all."),
    number("llm.prefix_cache_queries", Kind::Counter, "{token}", NONE,
        "Prompt tokens that were looked for in the prefix cache."),
    number("llm.prefix_cache_hits", Kind::Counter, "{token}", &[MODEL, TIER],
        "Prompt tokens that the prefix cache had, by tier: device or host."),
    number("llm.prefix_cache_last_hit_rate", Kind::Gauge, "", NONE,
        "Part of the prompt tokens that the prefix cache had, over the requests started last."),
    number("llm.prompt_tokens_by_source", Kind::Counter, "{token}", &[MODEL, SOURCE],
        "Prompt tokens of started requests by where their KV came from."),
    number("llm.num_preemptions", Kind::Counter, "{preemption}", NONE,
        "Times that a running request went back to the queue for want of KV slots."),
    number("llm.cache_config_info", Kind::Level, "", &[
            "block_size", "cache_dtype", "enable_prefix_caching", "num_gpu_blocks", "num_cpu_blocks",
            "kv_cache_layout", "eviction_policy", "gpu_memory_utilization", "cpu_offload_gb",
            "calculate_kv_scales"],
        "How the KV cache is configured; always 1."),
    number("llm.context_length", Kind::Level, "{token}", NONE,
        "Longest sequence, prompt and output together."),
    number("llm.max_num_requests_running", Kind::Level, "{request}", NONE,
        "Requests that may run at once."),
    number("llm.max_num_requests_waiting", Kind::Level, "{request}", NONE,
        "Requests that may wait; one more is refused."),
    number("llm.engine.prompt_throughput", Kind::Gauge, "{token}/s", NONE,
        "Prompt tokens computed per second over the last seconds; 0 when idle."),
    number("llm.engine.generation_throughput", Kind::Gauge, "{token}/s", NONE,
        "Tokens generated per second over the last seconds; 0 when idle."),
    number("llm.engine.heartbeat_age", Kind::Gauge, "s", NONE,
        "Time since the engine last finished a step while it has work, 0 when it has none; a large value is a stuck engine."),
    number("llm.engine.steps", Kind::Counter, "{step}", NONE, "Forwards of the model."),
    number("llm.engine.computed_tokens", Kind::Counter, "{token}", NONE,
        "Tokens that went through the model: prompts, outputs, and what was computed again after a preemption."),
    histogram("llm.iteration_tokens", "{token}", NONE, &[],
        "Tokens of a step: prompt tokens computed and tokens generated."),
    histogram("llm.engine.step.scheduler_time", "s", NONE, &[Buckets::Step],
        "Time a step took to choose its batch."),
    histogram("llm.engine.step.forward_time", "s", NONE, &[Buckets::Step],
        "Time the model took for a step, to the logits on the host."),
    histogram("llm.engine.step.execute_time", "s", NONE, &[Buckets::Step],
        "Time of the forward and of what follows it: sampling, caching, events."),
    histogram("llm.engine.step.rows", "{sequence}", &[MODEL, PHASE], &[Buckets::Rows],
        "Sequences in a step, prefilling or decoding."),
    number("llm.speculation.drafts", Kind::Counter, "{draft}", NONE,
        "Drafts that were computed: several next tokens of one request in one step."),
    number("llm.speculation.drafted_tokens", Kind::Counter, "{token}", NONE,
        "Tokens that were drafted and computed."),
    number("llm.speculation.accepted_tokens", Kind::Counter, "{token}", NONE,
        "Drafted tokens that became output: each saved a step of its request."),
    number("llm.speculation.accepted_tokens_by_position", Kind::Counter, "{token}",
        &[MODEL, POSITION],
        "Drafted tokens that became output, by their place in the draft."),
    number("llm.speculation.accept_length", Kind::Gauge, "{token}", NONE,
        "Output tokens of a step with a draft, on average since the start; 1 before the first draft."),
    number("llm.speculation.accept_rate", Kind::Gauge, "", NONE,
        "Part of the drafted tokens that became output, since the start; 0 before the first draft."),
    number("llm.speculation.draft_model.forwards", Kind::Counter, "{forward}", NONE,
        "Forward passes of the draft model: each drafts one token of several requests."),
    number("llm.speculation.draft_model.failures", Kind::Counter, "{forward}", NONE,
        "Forward passes of the draft model that failed; nothing was drafted then."),
    number("llm.speculation.draft_model.computed_tokens", Kind::Counter, "{token}", NONE,
        "Tokens that went through the draft model."),
    number("llm.speculation.draft_model.time", Kind::Seconds, "s", NONE,
        "Time in which the draft model made drafts, and the model waited."),
    number("llm.lora_requests_info", Kind::Gauge, "", &[
            "max_lora", "running_lora_adapters", "waiting_lora_adapters"],
        "Adapters of running and waiting requests, as labels; the value is the time, so that the newest labels count."),
    number("llm.grammar.compilations", Kind::Counter, "{grammar}", NONE,
        "Grammars that were compiled or refused anew."),
    number("llm.grammar.compile_time", Kind::Seconds, "s", NONE,
        "Time spent compiling grammars, with their first masks."),
    number("llm.grammar.cache_hits", Kind::Counter, "{request}", NONE,
        "Requests whose grammar, or its refusal, was in the cache."),
    number("llm.grammar.cache_misses", Kind::Counter, "{request}", NONE,
        "Requests whose grammar was not in the cache."),
    number("llm.grammar.masks", Kind::Counter, "{mask}", NONE,
        "Token masks that grammars gave."),
    number("llm.grammar.mask_time", Kind::Seconds, "s", NONE,
        "Time spent on token masks, beside the forward."),
    number("llm.grammar.forced_tokens", Kind::Counter, "{token}", NONE,
        "Tokens that grammars forced and that were not sampled: each is a forward pass saved."),
    number("llm.grammar.forced_bytes", Kind::Counter, "By", NONE,
        "Bytes of text that grammars forced."),
    number("llm.grammar.fallbacks", Kind::Counter, "{grammar}", NONE,
        "Regular grammars too large for the finite-state machine, which llguidance runs."),
    number("llm.grammar.refusals", Kind::Counter, "{request}", &[MODEL, REFUSAL],
        "Requests whose grammar was refused, by reason."),
];

/// All instruments.
pub fn instruments() -> impl Iterator<Item = &'static Instrument> {
    SERVER.iter().chain(ENGINE)
}

pub fn find(name: &str) -> Option<&'static Instrument> {
    instruments().find(|instrument| instrument.name == name)
}

impl Instrument {
    /// The name in Prometheus, as OpenTelemetry's specification translates it.
    pub fn exposed(&self) -> String {
        let mut name = self.name.replace('.', "_");
        let suffix = match self.unit {
            "s" => "_seconds",
            "By" => "_bytes",
            // Braces hold an annotation, which the translation drops.
            "{token}/s" => "_per_second",
            "By/s" => "_bytes_per_second",
            _ => "",
        };
        if !name.ends_with(suffix) {
            name += suffix;
        }
        if matches!(self.kind, Kind::Counter | Kind::Seconds) {
            name += "_total";
        }
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_opentelemetry_and_prometheus_allow() {
        let mut seen = std::collections::HashSet::new();
        for instrument in instruments() {
            let name = instrument.name;
            assert!(seen.insert(name), "{name} occurs twice");
            let allowed = |c: char| c.is_ascii_lowercase() || c == '_' || c == '.';
            assert!(name.chars().all(allowed), "{name}");
            assert!(!name.ends_with("_total"), "{name}: the kind says so");
            assert!(
                instrument.help.ends_with('.'),
                "{name}: {}",
                instrument.help
            );
        }
        let exposed = |name| find(name).map(Instrument::exposed);
        assert_eq!(
            exposed("gen_ai.server.time_to_first_token").as_deref(),
            Some("gen_ai_server_time_to_first_token_seconds")
        );
        assert_eq!(
            exposed("process.cpu.time").as_deref(),
            Some("process_cpu_time_seconds_total")
        );
        assert_eq!(
            exposed("llm.prompt_tokens").as_deref(),
            Some("llm_prompt_tokens_total")
        );
        assert_eq!(
            exposed("llm.engine.prompt_throughput").as_deref(),
            Some("llm_engine_prompt_throughput_per_second")
        );
    }
}
