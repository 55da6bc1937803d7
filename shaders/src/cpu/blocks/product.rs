//! `y = x W^T + b` with `W` in GGML's blocks.

use rayon::prelude::*;

use super::activations::Activations;
use super::lanes::{ByteLevel, Lanes, LanesTask};
use super::{BLOCK, BlockFormat, LINE, ROWS, UNIT, View, groups_per_task};
#[cfg(target_arch = "x86_64")]
use crate::cpu::amx;
use crate::cpu::output::Output;

/// Tokens whose activations should stay in the second-level cache.
const TOKEN_BLOCK: usize = 64;
/// How far ahead weights are prefetched, in bytes. With several tokens, the hardware prefetcher is
/// not far enough ahead.
const FETCH_AHEAD: usize = 2048;

/// `x` `[tokens, columns]`, `bias` `[rows]`. All of `y` `[tokens, rows]` is written.
pub fn linear(x: &[f32], weight: View<'_>, bias: Option<&[f32]>, y: Output) {
    linear_on(ByteLevel::best(), x, weight, bias, y);
}

/// [`linear`] with the given instructions, which the CPU must have.
pub(super) fn linear_on(
    level: ByteLevel,
    x: &[f32],
    weight: View<'_>,
    bias: Option<&[f32]>,
    y: Output,
) {
    #[cfg(target_arch = "x86_64")]
    if level == ByteLevel::Amx && y.tokens >= amx::bytes::MIN_TOKENS {
        let x = Activations::round(x, weight.columns, amx::SIDE);
        return amx::bytes::linear(&x, weight, bias, y);
    }
    let x = Activations::round(x, weight.columns, 1);
    assert_eq!(
        (y.tokens, y.width),
        (x.tokens, weight.rows),
        "linear: shape of y"
    );
    if let Some(bias) = bias {
        assert_eq!(bias.len(), weight.rows, "linear: length of bias");
    }
    let groups = weight.rows.div_ceil(ROWS);
    let per_task = groups_per_task(groups, rayon::current_num_threads());
    (0..groups.div_ceil(per_task))
        .into_par_iter()
        .for_each(|task| {
            let first = task * per_task;
            let product = Product {
                x: &x,
                weight,
                bias,
                y,
                first,
                last: (first + per_task).min(groups),
            };
            // SAFETY: the caller passes a level that this CPU has.
            unsafe { level.run(product) };
        });
}

/// The product of all tokens with the groups `first..last` of the rows.
struct Product<'a> {
    x: &'a Activations,
    weight: View<'a>,
    bias: Option<&'a [f32]>,
    y: Output,
    first: usize,
    last: usize,
}

impl LanesTask for Product<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        // SAFETY: the caller guarantees the features of `L`.
        unsafe {
            match self.weight.format {
                BlockFormat::Q8_0 => self.groups::<L, Eight>(),
                BlockFormat::Q4_0 => self.groups::<L, Four>(),
                BlockFormat::Bf16 => unreachable!("bf16 has no scales"),
            }
        }
    }
}

/// How the lines of a block are expanded to bytes, in the order of the columns.
trait Quants {
    const FORMAT: BlockFormat;
    /// The bytes of each four columns of a block.
    ///
    /// # Safety
    /// The requirements of [`Lanes`] hold, and the lines of a block are readable at `lines`.
    unsafe fn bytes<L: Lanes>(lines: *const u8) -> [L::Bytes; BLOCK / 4];
}

struct Eight;

impl Quants for Eight {
    const FORMAT: BlockFormat = BlockFormat::Q8_0;
    #[inline(always)]
    unsafe fn bytes<L: Lanes>(lines: *const u8) -> [L::Bytes; BLOCK / 4] {
        // SAFETY: the caller guarantees the features of `L` and that the block has 8 lines.
        std::array::from_fn(|four| unsafe { L::bytes(lines.add(four * LINE)) })
    }
}

struct Four;

impl Quants for Four {
    const FORMAT: BlockFormat = BlockFormat::Q4_0;
    #[inline(always)]
    unsafe fn bytes<L: Lanes>(lines: *const u8) -> [L::Bytes; BLOCK / 4] {
        // SAFETY: the caller guarantees the features of `L` and that the block has 4 lines.
        std::array::from_fn(|four| unsafe {
            let both = L::bytes(lines.add(four % 4 * LINE));
            if four < 4 {
                L::low(both)
            } else {
                L::high(both)
            }
        })
    }
}

