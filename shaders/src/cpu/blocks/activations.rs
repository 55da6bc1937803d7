//! Rounds activations to 8 bits, for products with blocks.

use rayon::prelude::*;

use super::{BLOCK, UNIT};
use crate::cpu::aligned::Aligned;
use crate::cpu::simd::{Simd, Task, dispatch};

/// The fewest tokens of a task.
const TOKENS_PER_TASK: usize = 8;
/// Blocks whose largest value is smaller than this are rounded to zero: the inverse would overflow.
const SMALLEST: f32 = 1e-36;

/// Rounded activations in blocks of 32. `side` tokens are a tile, and the blocks are in the order
/// `[tile][block][side]`.
pub struct Activations {
    /// Values from -127 to 127.
    pub values: Aligned<i8>,
    /// The scale of each block; NaN if the block has a value that is not finite.
    pub scales: Aligned<f32>,
    /// The negated sums of each half of a block, because some weights have a scale for every 16, and of the
    /// whole block. The fourth number fills the line.
    pub negated: Aligned<[i32; 4]>,
    pub pairs: Aligned<Pairs>,
    /// The sums of the values of each half and of the whole block, times the scale: what a minimum is
    /// multiplied with. The fourth number fills the line.
    pub scaled_sums: Aligned<[f32; 4]>,
    pub tokens: usize,
    /// Elements of a token, padded to whole units.
    pub width: usize,
    /// Tokens of a tile. Tokens that the last tile lacks are zero.
    pub side: usize,
}

/// For each half of a block, the sum of the first two of every four values, and of the other two.
pub type Pairs = [[i16; 2]; 2];

/// Sums of the values of a block.
#[derive(Clone, Copy)]
pub struct BlockSums<'a> {
    /// [`Activations::negated`]
    pub negated: &'a [i32; 4],
    pub pairs: &'a Pairs,
}

impl BlockSums<'_> {
    /// The negated sum of the part `part`, where parts have `elements` elements.
    #[inline(always)]
    pub fn negated(self, elements: usize, part: usize) -> i32 {
        self.negated[index(elements, part)]
    }
}

/// The place of the part `part` in the list of a block's first half, its second half, and the whole,
/// where parts have `elements` elements.
#[inline(always)]
fn index(elements: usize, part: usize) -> usize {
    if elements == BLOCK { 2 } else { part }
}

impl Activations {
    /// The number of [`Self::scaled_sums`] for the part `part` of a block, whose parts have `elements`
    /// elements.
    #[inline(always)]
    pub fn scaled_sum(sums: [f32; 4], elements: usize, part: usize) -> f32 {
        sums[index(elements, part)]
    }

    /// Rounds `x` `[tokens, columns]`.
    pub fn round(x: &[f32], columns: usize, side: usize) -> Self {
        let (tokens, width) = (x.len() / columns, columns.next_multiple_of(UNIT));
        let blocks = width / BLOCK * tokens.next_multiple_of(side);
        let mut rounded = Self {
            values: Aligned::zeroed(blocks * BLOCK),
            scales: Aligned::zeroed(blocks),
            negated: Aligned::zeroed(blocks),
            pairs: Aligned::zeroed(blocks),
            scaled_sums: Aligned::zeroed(blocks),
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
            .zip(rounded.negated.par_chunks_mut(blocks))
            .zip(rounded.pairs.par_chunks_mut(blocks))
            .zip(rounded.scaled_sums.par_chunks_mut(blocks));
        pieces.for_each(|(((((x, values), scales), negated), pairs), scaled_sums)| {
            let (values, _) = values.as_chunks_mut();
            dispatch(Tiles {
                x,
                columns,
                blocks: width / BLOCK,
                side,
                values,
                scales: &mut *scales,
                negated: &mut *negated,
                pairs,
            });
            for ((scaled, negated), scale) in scaled_sums.iter_mut().zip(&*negated).zip(&*scales) {
                *scaled = negated.map(|sum| *scale * -sum as f32);
            }
        });
        rounded
    }
}

/// Rounds the tokens of whole tiles.
struct Tiles<'a> {
    x: &'a [f32],
    columns: usize,
    blocks: usize,
    side: usize,
    values: &'a mut [[i8; BLOCK]],
    scales: &'a mut [f32],
    negated: &'a mut [[i32; 4]],
    pairs: &'a mut [Pairs],
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
                (self.scales[at], self.negated[at], self.pairs[at]) =
                    round_block(x, &mut self.values[at]);
            }
            if !rest.is_empty() {
                let at = first + whole.len() * self.side;
                let mut filled = [0.0; BLOCK];
                filled[..rest.len()].copy_from_slice(rest);
                (self.scales[at], self.negated[at], self.pairs[at]) =
                    round_block(&filled, &mut self.values[at]);
            }
        }
    }
}

/// Rounds a block. Returns its scale, and the rounded values' [`Activations::negated`] and [`Pairs`].
#[inline(always)]
fn round_block(x: &[f32; BLOCK], to: &mut [i8; BLOCK]) -> (f32, [i32; 4], Pairs) {
    const INFINITY: u32 = f32::INFINITY.to_bits();
    // Without the sign bit, floats are ordered like their bits, and NaN comes last.
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
        return (f32::NAN, [0; 4], [[0; 2]; 2]);
    }
    let largest = f32::from_bits(largest);
    if largest < SMALLEST {
        *to = [0; BLOCK];
        return (0.0, [0; 4], [[0; 2]; 2]);
    }
    // Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let inverse = 127.0 / largest;
    let (mut negated, mut pairs) = ([0; 4], [[0; 2]; 2]);
    for half in 0..2 {
        // Lane by lane, so that the compiler adds vectors.
        let mut lanes = [0i32; 4];
        for i in 0..BLOCK / 2 {
            let at = half * BLOCK / 2 + i;
            let value = (x[at] * inverse + ROUND)
                .to_bits()
                .wrapping_sub(ROUND.to_bits()) as i32;
            to[at] = value as i8;
            lanes[i % 4] += value;
        }
        let two = [lanes[0] + lanes[1], lanes[2] + lanes[3]];
        negated[half] = -(two[0] + two[1]);
        pairs[half] = two.map(|sum| sum as i16);
    }
    negated[2] = negated[0] + negated[1];
    (largest / 127.0, negated, pairs)
}
