//! The cost model of the simulated device.

/// A 7B model in f16 on a card with 600 GB/s and some 70 TFLOP/s, as in the paper: a step reads
/// 13.5 GB of weights or computes 14 GFLOP per token, whichever takes longer, and reads half a
/// megabyte of KV for each token of context.
const WEIGHTS_NS: u64 = 22_000_000;
const TOKEN_NS: u64 = 200_000;
const CONTEXT_NS: u64 = 800;
/// The bytes of that KV: keys and values of 32 layers with 4,096 values of two bytes each.
pub const KV_BYTES: u64 = 2 * 32 * 4096 * 2;

/// The nanoseconds of a step that computes `tokens` tokens. `context` is the number of positions
/// that they attend, summed over the step's sequences, their own positions included.
pub fn step_ns(tokens: u64, context: u64) -> u64 {
    WEIGHTS_NS.max(tokens * TOKEN_NS) + context * CONTEXT_NS
}
