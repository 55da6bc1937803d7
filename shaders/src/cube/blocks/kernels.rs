//! Kernels that multiply with rows in blocks, and that dequantise rows.

use cubecl::prelude::*;

use super::words::{Places, RECORD, words_of_record};
use crate::cpu::Scales;
use crate::cube::linear::{Epilogue, LANES, ROWS, finish, first_of, row_of};
use crate::{BLOCK, BlockFormat};

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

/// The record of two levels of scales that has the elements `unit * UNIT`, and the part in it.
#[cube]
fn record_and_part(first: usize, unit: usize, #[comptime] format: BlockFormat) -> (usize, usize) {
    let units = comptime!(RECORD / UNIT);
    let record = first + unit / units * comptime!(words_of_record(format));
    let part = unit % units / comptime!(format.layout().part / UNIT);
    (record, part)
}

/// The byte `at` of the words from `first` on.
#[cube]
fn byte(words: &Array<u32>, first: usize, at: usize) -> u32 {
    (words[first + at / 4] >> (at as u32 % 4u32 * 8u32)) & 0xffu32
}

/// The scale of the elements `unit * UNIT` of a row. The scales of the row begin at word `first`.
#[cube]
fn scale(words: &Array<u32>, first: usize, unit: usize, #[comptime] format: BlockFormat) -> f32 {
    let block = unit / comptime!(BLOCK / UNIT);
    let kind = comptime!(format.layout().scales);
    if comptime!(kind.two_levels()) {
        let (record, part) = record_and_part(first, unit, format);
        let integer = byte(words, record + 1, part);
        let mut factor = f32::cast_from(integer);
        if comptime!(kind == Scales::Signed) {
            // The sign bit stands for -128.
            factor = f32::cast_from(integer ^ 0x80u32) - 128.0f32;
        }
        if comptime!(kind == Scales::Nibbles) {
            factor = f32::cast_from(integer & 0xfu32);
        }
        widened(words[record] & 0xffffu32) * factor
    } else if comptime!(kind == Scales::HalfAndMinimum) {
        widened(words[first + block] & 0xffffu32)
    } else {
        let pair = words[first + block / 2];
        let half = (pair >> (block as u32 % 2u32 * 16u32)) & 0xffffu32;
        if comptime!(kind == Scales::Power) {
            f32::reinterpret(half << 16u32)
        } else {
            widened(half)
        }
    }
}

/// The minimum of the elements `unit * UNIT` of a row, in a format that has minimums.
#[cube]
fn minimum(words: &Array<u32>, first: usize, unit: usize, #[comptime] format: BlockFormat) -> f32 {
    let kind = comptime!(format.layout().scales);
    if comptime!(kind.two_levels()) {
        let (record, part) = record_and_part(first, unit, format);
        // In `Q2_K`, the integers of the minimums are the high halves of those of the scales.
        let mut factor = f32::cast_from(byte(words, record + 1, part) >> 4u32);
        if comptime!(kind == Scales::Pairs) {
            let parts = comptime!(RECORD / format.layout().part);
            factor = f32::cast_from(byte(words, record + 1, parts + part));
        }
        widened(words[record] >> 16u32) * factor
    } else {
        let block = unit / comptime!(BLOCK / UNIT);
        widened(words[first + block] >> 16u32)
    }
}

/// Units that share a word of a plane with so many bits.
const fn sharing(bits: usize) -> usize {
    let of_unit = UNIT * bits;
    if of_unit == 0 || of_unit >= 32 {
        1
    } else {
        32 / of_unit
    }
}

/// Moves the bits of a unit to the low end of the word that it shares with its neighbours.
#[cube]
fn own(word: u32, unit: usize, #[comptime] bits: usize) -> u32 {
    let share = comptime!(sharing(bits));
    let mut own = word;
    if comptime!(share > 1) {
        own = word >> (unit as u32 % comptime!(share as u32) * comptime!(32 / share as u32));
    }
    own
}

/// The high bits of the elements of a unit, 0 in formats without them. The high bits of the row begin
/// at word `first`.
#[cube]
fn upper(words: &Array<u32>, first: usize, unit: usize, #[comptime] format: BlockFormat) -> u32 {
    let bits = comptime!(format.layout().planes[1]);
    let mut found = 0u32;
    if comptime!(bits > 0) {
        found = own(words[first + unit / comptime!(sharing(bits))], unit, bits);
    }
    found
}

