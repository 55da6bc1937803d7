//! Normalisation of heads, rotation by position, and the write into the KV pools.

use burn::tensor::Element;
use burn_flex::FlexTensor;
use bytemuck::Pod;
use rayon::prelude::*;

use super::elementwise::{PARALLEL_FROM, inverse_rms};
use super::output::Output;
use super::pools::Rounding;
use super::simd::{Simd, Stored, Task, dispatch};
use crate::{HeadLayout, KvFormat};

/// The rotation (RoPE) and the normalisation before it.
pub struct Rotation<'a> {
    /// `[positions, half]`
    pub cos: &'a [f32],
    pub sin: &'a [f32],
    pub half: usize,
    /// The weights for query and key heads, and epsilon.
    pub norms: Option<(&'a [f32], &'a [f32], f32)>,
}

impl Rotation<'_> {
    /// Normalises and rotates the queries and keys in place, in rows of stacked query, key and
    /// value heads. Returns a copy of the queries.
    pub fn apply(&self, rows: &mut [f32], layout: HeadLayout, positions: &[i32]) -> Vec<f32> {
        let (width, queries) = (layout.qkv_width(), layout.heads * layout.head_dim);
        let parallel = rows.len() >= PARALLEL_FROM;
        // SAFETY: every row copies its `queries` elements to the row of `out` with the same index,
        // which no other row writes; `rows` has as many rows as there are positions.
        unsafe {
            Output::filled(positions.len(), queries, |out| {
                let row = |(token, (row, position)): (usize, (&mut [f32], &i32))| {
                    dispatch(Row {
                        rotation: self,
                        layout,
                        position: *position as usize,
                        row: &mut *row,
                    });
                    // This writes all of the row's elements of `out`.
                    let to = out.at(token, 0);
                    to.copy_from_nonoverlapping(row[..queries].as_ptr(), queries);
                };
                assert_eq!(
                    rows.len(),
                    positions.len() * width,
                    "rotation: number of rows"
                );
                if parallel {
                    let rows = rows.par_chunks_exact_mut(width).zip(positions);
                    rows.enumerate().for_each(row);
                } else {
                    let rows = rows.chunks_exact_mut(width).zip(positions);
                    rows.enumerate().for_each(row);
                }
            })
        }
    }
}

struct Row<'a> {
    rotation: &'a Rotation<'a>,
    layout: HeadLayout,
    position: usize,
    row: &'a mut [f32],
}

impl Task for Row<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (layout, half) = (self.layout, self.rotation.half);
        let at = self.position * half;
        let cos = &self.rotation.cos[at..at + half];
        let sin = &self.rotation.sin[at..at + half];
        let heads = self.row.chunks_exact_mut(layout.head_dim);
        for (index, head) in heads.take(layout.heads + layout.kv_heads).enumerate() {
            if let Some((q, k, eps)) = self.rotation.norms {
                let weight = if index < layout.heads { q } else { k };
                let scale = inverse_rms(head, eps);
                for (x, weight) in head.iter_mut().zip(weight) {
                    *x *= scale * weight;
                }
            }
            let (first, rest) = head.split_at_mut(half);
            let rest = &mut rest[..half];
            for i in 0..half {
                let (a, b) = (first[i], rest[i]);
                first[i] = a * cos[i] - b * sin[i];
                rest[i] = b * cos[i] + a * sin[i];
            }
        }
    }
}

/// Normalises all queries of a row together and all its keys together, in place. `weights` are
/// those of queries and keys.
pub fn norm_projections(rows: &mut [f32], layout: HeadLayout, weights: &[Vec<f32>; 2], eps: f32) {
    let normalise = |row: &mut [f32]| dispatch(Wide { row, weights, eps });
    if rows.len() < PARALLEL_FROM {
        rows.chunks_exact_mut(layout.qkv_width())
            .for_each(normalise);
    } else {
        rows.par_chunks_exact_mut(layout.qkv_width())
            .for_each(normalise);
    }
}

struct Wide<'a> {
    row: &'a mut [f32],
    weights: &'a [Vec<f32>; 2],
    eps: f32,
}

impl Task for Wide<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let mut rest = self.row;
        for weight in self.weights {
            let part;
            (part, rest) = rest.split_at_mut(weight.len());
            let scale = inverse_rms(part, self.eps);
            for (x, weight) in part.iter_mut().zip(weight) {
                *x *= scale * weight;
            }
        }
    }
}

/// Writes the keys and values of `rows` to the `slots` of pools of floats.
pub fn store<E: Stored + Element + Pod>(
    rows: &[f32],
    layout: HeadLayout,
    slots: &[i32],
    k_pool: &mut FlexTensor,
    v_pool: &mut FlexTensor,
) {
    let narrow = |from: &[f32], to: &mut [E]| dispatch(Narrowing { from, to });
    store_by(narrow, rows, layout, slots, k_pool, v_pool);
}

/// As [`store`], in pools of 8-bit integers.
pub fn store_in_8_bits(
    rows: &[f32],
    layout: HeadLayout,
    slots: &[i32],
    k_pool: &mut FlexTensor,
    v_pool: &mut FlexTensor,
) {
    let head_dim = layout.head_dim;
    let round = |from: &[f32], to: &mut [u32]| dispatch(Rounding { from, head_dim, to });
    store_by(round, rows, layout, slots, k_pool, v_pool);
}

/// Writes the keys and values of `rows` to the `slots` of the pools. `write` gets those of one
/// token, and its slot.
fn store_by<E: Element + Pod + Send>(
    write: impl Fn(&[f32], &mut [E]) + Sync,
    rows: &[f32],
    layout: HeadLayout,
    slots: &[i32],
    k_pool: &mut FlexTensor,
    v_pool: &mut FlexTensor,
) {
    let width = layout.kv_heads * layout.head_dim;
    let stored = layout.kv_heads * KvFormat::of(k_pool.dtype()).head_width(layout.head_dim);
    let keys = layout.heads * layout.head_dim;
    let narrow = |pool: &mut [E], from: usize| {
        for (row, slot) in rows.chunks_exact(layout.qkv_width()).zip(slots) {
            let to = &mut pool[*slot as usize * stored..][..stored];
            write(&row[from..from + width], to);
        }
    };
    // The pools have a single owner here, so `storage_mut` borrows them; it would copy a shared
    // pool.
    let (k, v) = (k_pool.storage_mut::<E>(), v_pool.storage_mut::<E>());
    if rows.len() < PARALLEL_FROM {
        narrow(k, keys);
        narrow(v, keys + width);
    } else {
        rayon::join(|| narrow(k, keys), || narrow(v, keys + width));
    }
}

struct Narrowing<'a, E> {
    from: &'a [f32],
    to: &'a mut [E],
}

impl<E: Stored> Task for Narrowing<'_, E> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for (to, x) in self.to.iter_mut().zip(self.from) {
            *to = E::narrow(*x);
        }
    }
}
