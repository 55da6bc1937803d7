//! The standard bucket bounds of histograms. A family is the set of bounds that vLLM, SGLang,
//! OpenTelemetry or another origin gives to its histograms of one quantity.

/// The family of bounds that a histogram is shown with. An instrument records with the union
/// of the bounds of all its families, so that each family can be shown exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Buckets {
    /// vLLM: whole requests, in seconds.
    RequestLatency,
    /// vLLM: time to the first token, in seconds.
    FirstToken,
    /// vLLM: time between tokens, in seconds.
    InterToken,
    /// vLLM: tokens of a step.
    IterationTokens,
    /// vLLM: tokens of a request; 1, 2, 5, 10 ... up to the context length.
    RequestTokens,
    /// vLLM: continuations per prompt.
    Copies,
    /// vLLM: times a request was preempted.
    Preemptions,
    /// SGLang: time to the first token.
    SglangFirstToken,
    /// SGLang: whole requests.
    SglangRequest,
    /// SGLang: time between tokens.
    SglangInterToken,
    /// SGLang: tokens of a request.
    SglangTokens,
    /// SGLang: time in the queue.
    SglangQueue,
    /// SGLang: stages of a request.
    SglangStage,
    /// SGLang: transfers of KV, in seconds.
    SglangTransferTime,
    /// SGLang: the time until two servers have found each other, in seconds.
    SglangBootstrapTime,
    /// SGLang: bytes of a transfer of KV.
    SglangTransferSize,
    /// SGLang: bytes per second of a transfer of KV.
    SglangTransferRate,
    /// OpenTelemetry's advice for `gen_ai.server.request.duration`.
    GenAiRequest,
    /// OpenTelemetry's advice for `gen_ai.server.time_to_first_token`.
    GenAiFirstToken,
    /// OpenTelemetry's advice for `gen_ai.server.time_per_output_token`.
    GenAiPerToken,
    /// prometheus-fastapi-instrumentator: all requests together.
    HttpFine,
    /// prometheus-fastapi-instrumentator: by handler.
    HttpCoarse,
    /// OpenTelemetry's advice for `http.server.request.duration`, extended to ten minutes,
    /// which responses of language models can take.
    HttpServer,
    /// Bytes of a body.
    Bytes,
    /// Parts of an engine step, in seconds.
    Step,
    /// vLLM before version 1: sums of parts of steps over a request, in seconds.
    ModelTime,
    /// Rows of a batch.
    Rows,
}

const REQUEST_LATENCY: [f64; 21] = [
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];
const FIRST_TOKEN: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
const INTER_TOKEN: [f64; 19] = [
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];
const ITERATION_TOKENS: [f64; 13] = [
    1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0,
];
const COPIES: [f64; 5] = [1.0, 2.0, 5.0, 10.0, 20.0];
const PREEMPTIONS: [f64; 7] = [1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0];
const SGLANG_REQUEST: [f64; 22] = [
    0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0,
    400.0, 600.0, 1200.0, 1800.0, 2400.0,
];
const SGLANG_INTER_TOKEN: [f64; 23] = [
    0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1, 0.2,
    0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0,
];
const SGLANG_TOKENS: [f64; 35] = [
    100.0, 300.0, 500.0, 700.0, 1e3, 1.5e3, 2e3, 3e3, 4e3, 5e3, 6e3, 7e3, 8e3, 9e3, 10e3, 12e3,
    15e3, 20e3, 25e3, 30e3, 35e3, 40e3, 50e3, 60e3, 70e3, 80e3, 90e3, 100e3, 200e3, 300e3, 400e3,
    600e3, 800e3, 1e6, 1.1e6,
];
const SGLANG_QUEUE: [f64; 26] = [
    0.0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 15.0, 20.0, 30.0,
    40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 100.0, 200.0, 300.0,
];
const SGLANG_TRANSFER_TIME: [f64; 12] = [
    0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
];
const SGLANG_TRANSFER_SIZE: [f64; 9] = [1e6, 5e6, 1e7, 5e7, 1e8, 5e8, 1e9, 5e9, 1e10];
const SGLANG_TRANSFER_RATE: [f64; 10] = [1e8, 5e8, 1e9, 5e9, 1e10, 2.5e10, 5e10, 1e11, 2e11, 4e11];
const GEN_AI_REQUEST: [f64; 14] = [
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
];
const HTTP_FINE: [f64; 21] = [
    0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0,
    7.5, 10.0, 30.0, 60.0,
];
const HTTP_COARSE: [f64; 3] = [0.1, 0.5, 1.0];
const HTTP_SERVER: [f64; 19] = [
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 30.0, 60.0,
    120.0, 300.0, 600.0,
];
const BYTES: [f64; 9] = [
    100.0,
    1_000.0,
    10_000.0,
    50_000.0,
    100_000.0,
    500_000.0,
    1_000_000.0,
    10_000_000.0,
    100_000_000.0,
];
const STEP: [f64; 20] = [
    1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0,
    2.0, 5.0, 10.0, 30.0,
];
const MODEL_TIME: [f64; 15] = [
    0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0,
];
const ROWS: [f64; 11] = [
    0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0,
];

