//! Attention over slot indices: one cube per token and query head.
//!
//! A tile of positions is scored with one unit per position; then one unit per
//! element of the head mixes the tile's values, which are read in rows. The softmax
//! is online (Milakov and Gimelshein, arXiv 1805.02867), so that no memory grows
//! with the context.

use burn_cubecl::CubeRuntime;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{dims, empty_like};
use crate::HeadLayout;

pub struct SlotTable<R: CubeRuntime> {
    pub positions: CubeTensor<R>,
    pub start: CubeTensor<R>,
    pub slots: CubeTensor<R>,
    /// How many of the last positions a token sees; 0 for all.
    pub window: u32,
}

pub fn paged<R: CubeRuntime>(
    q: CubeTensor<R>,
    layout: HeadLayout,
    table: SlotTable<R>,
    k_pool: CubeTensor<R>,
    v_pool: CubeTensor<R>,
) -> CubeTensor<R> {
    let [tokens, width] = dims(&q);
    let out = empty_like(&q, tokens, width);
    let (client, dtype) = (q.client.clone(), q.dtype);
    let threads = layout.head_dim.next_multiple_of(32).max(64);
    let vector = if layout.head_dim.is_multiple_of(4) {
        4
    } else {
        1
    };
    // SAFETY: the table's slots lie within the pools; the batch is checked by the caller.
    unsafe {
        paged_attention_kernel::launch_unchecked(
            &client,
            CubeCount::Static(layout.heads as u32, tokens as u32, 1),
            CubeDim::new_1d(threads as u32),
            vector,
            q.into_array_arg(),
            k_pool.into_array_arg(),
            v_pool.into_array_arg(),
            table.positions.into_array_arg(),
            table.start.into_array_arg(),
            table.slots.into_array_arg(),
            out.clone().into_array_arg(),
            1.0 / (layout.head_dim as f32).sqrt(),
            table.window,
            layout.heads,
            layout.kv_heads,
            layout.head_dim,
            threads,
            dtype.into(),
        );
    }
    out
}

/// Below every score that finite inputs can have.
const NONE: f32 = -3.0e38;

#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments)]
fn paged_attention_kernel<E: Float, N: Size>(
    q: &Array<E>,
    k_pool: &Array<Vector<E, N>>,
    v_pool: &Array<E>,
    positions: &Array<i32>,
    table_start: &Array<i32>,
    slot_table: &Array<i32>,
    out: &mut Array<E>,
    scale: f32,
    window: u32,
    #[comptime] heads: usize,
    #[comptime] kv_heads: usize,
    #[comptime] head_dim: usize,
    #[comptime] threads: usize,
    #[define(E)] _dtype: StorageType,
) {
    let vector = N::value();
    let head = CUBE_POS_X as usize;
    let token = CUBE_POS_Y as usize;
    let unit = UNIT_POS as usize;
    let kv_head = head / comptime!(heads / kv_heads);
    let at = (token * heads + head) * head_dim;

    let mut query = SharedMemory::<f32>::new(head_dim);
    let mut scores = SharedMemory::<f32>::new(threads);
    let mut rows = SharedMemory::<u32>::new(threads);
    if unit < head_dim {
        query[unit] = f32::cast_from(q[at + unit]) * scale;
    }
    sync_cube();

    let end = positions[token] as u32 + 1;
    let mut start = 0u32;
    if window > 0 && end > window {
        start = end - window;
    }
    let table = table_start[token] as u32;

    let mut max = f32::new(NONE);
    let mut sum = 0.0f32;
    let mut mixed = 0.0f32;
    let tiles = (end - start).div_ceil(threads as u32);
    for tile in 0..tiles {
        let first = start + tile * threads as u32;
        let position = first + unit as u32;
        let mut score = f32::new(NONE);
        if position < end {
            let slot = slot_table[(table + position) as usize] as usize;
            let row = (slot * kv_heads + kv_head) * head_dim;
            rows[unit] = row as u32;
            let from = row / vector;
            let mut dot = 0.0f32;
            for i in 0..comptime!(head_dim / vector) {
                let key = k_pool[from + i];
                #[unroll]
                for lane in 0..vector {
                    dot += query[i * vector + lane] * f32::cast_from(key[lane]);
                }
            }
            score = dot;
        }
        scores[unit] = score;
        sync_cube();

        let count = cubecl::prelude::min(end - first, threads as u32) as usize;
        let mut new_max = max;
        for i in 0..count {
            new_max = cubecl::prelude::max(new_max, scores[i]);
        }
        sync_cube();
        if position < end {
            scores[unit] = f32::exp(score - new_max);
        }
        sync_cube();

        let correction = f32::exp(max - new_max);
        sum *= correction;
        mixed *= correction;
        max = new_max;
        if unit < head_dim {
            for i in 0..count {
                sum += scores[i];
                mixed += scores[i] * f32::cast_from(v_pool[rows[i] as usize + unit]);
            }
        }
        sync_cube();
    }
    if unit < head_dim {
        out[at + unit] = E::cast_from(mixed / sum);
    }
}
