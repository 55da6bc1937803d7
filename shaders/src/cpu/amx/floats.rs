//! `y = x W^T + b` for bf16 weights.
//!
//! A tile instruction multiplies up to 16 tokens by 16 rows of `W` over 32 elements of the summed
//! dimension. Activations are rounded to bf16, as every GPU and llama.cpp do for bf16 weights. Sums
//! are f32. Single tokens go through the tiles too, so that they have the same bits.

use std::arch::asm;

use half::bf16;
use rayon::prelude::*;

use super::{ROW_BYTES, SIDE, TILE_BYTES, Tiles, available};
use crate::cpu::aligned::Aligned;
use crate::cpu::blocks::{BlockFormat, View, groups_per_task};
use crate::cpu::output::Output;
use crate::cpu::simd::{Simd, Stored, Task, dispatch};

/// Elements of the summed dimension in a tile.
const DEPTH: usize = 32;
/// Bytes of activations that a pass over the weights reads again and again, at most: they should
/// stay in the second-level cache.
const PASS_BYTES: usize = 3 << 18;

/// Tiles of weights along the summed dimension in a pass, at most: those of two groups of rows
/// should stay in the first-level cache.
const PASS: usize = 9;

/// Sums `[token, row]`, in whole cache lines.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Tile([f32; SIDE * SIDE]);

const ZERO: Tile = Tile([0.0; SIDE * SIDE]);

/// `x` `[tokens, columns]`, `y` `[tokens, rows]`, of which all is written; the weights are bf16, and
/// the tiles [`available`].
pub fn linear(x: &[f32], weight: View<'_>, bias: Option<&[f32]>, y: Output) {
    assert!(
        weight.format == BlockFormat::Bf16 && available(),
        "linear: tiles"
    );
    let tokens = x.len() / weight.columns;
    assert_eq!(x.len(), tokens * weight.columns, "linear: length of x");
    assert_eq!((y.tokens, y.width), (tokens, weight.rows), "linear: y");
    if let Some(bias) = bias {
        assert_eq!(bias.len(), weight.rows, "linear: length of bias");
    }
    if tokens == 0 {
        return;
    }
    // Of a group of rows: whole units, which may be more than the columns.
    let depth = weight.group_bytes() / TILE_BYTES;
    let groups = weight.rows.div_ceil(SIDE);
    let product = Product {
        x: &round(x, weight.columns, depth),
        weight,
        bias,
        y,
        side: tokens.min(SIDE),
        token_tiles: tokens.div_ceil(SIDE),
        depth,
    };
    let per_task = groups_per_task(groups, rayon::current_num_threads());
    (0..groups.div_ceil(per_task))
        .into_par_iter()
        .for_each_init(Vec::new, |sums, task| {
            let first = task * per_task;
            let last = (first + per_task).min(groups);
            // SAFETY: the tiles are available and the lengths were checked; tasks write
            // disjoint columns of `y`.
            unsafe { product.rows(first, last, sums) };
        });
}

/// `x` `[tokens, columns]` in bf16, tile by tile: `depth` of them for each 16 tokens. Columns and,
/// where there is more than one tile of them, tokens that are not there are zero.
fn round(x: &[f32], columns: usize, depth: usize) -> Aligned<bf16> {
    let tokens = x.len() / columns;
    let side = tokens.min(SIDE);
    let tile = side * DEPTH;
    let mut rounded = Aligned::zeroed(tokens.div_ceil(side) * depth * tile);
    let tiles = rounded
        .par_chunks_mut(depth * tile)
        .zip(x.par_chunks(side * columns));
    tiles.for_each(|(rounded, x)| {
        dispatch(Rounding {
            x,
            columns,
            side,
            rounded,
        });
    });
    rounded
}

/// A row of tiles.
struct Rounding<'a> {
    x: &'a [f32],
    columns: usize,
    side: usize,
    rounded: &'a mut [bf16],
}

impl Task for Rounding<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for (row, x) in self.x.chunks_exact(self.columns).enumerate() {
            let (whole, rest) = x.as_chunks::<DEPTH>();
            let at = |tile: usize| (tile * self.side + row) * DEPTH;
            for (tile, x) in whole.iter().enumerate() {
                let to = &mut self.rounded[at(tile)..][..DEPTH];
                for i in 0..DEPTH {
                    to[i] = bf16::narrow(x[i]);
                }
            }
            let to = rest.iter().zip(at(whole.len())..);
            for (x, to) in to {
                self.rounded[to] = bf16::narrow(*x);
            }
        }
    }
}

