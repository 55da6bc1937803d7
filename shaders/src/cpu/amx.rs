//! Intel's matrix tiles (AMX, Sapphire Rapids and later).
//!
//! A tile has up to 16 rows of 64 bytes. One instruction multiplies a tile of activations, a token
//! to a row, by one of weights, which has a row of the matrix in each of 16 columns. Tiles are
//! loaded row by row: they are packed in whole cache lines ([`Aligned`](super::aligned)), as rows
//! across two lines take six times as long.
//!
//! **Batch-invariant**: each element of a product is summed in the same order, whatever its
//! neighbours, so that one token alone has the bits that it has among five hundred.

pub mod attention;
pub mod bytes;
pub mod floats;
#[cfg(test)]
mod tests;

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::sync::OnceLock;

use super::limit::{Limit, allows};

/// Rows of a tile, and columns of a tile of sums.
pub const SIDE: usize = 16;
/// Bytes of a tile's row.
const ROW_BYTES: usize = 64;
/// Bytes of a tile.
const TILE_BYTES: usize = SIDE * ROW_BYTES;

/// Whether this CPU has the tiles, they may be used, and the system lets this process, which it
/// asks for.
pub fn available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| allows(Limit::Amx) && there() && permitted())
}

/// Whether this CPU has the tiles, and the vectors that every CPU with tiles has.
fn there() -> bool {
    let features = __cpuid_count(7, 0).edx;
    // AMX-BF16, AMX-TILE and AMX-INT8.
    [22, 24, 25].iter().all(|bit| features >> bit & 1 == 1)
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512bf16")
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

/// What `ldtilecfg` reads.
#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// This thread's tile registers, shaped; given back at the end. The compiler knows no tile
/// registers, and so keeps nothing in them.
struct Tiles;

impl Tiles {
    /// `shapes`: rows and bytes of a row of each register.
    ///
    /// # Safety
    /// The tiles must be [`available`], the rows from 1 to 16, and the bytes a multiple of four up
    /// to 64.
    unsafe fn shaped(shapes: [(usize, usize); 8]) -> Self {
        let mut config = TileConfig {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        for (tile, (rows, bytes)) in shapes.into_iter().enumerate() {
            config.row_bytes[tile] = bytes as u16;
            config.rows[tile] = rows as u8;
        }
        unsafe { asm!("ldtilecfg [{0}]", in(reg) &config, options(nostack, readonly)) };
        Self
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: whoever shaped them could.
        unsafe { asm!("tilerelease", options(nostack)) };
    }
}
