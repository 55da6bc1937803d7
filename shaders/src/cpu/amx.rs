//! `y = x W^T + b` for bf16 weights on Intel's matrix tiles (AMX, Sapphire Rapids and later).
//!
//! A tile instruction multiplies 16 rows of `W` by 16 tokens over 32 elements of the summed
//! dimension. The rows are read as they lie in the checkpoint; the activations are rounded to
//! bf16 (as every GPU and llama.cpp do for bf16 weights) and packed into the pairs that the
//! instruction takes. Sums are f32.
//!
//! **Batch-invariant**: each output is summed over the same blocks in the same order, whatever
//! its neighbours, so that one token alone has the bits that it has among five hundred. That is
//! why single tokens go through the tiles too.

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::sync::OnceLock;

use half::bf16;
use rayon::prelude::*;

use super::limit::{Limit, allows};

/// Rows of `W`, and tokens, in a tile.
const SIDE: usize = 16;
/// Elements of the summed dimension in a tile.
pub const DEPTH: usize = 32;
/// Bytes of a tile's row.
const ROW_BYTES: usize = 64;
/// Most tiles of `W` rows that a task has.
const TASK_TILES: usize = 4;

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

/// `x` `[tokens, input]`, `weight` `[output, input]`, `y` `[tokens, output]`; `input` must be a
/// multiple of [`DEPTH`], and the tiles [`available`].
pub fn linear(x: &[f32], weight: &[bf16], bias: Option<&[f32]>, y: &mut [f32], input: usize) {
    assert!(input.is_multiple_of(DEPTH) && available(), "linear: tiles");
    let (tokens, output) = (x.len() / input, weight.len() / input);
    assert_eq!(x.len(), tokens * input, "linear: length of x");
    assert_eq!(weight.len(), output * input, "linear: length of weight");
    assert_eq!(y.len(), tokens * output, "linear: length of y");
    if let Some(bias) = bias {
        assert_eq!(bias.len(), output, "linear: length of bias");
    }
    let x = pack(x, input);
    let tiles = output.div_ceil(SIDE);
    let per_task = tiles_per_task(tiles, rayon::current_num_threads());
    let product = Product {
        x: &x,
        weight,
        bias,
        y: y.as_mut_ptr(),
        tokens,
        input,
        output,
    };
    (0..tiles.div_ceil(per_task))
        .into_par_iter()
        .for_each(|task| {
            let first = task * per_task;
            let last = (first + per_task).min(tiles);
            // SAFETY: the tiles are available and the lengths were checked; tasks write
            // disjoint columns of `y`.
            unsafe {
                configure();
                product.rows(first, last);
                asm!("tilerelease", options(nostack));
            }
        });
}

/// As many as a task can take, unless fewer share out evenly over `threads`.
fn tiles_per_task(tiles: usize, threads: usize) -> usize {
    (2..=TASK_TILES)
        .rev()
        .find(|per_task| tiles.div_ceil(*per_task).is_multiple_of(threads))
        .unwrap_or(TASK_TILES)
}

/// `x` in bf16, `[tokens / 16, input / 2, 16, 2]`: what the tile of activations takes, row by
/// row. Tokens that are not there are zero.
fn pack(x: &[f32], input: usize) -> Vec<bf16> {
    let mut packed = vec![bf16::ZERO; (x.len() / input).next_multiple_of(SIDE) * input];
    let tiles = packed
        .par_chunks_exact_mut(SIDE * input)
        .zip(x.par_chunks(SIDE * input));
    tiles.for_each(|(packed, x)| {
        for (token, row) in x.chunks_exact(input).enumerate() {
            for (pair, values) in packed.chunks_exact_mut(2 * SIDE).zip(row.chunks_exact(2)) {
                pair[2 * token] = bf16::from_f32(values[0]);
                pair[2 * token + 1] = bf16::from_f32(values[1]);
            }
        }
    });
    packed
}

