//! Tells AddressSanitizer which bytes belong to nothing. It knows allocations alone: without this, a kernel
//! that reads past the end of a matrix would find the next one, or room that is left, and nobody would notice.

#[cfg(feature = "asan")]
mod runtime {
    use std::ffi::c_void;

    unsafe extern "C" {
        pub fn __asan_poison_memory_region(at: *const c_void, length: usize);
        pub fn __asan_unpoison_memory_region(at: *const c_void, length: usize);
    }
}

/// From now on, an access to one of the `length` bytes at `at` ends a process under AddressSanitizer.
#[cfg_attr(not(feature = "asan"), allow(unused_variables))]
pub fn forbid(at: *const u8, length: usize) {
    #[cfg(feature = "asan")]
    // SAFETY: the call changes the sanitizer's own notes, and not the bytes.
    unsafe {
        runtime::__asan_poison_memory_region(at.cast(), length);
    }
}

/// The `length` bytes at `at` may be accessed again.
#[cfg_attr(not(feature = "asan"), allow(unused_variables))]
pub fn allow(at: *const u8, length: usize) {
    #[cfg(feature = "asan")]
    // SAFETY: as in `forbid`.
    unsafe {
        runtime::__asan_unpoison_memory_region(at.cast(), length);
    }
}