struct Product<'a> {
    /// As [`round`] makes it.
    x: &'a [bf16],
    weight: View<'a>,
    bias: Option<&'a [f32]>,
    y: Output,
    /// Tokens in a tile.
    side: usize,
    token_tiles: usize,
    /// Tiles along the summed dimension.
    depth: usize,
}

impl Product<'_> {
    /// Tiles `first..last` of 16 rows, by all tokens. `sums`: memory to work in.
    ///
    /// # Safety
    /// The tiles must be available, and the rows this task's.
    unsafe fn rows(&self, first: usize, last: usize, sums: &mut Vec<Tile>) {
        let (side, full) = ((self.side, ROW_BYTES), (SIDE, ROW_BYTES));
        // Sums and activations have as many rows as there are tokens; 6 and 7 are weights.
        let _tiles = unsafe { Tiles::shaped([side, side, side, side, side, side, full, full]) };
        if self.token_tiles == 1 {
            sums.resize(4, ZERO);
            for row in (first..last).step_by(4) {
                // Where there are fewer tiles, the last is computed again and not stored.
                let rows = std::array::from_fn(|i| self.tile((row + i).min(last - 1), 0));
                unsafe {
                    let x = (self.x(0, 0), self.side);
                    four_by_one(rows, x, self.depth, sums.as_mut_ptr());
                    for (i, sums) in sums.iter().enumerate().take(last - row) {
                        self.store(sums, row + i, 0);
                    }
                }
            }
            return;
        }
        // All tokens by some of the columns at a time: as many as stay in the cache. Between the
        // passes the sums are kept as they are, so that the bits are those of a single one.
        let tokens = self.token_tiles * TILE_BYTES;
        let passes = (tokens * self.depth).div_ceil(PASS_BYTES);
        let pass = self.depth.div_ceil(passes).min(PASS);
        let pairs = self.token_tiles.div_ceil(2);
        sums.resize(4 * pairs * (last - first).div_ceil(2), ZERO);
        for from in (0..self.depth).step_by(pass) {
            let depth = pass.min(self.depth - from);
            let mut sums = sums.chunks_exact_mut(4);
            for row in (first..last).step_by(2) {
                let rows = std::array::from_fn(|i| self.tile((row + i).min(last - 1), from));
                for token in (0..self.token_tiles).step_by(2) {
                    let Some(sums) = sums.next() else {
                        unreachable!("sums for every pair");
                    };
                    let end = self.token_tiles - 1;
                    let x = std::array::from_fn(|i| self.x((token + i).min(end), from));
                    unsafe { two_by_two(rows, x, depth, from == 0, sums.as_mut_ptr()) };
                    if from + depth < self.depth {
                        continue;
                    }
                    for (i, sums) in sums.iter().enumerate() {
                        let (row, token) = (row + i / 2, token + i % 2);
                        if row < last && token < self.token_tiles {
                            unsafe { self.store(sums, row, token) };
                        }
                    }
                }
            }
        }
    }

    /// The weights of a group of rows from tile `from` on.
    fn tile(&self, group: usize, from: usize) -> *const u8 {
        let at = group * self.weight.group_bytes();
        self.weight.units[at..][..self.weight.group_bytes()][from * TILE_BYTES..].as_ptr()
    }

    /// The activations of a tile of tokens from tile `from` on.
    fn x(&self, tile: usize, from: usize) -> *const bf16 {
        let tiles = self.side * DEPTH;
        self.x[tile * self.depth * tiles..][..self.depth * tiles][from * tiles..].as_ptr()
    }

    /// Writes the sums of a tile of rows and a tile of tokens to `y`.
    ///
    /// # Safety
    /// The tiles must be within the matrices, and the rows this task's.
    unsafe fn store(&self, sums: &Tile, row_tile: usize, token_tile: usize) {
        let (row, token) = (row_tile * SIDE, token_tile * SIDE);
        let rows = (self.weight.rows - row).min(SIDE);
        let bias = self.bias.map(|bias| &bias[row..row + rows]);
        let sums = sums.0.as_chunks::<SIDE>().0.iter().enumerate();
        for (t, sums) in sums.take(self.y.tokens - token) {
            let y = unsafe { self.y.at(token + t, row) };
            // SAFETY: as many rows are there.
            unsafe {
                match bias {
                    None if rows == SIDE => y.cast::<[f32; SIDE]>().write_unaligned(*sums),
                    None => y.copy_from_nonoverlapping(sums.as_ptr(), rows),
                    Some(bias) => {
                        for (i, (sum, bias)) in sums.iter().zip(bias).enumerate() {
                            y.add(i).write(sum + bias);
                        }
                    }
                }
            }
        }
    }
}

