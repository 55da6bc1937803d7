//! The cost models of the simulated devices.

/// How long a device takes for a step.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    /// The time to read the weights once.
    pub weights_ns: u64,
    /// The time to compute one token.
    pub token_ns: u64,
    /// The time to read the KV of one token of context.
    pub context_ns: u64,
}

/// A 7B model in f16 on a card with 600 GB/s and some 70 TFLOP/s, as in the paper: a step reads
/// 13.5 GB of weights or computes 14 GFLOP per token, whichever takes longer, and reads half a
/// megabyte of KV for each token of context.
pub const SEVEN_B: Device = Device {
    weights_ns: 22_000_000,
    token_ns: 200_000,
    context_ns: 800,
};
/// A 0.6B model with grouped queries on the same card, in the same proportions: 1.2 GB of weights,
/// 1.2 GFLOP per token, and 112 KiB of KV for each token of context.
pub const SMALL: Device = Device {
    weights_ns: 2_000_000,
    token_ns: 17_000,
    context_ns: 190,
};
/// The bytes of the 7B model's KV: keys and values of 32 layers with 4,096 values of two bytes each.
pub const KV_BYTES: u64 = 2 * 32 * 4096 * 2;

impl Device {
    /// The nanoseconds of a step that computes `tokens` tokens. `context` is the number of positions
    /// that they attend, summed over the step's sequences, their own positions included.
    pub fn step_ns(self, tokens: u64, context: u64) -> u64 {
        self.weights_ns.max(tokens * self.token_ns) + context * self.context_ns
    }
}