/// The names by which `--custom-histogram-buckets` selects families. Families of vLLM have
/// the names that vLLM uses.
#[rustfmt::skip]
pub const FAMILIES: [(&str, Buckets); 27] = [
    ("request_latency", Buckets::RequestLatency),
    ("time_to_first_token", Buckets::FirstToken),
    ("inter_token_latency", Buckets::InterToken),
    ("iteration_tokens", Buckets::IterationTokens),
    ("request_tokens", Buckets::RequestTokens),
    ("request_params_n", Buckets::Copies),
    ("request_num_preemptions", Buckets::Preemptions),
    ("sglang_time_to_first_token", Buckets::SglangFirstToken),
    ("sglang_e2e_request_latency", Buckets::SglangRequest),
    ("sglang_inter_token_latency", Buckets::SglangInterToken),
    ("sglang_tokens", Buckets::SglangTokens),
    ("sglang_queue_time", Buckets::SglangQueue),
    ("sglang_stage_latency", Buckets::SglangStage),
    ("sglang_kv_transfer_latency", Buckets::SglangTransferTime),
    ("sglang_kv_transfer_bootstrap", Buckets::SglangBootstrapTime),
    ("sglang_kv_transfer_size", Buckets::SglangTransferSize),
    ("sglang_kv_transfer_speed", Buckets::SglangTransferRate),
    ("gen_ai_request_duration", Buckets::GenAiRequest),
    ("gen_ai_time_to_first_token", Buckets::GenAiFirstToken),
    ("gen_ai_time_per_output_token", Buckets::GenAiPerToken),
    ("http_duration_highr", Buckets::HttpFine),
    ("http_duration", Buckets::HttpCoarse),
    ("http_server_duration", Buckets::HttpServer),
    ("body_bytes", Buckets::Bytes),
    ("step_time", Buckets::Step),
    ("model_time", Buckets::ModelTime),
    ("step_rows", Buckets::Rows),
];

impl Buckets {
    /// The bounds that the family's origin defines, ascending. `context` is the longest sequence
    /// in tokens.
    pub fn standard(self, context: usize) -> Vec<f64> {
        match self {
            Self::RequestLatency => REQUEST_LATENCY.to_vec(),
            Self::FirstToken => FIRST_TOKEN.to_vec(),
            Self::InterToken => INTER_TOKEN.to_vec(),
            Self::IterationTokens => ITERATION_TOKENS.to_vec(),
            Self::RequestTokens => one_two_five(context),
            Self::Copies => COPIES.to_vec(),
            Self::Preemptions => PREEMPTIONS.to_vec(),
            Self::SglangFirstToken => SGLANG_REQUEST[..18].to_vec(),
            Self::SglangRequest => SGLANG_REQUEST.to_vec(),
            Self::SglangInterToken => SGLANG_INTER_TOKEN.to_vec(),
            Self::SglangTokens => SGLANG_TOKENS.to_vec(),
            Self::SglangQueue => SGLANG_QUEUE.to_vec(),
            // SGLang's exponential bounds, rounded to microseconds so that they stay readable.
            Self::SglangStage => (0..30)
                .map(|n| (0.001 * 1.62_f64.powi(n) * 1e6).round() / 1e6)
                .collect(),
            Self::SglangTransferTime => SGLANG_TRANSFER_TIME.to_vec(),
            Self::SglangBootstrapTime => SGLANG_TRANSFER_TIME[..11].to_vec(),
            Self::SglangTransferSize => SGLANG_TRANSFER_SIZE.to_vec(),
            Self::SglangTransferRate => SGLANG_TRANSFER_RATE.to_vec(),
            Self::GenAiRequest => GEN_AI_REQUEST.to_vec(),
            Self::GenAiFirstToken => FIRST_TOKEN[..16].to_vec(),
            Self::GenAiPerToken => INTER_TOKEN[..13].to_vec(),
            Self::HttpFine => HTTP_FINE.to_vec(),
            Self::HttpCoarse => HTTP_COARSE.to_vec(),
            Self::HttpServer => HTTP_SERVER.to_vec(),
            Self::Bytes => BYTES.to_vec(),
            Self::Step => STEP.to_vec(),
            Self::ModelTime => MODEL_TIME.to_vec(),
            Self::Rows => ROWS.to_vec(),
        }
    }
}

/// 1, 2, 5, 10, 20, 50 ... up to `most`.
fn one_two_five(most: usize) -> Vec<f64> {
    let decades = std::iter::successors(Some(1_usize), |decade| decade.checked_mul(10));
    decades
        .flat_map(|decade| [1, 2, 5].map(|digit| decade.checked_mul(digit)))
        .map_while(|bound| bound.filter(|&bound| bound <= most))
        .map(|bound| bound as f64)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_bounds_end_at_the_context_length() {
        assert_eq!(one_two_five(60), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0]);
        assert_eq!(one_two_five(1), [1.0]);
        assert!(one_two_five(usize::MAX).is_sorted_by(|a, b| a < b));
    }
}
