//! Large pages for weights and for the activations of prompts. In small pages, reading all weights needs
//! hundreds of thousands of page table entries.

/// Bytes of a large page on most systems.
pub const SIZE: usize = 2 << 20;

/// Asks the system for large pages under `memory`, which should not have been touched yet. The
/// system may decline, which only affects speed.
#[cfg(target_os = "linux")]
pub fn advise<T>(memory: &mut [T]) {
    use std::ffi::{c_int, c_void};

    unsafe extern "C" {
        fn madvise(at: *mut c_void, length: usize, advice: c_int) -> c_int;
    }
    const MADV_HUGEPAGE: c_int = 14;
    /// A multiple of the page size on every architecture, to which the address has to be aligned.
    const PAGE: usize = 1 << 16;
    let at = memory.as_mut_ptr().cast::<u8>();
    let skipped = at.align_offset(PAGE);
    let length = size_of_val(memory).saturating_sub(skipped) / PAGE * PAGE;
    if length > 0 {
        // SAFETY: the range lies within the slice, and `MADV_HUGEPAGE` does not change its
        // contents.
        unsafe { madvise(at.wrapping_add(skipped).cast(), length, MADV_HUGEPAGE) };
    }
}

#[cfg(not(target_os = "linux"))]
pub fn advise<T>(_memory: &mut [T]) {}
