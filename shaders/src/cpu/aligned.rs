//! Buffers that begin at a cache line.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use bytemuck::{Pod, Zeroable};

/// A cache line. Vectors and rows of matrix tiles of this size that lie across two of them take
/// twice the time to load, or worse: the allocator's own alignment is 16 bytes.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

// SAFETY: bytes, with no padding and any content.
unsafe impl Zeroable for Line {}
unsafe impl Pod for Line {}

/// Elements from the beginning of a cache line on.
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

    /// Keeps memory, and what is in it, where there is enough.
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