impl Product<'_> {
    /// Computes all tiles: blocks of tokens by groups of rows.
    ///
    /// # Safety
    /// The CPU must have `L`'s features.
    #[inline(always)]
    unsafe fn groups<L: Lanes, Q: Quants>(&self) {
        for block in (0..self.x.tokens).step_by(TOKEN_BLOCK) {
            let end = (block + TOKEN_BLOCK).min(self.x.tokens);
            for group in self.first..self.last {
                let mut token = block;
                while token < end {
                    let here = (end - token).min(L::TOKENS);
                    // SAFETY: the caller guarantees the features of `L`; `here` tokens from `token`
                    // on exist.
                    unsafe {
                        match here {
                            1 => self.tile::<L, Q, 1>(group, token),
                            2 => self.tile::<L, Q, 2>(group, token),
                            3 => self.tile::<L, Q, 3>(group, token),
                            4 => self.tile::<L, Q, 4>(group, token),
                            5 => self.tile::<L, Q, 5>(group, token),
                            6 => self.tile::<L, Q, 6>(group, token),
                            7 => self.tile::<L, Q, 7>(group, token),
                            _ => self.tile::<L, Q, 8>(group, token),
                        }
                    }
                    token += here;
                }
            }
        }
    }

    /// Computes `TOKENS` tokens by the rows of a group.
    ///
    /// # Safety
    /// The CPU must have `L`'s features. The tokens must exist, and the group must be one of this
    /// task's.
    #[inline(always)]
    unsafe fn tile<L: Lanes, Q: Quants, const TOKENS: usize>(&self, group: usize, token: usize) {
        // The first pass over the weights brings them into a cache for the others.
        let fetch = token == 0;
        let (width, blocks) = (self.x.width, self.x.width / BLOCK);
        let tokens = token..token + TOKENS;
        let values = &self.x.values[tokens.start * width..tokens.end * width];
        let scales = &self.x.scales[tokens.start * blocks..tokens.end * blocks];
        let sums = &self.x.sums[tokens.start * blocks..tokens.end * blocks];
        let length = self.weight.group_bytes();
        let units = &self.weight.units[group * length..][..length];
        let unit_bytes = Q::FORMAT.unit_bytes();
        // SAFETY: the caller guarantees the features of `L`. The slices above have `width / UNIT`
        // units, two blocks each, for every token of the tile and for the group. The tile's
        // elements of `y` are this task's.
        unsafe {
            let mut totals = [L::zero(); TOKENS];
            for unit in 0..width / UNIT {
                let line = units.as_ptr().add(unit * unit_bytes);
                if fetch {
                    for at in (0..unit_bytes).step_by(LINE) {
                        L::prefetch(line.wrapping_add(FETCH_AHEAD + at));
                    }
                }
                for half in 0..2 {
                    let block = 2 * unit + half;
                    let scale = L::scales(line.add(half * LINE / 2));
                    let quants = line.add(LINE + half * ROWS * Q::FORMAT.quants());
                    let bytes = Q::bytes::<L>(quants);
                    // Subtract what the offset of the elements adds to the products.
                    let mut dots: [L::Sums; TOKENS] = std::array::from_fn(|t| {
                        L::splat(-Q::FORMAT.offset() * sums.get_unchecked(t * blocks + block))
                    });
                    for (four, bytes) in bytes.into_iter().enumerate() {
                        for (t, dot) in dots.iter_mut().enumerate() {
                            let x = values.as_ptr().add(t * width + block * BLOCK + four * 4);
                            *dot = L::add_dot(*dot, bytes, x);
                        }
                    }
                    for (t, total) in totals.iter_mut().enumerate() {
                        let x_scale = *scales.get_unchecked(t * blocks + block);
                        *total = L::add_scaled(*total, dots[t], scale, x_scale);
                    }
                }
            }
            for (t, total) in totals.into_iter().enumerate() {
                self.store(token + t, group, L::to_array(total));
            }
        }
    }

    /// Adds the bias and writes the elements of a token.
    ///
    /// # Safety
    /// The token must exist, and the group must be one of this task's.
    #[inline(always)]
    unsafe fn store(&self, token: usize, group: usize, totals: [f32; ROWS]) {
        let row = group * ROWS;
        let count = (self.weight.rows - row).min(ROWS);
        let bias = self.bias.map(|bias| &bias[row..row + count]);
        for (lane, total) in totals.into_iter().enumerate().take(count) {
            let value = total + bias.map_or(0.0, |bias| bias[lane]);
            // SAFETY: `count` rows of the group exist, and the caller guarantees that their
            // elements are this task's.
            unsafe { self.y.at(token, row + lane).write(value) };
        }
    }
}
