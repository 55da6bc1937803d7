//! `y = x W^T + b` on the tiles, for weights in blocks of small integers and many tokens.
//!
//! A tile instruction multiplies 16 tokens by 16 rows of `W` over the 32 or 16 columns that share a
//! scale. The sums are exact; they are scaled and added up in vectors in the same way as
//! [`product`](crate::cpu::blocks) does it for few tokens, so the bits are the same.

use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;

use rayon::prelude::*;

use super::{ROW_BYTES, SIDE, Tiles, available};
use crate::cpu::aligned::Aligned;
use crate::cpu::blocks::lanes::Lanes;
use crate::cpu::blocks::lanes::x86::Avx512Vnni;
use crate::cpu::blocks::units::{self, with_format};
use crate::cpu::blocks::{Activations, BLOCK, BlockFormat, LINE, View, tasks};
use crate::cpu::output::{Addend, Output, with_addend};

/// The fewest tokens for which tiles are faster. Measured with and without tiles: 16 tokens take 31
/// and 27 ms, 24 take 39 and 35, 32 take 40 and 43.
pub const MIN_TOKENS: usize = 28;

/// A tile of sums.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Tile([i32; SIDE * SIDE]);

impl Tile {
    /// The sums of the token `token`, which must be one of the tile's.
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn row(&self, token: usize) -> __m512i {
        // SAFETY: the caller guarantees the token; tiles are aligned to 64 bytes, and so are their rows.
        unsafe { _mm512_load_si512(self.0.as_ptr().add(token * SIDE).cast()) }
    }
}

/// A group of rows in the layout that tiles are loaded from.
#[derive(Default)]
struct Panel {
    /// `[block][8][row][4]`
    bytes: Aligned<i8>,
    /// `[part][row]`
    scales: Aligned<f32>,
    /// `[part][row]`; only for formats that have minimums.
    minimums: Aligned<f32>,
}

/// The tokens of `x` are in tiles of 16. `parts` are all parts of a matrix `[rows, columns]`,
/// `bias` is `[rows]`. All of `y` `[tokens, rows]` is written, with the addend.
pub fn linear(
    x: &Activations,
    parts: &[View<'_>],
    bias: Option<&[f32]>,
    addend: Option<&dyn Addend>,
    y: Output,
) {
    assert!(
        available() && x.side == SIDE,
        "linear: matrix tiles are not available"
    );
    let parts: Vec<_> = parts.iter().map(|part| (0, *part)).collect();
    tasks(&parts)
        .into_par_iter()
        .for_each_init(Panel::default, |panel, (_, weight, groups)| {
            assert_eq!(x.width % weight.format.layout().unit(), 0);
            // SAFETY: `available` holds, which includes the vector instructions; the caller checked
            // the shapes; tasks write disjoint columns of `y`.
            unsafe {
                with_addend(addend, y, weight.outputs(groups.clone()), || {
                    with_format!(weight.format, FORMAT => {
                        rows::<FORMAT>(x, weight, groups, panel, bias, y);
                    });
                });
            }
        });
}

/// Multiplies all tokens by some groups of rows.
///
/// # Safety
/// The tiles must be available, `weight` and `x` must have the same columns, and the rows of the
/// groups must be this task's.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn rows<const FORMAT: usize>(
    x: &Activations,
    weight: View<'_>,
    groups: Range<usize>,
    panel: &mut Panel,
    bias: Option<&[f32]>,
    y: Output,
) {
    let part = const { units::layout::<FORMAT>() }.part;
    // SAFETY: the caller guarantees the tiles, and the shapes are valid: 16 tokens by the columns
    // of a part, and these columns, four to a row, by 16 rows.
    unsafe {
        let _tiles = Tiles::shaped([
            (SIDE, ROW_BYTES),
            (SIDE, ROW_BYTES),
            (SIDE, part),
            (SIDE, part),
            (part / 4, ROW_BYTES),
            (part / 4, ROW_BYTES),
            // The last two registers are not used.
            (SIDE, ROW_BYTES),
            (SIDE, ROW_BYTES),
        ]);
        for group in groups {
            panel.unpack::<FORMAT>(weight.group(group), x.width);
            products::<FORMAT>(x, panel, weight, group, bias, y);
        }
    }
}

