//! `y = x W^T + b` for bf16 weights on Intel's matrix tiles (AMX, Sapphire Rapids and later).
//!
//! A tile instruction multiplies up to 16 tokens by 16 rows of `W` over 32 elements of the summed
//! dimension. Weights are packed so that a tile of them is 1 KiB read from front to back
//! ([`super::blocks`]); activations are rounded to bf16, as every GPU and llama.cpp do for bf16
//! weights. Sums are f32.
//!
//! **Batch-invariant**: each output is summed over the same blocks in the same order, whatever
//! its neighbours, so that one token alone has the bits that it has among five hundred. That is
//! why single tokens go through the tiles too.

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::sync::OnceLock;

use half::bf16;
use rayon::prelude::*;

use super::blocks::{BlockFormat, View, groups_per_task};
use super::limit::{Limit, allows};
use super::simd::vectorised;

/// Rows of `W`, and tokens at most, in a tile.
const SIDE: usize = 16;
/// Elements of the summed dimension in a tile.
const DEPTH: usize = 32;
/// Bytes of a tile's row.
const ROW_BYTES: usize = 64;
/// Bytes of a tile of weights.
const TILE_BYTES: usize = SIDE * ROW_BYTES;

/// Sums `[token, row]`.
type Tile = [f32; SIDE * SIDE];

/// Whether this CPU has the tiles, they may be used, and the system lets this process, which it
/// asks for.
pub fn available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| {
        let features = __cpuid_count(7, 0).edx;
        let (amx_bf16, amx_tile) = (features >> 22 & 1 == 1, features >> 24 & 1 == 1);
        allows(Limit::Amx) && amx_bf16 && amx_tile && permitted()
    })
}

/// Asks the kernel for the tile registers, for all threads of this process.
#[cfg(target_os = "linux")]
fn permitted() -> bool {
    const ARCH_PRCTL: isize = 158;
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    const XFEATURE_XTILEDATA: usize = 18;
    let result: isize;
    // SAFETY: the system call changes nothing but what this process may execute.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn permitted() -> bool {
    false
}

/// `x` `[tokens, columns]`, `y` `[tokens, rows]`; the weights are bf16, and the tiles
/// [`available`].
pub fn linear(x: &[f32], weight: View<'_>, bias: Option<&[f32]>, y: &mut [f32]) {
    assert!(
        weight.format == BlockFormat::Bf16 && available(),
        "linear: tiles"
    );
    let tokens = x.len() / weight.columns;
    assert_eq!(x.len(), tokens * weight.columns, "linear: length of x");
    assert_eq!(y.len(), tokens * weight.rows, "linear: length of y");
    if let Some(bias) = bias {
        assert_eq!(bias.len(), weight.rows, "linear: length of bias");
    }
    // Of a group of rows: whole units, which may be more than the columns.
    let depth = weight.group_bytes() / TILE_BYTES;
    let tiles = weight.rows.div_ceil(SIDE);
    let product = Product {
        x: &round(x, weight.columns, depth * DEPTH),
        weight,
        bias,
        y: y.as_mut_ptr(),
        tokens,
        depth,
    };
    let per_task = groups_per_task(tiles, rayon::current_num_threads());
    (0..tiles.div_ceil(per_task))
        .into_par_iter()
        .for_each(|task| {
            let first = task * per_task;
            let last = (first + per_task).min(tiles);
            // SAFETY: the tiles are available and the lengths were checked; tasks write
            // disjoint columns of `y`.
            unsafe {
                configure(tokens.min(SIDE));
                product.rows(first, last);
                asm!("tilerelease", options(nostack));
            }
        });
}

/// `x` `[tokens, columns]` in bf16, `[tokens, width]`: columns and, where there is more than one
/// tile of them, tokens that are not there are zero.
fn round(x: &[f32], columns: usize, width: usize) -> Vec<bf16> {
    let tokens = match x.len() / columns {
        tokens if tokens > SIDE => tokens.next_multiple_of(SIDE),
        tokens => tokens,
    };
    let mut rounded = vec![bf16::ZERO; tokens * width];
    let tiles = rounded
        .par_chunks_mut(SIDE * width)
        .zip(x.par_chunks(SIDE * columns));
    tiles.for_each(|(rounded, x)| {
        vectorised(|| {
            for (to, from) in rounded.chunks_exact_mut(width).zip(x.chunks_exact(columns)) {
                to.iter_mut()
                    .zip(from)
                    .for_each(|(to, x)| *to = nearest(*x));
            }
        });
    });
    rounded
}

/// `bf16::from_f32` without a branch, so that a loop over it becomes vectors.
#[inline(always)]
fn nearest(x: f32) -> bf16 {
    let bits = x.to_bits();
    let even = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    let quiet = bits | 1 << 22;
    bf16::from_bits((if x.is_nan() { quiet } else { even } >> 16) as u16)
}

