//! Activations rounded to 8 bits, for products with blocks.

use rayon::prelude::*;

use super::{BLOCK, UNIT};
use crate::cpu::simd::vectorised;

/// Tokens that are worth a task of their own.
const TOKENS_PER_TASK: usize = 8;
/// Below this a block is taken for zeros: its inverse would overflow.
const SMALLEST: f32 = 1e-36;

/// Rounded activations, `[tokens, width]` in blocks of 32.
pub struct Activations {
    /// From -127 to 127.
    pub values: Vec<i8>,
    /// Of each block; NaN where it has a value that is not finite.
    pub scales: Vec<f32>,
    /// The sum of each block's values.
    pub sums: Vec<i32>,
    pub tokens: usize,
    /// Elements of a token, whole units.
    pub width: usize,
}

impl Activations {
    /// Rounds `x` `[tokens, columns]`.
    pub fn round(x: &[f32], columns: usize) -> Self {
        let (tokens, width) = (x.len() / columns, columns.next_multiple_of(UNIT));
        let blocks = width / BLOCK;
        let mut rounded = Self {
            values: vec![0; tokens * width],
            scales: vec![0.0; tokens * blocks],
            sums: vec![0; tokens * blocks],
            tokens,
            width,
        };
        let pieces = x
            .par_chunks(TOKENS_PER_TASK * columns)
            .zip(rounded.values.par_chunks_mut(TOKENS_PER_TASK * width))
            .zip(rounded.scales.par_chunks_mut(TOKENS_PER_TASK * blocks))
            .zip(rounded.sums.par_chunks_mut(TOKENS_PER_TASK * blocks));
        pieces.for_each(|(((x, values), scales), sums)| {
            vectorised(|| {
                let rows = x.chunks_exact(columns).zip(values.chunks_exact_mut(width));
                let parts = scales
                    .chunks_exact_mut(blocks)
                    .zip(sums.chunks_exact_mut(blocks));
                for ((x, values), (scales, sums)) in rows.zip(parts) {
                    round_token(x, values, scales, sums);
                }
            });
        });
        rounded
    }
}

#[inline(always)]
fn round_token(x: &[f32], values: &mut [i8], scales: &mut [f32], sums: &mut [i32]) {
    let (whole, rest) = x.as_chunks::<BLOCK>();
    let (to, _) = values.as_chunks_mut::<BLOCK>();
    let (last, mut filled) = (whole.len(), [0.0; BLOCK]);
    for (block, (x, to)) in whole.iter().zip(to.iter_mut()).enumerate() {
        (scales[block], sums[block]) = round_block(x, to);
    }
    if !rest.is_empty() {
        filled[..rest.len()].copy_from_slice(rest);
        (scales[last], sums[last]) = round_block(&filled, &mut to[last]);
    }
}

/// The scale and the sum of the values.
#[inline(always)]
fn round_block(x: &[f32; BLOCK], to: &mut [i8; BLOCK]) -> (f32, i32) {
    const INFINITY: u32 = f32::INFINITY.to_bits();
    // Without their sign, floats are in the order of their bits, and NaN is the largest.
    let largest = x
        .iter()
        .fold(0, |most: u32, x| most.max(x.to_bits() & !(1 << 31)));
    if largest >= INFINITY {
        to.fill(0);
        return (f32::NAN, 0);
    }
    let largest = f32::from_bits(largest);
    if largest < SMALLEST {
        to.fill(0);
        return (0.0, 0);
    }
    // Adding 1.5 * 2^23 rounds to the nearest integer, which is then in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let inverse = 127.0 / largest;
    let mut sum = 0;
    for (to, x) in to.iter_mut().zip(x) {
        let value = (x * inverse + ROUND)
            .to_bits()
            .wrapping_sub(ROUND.to_bits()) as i32;
        *to = value as i8;
        sum += value;
    }
    (largest / 127.0, sum)
}
