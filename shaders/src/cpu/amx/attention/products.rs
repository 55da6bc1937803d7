//! The two matrix multiplications of attention on the tiles.

use std::arch::asm;

use half::bf16;

use super::packing::Keys;
use super::{DEPTH, ROW_BYTES, SIDE};
use crate::cpu::amx::TILE_BYTES;

/// Scores of four tiles of slots by one tile of queries: first with the rounded queries, then with
/// the rest. `q` has `depth` tiles of each.
///
/// # Safety
/// The tiles must be shaped as `attention` does it. A slot of `keys` must have `depth` rows of
/// tiles, and there must be room for four tiles of `scores`.
pub unsafe fn score(keys: Keys, q: *const bf16, depth: usize, scores: *mut f32) {
    // SAFETY: the caller guarantees the shapes and the memory behind each pointer, and `depth` is
    // at least 1. The instructions change only tile registers, which the compiler does not use, the
    // declared registers, and `scores`.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "mov {part:e}, 2",
            "2:",
            "mov {left}, {depth}",
            "3:",
            "tileloadd tmm4, [{q} + {row}*1]",
            "tileloadd tmm5, [{a} + {stride}*1]",
            "tdpbf16ps tmm0, tmm5, tmm4",
            "tileloadd tmm6, [{b} + {stride}*1]",
            "tdpbf16ps tmm1, tmm6, tmm4",
            "tileloadd tmm7, [{c} + {stride}*1]",
            "tdpbf16ps tmm2, tmm7, tmm4",
            "tileloadd tmm5, [{d} + {stride}*1]",
            "tdpbf16ps tmm3, tmm5, tmm4",
            "add {q}, {tile}",
            "add {a}, {row}",
            "add {b}, {row}",
            "add {c}, {row}",
            "add {d}, {row}",
            "sub {left}, 1",
            "jnz 3b",
            "mov {left}, {depth}",
            "shl {left}, 6",
            "sub {a}, {left}",
            "sub {b}, {left}",
            "sub {c}, {left}",
            "sub {d}, {left}",
            "sub {part:e}, 1",
            "jnz 2b",
            "tilestored [{scores} + {row}*1], tmm0",
            "tilestored [{scores} + {row}*1 + 1024], tmm1",
            "tilestored [{scores} + {row}*1 + 2048], tmm2",
            "tilestored [{scores} + {row}*1 + 3072], tmm3",
            q = inout(reg) q => _,
            a = inout(reg) keys.tiles[0] => _,
            b = inout(reg) keys.tiles[1] => _,
            c = inout(reg) keys.tiles[2] => _,
            d = inout(reg) keys.tiles[3] => _,
            stride = in(reg) keys.stride,
            depth = in(reg) depth,
            left = out(reg) _,
            part = out(reg) _,
            scores = in(reg) scores,
            row = in(reg) ROW_BYTES,
            tile = const TILE_BYTES,
            options(nostack)
        );
    }
}

/// Bytes of the values for one tile of elements: two tiles of slots.
const VALUES: usize = 2 * TILE_BYTES;

/// Adds the weighted values of a tile of queries to `mixed`, for `tiles` tiles of elements, both
/// tiles of slots and both parts of the weights.
///
/// # Safety
/// The tiles must be shaped as `attention` does it. `weights` must have four tiles, `v` twice
/// `tiles`, and `mixed` must have `tiles` tiles, an even number.
pub unsafe fn mix(weights: *const bf16, v: *const bf16, mixed: *mut f32, tiles: usize) {
    // Four sums at a time keep the matrix unit busy.
    let mut tile = 0;
    while tile < tiles {
        // SAFETY: `tile` is below `tiles`, so both pointers stay within their memory, and two or at
        // least four tiles are left, as the called function needs.
        unsafe {
            let v = v.byte_add(tile * VALUES);
            let mixed = mixed.add(tile * SIDE * SIDE);
            if tiles - tile >= 4 {
                mix_four(weights, v, mixed);
            } else {
                mix_two(weights, v, mixed);
            }
        }
        tile += 4;
    }
    const { assert!(TILE_BYTES == 2 * SIDE * DEPTH && TILE_BYTES == 4 * SIDE * SIDE) };
}