impl Panel {
    /// Unpacks a group to signed bytes and f32 scales.
    ///
    /// # Safety
    /// The CPU must have the instructions, and `group` must have `width` columns.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    unsafe fn unpack<const FORMAT: usize>(&mut self, group: &[u8], width: usize) {
        let layout = const { units::layout::<FORMAT>() };
        let parts = width / layout.part;
        self.bytes.resize(width * SIDE);
        self.scales.resize(parts * SIDE);
        if layout.scales.minimums() {
            self.minimums.resize(parts * SIDE);
        }
        let offset = _mm512_set1_epi8(layout.offset as i8);
        let per_unit = layout.unit() / layout.part;
        for (unit, bytes) in group.chunks_exact(layout.unit_bytes()).enumerate() {
            // SAFETY: a unit consists of its scales and the lines of its blocks, and `resize` made
            // room for the elements of 16 rows and for their scales.
            unsafe {
                for part in 0..per_unit {
                    let at = (unit * per_unit + part) * SIDE;
                    let scales = units::scales::<Avx512Vnni, FORMAT>(bytes.as_ptr(), part);
                    _mm512_storeu_ps(self.scales.as_mut_ptr().add(at), scales);
                    if layout.scales.minimums() {
                        let least = units::minimums::<Avx512Vnni, FORMAT>(bytes.as_ptr(), part);
                        _mm512_storeu_ps(self.minimums.as_mut_ptr().add(at), least);
                    }
                }
                let lines = bytes.as_ptr().add(layout.scale_bytes());
                for block in 0..layout.unit() / BLOCK {
                    let lines = lines.add(block * layout.block_bytes());
                    let fours = units::elements::<Avx512Vnni, FORMAT>(lines);
                    let to = (unit * layout.unit() + block * BLOCK) * SIDE;
                    for (four, elements) in fours.into_iter().enumerate() {
                        let to = self.bytes.as_mut_ptr().add(to + four * LINE);
                        _mm512_storeu_si512(to.cast(), _mm512_sub_epi8(elements, offset));
                    }
                }
            }
        }
    }
}

/// Multiplies all tokens by a group of rows.
///
/// # Safety
/// The tiles must be shaped as `rows` does it, `x` and `panel` must have the same number of
/// columns, and the rows of the group must be this task's.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn products<const FORMAT: usize>(
    x: &Activations,
    panel: &Panel,
    weight: View<'_>,
    group: usize,
    bias: Option<&[f32]>,
    y: Output,
) {
    let rows = (weight.rows - group * SIDE).min(SIDE);
    let row = weight.first + group * SIDE;
    let mask = u16::MAX >> (SIDE - rows);
    let bias = match bias {
        // SAFETY: the slice has `rows` elements, as many as the mask has bits.
        Some(bias) => unsafe { _mm512_maskz_loadu_ps(mask, bias[row..row + rows].as_ptr()) },
        None => _mm512_setzero_ps(),
    };
    let blocks = x.width / BLOCK;
    for tile in 0..x.tokens.div_ceil(SIDE) {
        let at = tile * blocks * SIDE;
        let values = &x.values[at * BLOCK..][..blocks * SIDE * BLOCK];
        let scales = &x.scales[at..][..blocks * SIDE];
        let sums = &x.scaled_sums[at..][..blocks * SIDE];
        // SAFETY: the slices have all the blocks of the tile, and so has `panel`.
        let totals = unsafe { totals::<FORMAT>(values, scales, sums, panel, blocks) };
        let token = tile * SIDE;
        for (t, total) in totals.into_iter().enumerate().take(x.tokens - token) {
            // SAFETY: the token exists, the mask has as many bits as the group has rows, and the
            // caller guarantees that these elements of `y` are this task's.
            unsafe {
                let to = y.at(token + t, row);
                _mm512_mask_storeu_ps(to, mask, _mm512_add_ps(total, bias));
            }
        }
    }
}

