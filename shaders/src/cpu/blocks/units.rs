//! Reading of packed units into vectors, with a lane for each row of a group.
//!
//! The format is a const parameter, its number in [`BlockFormat::ALL`], so that each has code of
//! its own.

use super::format::{BlockFormat, Layout, Scales};
use super::lanes::Lanes;
use super::{BLOCK, LINE, ROWS};

/// The layout of the format with the number `FORMAT`.
pub const fn layout<const FORMAT: usize>() -> Layout {
    BlockFormat::ALL[FORMAT].layout()
}

/// The elements of a block of 32 columns: four bytes of each row at a time, with the format's
/// offset added.
///
/// # Safety
/// The CPU must have `L`'s features, and the lines of a block must be readable at `lines`.
#[inline(always)]
pub unsafe fn elements<L: Lanes, const FORMAT: usize>(lines: *const u8) -> [L::Bytes; BLOCK / 4] {
    // Without a loop, so that shifts and masks are constants.
    // SAFETY: the caller guarantees the features of `L` and the lines of a block.
    unsafe {
        [
            four_columns::<L, FORMAT>(lines, 0),
            four_columns::<L, FORMAT>(lines, 1),
            four_columns::<L, FORMAT>(lines, 2),
            four_columns::<L, FORMAT>(lines, 3),
            four_columns::<L, FORMAT>(lines, 4),
            four_columns::<L, FORMAT>(lines, 5),
            four_columns::<L, FORMAT>(lines, 6),
            four_columns::<L, FORMAT>(lines, 7),
        ]
    }
}

/// The `four`-th four columns of a block.
///
/// # Safety
/// As for [`elements`].
#[inline(always)]
unsafe fn four_columns<L: Lanes, const FORMAT: usize>(lines: *const u8, four: usize) -> L::Bytes {
    let layout = const { layout::<FORMAT>() };
    let [low, high] = layout.planes;
    // SAFETY: the caller guarantees the features of `L` and as many lines as elements have bits.
    unsafe {
        let bits = plane::<L>(lines, low, four, 0);
        match (high, layout.table) {
            (0, None) => bits,
            (0, Some(table)) => L::look_up(table, bits),
            _ => L::or(bits, plane::<L>(lines.add(low * LINE), high, four, low)),
        }
    }
}

/// The `four`-th four columns of a plane of `bits` bits, shifted to the left by `to` bits.
///
/// # Safety
/// As for [`elements`].
#[inline(always)]
unsafe fn plane<L: Lanes>(lines: *const u8, bits: usize, four: usize, to: usize) -> L::Bytes {
    // SAFETY: the caller guarantees the features of `L`, and a plane has `bits` lines.
    unsafe {
        let line = L::bytes(lines.add(four % bits * LINE));
        if bits == 8 {
            return line;
        }
        let mask = ((1 << bits) - 1) << to;
        L::take(line, (four / bits * bits) as i32 - to as i32, mask)
    }
}

/// The scales of the part `part` of a unit.
///
/// # Safety
/// The CPU must have `L`'s features, and the scales of a unit must be readable at `unit`.
#[inline(always)]
pub unsafe fn scales<L: Lanes, const FORMAT: usize>(unit: *const u8, part: usize) -> L::Floats {
    let kind = const { layout::<FORMAT>() }.scales;
    // SAFETY: the caller guarantees the features of `L`; the places are those of `rows.rs`.
    unsafe {
        match kind {
            Scales::None => L::zero(),
            Scales::Half | Scales::HalfAndMinimum => L::halves(unit.add(part * LINE / 2)),
            Scales::Power => L::brains(unit.add(part * LINE / 2)),
            // The products of an f16 and a byte are exact.
            Scales::Signed => L::mul(L::halves(unit), L::signed(unit.add(LINE + part * ROWS))),
            Scales::Pairs => {
                let bytes = unit.add(LINE + 2 * part * ROWS);
                L::mul(L::halves(unit), L::unsigned(bytes, 0, 0xff))
            }
            Scales::Nibbles => {
                let bytes = unit.add(LINE + part * ROWS);
                L::mul(L::halves(unit), L::unsigned(bytes, 0, 0xf))
            }
        }
    }
}

/// The minimums of the part `part` of a unit, for a format that has them.
///
/// # Safety
/// As for [`scales`].
#[inline(always)]
pub unsafe fn minimums<L: Lanes, const FORMAT: usize>(unit: *const u8, part: usize) -> L::Floats {
    let kind = const { layout::<FORMAT>() }.scales;
    // SAFETY: the caller guarantees the features of `L`; the places are those of `rows.rs`.
    unsafe {
        match kind {
            Scales::None | Scales::Half | Scales::Power | Scales::Signed => L::zero(),
            Scales::HalfAndMinimum => L::halves(unit.add(LINE + part * LINE / 2)),
            Scales::Pairs => {
                let bytes = unit.add(LINE + (2 * part + 1) * ROWS);
                L::mul(L::halves(unit.add(LINE / 2)), L::unsigned(bytes, 0, 0xff))
            }
            Scales::Nibbles => {
                let bytes = unit.add(LINE + part * ROWS);
                L::mul(L::halves(unit.add(LINE / 2)), L::unsigned(bytes, 4, 0xf))
            }
        }
    }
}

/// Runs `$run` with the constant `$number`, the number of the format `$format`, which must be one
/// of small integers.
macro_rules! with_format {
    ($format:expr, $number:ident => $run:expr) => {
        with_format!($format, $number => $run;
            Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4)
    };
    ($format:expr, $number:ident => $run:expr; $($name:ident)*) => {
        match $format {
            $(BlockFormat::$name => {
                const $number: usize = BlockFormat::$name as usize;
                $run
            })*
            BlockFormat::Bf16 => unreachable!("bf16 is not in blocks of small integers"),
        }
    };
}
pub(crate) use with_format;
