//! Normalisation of heads, rotation by position and the write into the KV pools, in one pass over
//! the stacked projection, with one cube per token and head.

use burn::tensor::DType;
use burn_cubecl::CubeRuntime;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::reduce::cube_sum;
use super::{dims, empty_like};
use crate::kv_format::{INFINITY_BITS, LARGEST, NAN_BITS, PER_WORD, ROUND, SMALLEST};
use crate::{HeadLayout, KvFormat};

/// The rotation (RoPE) and the normalisation before it.
pub struct Rotation<R: CubeRuntime> {
    /// `[positions, half]`, f32
    pub cos: CubeTensor<R>,
    pub sin: CubeTensor<R>,
    /// Half of the rotated elements of a head: element `i` pairs with `i + half`.
    pub half: usize,
    /// The weights for query and key heads, and epsilon.
    pub norms: Option<(CubeTensor<R>, CubeTensor<R>, f32)>,
}

/// [`Kernels::rope_and_store`](crate::Kernels::rope_and_store).
pub fn rope_and_store<R: CubeRuntime>(
    qkv: CubeTensor<R>,
    layout: HeadLayout,
    rotation: Rotation<R>,
    positions: CubeTensor<R>,
    write_slots: CubeTensor<R>,
    k_pool: &mut CubeTensor<R>,
    v_pool: &mut CubeTensor<R>,
) -> CubeTensor<R> {
    let [tokens, width] = dims(&qkv);
    assert_eq!(width, layout.qkv_width(), "rope_and_store: width of qkv");
    let q = empty_like(&qkv, tokens, layout.heads * layout.head_dim);
    let (client, dtype, stored) = (qkv.client.clone(), qkv.dtype, k_pool.dtype);
    let normalise = rotation.norms.is_some();
    // Without norms, the arguments have to be bound but are never read.
    let (q_norm, k_norm, eps) = rotation
        .norms
        .unwrap_or_else(|| (rotation.cos.clone(), rotation.sin.clone(), 0.0));
    let norm_dtype = if normalise { q_norm.dtype } else { DType::F32 };
    let threads = layout.head_dim.next_power_of_two().max(32);
    let all_heads = (layout.heads + 2 * layout.kv_heads) as u32;
    // SAFETY: the caller has checked that the write slots lie within the pools, that no slot occurs
    // twice, and that the positions lie within the table. The pools are written in place, and no
    // other launch reads these slots at the same time, because a device runs launches in order.
    unsafe {
        rope_and_store_kernel::launch_unchecked(
            &client,
            CubeCount::Static(tokens as u32, all_heads, 1),
            CubeDim::new_1d(threads as u32),
            qkv.into_array_arg(),
            positions.into_array_arg(),
            write_slots.into_array_arg(),
            rotation.cos.into_array_arg(),
            rotation.sin.into_array_arg(),
            q_norm.into_array_arg(),
            k_norm.into_array_arg(),
            q.clone().into_array_arg(),
            k_pool.clone().into_array_arg(),
            v_pool.clone().into_array_arg(),
            eps,
            layout.heads,
            layout.kv_heads,
            layout.head_dim,
            rotation.half,
            normalise,
            threads,
            KvFormat::of(stored) == KvFormat::Int8,
            dtype.into(),
            stored.into(),
            norm_dtype.into(),
        );
    }
    q
}