/// What `ldtilecfg` reads.
#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Tiles 0 to 3 are sums and 4 and 5 activations, of as many tokens; 6 and 7 are weights.
///
/// # Safety
/// The tiles must be [`available`], and `tokens` from 1 to 16.
unsafe fn configure(tokens: usize) {
    let mut config = TileConfig {
        palette: 1,
        start_row: 0,
        reserved: [0; 14],
        row_bytes: [0; 16],
        rows: [0; 16],
    };
    for tile in 0..8 {
        config.row_bytes[tile] = ROW_BYTES as u16;
        config.rows[tile] = if tile < 6 { tokens } else { SIDE } as u8;
    }
    // The compiler knows no tile registers, and so keeps nothing in them.
    unsafe { asm!("ldtilecfg [{0}]", in(reg) &config, options(nostack, readonly)) };
}

struct Product<'a> {
    /// As [`round`] makes it.
    x: &'a [bf16],
    weight: View<'a>,
    bias: Option<&'a [f32]>,
    y: *mut f32,
    tokens: usize,
    /// Tiles along the summed dimension.
    depth: usize,
}

// SAFETY: tasks write disjoint columns of `y`, which outlives the parallel loop.
unsafe impl Sync for Product<'_> {}

impl Product<'_> {
    /// Tiles `first..last` of 16 rows.
    ///
    /// # Safety
    /// The tiles must be configured for as many tokens.
    unsafe fn rows(&self, first: usize, last: usize) {
        let token_tiles = self.tokens.div_ceil(SIDE);
        // Where there are fewer tiles, the last is computed again and not stored.
        let tile = |i: usize| {
            let at = i.min(last - 1) * self.weight.group_bytes();
            self.weight.units[at..][..self.weight.group_bytes()].as_ptr()
        };
        let x = |tile: usize| {
            let at = tile.min(token_tiles - 1) * SIDE * self.depth * DEPTH;
            self.x[at..].as_ptr()
        };
        let mut sums = [[0.0; SIDE * SIDE]; 4];
        unsafe {
            if token_tiles == 1 {
                for row in (first..last).step_by(4) {
                    let rows = std::array::from_fn(|i| tile(row + i));
                    four_by_one(rows, x(0), self.depth, &mut sums);
                    for (i, sums) in sums.iter().enumerate().take(last - row) {
                        self.store(sums, row + i, 0);
                    }
                }
                return;
            }
            for row in (first..last).step_by(2) {
                for token in (0..token_tiles).step_by(2) {
                    let (a, b) = ([tile(row), tile(row + 1)], [x(token), x(token + 1)]);
                    two_by_two(a, b, self.depth, &mut sums);
                    for (i, sums) in sums.iter().enumerate() {
                        let (row, token) = (row + i / 2, token + i % 2);
                        if row < last && token < token_tiles {
                            self.store(sums, row, token);
                        }
                    }
                }
            }
        }
    }

    /// Writes the sums of a tile of rows and a tile of tokens to `y`.
    ///
    /// # Safety
    /// The tiles must be within the matrices, and the rows this task's.
    unsafe fn store(&self, sums: &Tile, row_tile: usize, token_tile: usize) {
        let (row, token) = (row_tile * SIDE, token_tile * SIDE);
        let rows = (self.weight.rows - row).min(SIDE);
        let bias = self.bias.map(|bias| &bias[row..row + rows]);
        for (t, sums) in sums
            .chunks_exact(SIDE)
            .enumerate()
            .take(self.tokens - token)
        {
            let y = unsafe {
                let at = self.y.add((token + t) * self.weight.rows + row);
                std::slice::from_raw_parts_mut(at, rows)
            };
            match bias {
                None => y.copy_from_slice(&sums[..rows]),
                Some(bias) => {
                    for ((y, sum), bias) in y.iter_mut().zip(sums).zip(bias) {
                        *y = sum + bias;
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
/// The tiles must be configured; each of `rows` has `depth` tiles, and `x` is `[tokens, depth * 32]`.
unsafe fn four_by_one(rows: [*const u8; 4], x: *const bf16, depth: usize, sums: &mut [Tile; 4]) {
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm4, [{x} + {stride}*1]",
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
            "add {x}, 64",
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
            stride = in(reg) depth * ROW_BYTES,
            row_bytes = in(reg) ROW_BYTES,
            sums = in(reg) sums.as_mut_ptr(),
            options(nostack)
        );
    }
}

/// Two tiles of rows by two of tokens, each loaded once for two products; `sums` row by row.
///
/// # Safety
/// As [`four_by_one`], with 16 tokens in each of `x`.
unsafe fn two_by_two(
    rows: [*const u8; 2],
    x: [*const bf16; 2],
    depth: usize,
    sums: &mut [Tile; 4],
) {
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm6, [{a} + {row_bytes}*1]",
            "tileloadd tmm4, [{x} + {stride}*1]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm5, [{y} + {stride}*1]",
            "tdpbf16ps tmm1, tmm5, tmm6",
            "tileloadd tmm7, [{b} + {row_bytes}*1]",
            "tdpbf16ps tmm2, tmm4, tmm7",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {a}, 1024",
            "add {b}, 1024",
            "add {x}, 64",
            "add {y}, 64",
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
            stride = in(reg) depth * ROW_BYTES,
            row_bytes = in(reg) ROW_BYTES,
            sums = in(reg) sums.as_mut_ptr(),
            options(nostack)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::blocks::BlockMatrix;

    /// Values from a counter, in -1..1.
    fn noise(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    fn rounded(values: &[f32]) -> Vec<bf16> {
        values.iter().map(|value| bf16::from_f32(*value)).collect()
    }

    fn packed(weight: &[bf16], columns: usize) -> Vec<u8> {
        let rows = weight.len() / columns;
        let mut matrix = BlockMatrix::zeros(BlockFormat::Bf16, rows, columns);
        for (row, values) in weight.chunks_exact(columns).enumerate() {
            let bytes: Vec<u8> = values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect();
            matrix.set_row(row, &bytes);
        }
        matrix.into_bytes()
    }

    const SHAPES: [(usize, usize, usize); 11] = [
        (1, 16, 32),
        (1, 64, 576),
        (2, 5, 1),
        (3, 100, 64),
        (7, 33, 95),
        (16, 1, 96),
        (17, 576, 128),
        (31, 70, 33),
        (33, 33, 1536),
        (64, 960, 576),
        (130, 48, 32),
    ];

    #[test]
    fn tiles_give_the_sums_of_the_rounded_activations() {
        if !available() {
            return eprintln!("skipped: this CPU has no matrix tiles");
        }
        for (seed, (tokens, output, input)) in (0..).zip(SHAPES) {
            let x = noise(tokens * input, seed);
            let weight = rounded(&noise(output * input, seed + 100));
            let bias = noise(output, seed + 200);
            let mut y = vec![f32::NAN; tokens * output];
            linear(&x, View::of(&packed(&weight, input)), Some(&bias), &mut y);
            let exact = rounded(&x);
            for (token, y) in y.chunks_exact(output).enumerate() {
                for (row, y) in y.iter().enumerate() {
                    let terms = (0..input).map(|k| {
                        exact[token * input + k].to_f64() * weight[row * input + k].to_f64()
                    });
                    let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), term| {
                        (sum + term, size + term.abs())
                    });
                    let error = (f64::from(*y) - sum - f64::from(bias[row])).abs();
                    assert!(
                        error <= 1e-5 * (size + 1.0),
                        "{tokens} x {output} x {input} at {token}, {row}: {y} is off by {error}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_token_has_the_same_bits_alone_and_among_others() {
        if !available() {
            return eprintln!("skipped: this CPU has no matrix tiles");
        }
        for (seed, (tokens, output, input)) in (0..).zip(SHAPES) {
            let x = noise(tokens * input, seed);
            let weight = packed(&rounded(&noise(output * input, seed + 100)), input);
            let mut together = vec![f32::NAN; tokens * output];
            linear(&x, View::of(&weight), None, &mut together);
            for (x, together) in x.chunks_exact(input).zip(together.chunks_exact(output)) {
                let mut alone = vec![f32::NAN; output];
                linear(x, View::of(&weight), None, &mut alone);
                assert_eq!(alone, together, "{tokens} x {output} x {input}");
            }
        }
    }

    #[test]
    fn what_is_not_finite_stays_so() {
        if !available() {
            return eprintln!("skipped: this CPU has no matrix tiles");
        }
        let mut x = vec![0.0; 2 * 32];
        (x[3], x[32 + 5]) = (f32::NAN, f32::INFINITY);
        let weight = packed(&vec![bf16::ONE; 16 * 32], 32);
        let mut y = vec![0.0; 2 * 16];
        linear(&x, View::of(&weight), None, &mut y);
        assert!(y[..16].iter().all(|y| y.is_nan()), "{y:?}");
        assert!(y[16..].iter().all(|y| *y == f32::INFINITY), "{y:?}");
    }

    #[test]
    fn rounding_is_that_of_half() {
        for high in 0..=u16::MAX {
            for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let x = f32::from_bits(u32::from(high) << 16 | low);
                let (got, want) = (nearest(x), bf16::from_f32(x));
                assert_eq!(got.to_bits(), want.to_bits(), "{x}");
            }
        }
    }

    #[test]
    fn a_packed_row_is_given_back() {
        let weight = rounded(&noise(35 * 95, 7));
        let matrix = packed(&weight, 95);
        let mut out = vec![f32::NAN; 95];
        for (row, values) in weight.chunks_exact(95).enumerate() {
            View::of(&matrix).row(row, &mut out);
            assert!(
                values
                    .iter()
                    .zip(&out)
                    .all(|(want, got)| want.to_f32() == *got)
            );
        }
    }
}
