//! Exponentials over whole logits rows: the part of sampling whose cost grows with the vocabulary.
//!
//! The loops run over fixed-size lanes so that the compiler vectorises them, and the exponential is
//! our own polynomial: unlike the C library's it gives the same bits on every platform, and with
//! them the same token for the same seed.

/// Partial sums run in f32 lanes within a block and in f64 across blocks.
const BLOCK: usize = 1024;
const LANES: usize = 8;

/// Makes a logit fit for arithmetic: NaN becomes -inf (masked), +inf the largest number (the
/// difference of two infinities would be NaN), and a negative zero becomes zero, because it would
/// rank behind zero.
pub fn clean(logit: f32) -> f32 {
    if logit.is_nan() {
        f32::NEG_INFINITY
    } else {
        logit.min(f32::MAX) + 0.0
    }
}

/// Cleans every logit in place and returns the largest; `None` if all are masked.
pub fn clean_and_max(logits: &mut [f32]) -> Option<f32> {
    for logit in logits.iter_mut() {
        *logit = clean(*logit);
    }
    let max = max(logits);
    (max > f32::NEG_INFINITY).then_some(max)
}

/// The largest logit, cleaned; -inf if all are masked.
pub fn max(logits: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let mut chunks = logits.chunks_exact(LANES);
    for chunk in &mut chunks {
        for (lane, &logit) in lanes.iter_mut().zip(chunk) {
            // A comparison with NaN is false and leaves the lane alone.
            *lane = if logit > *lane { logit } else { *lane };
        }
    }
    lanes
        .iter()
        .chain(chunks.remainder())
        .fold(f32::NEG_INFINITY, |max, &x| max.max(clean(x)))
}

/// The probability of a (cleaned) logit relative to the probability of the logit `max`; at most 1.
pub fn weight(logit: f32, max: f32, temperature: f32) -> f32 {
    exp_of_nonpositive((logit - max) / temperature)
}

/// Replaces every logit by its [`weight`].
pub fn weigh(logits: &mut [f32], max: f32, temperature: f32) {
    for logit in logits {
        *logit = weight(*logit, max, temperature);
    }
}

/// ln(sum(exp(logit))); -inf if all are masked.
pub fn log_sum_exp(logits: &[f32]) -> f32 {
    let max = max(logits);
    if max == f32::NEG_INFINITY {
        return max;
    }
    let mut block = [0f32; BLOCK];
    let mut total = 0f64;
    for logits in logits.chunks(BLOCK) {
        let weights = &mut block[..logits.len()];
        for (weight, &logit) in weights.iter_mut().zip(logits) {
            *weight = exp_of_nonpositive(clean(logit) - max);
        }
        total += block_sum(weights);
    }
    max + total.ln() as f32
}

/// The sum of all weights.
pub fn sum(weights: &[f32]) -> f64 {
    weights.chunks(BLOCK).map(block_sum).sum()
}

/// The index at which the running sum of `weights` exceeds `target`, which lies in
/// [0, [`sum`]). It is never an index of weight zero; `None` only if all weights are zero.
pub fn index_at(weights: &[f32], target: f64) -> Option<usize> {
    let mut left = target;
    let mut holder = None;
    for (number, block) in weights.chunks(BLOCK).enumerate() {
        let sum = block_sum(block);
        if sum > 0.0 {
            holder = Some((number * BLOCK, block, left));
            if left < sum {
                break;
            }
        }
        left -= sum;
    }
    // If rounding moves the target past every block, the last token of the last block is taken.
    let (start, block, mut left) = holder?;
    let mut found = None;
    for (i, &weight) in block
        .iter()
        .enumerate()
        .filter(|(_, weight)| **weight > 0.0)
    {
        found = Some(start + i);
        left -= f64::from(weight);
        if left < 0.0 {
            break;
        }
    }
    found
}

fn block_sum(weights: &[f32]) -> f64 {
    let mut lanes = [0f32; LANES];
    let mut chunks = weights.chunks_exact(LANES);
    for chunk in &mut chunks {
        for (lane, &weight) in lanes.iter_mut().zip(chunk) {
            *lane += weight;
        }
    }
    lanes
        .iter()
        .chain(chunks.remainder())
        .map(|&x| f64::from(x))
        .sum()
}

