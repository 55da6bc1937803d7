//! Reading a matrix in blocks in a kernel: the scales and the elements of a row.
//!
//! A row is read in runs of [`RUN`] consecutive elements. The last run of a row may be incomplete.

use cubecl::prelude::*;

use super::words::{Places, RECORD, words_of_record};
use crate::cpu::Scales;
use crate::{BLOCK, BlockFormat};

/// Elements of a run, whose bits are one or two words, or a part of one. Neighbouring units
/// (threads) read neighbouring runs, of the row and of the activations.
pub const RUN: usize = 8;

/// The buffer with a matrix in one format, as kernels read it. It is bound twice, because a run of
/// low bits is read as a vector.
#[derive(CubeType, CubeLaunch)]
pub struct Buffer<W: Size> {
    low: Array<Vector<u32, W>>,
    words: Array<u32>,
    /// The first word of the scales.
    first_scale: u32,
    /// The first vector of the low bits.
    first_low: u32,
    /// The first word of the high bits.
    first_high: u32,
}

/// The rows of a matrix in one format. A kernel is compiled for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RowShape {
    pub format: BlockFormat,
    /// Elements of a row.
    pub columns: usize,
}

impl RowShape {
    /// Runs of a row.
    pub fn runs(self) -> usize {
        self.columns.div_ceil(RUN)
    }

    /// True if the last run is complete.
    pub fn is_whole(self) -> bool {
        self.columns.is_multiple_of(RUN)
    }

    /// True if values have minimums.
    pub fn has_minimums(self) -> bool {
        self.format.layout().scales.minimums()
    }

    /// Words of the low bits that are read at once: those of a run, or one if it has the bits of
    /// several runs.
    pub fn width(self) -> usize {
        (RUN * self.low() / WORD).max(1)
    }

    /// The place in [`lower`] of the word with the element at `place` of a run.
    pub fn word_of(self, place: usize) -> usize {
        place * self.low() / WORD
    }

    /// Low bits of an element.
    fn low(self) -> usize {
        self.format.layout().planes[0]
    }

    /// High bits of an element; 0 in formats without them.
    fn high(self) -> usize {
        self.format.layout().planes[1]
    }

    /// Words of the scales, vectors of the low bits and words of the high bits of a row.
    fn strides(self) -> [usize; 3] {
        let [scales, low, high] = Places::of(self.format, 1, self.columns).row;
        [scales, low / self.width(), high]
    }
}

/// Bits of a word.
const WORD: usize = u32::BITS as usize;

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

/// The first word of the scales of `row`.
#[cube]
fn scales_of<W: Size>(matrix: &Buffer<W>, row: usize, #[comptime] shape: RowShape) -> usize {
    matrix.first_scale as usize + row * comptime!(shape.strides()[0])
}

/// The record of two levels of scales that has the elements of `run`, and the part in it. The
/// scales of the row begin at word `first`.
#[cube]
fn record_and_part(first: usize, run: usize, #[comptime] format: BlockFormat) -> (usize, usize) {
    let runs = comptime!(RECORD / RUN);
    let record = first + run / runs * comptime!(words_of_record(format));
    let part = run % runs / comptime!(format.layout().part / RUN);
    (record, part)
}

/// The byte `at` of the words from `first` on.
#[cube]
fn byte<W: Size>(matrix: &Buffer<W>, first: usize, at: usize) -> u32 {
    (matrix.words[first + at / 4] >> (at as u32 % 4u32 * 8u32)) & 0xffu32
}

/// The scale of a run of a row.
#[cube]
pub fn scale<W: Size>(
    matrix: &Buffer<W>,
    row: usize,
    run: usize,
    #[comptime] shape: RowShape,
) -> f32 {
    let first = scales_of::<W>(matrix, row, shape);
    let block = run / comptime!(BLOCK / RUN);
    let kind = comptime!(shape.format.layout().scales);
    if comptime!(kind.two_levels()) {
        let (record, part) = record_and_part(first, run, comptime!(shape.format));
        let integer = byte::<W>(matrix, record + 1, part);
        let mut factor = f32::cast_from(integer);
        if comptime!(kind == Scales::Signed) {
            // The sign bit stands for -128.
            factor = f32::cast_from(integer ^ 0x80u32) - 128.0f32;
        }
        if comptime!(kind == Scales::Nibbles) {
            factor = f32::cast_from(integer & 0xfu32);
        }
        widened(matrix.words[record] & 0xffffu32) * factor
    } else if comptime!(kind == Scales::HalfAndMinimum) {
        widened(matrix.words[first + block] & 0xffffu32)
    } else {
        let pair = matrix.words[first + block / 2];
        let half = (pair >> (block as u32 % 2u32 * 16u32)) & 0xffffu32;
        if comptime!(kind == Scales::Power) {
            f32::reinterpret(half << 16u32)
        } else {
            widened(half)
        }
    }
}

