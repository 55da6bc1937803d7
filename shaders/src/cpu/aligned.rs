//! Buffers that begin at a cache line.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use bytemuck::{Pod, Zeroable};

/// A cache line. Vectors and rows of matrix tiles of this size take at least twice as long to load
/// if they cross a line, and the allocator aligns to 16 bytes only.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

// SAFETY: the struct is an array of bytes, and zero is a valid byte.
unsafe impl Zeroable for Line {}
// SAFETY: `Line` is `repr(C)`, has no padding, and every bit pattern is valid.
unsafe impl Pod for Line {}

/// A vector of elements that begins at a cache line.
pub struct Aligned<T> {
    lines: Vec<Line>,
    length: usize,
    element: PhantomData<T>,
}

impl<T: Pod> Aligned<T> {
    pub fn zeroed(length: usize) -> Self {
        let mut aligned = Self {
            lines: Vec::new(),
            length: 0,
            element: PhantomData,
        };
        aligned.resize(length);
        aligned
    }

    /// Changes the number of elements. Keeps the memory and its contents if it is large enough;
    /// otherwise all elements are zero.
    pub fn resize(&mut self, length: usize) {
        let lines = (length * size_of::<T>()).div_ceil(size_of::<Line>());
        if self.lines.len() < lines {
            self.lines = vec![Line([0; 64]); lines];
        }
        self.length = length;
    }
}

impl<T> Default for Aligned<T> {
    fn default() -> Self {
        Self {
            lines: Vec::new(),
            length: 0,
            element: PhantomData,
        }
    }
}

impl<T: Pod> Deref for Aligned<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &bytemuck::cast_slice(&self.lines)[..self.length]
    }
}

impl<T: Pod> DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.length]
    }
}
