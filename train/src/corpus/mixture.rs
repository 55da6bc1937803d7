//! How often each task occurs, how long conversations are, how large numbers are.

/// Weights of the draws that shape a corpus.
#[derive(Debug, Clone, Copy)]
pub struct Mixture {
    /// Of a turn's task: arithmetic, extraction, story, facts, small talk.
    pub tasks: [u32; 5],
    /// Of one, two, three, … turns; the seventh stands for seven to fifteen.
    pub turns: &'static [u32],
    /// Of operands: one digit, mixed, two digits.
    pub operands: [u32; 3],
}

/// What the tokenizer is trained on: all tasks at length.
pub const BROAD: Mixture = Mixture {
    tasks: [38, 35, 7, 13, 7],
    turns: &[58, 20, 12, 4, 2, 2, 2],
    operands: [45, 30, 25],
};

/// What the model is trained on: a small model learns to copy from short rows first, and does so
/// on few tokens. Larger sums outnumber one-digit ones, of which there are a hundred: those can
/// be learnt by heart, and by heart is no way to a sum that was never seen.
pub const SHORT: Mixture = Mixture {
    tasks: [36, 44, 6, 8, 6],
    turns: &[76, 15, 6, 2, 1],
    operands: [36, 40, 24],
};

/// Trained beside [`SHORT`]: the same in longer conversations.
pub const LONG: Mixture = Mixture {
    turns: &[20, 20, 20, 15, 10, 5, 10],
    ..SHORT
};