/// [`mix`] of four tiles of elements.
///
/// # Safety
/// As for [`mix`].
unsafe fn mix_four(weights: *const bf16, v: *const bf16, mixed: *mut f32) {
    // SAFETY: the caller guarantees the shapes and the memory behind each pointer. The instructions
    // change only tile registers, which the compiler does not use, the declared registers, and
    // `mixed`.
    unsafe {
        asm!(
            "tileloadd tmm0, [{mixed} + {row}*1]",
            "tileloadd tmm1, [{mixed} + {row}*1 + 1024]",
            "tileloadd tmm2, [{mixed} + {row}*1 + 2048]",
            "tileloadd tmm3, [{mixed} + {row}*1 + 3072]",
            "mov {part:e}, 2",
            "2:",
            "tileloadd tmm4, [{weights} + {row}*1]",
            "tileloadd tmm5, [{v} + {row}*1]",
            "tdpbf16ps tmm0, tmm4, tmm5",
            "tileloadd tmm6, [{v} + {row}*1 + 2048]",
            "tdpbf16ps tmm1, tmm4, tmm6",
            "tileloadd tmm7, [{v} + {row}*1 + 4096]",
            "tdpbf16ps tmm2, tmm4, tmm7",
            "tileloadd tmm5, [{v} + {row}*1 + 6144]",
            "tdpbf16ps tmm3, tmm4, tmm5",
            "tileloadd tmm4, [{weights} + {row}*1 + 1024]",
            "tileloadd tmm6, [{v} + {row}*1 + 1024]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{v} + {row}*1 + 3072]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{v} + {row}*1 + 5120]",
            "tdpbf16ps tmm2, tmm4, tmm5",
            "tileloadd tmm6, [{v} + {row}*1 + 7168]",
            "tdpbf16ps tmm3, tmm4, tmm6",
            "add {weights}, 2048",
            "sub {part:e}, 1",
            "jnz 2b",
            "tilestored [{mixed} + {row}*1], tmm0",
            "tilestored [{mixed} + {row}*1 + 1024], tmm1",
            "tilestored [{mixed} + {row}*1 + 2048], tmm2",
            "tilestored [{mixed} + {row}*1 + 3072], tmm3",
            weights = inout(reg) weights => _,
            v = in(reg) v,
            mixed = in(reg) mixed,
            part = out(reg) _,
            row = in(reg) ROW_BYTES,
            options(nostack)
        );
    }
}

/// [`mix`] of two tiles of elements.
///
/// # Safety
/// As for [`mix`].
unsafe fn mix_two(weights: *const bf16, v: *const bf16, mixed: *mut f32) {
    // SAFETY: the caller guarantees the shapes and the memory behind each pointer. The instructions
    // change only tile registers, which the compiler does not use, the declared registers, and
    // `mixed`.
    unsafe {
        asm!(
            "tileloadd tmm0, [{mixed} + {row}*1]",
            "tileloadd tmm1, [{mixed} + {row}*1 + 1024]",
            "mov {part:e}, 2",
            "2:",
            "tileloadd tmm4, [{weights} + {row}*1]",
            "tileloadd tmm5, [{v} + {row}*1]",
            "tdpbf16ps tmm0, tmm4, tmm5",
            "tileloadd tmm6, [{v} + {row}*1 + 2048]",
            "tdpbf16ps tmm1, tmm4, tmm6",
            "tileloadd tmm4, [{weights} + {row}*1 + 1024]",
            "tileloadd tmm7, [{v} + {row}*1 + 1024]",
            "tdpbf16ps tmm0, tmm4, tmm7",
            "tileloadd tmm5, [{v} + {row}*1 + 3072]",
            "tdpbf16ps tmm1, tmm4, tmm5",
            "add {weights}, 2048",
            "sub {part:e}, 1",
            "jnz 2b",
            "tilestored [{mixed} + {row}*1], tmm0",
            "tilestored [{mixed} + {row}*1 + 1024], tmm1",
            weights = inout(reg) weights => _,
            v = in(reg) v,
            mixed = in(reg) mixed,
            part = out(reg) _,
            row = in(reg) ROW_BYTES,
            options(nostack)
        );
    }
}
