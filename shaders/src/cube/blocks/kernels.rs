//! Kernels that multiply with rows in blocks, and that dequantise rows.

use cubecl::prelude::*;

use crate::BLOCK;
use crate::cube::linear::{Epilogue, LANES, ROWS, finish, first_of, row_of};

/// Elements of a row that a unit reads at once: one or two words. Neighbouring units read
/// neighbouring elements, of the row and of the activations.
pub const UNIT: usize = 8;
/// Rows that a unit computes. The activations that it loads are used for all of them.
pub const EACH: usize = 2;
pub const THREADS: usize = 256;

/// How many times [`UNIT`] elements a unit loads before it computes with them. With few tokens to
/// compute with, more loads have to be in flight to hide the latency of memory.
pub fn ahead(group: usize) -> usize {
    (4 / group).max(1)
}

/// Converts the bits of an f16 to f32.
#[cube]
fn widened(bits: u32) -> f32 {
    let magnitude = bits & 0x7fffu32;
    let sign = (bits & 0x8000u32) << 16u32;
    // Normal numbers add 112 to the exponent; infinities and NaN keep all its bits set; subnormals
    // are whole multiples of 2^-24.
    let normal = (magnitude << 13u32) + 0x3800_0000u32;
    let beyond = (magnitude << 13u32) | 0x7f80_0000u32;
    let small = u32::reinterpret(f32::cast_from(magnitude) * 5.960_464_5e-8f32);
    let value = select(magnitude < 0x7c00u32, normal, beyond);
    f32::reinterpret(select(magnitude < 0x400u32, small, value) | sign)
}

/// The scale of the block that contains the elements `unit * UNIT` of a row. The scales of the row
/// begin at word `first`.
#[cube]
fn scale(words: &Array<u32>, first: usize, unit: usize) -> f32 {
    let block = unit / comptime!(BLOCK / UNIT);
    let pair = words[first + block / 2];
    widened((pair >> (block as u32 % 2u32 * 16u32)) & 0xffffu32)
}

/// The element at `place` of a word, before scaling. Its bits become the highest mantissa bits of a
/// float between 1 and 2, which is cheaper than converting an integer.
#[cube]
fn element(word: u32, #[comptime] place: usize, #[comptime] bits: usize) -> f32 {
    let at = comptime!(23 - bits);
    let from = comptime!(place * bits);
    let mut moved = word;
    if comptime!(from < at) {
        moved = word << comptime!((at - from) as u32);
    }
    if comptime!(from > at) {
        moved = word >> comptime!((from - at) as u32);
    }
    let mask = comptime!(((1u32 << bits as u32) - 1u32) << at as u32);
    let steps = comptime!((1u32 << bits as u32) as f32);
    let middle = comptime!(1.5f32 * (1u32 << bits as u32) as f32);
    f32::reinterpret((moved & mask) | 0x3f80_0000u32) * steps - middle
}

