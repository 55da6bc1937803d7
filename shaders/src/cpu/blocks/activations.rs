//! Activations rounded to 8 bits, for products with blocks.

use rayon::prelude::*;

use super::{BLOCK, UNIT};
use crate::cpu::aligned::Aligned;
use crate::cpu::simd::{Simd, Task, dispatch};

/// Tokens that are worth a task of their own, as they lie one by one.
const TOKENS_PER_TASK: usize = 8;
/// Below this a block is taken for zeros: its inverse would overflow.
const SMALLEST: f32 = 1e-36;

/// Rounded activations in blocks of 32, tile by tile: `[tile][block][side]`, where a tile is `side`
/// tokens.
pub struct Activations {
    /// From -127 to 127.
    pub values: Aligned<i8>,
    /// Of each block; NaN where it has a value that is not finite.
    pub scales: Aligned<f32>,
    /// The sum of each block's values.
    pub sums: Aligned<i32>,
    pub tokens: usize,
    /// Elements of a token, whole units.
    pub width: usize,
    /// Tokens that lie side by side; those that are missing in the last tile are zero.
    pub side: usize,
}

impl Activations {
    /// Rounds `x` `[tokens, columns]`.
    pub fn round(x: &[f32], columns: usize, side: usize) -> Self {
        let (tokens, width) = (x.len() / columns, columns.next_multiple_of(UNIT));
        let blocks = width / BLOCK * tokens.next_multiple_of(side);
        let mut rounded = Self {
            values: Aligned::zeroed(blocks * BLOCK),
            scales: Aligned::zeroed(blocks),
            sums: Aligned::zeroed(blocks),
            tokens,
            width,
            side,
        };
        let per_task = TOKENS_PER_TASK.next_multiple_of(side);
        let blocks = width / BLOCK * per_task;
        let pieces = x
            .par_chunks(per_task * columns)
            .zip(rounded.values.par_chunks_mut(blocks * BLOCK))
            .zip(rounded.scales.par_chunks_mut(blocks))
            .zip(rounded.sums.par_chunks_mut(blocks));
        pieces.for_each(|(((x, values), scales), sums)| {
            let (values, _) = values.as_chunks_mut();
            dispatch(Tiles {
                x,
                columns,
                blocks: width / BLOCK,
                side,
                values,
                scales,
                sums,
            });
        });
        rounded
    }
}

/// Whole tiles of tokens.
struct Tiles<'a> {
    x: &'a [f32],
    columns: usize,
    blocks: usize,
    side: usize,
    values: &'a mut [[i8; BLOCK]],
    scales: &'a mut [f32],
    sums: &'a mut [i32],
}

impl Task for Tiles<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for (token, x) in self.x.chunks_exact(self.columns).enumerate() {
            let (tile, row) = (token / self.side, token % self.side);
            let first = tile * self.blocks * self.side + row;
            let (whole, rest) = x.as_chunks::<BLOCK>();
            for (block, x) in whole.iter().enumerate() {
                let at = first + block * self.side;
                (self.scales[at], self.sums[at]) = round_block(x, &mut self.values[at]);
            }
            if !rest.is_empty() {
                let at = first + whole.len() * self.side;
                let mut filled = [0.0; BLOCK];
                filled[..rest.len()].copy_from_slice(rest);
                (self.scales[at], self.sums[at]) = round_block(&filled, &mut self.values[at]);
            }
        }
    }
}

/// The scale and the sum of the values.
#[inline(always)]
fn round_block(x: &[f32; BLOCK], to: &mut [i8; BLOCK]) -> (f32, i32) {
    const INFINITY: u32 = f32::INFINITY.to_bits();
    // Without their sign, floats are in the order of their bits, and NaN is the largest.
    let mut lanes = [0u32; BLOCK / 2];
    for i in 0..BLOCK {
        lanes[i % (BLOCK / 2)] = lanes[i % (BLOCK / 2)].max(x[i].to_bits() & !(1 << 31));
    }
    let mut largest = 0;
    for lane in lanes {
        largest = largest.max(lane);
    }
    if largest >= INFINITY {
        *to = [0; BLOCK];
        return (f32::NAN, 0);
    }
    let largest = f32::from_bits(largest);
    if largest < SMALLEST {
        *to = [0; BLOCK];
        return (0.0, 0);
    }
    // Adding 1.5 * 2^23 rounds to the nearest integer, which is then in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let inverse = 127.0 / largest;
    let mut sum = 0;
    for i in 0..BLOCK {
        let value = (x[i] * inverse + ROUND)
            .to_bits()
            .wrapping_sub(ROUND.to_bits()) as i32;
        to[i] = value as i8;
        sum += value;
    }
    (largest / 127.0, sum)
}
