//! RMSNorm: alone, after the residual sum, and of parts of a stacked projection. Weights have a
//! type of their own, because those that are stored as their difference from one need more bits.

use burn_cubecl::CubeRuntime;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::reduce::cube_sum;
use super::{dims, empty_like};
use crate::HeadLayout;

/// [`Kernels::rms_norm`](crate::Kernels::rms_norm).
pub fn rms_norm<R: CubeRuntime>(
    x: CubeTensor<R>,
    weight: CubeTensor<R>,
    eps: f32,
) -> CubeTensor<R> {
    let [tokens, hidden] = dims(&x);
    let out = empty_like(&x, tokens, hidden);
    let (client, dtype, threads) = (x.client.clone(), x.dtype, threads(hidden));
    let weight_dtype = weight.dtype;
    // SAFETY: there is one cube per row of `x` and `out`, and its units stay within the `hidden`
    // elements of the row.
    unsafe {
        rms_norm_kernel::launch_unchecked(
            &client,
            CubeCount::Static(tokens as u32, 1, 1),
            CubeDim::new_1d(threads as u32),
            x.into_array_arg(),
            weight.into_array_arg(),
            out.clone().into_array_arg(),
            eps,
            hidden,
            threads,
            dtype.into(),
            weight_dtype.into(),
        );
    }
    out
}

/// [`Kernels::add_rms_norm`](crate::Kernels::add_rms_norm).
pub fn add_rms_norm<R: CubeRuntime>(
    x: CubeTensor<R>,
    delta: CubeTensor<R>,
    scale: f32,
    weight: CubeTensor<R>,
    eps: f32,
) -> (CubeTensor<R>, CubeTensor<R>) {
    let [tokens, hidden] = dims(&x);
    let (sum, out) = (
        empty_like(&x, tokens, hidden),
        empty_like(&x, tokens, hidden),
    );
    let (client, dtype, threads) = (x.client.clone(), x.dtype, threads(hidden));
    let weight_dtype = weight.dtype;
    // SAFETY: there is one cube per row of all four matrices, and its units stay within the
    // `hidden` elements of the row.
    unsafe {
        add_rms_norm_kernel::launch_unchecked(
            &client,
            CubeCount::Static(tokens as u32, 1, 1),
            CubeDim::new_1d(threads as u32),
            x.into_array_arg(),
            delta.into_array_arg(),
            weight.into_array_arg(),
            sum.clone().into_array_arg(),
            out.clone().into_array_arg(),
            scale,
            eps,
            hidden,
            threads,
            dtype.into(),
            weight_dtype.into(),
        );
    }
    (sum, out)
}

/// [`Kernels::norm_projections`](crate::Kernels::norm_projections), in place.
pub fn norm_projections<R: CubeRuntime>(
    qkv: CubeTensor<R>,
    layout: HeadLayout,
    [q, k]: [CubeTensor<R>; 2],
    eps: f32,
) -> CubeTensor<R> {
    let [tokens, width] = dims(&qkv);
    assert_eq!(width, layout.qkv_width(), "norm_projections: width of qkv");
    assert_eq!(q.dtype, k.dtype, "norm_projections: types of the weights");
    let (client, dtype, weight_dtype) = (qkv.client.clone(), qkv.dtype, q.dtype);
    let queries = layout.heads * layout.head_dim;
    let keys = layout.kv_heads * layout.head_dim;
    assert_eq!(
        [q.meta.num_elements(), k.meta.num_elements()],
        [queries, keys],
        "norm_projections: lengths of the weights"
    );
    let threads = threads(queries);
    // SAFETY: there is a cube for the queries of each row and one for its keys, which stay within
    // these elements; `q` and `k` have as many.
    unsafe {
        norm_projections_kernel::launch_unchecked(
            &client,
            CubeCount::Static(tokens as u32, 2, 1),
            CubeDim::new_1d(threads as u32),
            qkv.clone().into_array_arg(),
            q.into_array_arg(),
            k.into_array_arg(),
            eps,
            width,
            queries,
            keys,
            threads,
            dtype.into(),
            weight_dtype.into(),
        );
    }
    qkv
}

