//! Texts of a wanted length that differ by seed.

const WORDS: [&str; 16] = [
    "river", "house", "old", "the", "green", "walks", "to", "a", "stone", "child", "sees", "under",
    "bright", "and", "slowly", "bird",
];

/// A text of `length` bytes, the same for the same seed.
pub fn text(seed: u64, length: usize) -> String {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d;
    let mut text = String::with_capacity(length + 8);
    while text.len() < length {
        // xorshift64*.
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        let word = state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 60;
        text.push_str(WORDS[word as usize]);
        text.push(' ');
    }
    text.truncate(length);
    text
}
