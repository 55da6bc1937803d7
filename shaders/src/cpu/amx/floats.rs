//! `y = x W^T + b` on the tiles, for bf16 weights.
//!
//! A tile instruction multiplies up to 16 tokens by 16 rows of `W` over 32 elements of the summed
//! dimension. Single tokens use the tiles, too, so that they have the same bits.

use std::arch::asm;

use half::bf16;
use rayon::prelude::*;

use super::{ROW_BYTES, SIDE, TILE_BYTES, Tiles, available};
use crate::cpu::bf16::{DEPTH, check, round};
use crate::cpu::blocks::{Job, View, groups_per_task};
use crate::cpu::output::{Output, with_addend};

/// The most bytes of activations in a pass over the weights. They are read again and again and
/// should stay in the second-level cache.
const PASS_BYTES: usize = 3 << 18;

/// The most tiles of weights along the summed dimension in a pass. Those of two groups of rows
/// should stay in the first-level cache.
const PASS: usize = 9;

/// Sums `[token, row]`, in whole cache lines.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Tile([f32; SIDE * SIDE]);

const ZERO: Tile = Tile([0.0; SIDE * SIDE]);

/// Computes `job`, whose matrix is in bf16. The tiles have to be [`available`].
pub fn linear(job: &Job<'_>) {
    assert!(available(), "linear: matrix tiles are not available");
    check(job);
    let Job {
        x, bias, addend, y, ..
    } = *job;
    let (weight, tokens) = (job.parts[0], y.tokens);
    if tokens == 0 {
        return;
    }
    // The tiles of a group of rows. Groups consist of whole units, so this may cover more than the
    // columns.
    let depth = weight.group_bytes() / TILE_BYTES;
    let groups = weight.rows.div_ceil(SIDE);
    let product = Product {
        x: &round(x, weight.columns, depth, tokens.min(SIDE)),
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
            // SAFETY: the tiles are available and the lengths were checked; tasks write disjoint
            // columns of `y`.
            unsafe {
                with_addend(addend, y, weight.outputs(first..last), || {
                    product.rows(first, last, sums);
                });
            }
        });
}

struct Product<'a> {
    /// As [`round`] returns it.
    x: &'a [bf16],
    weight: View<'a>,
    bias: Option<&'a [f32]>,
    y: Output,
    /// Tokens of a tile.
    side: usize,
    token_tiles: usize,
    /// Tiles along the summed dimension.
    depth: usize,
}

impl Product<'_> {
    /// Multiplies the groups of rows `first..last` with all tokens. `sums` is memory to work in.
    ///
    /// # Safety
    /// The tiles must be available, and the rows must be this task's.
    unsafe fn rows(&self, first: usize, last: usize, sums: &mut Vec<Tile>) {
        let (side, full) = ((self.side, ROW_BYTES), (SIDE, ROW_BYTES));
        // Tiles 0 to 5 hold sums and activations and have as many rows as a tile has tokens. Tiles
        // 6 and 7 hold weights.
        // SAFETY: the caller guarantees that the tiles are available; `side` is from 1 to 16.
        let _tiles = unsafe { Tiles::shaped([side, side, side, side, side, side, full, full]) };
        if self.token_tiles == 1 {
            sums.resize(4, ZERO);
            for row in (first..last).step_by(4) {
                // Where fewer than four groups are left, the last one is computed again and not
                // stored.
                let rows = std::array::from_fn(|i| self.tile((row + i).min(last - 1), 0));
                // SAFETY: the tiles are shaped for `side` tokens; `tile` and `x` check that `depth`
                // tiles follow each pointer; `sums` has four tiles; groups below `last` are this
                // task's.
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
        // Each pass multiplies all tokens with as many columns as stay in the cache. The sums are
        // stored in f32 between passes, so the bits are those of a single pass.
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
                    // SAFETY: the tiles are shaped for 16 tokens, because there are several tiles
                    // of tokens; `tile` and `x` check that `depth` tiles follow each pointer;
                    // `sums` has four tiles.
                    unsafe { two_by_two(rows, x, depth, from == 0, sums.as_mut_ptr()) };
                    if from + depth < self.depth {
                        continue;
                    }
                    for (i, sums) in sums.iter().enumerate() {
                        let (row, token) = (row + i / 2, token + i % 2);
                        if row < last && token < self.token_tiles {
                            // SAFETY: the group and the tile of tokens exist, and the group is this
                            // task's.
                            unsafe { self.store(sums, row, token) };
                        }
                    }
                }
            }
        }
    }

    /// The weights of a group of rows, from tile `from` on.
    fn tile(&self, group: usize, from: usize) -> *const u8 {
        let at = group * self.weight.group_bytes();
        self.weight.units[at..][..self.weight.group_bytes()][from * TILE_BYTES..].as_ptr()
    }

    /// The activations of a tile of tokens, from tile `from` on.
    fn x(&self, tile: usize, from: usize) -> *const bf16 {
        let tiles = self.side * DEPTH;
        self.x[tile * self.depth * tiles..][..self.depth * tiles][from * tiles..].as_ptr()
    }

    /// Adds the bias and writes the sums of a group of rows and a tile of tokens to `y`.
    ///
    /// # Safety
    /// Both must exist, and the rows must be this task's.
    unsafe fn store(&self, sums: &Tile, row_tile: usize, token_tile: usize) {
        let (row, token) = (row_tile * SIDE, token_tile * SIDE);
        let rows = (self.weight.rows - row).min(SIDE);
        let bias = self.bias.map(|bias| &bias[row..row + rows]);
        let sums = sums.0.as_chunks::<SIDE>().0.iter().enumerate();
        for (t, sums) in sums.take(self.y.tokens - token) {
            // SAFETY: the token and the row exist, and the caller guarantees that the rows are this
            // task's.
            let y = unsafe { self.y.at(token + t, row) };
            // SAFETY: `rows` elements from the row on exist, and they are this task's.
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

/// Multiplies four groups of rows by one tile of tokens: for few tokens, where the weights come
/// from memory. Reading four groups at once keeps enough loads in flight.
///
/// # Safety
/// The tiles must be shaped as `rows` does it. Each pointer of `rows` must have `depth` tiles, `x`
/// must have as many of `side` tokens, and there must be four `sums`.
unsafe fn four_by_one(
    rows: [*const u8; 4],
    (x, side): (*const bf16, usize),
    depth: usize,
    sums: *mut Tile,
) {
    // SAFETY: the caller guarantees the shapes and the memory behind each pointer, and `depth` is
    // at least 1. The instructions change only tile registers, which the compiler does not use, the
    // declared registers, and `sums`.
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

/// Multiplies two groups of rows by two tiles of tokens, so that each load serves two products. The
/// products are added to `sums`, which are ordered by group, unless these are `new`.
///
/// # Safety
/// As for [`four_by_one`], with 16 tokens in each tile of `x`.
unsafe fn two_by_two(
    rows: [*const u8; 2],
    x: [*const bf16; 2],
    depth: usize,
    new: bool,
    sums: *mut Tile,
) {
    // SAFETY: the caller guarantees the shapes and the memory behind each pointer, and `depth` is
    // at least 1. The instructions change only tile registers, which the compiler does not use, the
    // declared registers, and `sums`.
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
