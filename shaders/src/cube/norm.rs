//! RMSNorm, alone and after the residual sum, with one cube per token.

use burn_cubecl::CubeRuntime;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::reduce::cube_sum;
use super::{dims, empty_like};

/// [`Kernels::rms_norm`](crate::Kernels::rms_norm).
pub fn rms_norm<R: CubeRuntime>(
    x: CubeTensor<R>,
    weight: CubeTensor<R>,
    eps: f32,
) -> CubeTensor<R> {
    let [tokens, hidden] = dims(&x);
    let out = empty_like(&x, tokens, hidden);
    let (client, dtype, threads) = (x.client.clone(), x.dtype, threads(hidden));
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
        );
    }
    out
}

/// [`Kernels::add_rms_norm`](crate::Kernels::add_rms_norm).
pub fn add_rms_norm<R: CubeRuntime>(
    x: CubeTensor<R>,
    delta: CubeTensor<R>,
    weight: CubeTensor<R>,
    eps: f32,
) -> (CubeTensor<R>, CubeTensor<R>) {
    let [tokens, hidden] = dims(&x);
    let (sum, out) = (
        empty_like(&x, tokens, hidden),
        empty_like(&x, tokens, hidden),
    );
    let (client, dtype, threads) = (x.client.clone(), x.dtype, threads(hidden));
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
            eps,
            hidden,
            threads,
            dtype.into(),
        );
    }
    (sum, out)
}

/// Units of a cube: a power of two that every adapter supports.
fn threads(hidden: usize) -> usize {
    hidden.next_power_of_two().clamp(32, 256)
}

#[cube(launch_unchecked)]
fn rms_norm_kernel<E: Float>(
    x: &Array<E>,
    weight: &Array<E>,
    out: &mut Array<E>,
    eps: f32,
    #[comptime] hidden: usize,
    #[comptime] threads: usize,
    #[define(E)] _dtype: StorageType,
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
fn add_rms_norm_kernel<E: Float>(
    x: &Array<E>,
    delta: &Array<E>,
    weight: &Array<E>,
    sum: &mut Array<E>,
    out: &mut Array<E>,
    eps: f32,
    #[comptime] hidden: usize,
    #[comptime] threads: usize,
    #[define(E)] _dtype: StorageType,
) {
    let mut scratch = SharedMemory::<f32>::new(threads);
    let unit = UNIT_POS as usize;
    let row = CUBE_POS_X as usize * hidden;
    let mut squares = 0.0f32;
    for i in range_stepped(unit, hidden, threads) {
        // The norm uses the sum as it is stored, rounded to the stored type.
        let stored = E::cast_from(f32::cast_from(x[row + i]) + f32::cast_from(delta[row + i]));
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