#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments)]
fn rope_and_store_kernel<E: Float, P: Numeric, W: Float>(
    qkv: &Array<E>,
    positions: &Array<i32>,
    write_slots: &Array<i32>,
    cos: &Array<f32>,
    sin: &Array<f32>,
    q_norm: &Array<W>,
    k_norm: &Array<W>,
    q: &mut Array<E>,
    k_pool: &mut Array<P>,
    v_pool: &mut Array<P>,
    eps: f32,
    #[comptime] heads: usize,
    #[comptime] kv_heads: usize,
    #[comptime] head_dim: usize,
    #[comptime] half: usize,
    #[comptime] normalise: bool,
    #[comptime] threads: usize,
    #[comptime] integers: bool,
    #[define(E)] _dtype: StorageType,
    #[define(P)] _stored: StorageType,
    #[define(W)] _norm: StorageType,
) {
    let token = CUBE_POS_X as usize;
    let head = CUBE_POS_Y as usize;
    let i = UNIT_POS as usize;
    let row = (token * (heads + 2 * kv_heads) + head) * head_dim;
    let mut element = 0.0f32;
    if i < head_dim {
        element = f32::cast_from(qkv[row + i]);
    }
    // All units of a cube have the same `head`, so branches on it are uniform. The barriers still
    // stay outside of them, because WGSL compilers cannot prove this.
    if comptime!(normalise) {
        let mut scratch = SharedMemory::<f32>::new(threads);
        let mean = cube_sum(element * element, &mut scratch, threads) / comptime!(head_dim as f32);
        if i < head_dim {
            let scale = 1.0f32 / f32::sqrt(mean + eps);
            if head < heads {
                element = element * scale * f32::cast_from(q_norm[i]);
            } else if head < heads + kv_heads {
                element = element * scale * f32::cast_from(k_norm[i]);
            }
        }
    }
    let mut shared = SharedMemory::<f32>::new(threads);
    shared[i] = element;
    sync_cube();
    if i < head_dim {
        if head < heads + kv_heads {
            let angle = positions[token] as usize * half;
            if i < half {
                element = element * cos[angle + i] - shared[i + half] * sin[angle + i];
            } else if i < 2 * half {
                element =
                    element * cos[angle + i - half] + shared[i - half] * sin[angle + i - half];
            }
        }
        if head < heads {
            q[(token * heads + head) * head_dim + i] = E::cast_from(element);
        }
    }
    let first_slot = write_slots[token] as usize * kv_heads;
    // A query head has none, and does not use this.
    let mut kv_head = head - heads;
    if head >= heads + kv_heads {
        kv_head = head - heads - kv_heads;
    }
    if comptime!(integers) {
        let word = word_of(element, head_dim, threads);
        let width = comptime!(KvFormat::Int8.head_width(head_dim));
        if head >= heads && i < width {
            let at = (first_slot + kv_head) * width + i;
            if head < heads + kv_heads {
                k_pool[at] = P::cast_from(word);
            } else {
                v_pool[at] = P::cast_from(word);
            }
        }
    } else if head >= heads && i < head_dim {
        let at = (first_slot + kv_head) * head_dim + i;
        if head < heads + kv_heads {
            k_pool[at] = P::cast_from(element);
        } else {
            v_pool[at] = P::cast_from(element);
        }
    }
}

/// The word that this unit writes of a head in [`KvFormat::Int8`], of which each unit has an
/// `element`. Units beyond the head have zeros, and what they get is not to be written.
#[cube]
fn word_of(element: f32, #[comptime] head_dim: usize, #[comptime] threads: usize) -> u32 {
    let unit = UNIT_POS as usize;
    let mut scratch = SharedMemory::<u32>::new(threads);
    // The bits of positive numbers are in the order of the numbers, and NaN is above infinity.
    scratch[unit] = u32::reinterpret(element) & 0x7fff_ffffu32;
    sync_cube();
    let steps = comptime!(threads.ilog2());
    #[unroll]
    for step in 0..steps {
        let stride = comptime!(threads >> (step as usize + 1));
        if unit < stride {
            scratch[unit] = cubecl::prelude::max(scratch[unit], scratch[unit + stride]);
        }
        sync_cube();
    }
    let largest = scratch[0];
    sync_cube();
    let is_finite = largest < comptime!(INFINITY_BITS);
    let is_stored = is_finite && largest >= comptime!(SMALLEST.to_bits());
    let magnitude = f32::reinterpret(largest);
    let scaled = element * (f32::new(LARGEST) / magnitude);
    let integer = u32::reinterpret(scaled + f32::new(ROUND)) & 0xffu32;
    scratch[unit] = select(is_stored, integer, 0u32);
    sync_cube();
    let mut word = 0u32;
    if unit == 0 {
        let scale = u32::reinterpret(magnitude / f32::new(LARGEST));
        let none = select(is_finite, 0u32, comptime!(NAN_BITS));
        word = select(is_stored, scale, none);
    } else if unit <= comptime!(head_dim / PER_WORD) {
        #[unroll]
        for place in 0..PER_WORD {
            let integer = scratch[(unit - 1) * PER_WORD + place];
            word |= integer << comptime!(8 * place as u32);
        }
    }
    word
}
