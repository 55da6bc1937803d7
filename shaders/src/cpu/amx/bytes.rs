//! `y = x W^T + b` on the tiles, for weights in blocks of small integers and many tokens.
//!
//! A tile instruction multiplies 16 tokens by 16 rows of `W` over one block. The sums are exact;
//! they are scaled and added up in vectors in the same way as [`product`](crate::cpu::blocks) does
//! it for few tokens, so the bits are the same.

use std::arch::asm;
use std::arch::x86_64::*;

use rayon::prelude::*;

use super::{ROW_BYTES, SIDE, Tiles, available};
use crate::cpu::aligned::Aligned;
use crate::cpu::blocks::{Activations, BLOCK, BlockFormat, LINE, UNIT, View, groups_per_task};
use crate::cpu::output::Output;

/// The fewest tokens for which tiles are faster. Measured with and without tiles: 16 tokens take 31
/// and 27 ms, 24 take 39 and 35, 32 take 40 and 43.
pub const MIN_TOKENS: usize = 28;

/// A tile of sums.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Tile([i32; SIDE * SIDE]);

/// A group of rows in the layout that tiles are loaded from.
#[derive(Default)]
struct Panel {
    /// `[block][8][row][4]`
    bytes: Aligned<i8>,
    /// `[block][row]`
    scales: Aligned<f32>,
}

/// The tokens of `x` are in tiles of 16. All of `y` `[tokens, rows]` is written.
pub fn linear(x: &Activations, weight: View<'_>, bias: Option<&[f32]>, y: Output) {
    assert!(
        available() && x.side == SIDE,
        "linear: matrix tiles are not available"
    );
    assert_eq!(x.width, weight.columns.next_multiple_of(UNIT));
    assert_eq!(
        (y.tokens, y.width),
        (x.tokens, weight.rows),
        "linear: shape of y"
    );
    if let Some(bias) = bias {
        assert_eq!(bias.len(), weight.rows, "linear: length of bias");
    }
    let groups = weight.rows.div_ceil(SIDE);
    let per_task = groups_per_task(groups, rayon::current_num_threads());
    (0..groups.div_ceil(per_task))
        .into_par_iter()
        .for_each_init(Panel::default, |panel, task| {
            let first = task * per_task;
            // SAFETY: `available` holds, which includes the vector instructions; the lengths were
            // checked above; tasks write disjoint columns of `y`; the shapes are valid.
            unsafe {
                let _tiles = Tiles::shaped([
                    (SIDE, ROW_BYTES),
                    (SIDE, ROW_BYTES),
                    (SIDE, BLOCK),
                    (SIDE, BLOCK),
                    (BLOCK / 4, ROW_BYTES),
                    (BLOCK / 4, ROW_BYTES),
                    // The last two registers are not used.
                    (SIDE, ROW_BYTES),
                    (SIDE, ROW_BYTES),
                ]);
                for group in first..(first + per_task).min(groups) {
                    panel.unpack(weight, group);
                    products(x, panel, weight, group, bias, y);
                }
            }
        });
}

impl Panel {
    /// Unpacks a group to signed bytes and f32 scales.
    ///
    /// # Safety
    /// The tiles must be available, and `weight` must have the group.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn unpack(&mut self, weight: View<'_>, group: usize) {
        let format = weight.format;
        let blocks = weight.columns.next_multiple_of(UNIT) / BLOCK;
        self.bytes.resize(blocks * BLOCK * SIDE);
        self.scales.resize(blocks * SIDE);
        let units = &weight.units[group * weight.group_bytes()..][..weight.group_bytes()];
        let (bytes, scales) = (self.bytes.as_mut_ptr(), self.scales.as_mut_ptr());
        for (unit, lines) in units.chunks_exact(format.unit_bytes()).enumerate() {
            for half in 0..2 {
                let block = 2 * unit + half;
                // SAFETY: a unit consists of one line of scales and the lines of two blocks, and
                // `resize` made room for 32 elements and a scale of 16 rows for each block.
                unsafe {
                    let scale = _mm256_loadu_si256(lines.as_ptr().add(half * LINE / 2).cast());
                    _mm512_storeu_ps(scales.add(block * SIDE), _mm512_cvtph_ps(scale));
                    let quants = lines.as_ptr().add(LINE + half * SIDE * format.quants());
                    let line = |i: usize| _mm512_loadu_si512(quants.add(i * LINE).cast());
                    let to = |i: usize| bytes.add(block * BLOCK * SIDE + i * LINE).cast();
                    match format {
                        BlockFormat::Q8_0 => {
                            let offset = _mm512_set1_epi8(i8::MIN);
                            for i in 0..8 {
                                _mm512_storeu_si512(to(i), _mm512_xor_si512(line(i), offset));
                            }
                        }
                        BlockFormat::Q4_0 => {
                            let (mask, offset) = (_mm512_set1_epi8(0xf), _mm512_set1_epi8(8));
                            for i in 0..4 {
                                let both = line(i);
                                let low = _mm512_and_si512(both, mask);
                                let high = _mm512_and_si512(_mm512_srli_epi16::<4>(both), mask);
                                _mm512_storeu_si512(to(i), _mm512_sub_epi8(low, offset));
                                _mm512_storeu_si512(to(i + 4), _mm512_sub_epi8(high, offset));
                            }
                        }
                        BlockFormat::Bf16 => unreachable!("bf16 has no scales"),
                    }
                }
            }
        }
    }
}

