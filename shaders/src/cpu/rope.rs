//! Head normalisation, rotation by position, and the write into the KV pool.

use burn::tensor::Element;
use burn_flex::FlexTensor;
use bytemuck::Pod;

use super::elementwise::inverse_rms;
use super::simd::Stored;
use crate::HeadLayout;

pub struct Rotation<'a> {
    /// `[positions, half]`
    pub cos: &'a [f32],
    pub sin: &'a [f32],
    pub half: usize,
    /// Weights for query and key heads, and epsilon.
    pub norms: Option<(&'a [f32], &'a [f32], f32)>,
}

impl Rotation<'_> {
    /// Normalises and rotates, in place, the queries and keys in rows of stacked
    /// query, key and value heads.
    pub fn apply(&self, rows: &mut [f32], layout: HeadLayout, positions: &[i32]) {
        for (row, position) in rows.chunks_exact_mut(layout.qkv_width()).zip(positions) {
            let at = *position as usize * self.half;
            let (cos, sin) = (&self.cos[at..at + self.half], &self.sin[at..at + self.half]);
            let heads = row.chunks_exact_mut(layout.head_dim);
            for (index, head) in heads.take(layout.heads + layout.kv_heads).enumerate() {
                if let Some((q, k, eps)) = self.norms {
                    let weight = if index < layout.heads { q } else { k };
                    let scale = inverse_rms(head, eps);
                    head.iter_mut()
                        .zip(weight)
                        .for_each(|(x, weight)| *x *= scale * weight);
                }
                let (first, rest) = head.split_at_mut(self.half);
                for i in 0..self.half {
                    let (a, b) = (first[i], rest[i]);
                    first[i] = a * cos[i] - b * sin[i];
                    rest[i] = b * cos[i] + a * sin[i];
                }
            }
        }
    }
}

/// Writes the keys and values of `rows` into the pools at `slots`.
pub fn store<E: Stored + Element + Pod>(
    rows: &[f32],
    layout: HeadLayout,
    slots: &[i32],
    k_pool: &mut FlexTensor,
    v_pool: &mut FlexTensor,
) {
    let width = layout.kv_heads * layout.head_dim;
    let keys = layout.heads * layout.head_dim;
    // The pools have one owner, so this borrows them; it would copy a shared one.
    for (pool, from) in [(k_pool, keys), (v_pool, keys + width)] {
        let pool = pool.storage_mut::<E>();
        for (row, slot) in rows.chunks_exact(layout.qkv_width()).zip(slots) {
            let to = &mut pool[*slot as usize * width..][..width];
            to.iter_mut()
                .zip(&row[from..from + width])
                .for_each(|(to, x)| *to = E::narrow(*x));
        }
    }
}
