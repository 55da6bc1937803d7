//! Embedding look-up, and the activation of the MLP.

use burn_cubecl::CubeRuntime;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{dims, empty_like};

const THREADS: usize = 256;

/// [`Kernels::embed`](crate::Kernels::embed) from a table of floats.
pub fn embed<R: CubeRuntime>(table: CubeTensor<R>, ids: CubeTensor<R>) -> CubeTensor<R> {
    let [_, hidden] = dims(&table);
    let tokens = ids.meta.shape()[0];
    let out = empty_like(&table, tokens, hidden);
    let (client, dtype) = (table.client.clone(), table.dtype);
    // SAFETY: the caller has checked that ids are below the number of rows of the table. There is
    // one cube per row of `out`, and its units stay within the row.
    unsafe {
        embed_kernel::launch_unchecked(
            &client,
            CubeCount::Static(tokens as u32, 1, 1),
            CubeDim::new_1d(THREADS as u32),
            table.into_array_arg(),
            ids.into_array_arg(),
            out.clone().into_array_arg(),
            hidden,
            dtype.into(),
        );
    }
    out
}

/// [`Kernels::silu_mul`](crate::Kernels::silu_mul).
pub fn silu_mul<R: CubeRuntime>(gate_up: CubeTensor<R>) -> CubeTensor<R> {
    let [tokens, both] = dims(&gate_up);
    let inner = both / 2;
    let out = empty_like(&gate_up, tokens, inner);
    let (client, dtype) = (gate_up.client.clone(), gate_up.dtype);
    let blocks = inner.div_ceil(THREADS) as u32;
    // SAFETY: a unit writes one element of its row of `out`, if its index is below `inner`, and
    // reads the two elements of `gate_up` that belong to it.
    unsafe {
        silu_mul_kernel::launch_unchecked(
            &client,
            CubeCount::Static(tokens as u32, blocks, 1),
            CubeDim::new_1d(THREADS as u32),
            gate_up.into_array_arg(),
            out.clone().into_array_arg(),
            inner,
            dtype.into(),
        );
    }
    out
}

#[cube(launch_unchecked)]
fn embed_kernel<E: Float>(
    table: &Array<E>,
    ids: &Array<i32>,
    out: &mut Array<E>,
    #[comptime] hidden: usize,
    #[define(E)] _dtype: StorageType,
) {
    let token = CUBE_POS_X as usize;
    let from = ids[token] as usize * hidden;
    let to = token * hidden;
    for i in range_stepped(UNIT_POS as usize, hidden, THREADS) {
        out[to + i] = table[from + i];
    }
}

#[cube(launch_unchecked)]
fn silu_mul_kernel<E: Float>(
    gate_up: &Array<E>,
    out: &mut Array<E>,
    #[comptime] inner: usize,
    #[define(E)] _dtype: StorageType,
) {
    let token = CUBE_POS_X as usize;
    let i = CUBE_POS_Y as usize * THREADS + UNIT_POS as usize;
    if i < inner {
        let gate = f32::cast_from(gate_up[2 * token * inner + i]);
        let up = f32::cast_from(gate_up[(2 * token + 1) * inner + i]);
        out[token * inner + i] = E::cast_from(silu(gate) * up);
    }
}

#[cube]
pub fn silu(x: f32) -> f32 {
    x / (1.0f32 + f32::exp(-x))
}