/// What `ldtilecfg` reads: all eight tiles have 16 rows of 64 bytes.
#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// # Safety
/// The tiles must be [`available`].
unsafe fn configure() {
    const SHAPE: TileConfig = {
        let mut config = TileConfig {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        let mut tile = 0;
        while tile < 8 {
            config.row_bytes[tile] = ROW_BYTES as u16;
            config.rows[tile] = SIDE as u8;
            tile += 1;
        }
        config
    };
    // The compiler knows no tile registers, and so keeps nothing in them.
    unsafe { asm!("ldtilecfg [{0}]", in(reg) &SHAPE, options(nostack, readonly)) };
}

struct Product<'a> {
    /// As [`pack`] makes it.
    x: &'a [bf16],
    weight: &'a [bf16],
    bias: Option<&'a [f32]>,
    y: *mut f32,
    tokens: usize,
    input: usize,
    output: usize,
}

// SAFETY: tasks write disjoint columns of `y`, which outlives the parallel loop.
unsafe impl Sync for Product<'_> {}

impl Product<'_> {
    /// Tiles `first..last` of 16 rows, at most [`TASK_TILES`] of them.
    ///
    /// # Safety
    /// The tiles must be configured.
    unsafe fn rows(&self, first: usize, last: usize) {
        // Rows beyond the last whole tile are copied next to zeros.
        let mut padded = Vec::new();
        if last * SIDE > self.output {
            padded.extend_from_slice(&self.weight[(last - 1) * SIDE * self.input..]);
            padded.resize(SIDE * self.input, bf16::ZERO);
        }
        // Where there are fewer tiles, the last is computed again and not stored.
        let tile = |i: usize| match (first + i).min(last - 1) {
            at if (at + 1) * SIDE > self.output => padded.as_ptr(),
            at => self.weight[at * SIDE * self.input..].as_ptr(),
        };
        let mut sums = [[0.0; SIDE * SIDE]; 4];
        let token_tiles = self.tokens.div_ceil(SIDE);
        let x = |tile: usize| self.x[tile.min(token_tiles - 1) * SIDE * self.input..].as_ptr();
        unsafe {
            if token_tiles == 1 {
                four_by_one(std::array::from_fn(tile), x(0), self.input, &mut sums);
                for (i, sums) in sums.iter().take(last - first).enumerate() {
                    self.store(sums, first + i, 0);
                }
                return;
            }
            for row in (0..last - first).step_by(2) {
                for token in (0..token_tiles).step_by(2) {
                    let (a, b) = ([tile(row), tile(row + 1)], [x(token), x(token + 1)]);
                    two_by_two(a, b, self.input, &mut sums);
                    for (i, sums) in sums.iter().enumerate() {
                        let (row, token) = (first + row + i / 2, token + i % 2);
                        if row < last && token < token_tiles {
                            self.store(sums, row, token);
                        }
                    }
                }
            }
        }
    }

    /// Writes `sums` `[row, token]` of a tile of rows and a tile of tokens to `y`.
    ///
    /// # Safety
    /// The tiles must be within the matrices, and the rows this task's.
    unsafe fn store(&self, sums: &Tile, row_tile: usize, token_tile: usize) {
        let (row, token) = (row_tile * SIDE, token_tile * SIDE);
        let rows = (self.output - row).min(SIDE);
        let bias = self.bias.map(|bias| &bias[row..row + rows]);
        for t in 0..(self.tokens - token).min(SIDE) {
            let y = unsafe {
                std::slice::from_raw_parts_mut(self.y.add((token + t) * self.output + row), rows)
            };
            for (r, y) in y.iter_mut().enumerate() {
                *y = sums[r * SIDE + t] + bias.map_or(0.0, |bias| bias[r]);
            }
        }
    }
}

