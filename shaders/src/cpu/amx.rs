//! Intel's matrix tiles (AMX, in Sapphire Rapids and later).
//!
//! A tile has up to 16 rows of 64 bytes. One instruction multiplies a tile of activations, with one
//! token per row, by a tile of weights, which holds one row of the matrix in each of its 16
//! columns. Tiles are loaded row by row. They are packed in whole cache lines
//! ([`Aligned`](super::aligned)), because rows that cross a line take six times as long to load.
//!
//! **Batch-invariant**: each element of a product is summed in the same order whatever its
//! neighbours are, so that a token has the same bits alone and among five hundred others.

pub mod attention;
pub mod bytes;
pub mod floats;

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

/// True if the tiles can be used: the CPU has them, the limit allows them, and the system permits
/// them to this process. The first call asks the system for permission.
pub fn available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| allows(Limit::Amx) && supported() && permitted())
}

/// True if this CPU has the tiles, and the vector instructions that all CPUs with tiles have.
fn supported() -> bool {
    let features = __cpuid_count(7, 0).edx;
    // Bits 22, 24 and 25 are AMX-BF16, AMX-TILE and AMX-INT8.
    [22, 24, 25].iter().all(|bit| features >> bit & 1 == 1)
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512bf16")
}

/// Asks Linux for permission to use the tile registers, for all threads of this process.
#[cfg(target_os = "linux")]
fn permitted() -> bool {
    const ARCH_PRCTL: isize = 158;
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    const XFEATURE_XTILEDATA: usize = 18;
    let result: isize;
    // SAFETY: this is `arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)`, which only changes
    // which instructions the process may execute. `syscall` overwrites rcx and r11, as declared.
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

/// The operand of `ldtilecfg`.
#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// The configured tile registers of this thread, released when this is dropped. The compiler does
/// not use tile registers itself, so it keeps nothing in them.
struct Tiles;

impl Tiles {
    /// Configures the registers. `shapes` has the number of rows, and of bytes in a row, of each
    /// register.
    ///
    /// # Safety
    /// The tiles must be [`available`]. Each register must have 1 to 16 rows, and a multiple of
    /// four bytes in a row, up to 64.
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
        // SAFETY: the caller guarantees that the tiles are available and the shapes are valid.
        // `config` has the layout, the size and the alignment that `ldtilecfg` reads.
        unsafe { asm!("ldtilecfg [{0}]", in(reg) &config, options(nostack, readonly)) };
        Self
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: a `Tiles` exists only after `shaped`, so the tiles are available.
        unsafe { asm!("tilerelease", options(nostack)) };
    }
}
