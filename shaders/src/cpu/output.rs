//! Matrices that parallel tasks write in full, so that they need not be cleared first.

use std::ops::Range;

use super::huge_pages;

/// Numbers that are added to a product by the tasks that compute it: the columns of a task are in a cache of
/// its core when they are done.
pub trait Addend: Sync {
    /// Adds to `columns` of all tokens of the product `y`.
    ///
    /// # Safety
    /// The columns must have been written, and no other task may access them.
    unsafe fn add(&self, y: Output, columns: Range<usize>);
}

/// Runs `product`, which computes `columns` of `y`, and adds the addend if there is one.
///
/// # Safety
/// `product` must write the columns, and no other task may access them.
pub unsafe fn with_addend(
    addend: Option<&dyn Addend>,
    y: Output,
    columns: Range<usize>,
    product: impl FnOnce(),
) {
    product();
    if let Some(addend) = addend {
        // SAFETY: the caller guarantees it.
        unsafe { addend.add(y, columns) };
    }
}

/// An empty vector with room for `elements` numbers. That of a prompt's activations is in large pages: each
/// operation reads and writes all of it.
pub fn room(elements: usize) -> Vec<f32> {
    let mut values = Vec::with_capacity(elements);
    // So many bytes contain a whole large page, wherever they begin.
    if elements * size_of::<f32>() >= 2 * huge_pages::SIZE {
        huge_pages::advise(values.spare_capacity_mut());
    }
    values
}

/// `elements` zeros, in memory as that of [`room`].
pub fn zeros(elements: usize) -> Vec<f32> {
    let mut values = room(elements);
    values.resize(elements, 0.0);
    values
}

/// A matrix `[tokens, width]` that several tasks write; each task writes its own elements.
#[derive(Clone, Copy)]
pub struct Output {
    at: *mut f32,
    pub tokens: usize,
    pub width: usize,
}

// SAFETY: the pointer is dereferenced only by callers of `at`, which is unsafe and demands that no
// two tasks write the same element.
unsafe impl Send for Output {}
// SAFETY: as for `Send`; `Output` has no state besides the pointer and two numbers.
unsafe impl Sync for Output {}

impl Output {
    /// Allocates a matrix and returns it after `fill` has written it.
    ///
    /// # Safety
    /// `fill` must write every element before it returns.
    pub unsafe fn filled(tokens: usize, width: usize, fill: impl FnOnce(Self)) -> Vec<f32> {
        let mut values = room(tokens * width);
        fill(Self {
            at: values.as_mut_ptr(),
            tokens,
            width,
        });
        // SAFETY: the capacity is `tokens * width`, and the caller guarantees that `fill` has
        // written all of these elements.
        unsafe { values.set_len(tokens * width) };
        values
    }

    /// A matrix in existing memory.
    pub fn of(values: &mut [f32], width: usize) -> Self {
        Self {
            at: values.as_mut_ptr(),
            tokens: values.len() / width,
            width,
        }
    }

    /// The rows from `token` on.
    pub fn from(self, token: usize) -> Self {
        Self {
            at: self.at.wrapping_add(token * self.width),
            tokens: self.tokens - token,
            width: self.width,
        }
    }

    /// Some of the rows.
    pub fn rows(self, rows: Range<usize>) -> Self {
        assert!(rows.end <= self.tokens, "rows {rows:?} of {}", self.tokens);
        Self {
            tokens: rows.len(),
            ..self.from(rows.start)
        }
    }

    /// A pointer to the elements of `token` from `column` on.
    ///
    /// # Safety
    /// The element must exist, and no other task may access the elements that are written through
    /// the pointer.
    #[inline(always)]
    pub unsafe fn at(self, token: usize, column: usize) -> *mut f32 {
        debug_assert!(token < self.tokens && column < self.width);
        // SAFETY: the caller guarantees that the element exists, so the pointer stays within the
        // allocation.
        unsafe { self.at.add(token * self.width + column) }
    }
}