/// Four tiles of rows by one of tokens: for few tokens, where the weights come from memory, and
/// 64 rows at once keep enough of it on the way. (Asking for the next rows ahead was slower.)
///
/// # Safety
/// The tiles must be configured, each of `rows` `[16, input]` and `x` `[input / 2, 16, 2]`.
unsafe fn four_by_one(rows: [*const bf16; 4], x: *const bf16, input: usize, sums: &mut [Tile; 4]) {
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm4, [{x} + {row_bytes}*1]",
            "tileloadd tmm5, [{a} + {stride}*1]",
            "tdpbf16ps tmm0, tmm5, tmm4",
            "tileloadd tmm6, [{b} + {stride}*1]",
            "tdpbf16ps tmm1, tmm6, tmm4",
            "tileloadd tmm7, [{c} + {stride}*1]",
            "tdpbf16ps tmm2, tmm7, tmm4",
            "tileloadd tmm5, [{d} + {stride}*1]",
            "tdpbf16ps tmm3, tmm5, tmm4",
            "add {a}, 64",
            "add {b}, 64",
            "add {c}, 64",
            "add {d}, 64",
            "add {x}, 1024",
            "sub {blocks}, 1",
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
            blocks = inout(reg) input / DEPTH => _,
            stride = in(reg) 2 * input,
            row_bytes = in(reg) ROW_BYTES,
            sums = in(reg) sums.as_mut_ptr(),
            options(nostack)
        );
    }
}

/// Two tiles of rows by two of tokens, each loaded once for two products; `sums` row by row.
///
/// # Safety
/// As [`four_by_one`].
unsafe fn two_by_two(
    rows: [*const bf16; 2],
    x: [*const bf16; 2],
    input: usize,
    sums: &mut [Tile; 4],
) {
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm4, [{a} + {stride}*1]",
            "tileloadd tmm6, [{x} + {row_bytes}*1]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{y} + {row_bytes}*1]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{b} + {stride}*1]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {a}, 64",
            "add {b}, 64",
            "add {x}, 1024",
            "add {y}, 1024",
            "sub {blocks}, 1",
            "jnz 2b",
            "tilestored [{sums} + {row_bytes}*1], tmm0",
            "tilestored [{sums} + {row_bytes}*1 + 1024], tmm1",
            "tilestored [{sums} + {row_bytes}*1 + 2048], tmm2",
            "tilestored [{sums} + {row_bytes}*1 + 3072], tmm3",
            a = inout(reg) rows[0] => _,
            b = inout(reg) rows[1] => _,
            x = inout(reg) x[0] => _,
            y = inout(reg) x[1] => _,
            blocks = inout(reg) input / DEPTH => _,
            stride = in(reg) 2 * input,
            row_bytes = in(reg) ROW_BYTES,
            sums = in(reg) sums.as_mut_ptr(),
            options(nostack)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    const SHAPES: [(usize, usize, usize); 9] = [
        (1, 16, 32),
        (1, 64, 576),
        (3, 100, 64),
        (16, 1, 96),
        (17, 576, 128),
        (31, 70, 32),
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
            linear(&x, &weight, Some(&bias), &mut y, input);
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
            let weight = rounded(&noise(output * input, seed + 100));
            let mut together = vec![f32::NAN; tokens * output];
            linear(&x, &weight, None, &mut together, input);
            for (x, together) in x.chunks_exact(input).zip(together.chunks_exact(output)) {
                let mut alone = vec![f32::NAN; output];
                linear(x, &weight, None, &mut alone, input);
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
        let weight = vec![bf16::ONE; 16 * 32];
        let mut y = vec![0.0; 2 * 16];
        linear(&x, &weight, None, &mut y, 32);
        assert!(y[..16].iter().all(|y| y.is_nan()), "{y:?}");
        assert!(y[16..].iter().all(|y| *y == f32::INFINITY), "{y:?}");
    }

    #[test]
    fn tasks_share_out_evenly_where_they_can() {
        assert_eq!(tiles_per_task(192, 2), 4);
        assert_eq!(tiles_per_task(36, 2), 3);
        assert_eq!(tiles_per_task(1, 2), 4);
    }
}