/// The minimum of a run of a row, in a format that has minimums.
#[cube]
pub fn minimum<W: Size>(
    matrix: &Buffer<W>,
    row: usize,
    run: usize,
    #[comptime] shape: RowShape,
) -> f32 {
    let first = scales_of::<W>(matrix, row, shape);
    let kind = comptime!(shape.format.layout().scales);
    if comptime!(kind.two_levels()) {
        let (record, part) = record_and_part(first, run, comptime!(shape.format));
        // In `Q2_K`, the integers of the minimums are the high halves of those of the scales.
        let mut factor = f32::cast_from(byte::<W>(matrix, record + 1, part) >> 4u32);
        if comptime!(kind == Scales::Pairs) {
            let parts = comptime!(RECORD / shape.format.layout().part);
            factor = f32::cast_from(byte::<W>(matrix, record + 1, parts + part));
        }
        widened(matrix.words[record] >> 16u32) * factor
    } else {
        let block = run / comptime!(BLOCK / RUN);
        widened(matrix.words[first + block] >> 16u32)
    }
}

/// Runs that share a word of a plane with so many bits per element.
const fn sharing(bits: usize) -> usize {
    let of_run = RUN * bits;
    if of_run == 0 || of_run >= WORD {
        1
    } else {
        WORD / of_run
    }
}

/// Moves the bits of `run` to the low end of a word that it shares with its neighbours. The plane
/// has `bits` bits per element.
#[cube]
fn own(word: u32, run: usize, #[comptime] bits: usize) -> u32 {
    let share = comptime!(sharing(bits));
    let mut own = word;
    if comptime!(share > 1) {
        own =
            word >> (run as u32 % comptime!(share as u32) * comptime!(WORD as u32 / share as u32));
    }
    own
}

/// The words with the low bits of a run of a row, which other runs may share.
#[cube]
pub fn lower<W: Size>(
    matrix: &Buffer<W>,
    row: usize,
    run: usize,
    #[comptime] shape: RowShape,
) -> Vector<u32, W> {
    let first = matrix.first_low as usize + row * comptime!(shape.strides()[1]);
    matrix.low[first + run / comptime!(sharing(shape.low()))]
}

/// A word of [`lower`] with the bits of `run` at its low end.
#[cube]
pub fn own_lower(word: u32, run: usize, #[comptime] shape: RowShape) -> u32 {
    own(word, run, comptime!(shape.low()))
}

/// The high bits of a run of a row; 0 in formats without them.
#[cube]
pub fn upper<W: Size>(
    matrix: &Buffer<W>,
    row: usize,
    run: usize,
    #[comptime] shape: RowShape,
) -> u32 {
    let bits = comptime!(shape.high());
    let mut found = 0u32;
    if comptime!(bits > 0) {
        let first = matrix.first_high as usize + row * comptime!(shape.strides()[2]);
        let word = matrix.words[first + run / comptime!(sharing(bits))];
        found = own(word, run, bits);
    }
    found
}

/// The value of the element at `place` of a run, before scaling. `word` is the word of
/// [`own_lower`] that has it, and `upper` the high bits of the run. The element's bits become the
/// highest mantissa bits of a float between 1 and 2, which is cheaper than converting an integer.
#[cube]
pub fn element(
    word: u32,
    upper: u32,
    table: &SharedMemory<f32>,
    #[comptime] place: usize,
    #[comptime] format: BlockFormat,
) -> f32 {
    let layout = comptime!(format.layout());
    let [low, high] = comptime!(layout.planes);
    let from = comptime!(place * low % WORD);
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
            let bits = (upper >> comptime!((place * high) as u32)) & mask;
            mantissa |= bits << comptime!((to + low) as u32);
        }
        let steps = comptime!((1u32 << bits as u32) as f32);
        let offset = comptime!((1u32 << bits as u32) as f32 + layout.offset as f32);
        f32::reinterpret(mantissa | 0x3f80_0000u32) * steps - offset
    }
}

/// The values of the elements of formats that have a table; a single number, which is not read, for
/// the others.
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