/// The value of the element at `place` of a word of low bits, before scaling. `at` is the place in
/// `upper`. Its bits become the highest mantissa bits of a float between 1 and 2, which is cheaper
/// than converting an integer.
#[cube]
fn element(
    word: u32,
    upper: u32,
    table: &SharedMemory<f32>,
    #[comptime] place: usize,
    #[comptime] at: usize,
    #[comptime] format: BlockFormat,
) -> f32 {
    let layout = comptime!(format.layout());
    let [low, high] = comptime!(layout.planes);
    let from = comptime!(place * low);
    if comptime!(layout.table.is_some()) {
        table[((word >> comptime!(from as u32)) & comptime!((1u32 << low as u32) - 1)) as usize]
    } else {
        let bits = comptime!(low + high);
        // The lowest bit of the element, where it is in the mantissa.
        let to = comptime!(23 - bits);
        let mut moved = word;
        if comptime!(from < to) {
            moved = word << comptime!((to - from) as u32);
        }
        if comptime!(from > to) {
            moved = word >> comptime!((from - to) as u32);
        }
        let mut mantissa = moved & comptime!(((1u32 << low as u32) - 1u32) << to as u32);
        if comptime!(high > 0) {
            let mask = comptime!((1u32 << high as u32) - 1u32);
            let bits = (upper >> comptime!((at * high) as u32)) & mask;
            mantissa |= bits << comptime!((to + low) as u32);
        }
        let steps = comptime!((1u32 << bits as u32) as f32);
        let offset = comptime!((1u32 << bits as u32) as f32 + layout.offset as f32);
        f32::reinterpret(mantissa | 0x3f80_0000u32) * steps - offset
    }
}

/// The values of the elements of formats that have a table; a single number for the others.
#[cube]
pub fn table_of(#[comptime] format: BlockFormat) -> SharedMemory<f32> {
    let layout = comptime!(format.layout());
    let length = comptime!(layout.table.map_or(1, |table| table.len()));
    let mut values = SharedMemory::<f32>::new(length);
    if comptime!(layout.table.is_some()) {
        if UNIT_POS == 0u32 {
            #[unroll]
            for i in 0..length {
                let value = comptime!(
                    layout.table.map_or(0.0, |table| table[i] as f32) - layout.offset as f32
                );
                values[i] = f32::new(value);
            }
        }
        sync_cube();
    }
    values
}