/// Multiplies all tokens by a group of rows.
///
/// # Safety
/// The tiles must be shaped as `linear` does it, `x` and `panel` must have the same number of
/// blocks, and the rows of the group must be this task's.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn products(
    x: &Activations,
    panel: &Panel,
    weight: View<'_>,
    group: usize,
    bias: Option<&[f32]>,
    y: Output,
) {
    let row = group * SIDE;
    let rows = (weight.rows - row).min(SIDE);
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
        // SAFETY: the slices have all the blocks of the tile, and so has `panel`.
        let totals = unsafe { totals(values, scales, panel, blocks) };
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
/// The tiles must be shaped as `linear` does it, and all operands must have `blocks` blocks, an
/// even number.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn totals(values: &[i8], scales: &[f32], panel: &Panel, blocks: usize) -> [__m512; SIDE] {
    // While one pair of blocks is scaled in vectors, the tiles multiply the next pair.
    let mut sums = [[Tile([0; SIDE * SIDE]); 2]; 2];
    let mut totals = [_mm512_setzero_ps(); SIDE];
    // SAFETY: the caller guarantees `blocks` blocks of 16 tokens in `values` and `scales` and of 16
    // rows in `panel`. The tiles of `sums` are aligned to 64 bytes.
    unsafe {
        pair(values.as_ptr(), panel.bytes.as_ptr(), &mut sums[0]);
        for unit in 0..blocks / 2 {
            if unit + 1 < blocks / 2 {
                let at = (unit + 1) * UNIT * SIDE;
                let (x, w) = (values.as_ptr().add(at), panel.bytes.as_ptr().add(at));
                pair(x, w, &mut sums[(unit + 1) % 2]);
            }
            for (half, sums) in sums[unit % 2].iter().enumerate() {
                let at = (2 * unit + half) * SIDE;
                let rows = _mm512_loadu_ps(panel.scales.as_ptr().add(at));
                let tokens = scales.as_ptr().add(at);
                for (t, total) in totals.iter_mut().enumerate() {
                    let sums = _mm512_load_si512(sums.0.as_ptr().add(t * SIDE).cast());
                    let scale = _mm512_mul_ps(rows, _mm512_set1_ps(*tokens.add(t)));
                    *total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), scale, *total);
                }
            }
        }
    }
    totals
}

/// Multiplies two blocks and stores their sums.
///
/// # Safety
/// The tiles must be shaped as `linear` does it, and `x` and `w` must have two blocks of 16 tokens
/// or rows.
#[inline(always)]
unsafe fn pair(x: *const i8, w: *const i8, sums: &mut [Tile; 2]) {
    // SAFETY: the caller guarantees shaped tiles and two blocks at `x` and `w`; `sums` has room for
    // two tiles. The instructions change only tile registers, which the compiler does not use, and
    // the memory of `sums`.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tileloadd tmm2, [{x} + {x_row}*1]",
            "tileloadd tmm4, [{w} + {row_bytes}*1]",
            "tdpbssd tmm0, tmm2, tmm4",
            "tileloadd tmm3, [{x} + {x_row}*1 + 512]",
            "tileloadd tmm5, [{w} + {row_bytes}*1 + 512]",
            "tdpbssd tmm1, tmm3, tmm5",
            "tilestored [{sums} + {row_bytes}*1], tmm0",
            "tilestored [{sums} + {row_bytes}*1 + 1024], tmm1",
            x = in(reg) x,
            w = in(reg) w,
            x_row = in(reg) BLOCK,
            row_bytes = in(reg) ROW_BYTES,
            sums = in(reg) sums.as_mut_ptr(),
            options(nostack)
        );
    }
}
