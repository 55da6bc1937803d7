//! Normalisation of heads, rotation by position and the write into the KV pools, in one pass over
//! the stacked projection, with one cube per token and head.

use burn::tensor::DType;
use burn_cubecl::CubeRuntime;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::reduce::cube_sum;
use super::{dims, empty_like};
use crate::HeadLayout;

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
    let (client, dtype) = (qkv.client.clone(), qkv.dtype);
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
            dtype.into(),
            norm_dtype.into(),
        );
    }
    q
}

#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments)]
fn rope_and_store_kernel<E: Float, W: Float>(
    qkv: &Array<E>,
    positions: &Array<i32>,
    write_slots: &Array<i32>,
    cos: &Array<f32>,
    sin: &Array<f32>,
    q_norm: &Array<W>,
    k_norm: &Array<W>,
    q: &mut Array<E>,
    k_pool: &mut Array<E>,
    v_pool: &mut Array<E>,
    eps: f32,
    #[comptime] heads: usize,
    #[comptime] kv_heads: usize,
    #[comptime] head_dim: usize,
    #[comptime] half: usize,
    #[comptime] normalise: bool,
    #[comptime] threads: usize,
    #[define(E)] _dtype: StorageType,
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
        let slot = write_slots[token] as usize;
        if head < heads {
            q[(token * heads + head) * head_dim + i] = E::cast_from(element);
        } else if head < heads + kv_heads {
            k_pool[(slot * kv_heads + head - heads) * head_dim + i] = E::cast_from(element);
        } else {
            let head = head - heads - kv_heads;
            v_pool[(slot * kv_heads + head) * head_dim + i] = E::cast_from(element);
        }
    }
}
