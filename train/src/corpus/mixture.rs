//! How often each task occurs, how long conversations are, how large numbers are.

/// Weights of the draws that shape a corpus.
#[derive(Debug, Clone, Copy)]
pub struct Mixture {
    /// Weights of a turn's task: arithmetic, extraction, story, facts, small talk.
    pub tasks: [u32; 5],
    /// Weights of one, two, three, … turns; the seventh stands for seven to fifteen.
    pub turns: &'static [u32],
    /// Weights of operands: one digit, mixed, two digits.
    pub operands: [u32; 3],
}

/// The mixture that the tokenizer is trained on: all tasks at length.
pub const BROAD: Mixture = Mixture {
    tasks: [38, 35, 7, 13, 7],
    turns: &[58, 20, 12, 4, 2, 2, 2],
    operands: [45, 30, 25],
};

/// The mixture that the model is trained on. A small model learns to copy from short rows first,
/// and needs few tokens for that. Larger sums outnumber one-digit ones: there are only a hundred
/// one-digit sums, so a model would memorise them, and memorising does not help with unseen sums.
pub const SHORT: Mixture = Mixture {
    tasks: [36, 44, 6, 8, 6],
    turns: &[76, 15, 6, 2, 1],
    operands: [36, 40, 24],
};

/// As [`SHORT`] in longer conversations; trained beside it.
pub const LONG: Mixture = Mixture {
    turns: &[20, 20, 20, 15, 10, 5, 10],
    ..SHORT
};