/// Units of a cube: a power of two that every adapter supports.
fn threads(hidden: usize) -> usize {
    hidden.next_power_of_two().clamp(32, 256)
}

#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments)]
fn rms_norm_kernel<E: Float, W: Float>(
    x: &Array<E>,
    weight: &Array<W>,
    out: &mut Array<E>,
    eps: f32,
    #[comptime] hidden: usize,
    #[comptime] threads: usize,
    #[define(E)] _dtype: StorageType,
    #[define(W)] _stored: StorageType,
) {
    let mut scratch = SharedMemory::<f32>::new(threads);
    let unit = UNIT_POS as usize;
    let row = CUBE_POS_X as usize * hidden;
    let mut squares = 0.0f32;
    for i in range_stepped(unit, hidden, threads) {
        let value = f32::cast_from(x[row + i]);
        squares += value * value;
    }
    let mean = cube_sum(squares, &mut scratch, threads) / comptime!(hidden as f32);
    let scale = 1.0f32 / f32::sqrt(mean + eps);
    for i in range_stepped(unit, hidden, threads) {
        out[row + i] = E::cast_from(f32::cast_from(x[row + i]) * scale * f32::cast_from(weight[i]));
    }
}

#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments)]
fn add_rms_norm_kernel<E: Float, W: Float>(
    x: &Array<E>,
    delta: &Array<E>,
    weight: &Array<W>,
    sum: &mut Array<E>,
    out: &mut Array<E>,
    factor: f32,
    eps: f32,
    #[comptime] hidden: usize,
    #[comptime] threads: usize,
    #[define(E)] _dtype: StorageType,
    #[define(W)] _stored: StorageType,
) {
    let mut scratch = SharedMemory::<f32>::new(threads);
    let unit = UNIT_POS as usize;
    let row = CUBE_POS_X as usize * hidden;
    let mut squares = 0.0f32;
    for i in range_stepped(unit, hidden, threads) {
        // The norm uses the sum as it is stored, rounded to the stored type.
        let change = f32::cast_from(delta[row + i]) * factor;
        let stored = E::cast_from(f32::cast_from(x[row + i]) + change);
        sum[row + i] = stored;
        let value = f32::cast_from(stored);
        squares += value * value;
    }
    let mean = cube_sum(squares, &mut scratch, threads) / comptime!(hidden as f32);
    let scale = 1.0f32 / f32::sqrt(mean + eps);
    for i in range_stepped(unit, hidden, threads) {
        let value = f32::cast_from(sum[row + i]);
        out[row + i] = E::cast_from(value * scale * f32::cast_from(weight[i]));
    }
}

#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments)]
fn norm_projections_kernel<E: Float, W: Float>(
    qkv: &mut Array<E>,
    q: &Array<W>,
    k: &Array<W>,
    eps: f32,
    #[comptime] width: usize,
    #[comptime] queries: usize,
    #[comptime] keys: usize,
    #[comptime] threads: usize,
    #[define(E)] _dtype: StorageType,
    #[define(W)] _stored: StorageType,
) {
    let mut scratch = SharedMemory::<f32>::new(threads);
    let unit = UNIT_POS as usize;
    let of_keys = CUBE_POS_Y == 1;
    let mut first = CUBE_POS_X as usize * width;
    let mut count = queries.runtime();
    if of_keys {
        first += queries;
        count = keys.runtime();
    }
    let mut squares = 0.0f32;
    for i in range_stepped(unit, count, threads) {
        let value = f32::cast_from(qkv[first + i]);
        squares += value * value;
    }
    // All units reach the barriers of the sum, whichever part the cube has.
    let mean = cube_sum(squares, &mut scratch, threads) / f32::cast_from(count as u32);
    let scale = 1.0f32 / f32::sqrt(mean + eps);
    for i in range_stepped(unit, count, threads) {
        let mut value = f32::cast_from(qkv[first + i]) * scale;
        if of_keys {
            value *= f32::cast_from(k[i]);
        } else {
            value *= f32::cast_from(q[i]);
        }
        qkv[first + i] = E::cast_from(value);
    }
}
