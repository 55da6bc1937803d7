//! Random numbers for sampling: a counter-based generator.
//!
//! With a stateful generator, a request's tokens would depend on the order of the draws. Here every
//! draw is a pure function of (seed, position in the output), so that the same seed gives the same
//! tokens alone, in a batch, or after a preemption.

use std::hash::{BuildHasher, RandomState};

/// Philox4x32 with 10 rounds (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011).
const ROUNDS: usize = 10;
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let (high0, low0) = wide_product(MULTIPLIERS[0], counter[0]);
        let (high1, low1) = wide_product(MULTIPLIERS[1], counter[2]);
        counter = [
            high1 ^ counter[1] ^ key[0],
            low1,
            high0 ^ counter[3] ^ key[1],
            low0,
        ];
        key = [
            key[0].wrapping_add(KEY_STEPS[0]),
            key[1].wrapping_add(KEY_STEPS[1]),
        ];
    }
    counter
}

/// The high and the low half of the 64-bit product.
fn wide_product(a: u32, b: u32) -> (u32, u32) {
    let product = u64::from(a) * u64::from(b);
    ((product >> 32) as u32, product as u32)
}

/// The uniform draw, in [0, 1) with 53 random bits, for output position `position` under `seed`.
pub fn uniform(seed: u64, position: u64) -> f64 {
    let counter = [position as u32, (position >> 32) as u32, 0, 0];
    let [low, high, ..] = philox(counter, [seed as u32, (seed >> 32) as u32]);
    let bits = u64::from(high) << 32 | u64::from(low);
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// A seed for a request without one, from the operating system's randomness.
pub fn fresh_seed() -> u64 {
    // Every RandomState has keys of its own: drawn from the OS once per thread, then incremented.
    RandomState::new().hash_one(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_matches_the_published_vectors() {
        assert_eq!(
            philox([0; 4], [0; 2]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn draws_are_uniform_over_positions_and_over_seeds() {
        // Chi-square over 16 cells, 15 degrees of freedom: 37.7 is the 0.1 % point. The inputs are
        // fixed, so the test cannot flake.
        let chi_square = |draw: &dyn Fn(u64) -> f64| {
            let mut cells = [0f64; 16];
            for i in 0..16_000 {
                cells[(draw(i) * 16.0) as usize] += 1.0;
            }
            cells
                .iter()
                .map(|n| (n - 1000.0).powi(2) / 1000.0)
                .sum::<f64>()
        };
        assert!(chi_square(&|i| uniform(7, i)) < 37.7);
        assert!(chi_square(&|i| uniform(i, 0)) < 37.7);
        assert!(chi_square(&|i| uniform(i << 32, 3)) < 37.7);
    }

    #[test]
    fn neighbouring_seeds_and_positions_are_unrelated() {
        let correlation = |pairs: &dyn Fn(u64) -> (f64, f64)| {
            let sum: f64 = (0..20_000)
                .map(|i| {
                    let (a, b) = pairs(i);
                    (a - 0.5) * (b - 0.5)
                })
                .sum();
            (sum / 20_000.0 * 12.0).abs()
        };
        assert!(correlation(&|i| (uniform(1, i), uniform(1, i + 1))) < 0.03);
        assert!(correlation(&|i| (uniform(1, i), uniform(2, i))) < 0.03);
    }

    #[test]
    fn fresh_seeds_differ() {
        assert_ne!(fresh_seed(), fresh_seed());
    }
}