/// Four tiles of rows by one of tokens: for few tokens, where the weights come from memory, and
/// four of them at once keep enough of it on the way.
///
/// # Safety
/// The tiles must be shaped; each of `rows` has `depth` tiles, `x` as many of `side` tokens, and
/// there are four `sums`.
unsafe fn four_by_one(
    rows: [*const u8; 4],
    (x, side): (*const bf16, usize),
    depth: usize,
    sums: *mut Tile,
) {
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm4, [{x} + {row_bytes}*1]",
            "tileloadd tmm6, [{a} + {row_bytes}*1]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{b} + {row_bytes}*1]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm6, [{c} + {row_bytes}*1]",
            "tdpbf16ps tmm2, tmm4, tmm6",
            "tileloadd tmm7, [{d} + {row_bytes}*1]",
            "tdpbf16ps tmm3, tmm4, tmm7",
            "add {a}, 1024",
            "add {b}, 1024",
            "add {c}, 1024",
            "add {d}, 1024",
            "add {x}, {x_tile}",
            "sub {depth}, 1",
            "jnz 2b",
            "tilestored [{sums} + {row_bytes}*1], tmm0",
            "tilestored [{sums} + {row_bytes}*1 + 1024], tmm1",
            "tilestored [{sums} + {row_bytes}*1 + 2048], tmm2",
            "tilestored [{sums} + {row_bytes}*1 + 3072], tmm3",
            a = inout(reg) rows[0] => _,
            b = inout(reg) rows[1] => _,
            c = inout(reg) rows[2] => _,
            d = inout(reg) rows[3] => _,
            x = inout(reg) x => _,
            depth = inout(reg) depth => _,
            x_tile = in(reg) side * ROW_BYTES,
            row_bytes = in(reg) ROW_BYTES,
            sums = in(reg) sums,
            options(nostack)
        );
    }
}

/// Two tiles of rows by two of tokens, each loaded once for two products; `sums`, row by row, are
/// added to unless they are `new`.
///
/// # Safety
/// As [`four_by_one`], with 16 tokens in each of `x`.
unsafe fn two_by_two(
    rows: [*const u8; 2],
    x: [*const bf16; 2],
    depth: usize,
    new: bool,
    sums: *mut Tile,
) {
    unsafe {
        asm!(
            "test {new}, {new}",
            "jnz 3f",
            "tileloadd tmm0, [{sums} + {row_bytes}*1]",
            "tileloadd tmm1, [{sums} + {row_bytes}*1 + 1024]",
            "tileloadd tmm2, [{sums} + {row_bytes}*1 + 2048]",
            "tileloadd tmm3, [{sums} + {row_bytes}*1 + 3072]",
            "jmp 2f",
            "3:",
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm6, [{a} + {row_bytes}*1]",
            "tileloadd tmm4, [{x} + {row_bytes}*1]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm5, [{y} + {row_bytes}*1]",
            "tdpbf16ps tmm1, tmm5, tmm6",
            "tileloadd tmm7, [{b} + {row_bytes}*1]",
            "tdpbf16ps tmm2, tmm4, tmm7",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {a}, 1024",
            "add {b}, 1024",
            "add {x}, 1024",
            "add {y}, 1024",
            "sub {depth}, 1",
            "jnz 2b",
            "tilestored [{sums} + {row_bytes}*1], tmm0",
            "tilestored [{sums} + {row_bytes}*1 + 1024], tmm1",
            "tilestored [{sums} + {row_bytes}*1 + 2048], tmm2",
            "tilestored [{sums} + {row_bytes}*1 + 3072], tmm3",
            a = inout(reg) rows[0] => _,
            b = inout(reg) rows[1] => _,
            x = inout(reg) x[0] => _,
            y = inout(reg) x[1] => _,
            depth = inout(reg) depth => _,
            new = in(reg) usize::from(new),
            row_bytes = in(reg) ROW_BYTES,
            sums = in(reg) sums,
            options(nostack)
        );
    }
}