/// exp(x) for x <= 0 within 2 units in the last place; 0 below -87, where f32 would become
/// subnormal. It has no branch and no call, so that loops over it vectorise.
fn exp_of_nonpositive(x: f32) -> f32 {
    const LOWEST: f32 = -87.0;
    // ln 2 in two parts: n * LN2_HIGH is exact because LN2_HIGH has few digits.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
    const ROUND: f32 = 12_582_912.0;

    let clamped = if x > LOWEST { x } else { LOWEST };
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = clamped - n * LN2_HIGH - n * LN2_LOW;
    // The Taylor series up to r^7: |r| <= ln(2)/2, so the remainder is below 1e-8.
    let mut y = 1.0 / 5040.0;
    for term in [
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ] {
        y = y * r + term;
    }
    let exponent = shifted
        .to_bits()
        .wrapping_sub(ROUND.to_bits())
        .wrapping_add(127);
    let power = f32::from_bits(exponent << 23);
    if x > LOWEST { y * power } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cleaning_replaces_nan_infinity_and_negative_zero() {
        let cleaned = [f32::NAN, f32::INFINITY, -0.0, 0.0, -1.5].map(clean);
        let bits = [f32::NEG_INFINITY, f32::MAX, 0.0, 0.0, -1.5].map(f32::to_bits);
        assert_eq!(cleaned.map(f32::to_bits), bits);
    }

    #[test]
    fn the_exponential_is_right_to_two_units_in_the_last_place() {
        for i in 0..870_000 {
            let x = -(i as f32) * 1e-4;
            let exact = f64::from(x).exp();
            let error = (f64::from(exp_of_nonpositive(x)) - exact).abs() / exact;
            assert!(error < 2.4e-7, "exp({x}) is off by {error}");
        }
        assert_eq!(exp_of_nonpositive(0.0), 1.0);
        assert_eq!(exp_of_nonpositive(-87.5), 0.0);
        assert_eq!(exp_of_nonpositive(f32::MIN), 0.0);
        assert_eq!(exp_of_nonpositive(f32::NEG_INFINITY), 0.0);
    }

    #[test]
    fn max_ignores_nan_wherever_it_stands() {
        for at in 0..20 {
            let mut row: Vec<f32> = (0..20).map(|i| i as f32 - 30.0).collect();
            row[at] = f32::NAN;
            assert_eq!(max(&row), if at == 19 { -12.0 } else { -11.0 });
        }
        assert_eq!(max(&[f32::NAN; 9]), f32::NEG_INFINITY);
        assert_eq!(max(&[]), f32::NEG_INFINITY);
    }

    #[test]
    fn log_sum_exp_agrees_with_f64() {
        let row: Vec<f32> = (0..5000)
            .map(|i| ((i * 37 % 1000) as f32) * 0.03 - 12.0)
            .collect();
        let exact = row.iter().map(|&x| f64::from(x).exp()).sum::<f64>().ln();
        assert!((f64::from(log_sum_exp(&row)) - exact).abs() < 1e-5);
        assert_eq!(
            log_sum_exp(&[f32::NEG_INFINITY, f32::NAN]),
            f32::NEG_INFINITY
        );
    }

    #[test]
    fn index_at_splits_the_line_by_weight() {
        let mut weights = vec![0f32; 3 * BLOCK + 5];
        weights[3] = 1.0;
        weights[BLOCK + 7] = 2.0;
        weights[2 * BLOCK] = 1.0;
        assert_eq!(sum(&weights), 4.0);
        let at = |target| index_at(&weights, target);
        assert_eq!(at(0.0), Some(3));
        assert_eq!(at(0.999), Some(3));
        assert_eq!(at(1.0), Some(BLOCK + 7));
        assert_eq!(at(2.999), Some(BLOCK + 7));
        assert_eq!(at(3.0), Some(2 * BLOCK));
        // A target that rounding pushed past the sum still finds a token of positive weight.
        assert_eq!(at(4.0), Some(2 * BLOCK));
        assert_eq!(index_at(&[0.0; 9], 0.0), None);
    }
}