/// Multiplies `group` tokens with [`EACH`] rows for each of the [`ROWS`] rows of units in a cube,
/// which gives `output` elements per token in total. `full` means that every group has all its
/// tokens. `words` and `scales` are the same buffer; its elements begin at `begin`.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments)]
pub fn product<E: Float, N: Size, W: Size>(
    x: &Array<Vector<E, N>>,
    words: &Array<Vector<u32, W>>,
    scales: &Array<u32>,
    bias: &Array<E>,
    out: &mut Array<E>,
    tokens: u32,
    output: u32,
    begin: u32,
    #[comptime] group: usize,
    #[comptime] full: bool,
    #[comptime] ahead: usize,
    #[comptime] input: usize,
    #[comptime] bits: usize,
    #[comptime] has_bias: bool,
    #[comptime] epilogue: Epilogue,
    #[define(E)] _dtype: StorageType,
) {
    let vector = N::value();
    let vectors = comptime!(input / vector);
    let units = comptime!(input.div_ceil(UNIT));
    let stride = comptime!(input.div_ceil(BLOCK) * (BLOCK / UNIT));
    let pairs = comptime!(input.div_ceil(BLOCK).div_ceil(2));
    let width = comptime!(UNIT * bits / 32);
    let per_word = comptime!(32 / bits);
    let whole = comptime!(input.is_multiple_of(UNIT));

    let lane = UNIT_POS_X as usize;
    let first = CUBE_POS_X as usize * group;
    let cube = CUBE_POS_Z * CUBE_COUNT_Y + CUBE_POS_Y;
    let target = first_of(cube as usize, EACH, epilogue);
    let row = row_of(target, output, epilogue);
    let last = comptime!(ROWS / epilogue.units()) * output as usize - 1;
    let here = tokens as usize - first;

    let mut sums = Array::<f32>::new(comptime!(group * EACH));
    #[unroll]
    for sum in 0..comptime!(group * EACH) {
        sums[sum] = 0.0f32;
    }
    let mut read = Array::<u32>::new(comptime!(ahead * EACH * width));
    let mut steps = Array::<f32>::new(comptime!(ahead * EACH));
    let mut weights = Array::<f32>::new(comptime!(EACH * UNIT));
    let mut parts = Array::<f32>::new(comptime!(EACH));
    for start in range_stepped(lane, units, comptime!(LANES * ahead)) {
        #[unroll]
        for step in 0..ahead {
            // Elements beyond the end of the row get a scale of zero.
            let unit = start + step * LANES;
            let there = select(unit < units, unit, comptime!(units - 1));
            #[unroll]
            for each in 0..comptime!(EACH) {
                let from = select(row + each <= last, row + each, last);
                let word = words[begin as usize + from * stride + there];
                #[unroll]
                for n in 0..width {
                    read[comptime!((step * EACH + each) * width + n)] = word[n];
                }
                let scale = scale(scales, from * pairs, there);
                steps[comptime!(step * EACH + each)] = select(unit < units, scale, 0.0f32);
            }
        }
        #[unroll]
        for step in 0..ahead {
            let unit = start + step * LANES;
            let there = select(unit < units, unit, comptime!(units - 1));
            #[unroll]
            for each in 0..comptime!(EACH) {
                #[unroll]
                for n in 0..comptime!(UNIT) {
                    let word = read[comptime!((step * EACH + each) * width + n / per_word)];
                    weights[comptime!(each * UNIT + n)] =
                        element(word, comptime!(n % per_word), bits);
                }
            }
            #[unroll]
            for token in 0..group {
                if full || token < here {
                    #[unroll]
                    for each in 0..comptime!(EACH) {
                        parts[each] = 0.0f32;
                    }
                    #[unroll]
                    for part in 0..comptime!(UNIT / vector) {
                        let at = there * comptime!(UNIT / vector) + part;
                        if whole || at < vectors {
                            let a = x[(first + token) * vectors + at];
                            #[unroll]
                            for n in 0..vector {
                                let value = f32::cast_from(a[n]);
                                #[unroll]
                                for each in 0..comptime!(EACH) {
                                    parts[each] = parts[each]
                                        + weights[comptime!(each * UNIT + part * vector + n)]
                                            * value;
                                }
                            }
                        }
                    }
                    #[unroll]
                    for each in 0..comptime!(EACH) {
                        let sum = comptime!(token * EACH + each);
                        sums[sum] = sums[sum] + parts[each] * steps[comptime!(step * EACH + each)];
                    }
                }
            }
        }
    }
    finish::<E>(
        &sums, bias, out, target, first, here, output, group, EACH, full, has_bias, epilogue,
    );
}

/// Writes `rows` rows of the matrix as floats: the rows `ids` if `named`, otherwise the rows from
/// `from` on. `words` and `scales` are the same buffer; its elements begin at `begin`.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments)]
pub fn rows<E: Float, N: Size, W: Size>(
    words: &Array<Vector<u32, W>>,
    scales: &Array<u32>,
    ids: &Array<i32>,
    out: &mut Array<Vector<E, N>>,
    rows: u32,
    begin: u32,
    from: u32,
    #[comptime] columns: usize,
    #[comptime] bits: usize,
    #[comptime] named: bool,
    #[define(E)] _dtype: StorageType,
) {
    let vector = N::value();
    let vectors = comptime!(columns / vector);
    let units = comptime!(columns.div_ceil(UNIT));
    let stride = comptime!(columns.div_ceil(BLOCK) * (BLOCK / UNIT));
    let pairs = comptime!(columns.div_ceil(BLOCK).div_ceil(2));
    let per_word = comptime!(32 / bits);
    let whole = comptime!(columns.is_multiple_of(UNIT));
    let to = (CUBE_POS_Y * CUBE_COUNT_X + CUBE_POS_X) as usize;
    if to < rows as usize {
        let mut row = to + from as usize;
        if comptime!(named) {
            row = ids[to] as usize;
        }
        for unit in range_stepped(UNIT_POS as usize, units, THREADS) {
            let word = words[begin as usize + row * stride + unit];
            let scale = scale(scales, row * pairs, unit);
            #[unroll]
            for part in 0..comptime!(UNIT / vector) {
                let at = unit * comptime!(UNIT / vector) + part;
                if whole || at < vectors {
                    let mut values = Vector::<E, N>::empty();
                    #[unroll]
                    for n in 0..vector {
                        let place = comptime!(part * vector + n);
                        let quant = word[comptime!(place / per_word)];
                        let value = element(quant, comptime!(place % per_word), bits) * scale;
                        values[n] = E::cast_from(value);
                    }
                    out[to * vectors + at] = values;
                }
            }
        }
    }
}
