//! The exposition tables: the metrics of vLLM, SGLang and Prometheus' client libraries, and
//! the canonical instruments that their values come from.
//!
//! `/metrics`, its HELP texts, docs/METRICS.md and the list of deprecated metrics all come
//! from these tables. Names, labels and bounds are those of vLLM 0.33 and SGLang 0.5.23 and
//! are frozen: dashboards query them without aggregation, so an additional label would split
//! their lines.

use crate::buckets::Buckets;
use crate::catalog::{
    METHOD, POSITION, REASON, REJECTION, ROUTE, SOURCE, STATE, STATUS, STREAM, TIER, WAIT_REASON,
};

/// How a family is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Counter,
    Gauge,
    Histogram,
    /// A summary without quantiles: count and sum.
    Summary,
}

/// Where the values of a metric come from.
#[derive(Clone, Copy, Debug)]
pub enum Source {
    /// An instrument.
    Of(&'static str),
    /// The points of an instrument whose attribute has one of these values.
    Where(&'static str, &'static str, &'static [&'static str]),
    /// The sum of two counters.
    Sum(&'static str, &'static str),
    /// The count of a histogram.
    CountOf(&'static str),
    /// A histogram, with as many additional zeros as a counter says.
    WithZeros(&'static str, &'static str),
    /// The ratio of two counters, 0 while the second is 0.
    Ratio(&'static str, &'static str),
    /// A constant: nothing in Hearth can change the value.
    Always(f64),
}

/// A label of a metric.
#[derive(Clone, Copy, Debug)]
pub enum Label {
    /// `model_name`, the served model.
    Model,
    /// A label with a constant value.
    Fixed(&'static str, &'static str),
    /// A label, and the attribute that its value comes from.
    From(&'static str, &'static str),
    /// A label whose value is the class of the status code: `2xx`.
    StatusClass(&'static str),
}

/// A metric. Neighbouring rows with one name are one family with different labels.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub name: &'static str,
    pub shape: Shape,
    pub source: Source,
    pub labels: &'static [Label],
    /// The bounds of a histogram; `None` for other shapes.
    pub buckets: Option<Buckets>,
    /// Factor of the values: 1000 turns seconds into milliseconds.
    pub scale: f64,
    pub help: &'static str,
    /// For a deprecated metric: the version of vLLM that stopped showing it, `(major, minor)`,
    /// and the metric that replaces it.
    pub hidden: Option<((u32, u32), &'static str)>,
}

const fn row(
    name: &'static str,
    shape: Shape,
    source: Source,
    labels: &'static [Label],
    help: &'static str,
) -> Row {
    Row {
        name,
        shape,
        source,
        labels,
        buckets: None,
        scale: 1.0,
        help,
        hidden: None,
    }
}

const fn histogram(
    name: &'static str,
    from: &'static str,
    labels: &'static [Label],
    buckets: Buckets,
    help: &'static str,
) -> Row {
    let mut row = row(name, Shape::Histogram, Source::Of(from), labels, help);
    row.buckets = Some(buckets);
    row
}

const fn hidden(mut row: Row, since: (u32, u32), instead: &'static str) -> Row {
    row.hidden = Some((since, instead));
    row
}

const fn milliseconds(mut row: Row) -> Row {
    row.scale = 1000.0;
    row
}

const fn millionths(mut row: Row) -> Row {
    row.scale = 1e-6;
    row
}

const fn billionths(mut row: Row) -> Row {
    row.scale = 1e-9;
    row
}

use Shape::{Counter, Gauge, Summary};
use Source::{Always, CountOf, Of, Ratio, Sum, Where, WithZeros};

/// Labels of vLLM.
const L: &[Label] = &[Label::Model, Label::Fixed("engine", "0")];
/// Labels of vLLM before version 1.
const LEGACY: &[Label] = &[Label::Model];
const HANDLER: Label = Label::From("handler", ROUTE);
const METHOD_LABEL: Label = Label::From("method", METHOD);

/// vLLM's metrics; `plain` shows them with `_` for `:`.
#[rustfmt::skip]
pub const VLLM: &[Row] = &[
    row("vllm:num_requests_running", Gauge, Of("llm.num_requests_running"), L,
        "Number of requests in model execution batches."),
    row("vllm:num_requests_waiting", Gauge, Of("llm.num_requests_waiting"), L,
        "Number of requests waiting to be processed."),
    row("vllm:num_requests_waiting_by_reason", Gauge, Of("llm.num_requests_waiting_by_reason"),
        &[Label::Model, Label::Fixed("engine", "0"), Label::From("reason", WAIT_REASON)],
        "Number of requests waiting to be processed by reason: capacity, or deferred (for a grammar or a prefix)."),
    row("vllm:kv_cache_usage_perc", Gauge, Of("llm.kv_cache_usage"), L,
        "KV-cache usage. 1 means 100 percent usage."),
    row("vllm:prefix_cache_queries_total", Counter, Of("llm.prefix_cache_queries"), L,
        "Prefix cache queries, in terms of number of queried tokens."),
    row("vllm:prefix_cache_hits_total", Counter, Of("llm.prefix_cache_hits"), L,
        "Prefix cache hits, in terms of number of cached tokens."),
    row("vllm:external_prefix_cache_queries_total", Counter, Of("llm.host_cache_queries"), L,
        "Queries of the cache in the host's memory, in terms of number of queried tokens."),
    row("vllm:external_prefix_cache_hits_total", Counter, Of("llm.host_cache_hits"), L,
        "Hits of the cache in the host's memory, in terms of number of cached tokens."),
    row("vllm:kv_offload_cpu_cache_usage_perc", Gauge, Of("llm.host_cache_usage"), L,
        "Usage of the cache in the host's memory. 1 means 100 percent usage."),
    row("vllm:num_preemptions_total", Counter, Of("llm.num_preemptions"), L,
        "Cumulative number of preemption from the engine."),
    row("vllm:prompt_tokens_total", Counter, Of("llm.prompt_tokens"), L,
        "Number of prefill tokens processed."),
    row("vllm:prompt_tokens_by_source_total", Counter, Of("llm.prompt_tokens_by_source"),
        &[Label::Model, Label::Fixed("engine", "0"), Label::From("source", SOURCE)],
        "Number of prompt tokens by source."),
    row("vllm:prompt_tokens_cached_total", Counter, Sum("llm.prefix_cache_hits", "llm.kv_transfer.received_tokens"), L,
        "Number of cached prompt tokens (local and received from a prefill server)."),
    row("vllm:prompt_tokens_cached_by_source_total", Counter, Of("llm.prefix_cache_hits"),
        &[Label::Model, Label::Fixed("engine", "0"), Label::From("source", TIER)],
        "Prefix-cache hit tokens by the cache tier that supplied them: device, host, or remote (received from a prefill server)."),
    row("vllm:prompt_tokens_cached_by_source_total", Counter, Of("llm.kv_transfer.received_tokens"),
        &[Label::Model, Label::Fixed("engine", "0"), Label::Fixed("source", "remote")], ""),
    row("vllm:generation_tokens_total", Counter, Of("llm.generation_tokens"), L,
        "Number of generation tokens processed."),
    row("vllm:spec_decode_num_drafts_total", Counter, Of("llm.speculation.drafts"), L,
        "Number of spec decoding drafts."),
    row("vllm:spec_decode_num_draft_tokens_total", Counter, Of("llm.speculation.drafted_tokens"), L,
        "Number of draft tokens."),
    row("vllm:spec_decode_num_accepted_tokens_total", Counter, Of("llm.speculation.accepted_tokens"), L,
        "Number of accepted tokens."),
    row("vllm:spec_decode_num_accepted_tokens_per_pos_total", Counter, Of("llm.speculation.accepted_tokens_by_position"),
        &[Label::Model, Label::Fixed("engine", "0"), Label::From("position", POSITION)],
        "Accepted tokens per draft position."),
    row("vllm:request_success_total", Counter, Of("llm.requests"),
        &[Label::Model, Label::Fixed("engine", "0"), Label::From("finished_reason", REASON)],
        "Count of processed requests by how they ended."),
    row("vllm:admission_rejections_total", Counter, Of("llm.admission_rejections"),
        &[Label::Model, Label::From("reason", REJECTION)],
        "Number of admission attempts rejected by a queue limit, by reason."),
    histogram("vllm:request_prompt_tokens", "llm.request.prompt_tokens", L, Buckets::RequestTokens,
        "Number of prefill tokens processed."),
    histogram("vllm:request_generation_tokens", "llm.request.generation_tokens", L, Buckets::RequestTokens,
        "Number of generation tokens processed."),
    histogram("vllm:request_prefill_kv_computed_tokens", "llm.request.prefill_kv_computed_tokens", L, Buckets::RequestTokens,
        "Histogram of new KV tokens computed during prefill (excluding cached tokens)."),
    histogram("vllm:request_max_num_generation_tokens", "llm.request.max_num_generation_tokens", L, Buckets::RequestTokens,
        "Histogram of maximum number of requested generation tokens."),
    histogram("vllm:request_params_max_tokens", "llm.request.params_max_tokens", L, Buckets::RequestTokens,
        "Histogram of the max_tokens request parameter."),
    histogram("vllm:request_params_n", "llm.request.params_n", L, Buckets::Copies,
        "Histogram of the n request parameter."),
    histogram("vllm:request_num_preemptions", "llm.request.num_preemptions", L, Buckets::Preemptions,
        "Histogram of the number of times a request was preempted."),
    histogram("vllm:iteration_tokens_total", "llm.iteration_tokens", L, Buckets::IterationTokens,
        "Histogram of number of tokens per engine_step."),
    histogram("vllm:time_to_first_token_seconds", "gen_ai.server.time_to_first_token", L, Buckets::FirstToken,
        "Histogram of time to first token in seconds."),
    histogram("vllm:inter_token_latency_seconds", "llm.inter_token_latency", L, Buckets::InterToken,
        "Histogram of inter-token latency in seconds."),
    Row { source: WithZeros("gen_ai.server.time_per_output_token", "llm.requests_without_decode"),
        ..histogram("vllm:request_time_per_output_token_seconds", "", L, Buckets::InterToken,
        "Histogram of time_per_output_token_seconds per request.") },
    histogram("vllm:e2e_request_latency_seconds", "gen_ai.server.request.duration", L, Buckets::RequestLatency,
        "Histogram of e2e request latency in seconds."),
    histogram("vllm:request_queue_time_seconds", "llm.request.queue_time", L, Buckets::RequestLatency,
        "Histogram of time spent in WAITING phase for request."),
    histogram("vllm:request_prefill_time_seconds", "llm.request.prefill_time", L, Buckets::RequestLatency,
        "Histogram of time spent in PREFILL phase for request."),
    histogram("vllm:request_decode_time_seconds", "llm.request.decode_time", L, Buckets::RequestLatency,
        "Histogram of time spent in DECODE phase for request."),
    histogram("vllm:request_inference_time_seconds", "llm.request.inference_time", L, Buckets::RequestLatency,
        "Histogram of time spent in RUNNING phase for request."),
    row("vllm:cache_config_info", Gauge, Of("llm.cache_config_info"), &[
            Label::Fixed("engine", "0"),
            Label::From("block_size", "block_size"),
            Label::From("cache_dtype", "cache_dtype"),
            Label::From("enable_prefix_caching", "enable_prefix_caching"),
            Label::From("num_gpu_blocks", "num_gpu_blocks"),
            Label::From("num_cpu_blocks", "num_cpu_blocks"),
            Label::From("kv_cache_layout", "kv_cache_layout"),
            Label::From("gpu_memory_utilization", "gpu_memory_utilization"),
            Label::From("cpu_offload_gb", "cpu_offload_gb"),
            Label::From("calculate_kv_scales", "calculate_kv_scales"),
        ],
        "Information of the LLMEngine CacheConfig."),
    row("vllm:lora_requests_info", Gauge, Of("llm.lora_requests_info"), &[
            Label::From("max_lora", "max_lora"),
            Label::From("waiting_lora_adapters", "waiting_lora_adapters"),
            Label::From("running_lora_adapters", "running_lora_adapters"),
        ],
        "Running stats on lora requests."),
    // From prometheus-fastapi-instrumentator, as vLLM configures it.
    row("http_requests_total", Counter, CountOf("http.server.request.duration"),
        &[HANDLER, METHOD_LABEL, Label::StatusClass("status")],
        "Total number of requests by method, status and handler."),
    row("http_request_size_bytes", Summary, Of("http.server.request.body.size"), &[HANDLER],
        "Content length of incoming requests by handler."),
    row("http_response_size_bytes", Summary, Of("http.server.response.body.size"), &[HANDLER],
        "Content length of outgoing responses by handler."),
    histogram("http_request_duration_highr_seconds", "http.server.request.duration", &[], Buckets::HttpFine,
        "Latency with many buckets but no API specific labels."),
    histogram("http_request_duration_seconds", "http.server.request.duration", &[HANDLER, METHOD_LABEL], Buckets::HttpCoarse,
        "Latency with only few buckets by handler."),
    // Deprecated: from vLLM before version 1, and from its first 1.x versions.
    hidden(row("vllm:num_requests_swapped", Gauge, Always(0.0), LEGACY,
        "Number of requests swapped to CPU; requests never are."), (0, 9), "vllm:num_preemptions_total"),
    hidden(row("vllm:gpu_cache_usage_perc", Gauge, Of("llm.kv_cache_usage"), L,
        "KV-cache usage. 1 means 100 percent usage."), (0, 12), "vllm:kv_cache_usage_perc"),
    hidden(row("vllm:cpu_cache_usage_perc", Gauge, Of("llm.host_cache_usage"), L,
        "CPU KV-cache usage. 1 means 100 percent usage."), (0, 9), "vllm:kv_cache_usage_perc"),
    hidden(row("vllm:gpu_prefix_cache_hit_rate", Gauge,
        Ratio("llm.prefix_cache_hits", "llm.prefix_cache_queries"), LEGACY,
        "GPU prefix cache block hit rate."), (0, 9), "vllm:prefix_cache_hits_total and vllm:prefix_cache_queries_total"),
    hidden(row("vllm:cpu_prefix_cache_hit_rate", Gauge,
        Ratio("llm.host_cache_hits", "llm.host_cache_queries"), LEGACY,
        "CPU prefix cache block hit rate."), (0, 9), "vllm:external_prefix_cache_hits_total and vllm:external_prefix_cache_queries_total"),
    hidden(row("vllm:gpu_prefix_cache_queries_total", Counter, Of("llm.prefix_cache_queries"), L,
        "GPU prefix cache queries, in terms of number of queried tokens."), (0, 12), "vllm:prefix_cache_queries_total"),
    hidden(row("vllm:gpu_prefix_cache_hits_total", Counter, Of("llm.prefix_cache_hits"), L,
        "GPU prefix cache hits, in terms of number of cached tokens."), (0, 12), "vllm:prefix_cache_hits_total"),
    hidden(histogram("vllm:time_per_output_token_seconds", "llm.inter_token_latency", L, Buckets::InterToken,
        "Histogram of time per output token in seconds."), (0, 12), "vllm:inter_token_latency_seconds"),
    hidden(histogram("vllm:time_in_queue_requests", "llm.request.queue_time", LEGACY, Buckets::RequestLatency,
        "Histogram of time the request spent in the queue in seconds."), (0, 9), "vllm:request_queue_time_seconds"),
    hidden(milliseconds(histogram("vllm:model_forward_time_milliseconds", "llm.request.model_forward_time", LEGACY, Buckets::ModelTime,
        "Histogram of time spent in the model forward pass in ms.")), (0, 9), "vllm:request_inference_time_seconds"),
    hidden(milliseconds(histogram("vllm:model_execute_time_milliseconds", "llm.request.model_execute_time", LEGACY, Buckets::ModelTime,
        "Histogram of time spent in the model execute function in ms.")), (0, 9), "vllm:request_inference_time_seconds"),
    hidden(row("vllm:avg_prompt_throughput_toks_per_s", Gauge, Of("llm.engine.prompt_throughput"), LEGACY,
        "Average prefill throughput in tokens/s."), (0, 9), "the rate of vllm:prompt_tokens_total"),
    hidden(row("vllm:avg_generation_throughput_toks_per_s", Gauge, Of("llm.engine.generation_throughput"), LEGACY,
        "Average generation throughput in tokens/s."), (0, 9), "the rate of vllm:generation_tokens_total"),
];

const UNIFIED: Label = Label::Fixed("engine_type", "unified");
const TP: Label = Label::Fixed("tp_rank", "0");
const PP: Label = Label::Fixed("pp_rank", "0");
const EP: Label = Label::Fixed("moe_ep_rank", "0");
/// Labels of SGLang's scheduler.
const S: &[Label] = &[Label::Model, UNIFIED, TP, PP, EP];
/// Labels of SGLang's tokenizer manager.
const T: &[Label] = &[Label::Model, UNIFIED];
const STREAMING: Label = Label::From("is_streaming", STREAM);
const T_STREAMING: &[Label] = &[Label::Model, UNIFIED, STREAMING];
const ENDPOINT: Label = Label::From("endpoint", ROUTE);

/// Labels of counts of a pool, of which there is one.
const KV_POOL: &[Label] = &[
    Label::Model,
    UNIFIED,
    TP,
    PP,
    EP,
    Label::Fixed("pool", "kv"),
];

/// Labels of a stage of a request.
macro_rules! staged {
    ($stage:literal) => {
        &[
            Label::Model,
            UNIFIED,
            TP,
            PP,
            EP,
            Label::Fixed("stage", $stage),
        ]
    };
}
/// Labels of a kind of tokens.
macro_rules! mode {
    ($mode:literal) => {
        &[
            Label::Model,
            UNIFIED,
            TP,
            PP,
            EP,
            Label::Fixed("mode", $mode),
        ]
    };
}

/// SGLang's metrics.
#[rustfmt::skip]
pub const SGLANG: &[Row] = &[
    row("sglang:num_running_reqs", Gauge, Of("llm.num_requests_running"), S, "The number of running requests."),
    row("sglang:num_queue_reqs", Gauge, Of("llm.num_requests_waiting"), S, "The number of requests in the waiting queue."),
    row("sglang:num_transfer_failed_reqs_total", Counter, Of("llm.kv_transfer.failures"), S, "The number of transfer failed requests."),
    millionths(histogram("sglang:kv_transfer_total_mb", "llm.kv_transfer.size", S, Buckets::SglangTransferSize, "Histogram of KV cache transfer size in MB.")),
    milliseconds(histogram("sglang:kv_transfer_latency_ms", "llm.kv_transfer.duration", S, Buckets::SglangTransferTime, "Histogram of KV cache transfer latency in ms.")),
    milliseconds(histogram("sglang:kv_transfer_bootstrap_ms", "llm.kv_transfer.bootstrap_time", S, Buckets::SglangBootstrapTime, "Histogram of KV transfer bootstrap time in ms.")),
    billionths(histogram("sglang:kv_transfer_speed_gb_s", "llm.kv_transfer.rate", S, Buckets::SglangTransferRate, "Histogram of KV cache transfer speed in GB/s.")),
    row("sglang:gen_throughput", Gauge, Of("llm.engine.generation_throughput"), S, "The generation throughput (token/s)."),
    row("sglang:cache_hit_rate", Gauge, Of("llm.prefix_cache_last_hit_rate"), S, "The prefix cache hit rate."),
    row("sglang:token_usage", Gauge, Of("llm.kv_cache_usage"), S, "The token usage."),
    row("sglang:full_token_usage", Gauge, Of("llm.kv_cache_usage"), S, "The token usage for full attention layers."),
    row("sglang:swa_token_usage", Gauge, Of("llm.window_kv_usage"), S, "The token usage for SWA layers."),
    row("sglang:swa_available_tokens", Gauge, Where("llm.window_kv_tokens", STATE, &["free"]), S, "Number of free token slots in the SWA pool (hybrid-SWA only)."),
    row("sglang:swa_evictable_tokens", Gauge, Where("llm.window_kv_tokens", STATE, &["evictable"]), S, "Number of evictable (radix-cached) token slots in the SWA pool."),
    row("sglang:swa_used_tokens", Gauge, Where("llm.window_kv_tokens", STATE, &["used"]), S, "Number of actively used token slots in the SWA pool."),
    row("sglang:max_total_num_tokens_swa", Gauge, Of("llm.window_kv_capacity"), S, "Maximum total number of tokens in the SWA KV cache pool."),
    row("sglang:num_used_tokens", Gauge, Where("llm.kv_cache_tokens", STATE, &["protected", "held"]), S, "The number of used tokens."),
    row("sglang:kv_available_tokens", Gauge, Where("llm.kv_cache_tokens", STATE, &["free"]), S, "Number of free token slots in the KV cache pool."),
    row("sglang:kv_evictable_tokens", Gauge, Where("llm.kv_cache_tokens", STATE, &["evictable"]), S, "Number of evictable (radix-cached) token slots in the KV cache pool."),
    row("sglang:kv_used_tokens", Gauge, Where("llm.kv_cache_tokens", STATE, &["protected", "held"]), S, "Number of actively used token slots in the KV cache pool."),
    row("sglang:spec_accept_length", Gauge, Of("llm.speculation.accept_length"), S, "The average acceptance length of speculative decoding."),
    row("sglang:spec_accept_rate", Gauge, Of("llm.speculation.accept_rate"), S, "The average acceptance rate of speculative decoding (`accepted tokens / total draft tokens` in batch)."),
    row("sglang:max_total_num_tokens", Gauge, Of("llm.kv_cache_capacity"), S, "Maximum total number of tokens in the KV cache pool."),
    row("sglang:page_size", Gauge, Of("llm.kv_cache_page_size"), S, "KV cache page size in tokens."),
    row("sglang:num_pages", Gauge, Of("llm.kv_cache_pages"), S, "Number of KV cache pages."),
    row("sglang:context_len", Gauge, Of("llm.context_length"), S, "Maximum context length."),
    row("sglang:hicache_host_used_tokens", Gauge, Of("llm.host_cache_tokens"), S, "Number of tokens currently used in the host KV cache."),
    row("sglang:hicache_host_total_tokens", Gauge, Of("llm.host_cache_capacity"), S, "Total capacity of the host KV cache in tokens."),
    row("sglang:load_back_tokens_total", Counter, Of("llm.host_cache_loaded_tokens"), KV_POOL, "The number of tokens loaded back from the host's memory to the device."),
    row("sglang:hicache_backup_tokens_total", Counter, Of("llm.host_cache_demoted_tokens"), KV_POOL, "The number of tokens backed up from the device to the host's memory."),
    row("sglang:num_retracted_requests_total", Counter, Of("llm.num_preemptions"), S, "Total number of retracted requests."),
    row("sglang:realtime_tokens_total", Counter, Where("llm.prompt_tokens_by_source", SOURCE, &["local_compute"]), mode!("prefill_compute"), "Total number of tokens processed."),
    row("sglang:realtime_tokens_total", Counter, Of("llm.prefix_cache_hits"), mode!("prefill_cache"), ""),
    row("sglang:realtime_tokens_total", Counter, Of("llm.generation_tokens"), mode!("decode"), ""),
    histogram("sglang:queue_time_seconds", "llm.request.queue_time", S, Buckets::SglangQueue, "Histogram of queueing time in seconds."),
    histogram("sglang:per_stage_req_latency_seconds", "llm.request.tokenize_time", staged!("tokenize"), Buckets::SglangStage, "The latency of each stage of requests."),
    histogram("sglang:per_stage_req_latency_seconds", "llm.request.queue_time", staged!("prefill_waiting"), Buckets::SglangStage, ""),
    histogram("sglang:per_stage_req_latency_seconds", "llm.request.prefill_time", staged!("prefill_forward"), Buckets::SglangStage, ""),
    histogram("sglang:per_stage_req_latency_seconds", "llm.request.decode_time", staged!("decode_forward"), Buckets::SglangStage, ""),
    row("sglang:prompt_tokens_total", Counter, Of("llm.prompt_tokens"), T_STREAMING, "Number of prefill tokens processed."),
    row("sglang:generation_tokens_total", Counter, Of("llm.generation_tokens"), T_STREAMING, "Number of generation tokens processed."),
    histogram("sglang:prompt_tokens_histogram", "llm.request.prompt_tokens", T, Buckets::SglangTokens, "Histogram of prompt token length."),
    histogram("sglang:uncached_prompt_tokens_histogram", "llm.request.prefill_kv_computed_tokens", T, Buckets::SglangTokens, "Histogram of uncached (compute) prompt token length."),
    histogram("sglang:generation_tokens_histogram", "llm.request.generation_tokens", T, Buckets::SglangTokens, "Histogram of generation token length."),
    row("sglang:cached_tokens_total", Counter, Of("llm.prefix_cache_hits"), &[Label::Model, UNIFIED, Label::From("cache_source", TIER)], "Number of cached prompt tokens by source (device/host/remote)."),
    row("sglang:cached_tokens_total", Counter, Of("llm.kv_transfer.received_tokens"), &[Label::Model, UNIFIED, Label::Fixed("cache_source", "remote")], ""),
    row("sglang:num_requests_total", Counter, Of("llm.requests"), T_STREAMING, "Number of requests processed."),
    row("sglang:num_aborted_requests_total", Counter, Where("llm.requests", REASON, &["abort"]), T, "Number of requests aborted."),
    histogram("sglang:time_to_first_token_seconds", "gen_ai.server.time_to_first_token", T_STREAMING, Buckets::SglangFirstToken, "Histogram of time to first token in seconds."),
    // The name in older dashboards.
    histogram("sglang:ttft_seconds", "gen_ai.server.time_to_first_token", T_STREAMING, Buckets::SglangFirstToken, "Histogram of time to first token in seconds."),
    histogram("sglang:inter_token_latency_seconds", "llm.inter_token_latency", T, Buckets::SglangInterToken, "Histogram of inter-token latency in seconds."),
    // The name in SGLang's first description of its metrics.
    histogram("sglang:time_per_output_token_seconds", "llm.inter_token_latency", T, Buckets::SglangInterToken, "Histogram of time per output token in seconds."),
    histogram("sglang:request_time_per_output_token_seconds", "gen_ai.server.time_per_output_token", T_STREAMING, Buckets::SglangInterToken, "Per-request TPOT in seconds: (finished_time - first_token_time) / (completion_tokens - 1)."),
    histogram("sglang:e2e_request_latency_seconds", "gen_ai.server.request.duration", T_STREAMING, Buckets::SglangRequest, "Histogram of End-to-end request latency in seconds."),
    row("sglang:http_requests_total", Counter, CountOf("http.server.request.duration"), &[ENDPOINT, METHOD_LABEL], "Total number of HTTP requests by endpoint and method."),
    row("sglang:http_responses_total", Counter, CountOf("http.server.request.duration"), &[ENDPOINT, Label::From("status_code", STATUS), METHOD_LABEL], "Total number of HTTP responses by endpoint and status code."),
    row("sglang:http_requests_active", Gauge, Of("http.server.active_requests"), &[ENDPOINT, METHOD_LABEL], "Number of currently active HTTP requests."),
];

/// Metrics that every vocabulary has, with the names of Prometheus' own client libraries.
#[rustfmt::skip]
pub const PROCESS: &[Row] = &[
    row("process_cpu_seconds_total", Counter, Of("process.cpu.time"), &[], "Total user and system CPU time spent in seconds."),
    row("process_resident_memory_bytes", Gauge, Of("process.memory.usage"), &[], "Resident memory size in bytes."),
    row("process_virtual_memory_bytes", Gauge, Of("process.memory.virtual"), &[], "Virtual memory size in bytes."),
    row("process_open_fds", Gauge, Of("process.unix.file_descriptor.count"), &[], "Number of open file descriptors."),
    row("process_max_fds", Gauge, Of("hearth.process.file_descriptor.limit"), &[], "Maximum number of open file descriptors."),
    row("process_threads", Gauge, Of("process.thread.count"), &[], "Number of OS threads in the process."),
    row("process_start_time_seconds", Gauge, Of("hearth.process.start_time"), &[], "Start time of the process since unix epoch in seconds."),
];

/// The bucket families that metrics of other vocabularies show `instrument` with.
pub fn buckets_of(instrument: &str) -> impl Iterator<Item = Buckets> {
    let rows = VLLM.iter().chain(SGLANG);
    rows.filter(move |row| match row.source {
        Of(name) | WithZeros(name, _) => name == instrument,
        _ => false,
    })
    .filter_map(|row| row.buckets)
}

impl Row {
    /// The HELP text. Deprecated metrics end with the notice that vLLM's policy asks for.
    pub fn help_text(&self) -> String {
        match self.hidden {
            None => self.help.to_owned(),
            Some((_, instead)) => format!("{} DEPRECATED: Use {instead} instead.", self.help),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{Kind, find};

    fn instruments_of(source: Source) -> Vec<&'static str> {
        match source {
            Of(name) | Where(name, ..) | CountOf(name) => vec![name],
            Sum(a, b) | WithZeros(a, b) | Ratio(a, b) => vec![a, b],
            Always(_) => Vec::new(),
        }
    }

    #[test]
    fn every_row_reads_existing_instruments_and_attributes() {
        for row in VLLM.iter().chain(SGLANG).chain(PROCESS) {
            for name in instruments_of(row.source) {
                let instrument = find(name).unwrap_or_else(|| panic!("{}: {name}", row.name));
                for label in row.labels {
                    let key = match label {
                        Label::From(_, key) => key,
                        Label::StatusClass(_) => STATUS,
                        Label::Model | Label::Fixed(..) => continue,
                    };
                    assert!(instrument.attributes.contains(&key), "{}: {key}", row.name);
                }
                let is_histogram = instrument.kind == Kind::Histogram;
                let wants_histogram = matches!(row.shape, Shape::Histogram | Summary)
                    || matches!(row.source, CountOf(_));
                let zeros = matches!(row.source, WithZeros(_, zeros) if zeros == name);
                assert!(is_histogram == wants_histogram || zeros, "{}", row.name);
            }
            assert_eq!(
                row.shape == Shape::Histogram,
                row.buckets.is_some(),
                "{}",
                row.name
            );
            let total = row.name.ends_with("_total");
            // vLLM gives one histogram this name.
            assert!(total == (row.shape == Counter) || row.name == "vllm:iteration_tokens_total");
        }
    }

    #[test]
    fn rows_with_one_name_are_neighbours_with_one_shape() {
        for rows in [VLLM, SGLANG] {
            let mut names: Vec<&str> = rows.iter().map(|row| row.name).collect();
            names.dedup();
            let distinct: std::collections::HashSet<&str> = names.iter().copied().collect();
            assert_eq!(names.len(), distinct.len());
            for pair in rows.windows(2).filter(|pair| pair[0].name == pair[1].name) {
                assert_eq!(pair[0].shape, pair[1].shape, "{}", pair[0].name);
            }
        }
    }
}
