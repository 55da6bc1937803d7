//! Matrices that kernels write in full, and that nobody clears before.

/// A matrix `[tokens, width]` that tasks write, each elements of its own.
#[derive(Clone, Copy)]
pub struct Output {
    at: *mut f32,
    pub tokens: usize,
    pub width: usize,
}

// SAFETY: writing through it is unsafe, and demands that no two tasks write the same element.
unsafe impl Send for Output {}
unsafe impl Sync for Output {}

impl Output {
    /// What `fill` writes.
    ///
    /// # Safety
    /// `fill` must write every element before it returns.
    pub unsafe fn filled(tokens: usize, width: usize, fill: impl FnOnce(Self)) -> Vec<f32> {
        let mut values = Vec::with_capacity(tokens * width);
        fill(Self {
            at: values.as_mut_ptr(),
            tokens,
            width,
        });
        // SAFETY: the capacity is as large, and the caller says that all of it is written.
        unsafe { values.set_len(tokens * width) };
        values
    }

    /// One over memory that is there.
    #[cfg(test)]
    pub fn of(values: &mut [f32], width: usize) -> Self {
        Self {
            at: values.as_mut_ptr(),
            tokens: values.len() / width,
            width,
        }
    }

    /// Its tokens from `token` on.
    pub fn from(self, token: usize) -> Self {
        Self {
            at: self.at.wrapping_add(token * self.width),
            tokens: self.tokens - token,
            width: self.width,
        }
    }

    /// Where the elements of `token` from `column` on are.
    ///
    /// # Safety
    /// They must exist, and those that are written through this be nobody else's.
    #[inline(always)]
    pub unsafe fn at(self, token: usize, column: usize) -> *mut f32 {
        debug_assert!(token < self.tokens && column < self.width);
        unsafe { self.at.add(token * self.width + column) }
    }
}