/// Multiplies `group` tokens with [`EACH`] rows for each of the [`ROWS`] rows of units in a cube,
/// which gives `output` elements per token in total. `full` means that every group has all its
/// tokens. `low` and `words` are the same buffer, in which the scales, the low bits (in vectors) and the
/// high bits begin at `first_scale`, `first_low` and `first_high`.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments)]
pub fn product<E: Float, N: Size, W: Size>(
    x: &Array<Vector<E, N>>,
    low: &Array<Vector<u32, W>>,
    words: &Array<u32>,
    bias: &Array<E>,
    out: &mut Array<E>,
    tokens: u32,
    output: u32,
    first_scale: u32,
    first_low: u32,
    first_high: u32,
    #[comptime] group: usize,
    #[comptime] full: bool,
    #[comptime] ahead: usize,
    #[comptime] input: usize,
    #[comptime] format: BlockFormat,
    #[comptime] has_bias: bool,
    #[comptime] epilogue: Epilogue,
    #[define(E)] _dtype: StorageType,
) {
    let vector = N::value();
    let vectors = comptime!(input / vector);
    let units = comptime!(input.div_ceil(UNIT));
    let layout = comptime!(format.layout());
    let bits = comptime!(layout.planes[0]);
    let minimums = comptime!(layout.scales.minimums());
    let [scale_words, low_words, high_words] = comptime!(Places::of(format, 1, input).row);
    let width = comptime!((UNIT * bits / 32).max(1));
    let stride = comptime!(low_words / width);
    let share = comptime!(sharing(bits));
    let per_word = comptime!(32 / bits);
    let whole = comptime!(input.is_multiple_of(UNIT));
    let table = table_of(format);

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
    let mut above = Array::<u32>::new(comptime!(ahead * EACH));
    let mut steps = Array::<f32>::new(comptime!(ahead * EACH));
    let mut least = Array::<f32>::new(comptime!(ahead * EACH));
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
                let at = comptime!(step * EACH + each);
                let word = low[first_low as usize + from * stride + there / share];
                #[unroll]
                for n in 0..width {
                    read[comptime!(at * width + n)] = own(word[n], there, bits);
                }
                let high = first_high as usize + from * high_words;
                above[at] = upper(words, high, there, format);
                let scales = first_scale as usize + from * scale_words;
                let scale = scale(words, scales, there, format);
                steps[at] = select(unit < units, scale, 0.0f32);
                if minimums {
                    let minimum = minimum(words, scales, there, format);
                    least[at] = select(unit < units, minimum, 0.0f32);
                }
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
                    let above = above[comptime!(step * EACH + each)];
                    weights[comptime!(each * UNIT + n)] =
                        element(word, above, &table, comptime!(n % per_word), n, format);
                }
            }
            #[unroll]
            for token in 0..group {
                if full || token < here {
                    #[unroll]
                    for each in 0..comptime!(EACH) {
                        parts[each] = 0.0f32;
                    }
                    // The sum of the activations, which the minimum is multiplied with.
                    let mut total = 0.0f32;
                    #[unroll]
                    for part in 0..comptime!(UNIT / vector) {
                        let at = there * comptime!(UNIT / vector) + part;
                        if whole || at < vectors {
                            let a = x[(first + token) * vectors + at];
                            #[unroll]
                            for n in 0..vector {
                                let value = f32::cast_from(a[n]);
                                if minimums {
                                    total += value;
                                }
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
                        let at = comptime!(step * EACH + each);
                        sums[sum] = sums[sum] + parts[each] * steps[at];
                        if minimums {
                            sums[sum] = sums[sum] + total * least[at];
                        }
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
    low: &Array<Vector<u32, W>>,
    words: &Array<u32>,
    ids: &Array<i32>,
    out: &mut Array<Vector<E, N>>,
    rows: u32,
    first_scale: u32,
    first_low: u32,
    first_high: u32,
    from: u32,
    #[comptime] columns: usize,
    #[comptime] format: BlockFormat,
    #[comptime] named: bool,
    #[define(E)] _dtype: StorageType,
) {
    let vector = N::value();
    let vectors = comptime!(columns / vector);
    let units = comptime!(columns.div_ceil(UNIT));
    let layout = comptime!(format.layout());
    let bits = comptime!(layout.planes[0]);
    let minimums = comptime!(layout.scales.minimums());
    let [scale_words, low_words, high_words] = comptime!(Places::of(format, 1, columns).row);
    let width = comptime!((UNIT * bits / 32).max(1));
    let stride = comptime!(low_words / width);
    let share = comptime!(sharing(bits));
    let per_word = comptime!(32 / bits);
    let whole = comptime!(columns.is_multiple_of(UNIT));
    let table = table_of(format);
    let to = (CUBE_POS_Y * CUBE_COUNT_X + CUBE_POS_X) as usize;
    if to < rows as usize {
        let mut row = to + from as usize;
        if comptime!(named) {
            row = ids[to] as usize;
        }
        for unit in range_stepped(UNIT_POS as usize, units, THREADS) {
            let word = low[first_low as usize + row * stride + unit / share];
            let above = upper(words, first_high as usize + row * high_words, unit, format);
            let scales = first_scale as usize + row * scale_words;
            let scale = scale(words, scales, unit, format);
            let mut least = 0.0f32;
            if minimums {
                least = minimum(words, scales, unit, format);
            }
            #[unroll]
            for part in 0..comptime!(UNIT / vector) {
                let at = unit * comptime!(UNIT / vector) + part;
                if whole || at < vectors {
                    let mut values = Vector::<E, N>::empty();
                    #[unroll]
                    for n in 0..vector {
                        let place = comptime!(part * vector + n);
                        let quant = own(word[comptime!(place / per_word)], unit, bits);
                        let within = comptime!(place % per_word);
                        let element = element(quant, above, &table, within, place, format);
                        let mut value = element * scale;
                        if minimums {
                            value += least;
                        }
                        values[n] = E::cast_from(value);
                    }
                    out[to * vectors + at] = values;
                }
            }
        }
    }
}

/// A lane's part of the product of the row `from` of a matrix in blocks with row `row` of `x`. The
/// buffer is given as for [`product`], and `table` is that of its format.
#[cube]
#[allow(clippy::too_many_arguments)]
pub fn dot<E: Float, N: Size, W: Size>(
    x: &Array<Vector<E, N>>,
    row: usize,
    low: &Array<Vector<u32, W>>,
    words: &Array<u32>,
    table: &SharedMemory<f32>,
    from: usize,
    first_scale: u32,
    first_low: u32,
    first_high: u32,
    #[comptime] input: usize,
    #[comptime] format: BlockFormat,
) -> f32 {
    let vector = N::value();
    let vectors = comptime!(input / vector);
    let units = comptime!(input.div_ceil(UNIT));
    let layout = comptime!(format.layout());
    let bits = comptime!(layout.planes[0]);
    let minimums = comptime!(layout.scales.minimums());
    let [scale_words, low_words, high_words] = comptime!(Places::of(format, 1, input).row);
    let width = comptime!((UNIT * bits / 32).max(1));
    let stride = comptime!(low_words / width);
    let share = comptime!(sharing(bits));
    let per_word = comptime!(32 / bits);
    let whole = comptime!(input.is_multiple_of(UNIT));
    let mut sum = 0.0f32;
    for unit in range_stepped(UNIT_POS_X as usize, units, LANES) {
        let word = low[first_low as usize + from * stride + unit / share];
        let above = upper(words, first_high as usize + from * high_words, unit, format);
        let scales = first_scale as usize + from * scale_words;
        let mut part = 0.0f32;
        let mut total = 0.0f32;
        #[unroll]
        for piece in 0..comptime!(UNIT / vector) {
            let at = unit * comptime!(UNIT / vector) + piece;
            if whole || at < vectors {
                let a = x[row * vectors + at];
                #[unroll]
                for n in 0..vector {
                    let place = comptime!(piece * vector + n);
                    let quant = own(word[comptime!(place / per_word)], unit, bits);
                    let within = comptime!(place % per_word);
                    let value = f32::cast_from(a[n]);
                    part += element(quant, above, table, within, place, format) * value;
                    if minimums {
                        total += value;
                    }
                }
            }
        }
        sum += part * scale(words, scales, unit, format);
        if minimums {
            sum += total * minimum(words, scales, unit, format);
        }
    }
    sum
}
