//! The two products of attention on the tiles.

use std::arch::asm;

use half::bf16;

use super::{DEPTH, ROW_BYTES, SIDE};
use crate::cpu::amx::TILE_BYTES;

/// Four tiles of slots by one of queries, added to `scores` unless they are `new`.
///
/// # Safety
/// The tiles must be shaped; `k` has four times `depth` tiles, `q` has `depth`, `scores` four.
pub unsafe fn score(k: *const bf16, q: *const bf16, depth: usize, new: bool, scores: *mut f32) {
    let slots = |i: usize| k.wrapping_add(i * depth * SIDE * DEPTH);
    unsafe {
        asm!(
            "test {new}, {new}",
            "jnz 3f",
            "tileloadd tmm0, [{scores} + {row}*1]",
            "tileloadd tmm1, [{scores} + {row}*1 + 1024]",
            "tileloadd tmm2, [{scores} + {row}*1 + 2048]",
            "tileloadd tmm3, [{scores} + {row}*1 + 3072]",
            "jmp 2f",
            "3:",
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm4, [{q} + {row}*1]",
            "tileloadd tmm5, [{a} + {row}*1]",
            "tdpbf16ps tmm0, tmm5, tmm4",
            "tileloadd tmm6, [{b} + {row}*1]",
            "tdpbf16ps tmm1, tmm6, tmm4",
            "tileloadd tmm7, [{c} + {row}*1]",
            "tdpbf16ps tmm2, tmm7, tmm4",
            "tileloadd tmm5, [{d} + {row}*1]",
            "tdpbf16ps tmm3, tmm5, tmm4",
            "add {q}, {tile}",
            "add {a}, {tile}",
            "add {b}, {tile}",
            "add {c}, {tile}",
            "add {d}, {tile}",
            "sub {depth}, 1",
            "jnz 2b",
            "tilestored [{scores} + {row}*1], tmm0",
            "tilestored [{scores} + {row}*1 + 1024], tmm1",
            "tilestored [{scores} + {row}*1 + 2048], tmm2",
            "tilestored [{scores} + {row}*1 + 3072], tmm3",
            q = inout(reg) q => _,
            a = inout(reg) slots(0) => _,
            b = inout(reg) slots(1) => _,
            c = inout(reg) slots(2) => _,
            d = inout(reg) slots(3) => _,
            depth = inout(reg) depth => _,
            new = in(reg) usize::from(new),
            scores = in(reg) scores,
            row = in(reg) ROW_BYTES,
            tile = const TILE_BYTES,
            options(nostack)
        );
    }
}

/// Adds a tile of queries by two tiles of elements, over two of slots.
///
/// # Safety
/// The tiles must be shaped; `weights` has two tiles, `v` four, `mixed` two.
pub unsafe fn mix(weights: *const bf16, v: *const bf16, mixed: *mut f32) {
    unsafe {
        asm!(
            "tileloadd tmm0, [{mixed} + {row}*1]",
            "tileloadd tmm1, [{mixed} + {row}*1 + 1024]",
            "tileloadd tmm2, [{weights} + {row}*1]",
            "tileloadd tmm4, [{v} + {row}*1]",
            "tdpbf16ps tmm0, tmm2, tmm4",
            "tileloadd tmm5, [{v} + {row}*1 + 2048]",
            "tdpbf16ps tmm1, tmm2, tmm5",
            "tileloadd tmm3, [{weights} + {row}*1 + 1024]",
            "tileloadd tmm6, [{v} + {row}*1 + 1024]",
            "tdpbf16ps tmm0, tmm3, tmm6",
            "tileloadd tmm7, [{v} + {row}*1 + 3072]",
            "tdpbf16ps tmm1, tmm3, tmm7",
            "tilestored [{mixed} + {row}*1], tmm0",
            "tilestored [{mixed} + {row}*1 + 1024], tmm1",
            weights = in(reg) weights,
            v = in(reg) v,
            mixed = in(reg) mixed,
            row = in(reg) ROW_BYTES,
            options(nostack)
        );
    }
}