/// Multiplies 16 tokens by 16 rows. Returns a vector of rows for each token.
///
/// # Safety
/// The tiles must be shaped as `rows` does it, and all operands must have `blocks` blocks, an even
/// number.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
unsafe fn totals<const FORMAT: usize>(
    values: &[i8],
    scales: &[f32],
    x_sums: &[[f32; 4]],
    panel: &Panel,
    blocks: usize,
) -> [__m512; SIDE] {
    let layout = const { units::layout::<FORMAT>() };
    let (per_block, pairs) = (BLOCK / layout.part, blocks * BLOCK / layout.part / 2);
    // While one pair of parts is scaled in vectors, the tiles multiply the next pair.
    let mut sums = [[Tile([0; SIDE * SIDE]); 2]; 2];
    let mut totals = [_mm512_setzero_ps(); SIDE];
    // SAFETY: the caller guarantees `blocks` blocks of 16 tokens in `values`, `scales` and `x_sums`
    // and of 16 rows in `panel`. The tiles of `sums` are aligned to 64 bytes.
    unsafe {
        pair::<FORMAT>(values.as_ptr(), panel.bytes.as_ptr(), &mut sums[0]);
        for at in 0..pairs {
            if at + 1 < pairs {
                let next = (at + 1) * 2 * layout.part * SIDE;
                let (x, w) = (values.as_ptr().add(next), panel.bytes.as_ptr().add(next));
                pair::<FORMAT>(x, w, &mut sums[(at + 1) % 2]);
            }
            let tiles = &sums[at % 2];
            let first = panel.scales.as_ptr().add(2 * at * SIDE);
            let rows = [_mm512_loadu_ps(first), _mm512_loadu_ps(first.add(SIDE))];
            if per_block == 2 {
                // The pair is a block.
                for (t, total) in totals.iter_mut().enumerate() {
                    let mut scaled = _mm512_setzero_ps();
                    for (tile, rows) in tiles.iter().zip(rows) {
                        scaled = Avx512Vnni::add_products(scaled, tile.row(t), rows);
                    }
                    let x_scale = *scales.get_unchecked(at * SIDE + t);
                    *total = Avx512Vnni::add_times(*total, scaled, x_scale);
                }
            }
            for (half, tile) in tiles.iter().enumerate() {
                let part = 2 * at + half;
                let block = part / per_block * SIDE;
                if per_block == 1 {
                    for (t, total) in totals.iter_mut().enumerate() {
                        let x_scale = *scales.get_unchecked(block + t);
                        *total = Avx512Vnni::add_scaled(*total, tile.row(t), rows[half], x_scale);
                    }
                }
                if layout.scales.minimums() {
                    let rows = _mm512_loadu_ps(panel.minimums.as_ptr().add(part * SIDE));
                    for (t, total) in totals.iter_mut().enumerate() {
                        let sums = *x_sums.get_unchecked(block + t);
                        let x = Activations::scaled_sum(sums, layout.part, part % per_block);
                        *total = Avx512Vnni::add_times(*total, rows, x);
                    }
                }
            }
        }
    }
    totals
}

/// Multiplies two consecutive parts and stores their sums.
///
/// # Safety
/// The tiles must be shaped as `rows` does it, and `x` and `w` must have two parts of 16 tokens or
/// rows.
#[inline(always)]
unsafe fn pair<const FORMAT: usize>(x: *const i8, w: *const i8, sums: &mut [Tile; 2]) {
    let part = const { units::layout::<FORMAT>() }.part;
    // The second part is in the next block, or in the second half of the same block.
    let x_next = if part == BLOCK { BLOCK * SIDE } else { part };
    let second = (x.wrapping_add(x_next), w.wrapping_add(part * SIDE));
    // SAFETY: the caller guarantees shaped tiles and two parts at `x` and `w`; `sums` has room for
    // two tiles. The instructions change only tile registers, which the compiler does not use, and
    // the memory of `sums`.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tileloadd tmm2, [{x} + {x_row}*1]",
            "tileloadd tmm4, [{w} + {row_bytes}*1]",
            "tdpbssd tmm0, tmm2, tmm4",
            "tileloadd tmm3, [{x_second} + {x_row}*1]",
            "tileloadd tmm5, [{w_second} + {row_bytes}*1]",
            "tdpbssd tmm1, tmm3, tmm5",
            "tilestored [{sums} + {row_bytes}*1], tmm0",
            "tilestored [{sums} + {row_bytes}*1 + 1024], tmm1",
            x = in(reg) x,
            w = in(reg) w,
            x_second = in(reg) second.0,
            w_second = in(reg) second.1,
            x_row = in(reg) BLOCK,
            row_bytes = in(reg) ROW_BYTES,
            sums = in(reg) sums.as_mut_ptr(),
            options(nostack)
        );
    }
}
