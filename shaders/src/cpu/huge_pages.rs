//! Large pages for weights: reading all of them takes hundreds of thousands of small ones, and a
//! look-up for each.

/// Bytes of one, on most systems.
pub const SIZE: usize = 2 << 20;

/// Asks the system for large pages under `bytes`, of which nothing should have been touched yet. It
/// may decline, which changes the speed alone.
#[cfg(target_os = "linux")]
pub fn advise(bytes: &mut [u8]) {
    use std::ffi::{c_int, c_void};

    unsafe extern "C" {
        fn madvise(at: *mut c_void, length: usize, advice: c_int) -> c_int;
    }
    const MADV_HUGEPAGE: c_int = 14;
    /// What the system wants addresses to be a multiple of, on every architecture.
    const PAGE: usize = 1 << 16;
    let skipped = bytes.as_ptr().align_offset(PAGE);
    let length = bytes.len().saturating_sub(skipped) / PAGE * PAGE;
    if length > 0 {
        // SAFETY: the range is within the slice, and the advice changes nothing that a program sees.
        unsafe { madvise(bytes[skipped..].as_mut_ptr().cast(), length, MADV_HUGEPAGE) };
    }
}

#[cfg(not(target_os = "linux"))]
pub fn advise(_bytes: &mut [u8]) {}
