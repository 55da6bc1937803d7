//! Tables of cosines and sines by position.

use crate::config::RopeConfig;

impl RopeConfig {
    /// `(cos, sin)`, each `[positions, rotary_dim / 2]`, multiplied by the factor of YaRN or LongRoPE.
    /// The longest sequence has at most `positions`.
    pub fn tables(&self, positions: usize) -> (Vec<f32>, Vec<f32>) {
        let frequencies = self.inverse_frequencies(positions);
        let scaling = self.attention_scaling();
        let angles = || {
            (0..positions).flat_map(|position| frequencies.iter().map(move |f| position as f32 * f))
        };
        let cos = angles().map(|angle| angle.cos() * scaling).collect();
        let sin = angles().map(|angle| angle.sin() * scaling).collect();
        (cos, sin)
    }
}
