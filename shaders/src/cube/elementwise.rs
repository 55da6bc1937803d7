//! Embedding look-up, the gate of the MLP, and the bound of logits.

use burn_cubecl::CubeRuntime;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{dims, empty_like};
use crate::Activation;

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

/// [`Kernels::gate`](crate::Kernels::gate).
pub fn gate<R: CubeRuntime>(gate_up: CubeTensor<R>, activation: Activation) -> CubeTensor<R> {
    let [tokens, both] = dims(&gate_up);
    let inner = both / 2;
    let out = empty_like(&gate_up, tokens, inner);
    let (client, dtype) = (gate_up.client.clone(), gate_up.dtype);
    let (count, dim) = by_element(tokens, inner);
    // SAFETY: a unit writes one element of its row of `out`, if its column is below `inner`, and
    // reads the two elements of `gate_up` that belong to it.
    unsafe {
        gate_kernel::launch_unchecked(
            &client,
            count,
            dim,
            gate_up.into_array_arg(),
            out.clone().into_array_arg(),
            inner,
            activation,
            dtype.into(),
        );
    }
    out
}

/// [`Kernels::scale_and_cap`](crate::Kernels::scale_and_cap).
pub fn scale_and_cap<R: CubeRuntime>(
    x: CubeTensor<R>,
    scale: f32,
    cap: Option<f32>,
) -> CubeTensor<R> {
    let [rows, columns] = dims(&x);
    let out = empty_like(&x, rows, columns);
    let (client, dtype) = (x.client.clone(), x.dtype);
    let (count, dim) = by_element(rows, columns);
    // SAFETY: a unit reads and writes one element of its row, if its column is below `columns`.
    unsafe {
        scale_and_cap_kernel::launch_unchecked(
            &client,
            count,
            dim,
            x.into_array_arg(),
            out.clone().into_array_arg(),
            scale,
            cap.unwrap_or(1.0),
            columns as u32,
            cap.is_some(),
            dtype.into(),
        );
    }
    out
}

/// A grid with a unit for each element of a matrix `[rows, columns]`. [`column`] is the column of a
/// unit, and the first coordinate of its cube is the row.
fn by_element(rows: usize, columns: usize) -> (CubeCount, CubeDim) {
    let cubes = columns.div_ceil(THREADS) as u32;
    let count = CubeCount::Static(rows as u32, cubes, 1);
    (count, CubeDim::new_1d(THREADS as u32))
}

/// The column of a unit, which may lie beyond the last one.
#[cube]
fn column() -> usize {
    CUBE_POS_Y as usize * THREADS + UNIT_POS as usize
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
fn gate_kernel<E: Float>(
    gate_up: &Array<E>,
    out: &mut Array<E>,
    #[comptime] inner: usize,
    #[comptime] activation: Activation,
    #[define(E)] _dtype: StorageType,
) {
    let token = CUBE_POS_X as usize;
    let i = column();
    if i < inner {
        let gate = f32::cast_from(gate_up[2 * token * inner + i]);
        let up = f32::cast_from(gate_up[(2 * token + 1) * inner + i]);
        out[token * inner + i] = E::cast_from(activated(gate, activation) * up);
    }
}

#[cube(launch_unchecked)]
fn scale_and_cap_kernel<E: Float>(
    x: &Array<E>,
    out: &mut Array<E>,
    scale: f32,
    cap: f32,
    columns: u32,
    #[comptime] capped: bool,
    #[define(E)] _dtype: StorageType,
) {
    let column = column();
    let columns = columns as usize;
    if column < columns {
        let at = CUBE_POS_X as usize * columns + column;
        let mut value = f32::cast_from(x[at]) * scale;
        if comptime!(capped) {
            value = bounded(value, cap);
        }
        out[at] = E::cast_from(value);
    }
}

/// The gate of an MLP.
#[cube]
pub fn activated(x: f32, #[comptime] activation: Activation) -> f32 {
    // With the logistic function, because `(1 + tanh(x)) / 2` is `1 / (1 + e^(-2 x))`.
    let mut power = -x;
    if comptime!(activation == Activation::GeluTanh) {
        power = (x + 0.044715f32 * x * x * x) * -1.595_769_f32;
    }
    x / (1.0f32 + f32::exp(power))
}

/// `cap * tanh(x / cap)`. The hyperbolic tangent is made of an exponential of a number that is not
/// positive, because those of some drivers overflow.
#[cube]
pub fn bounded(x: f32, cap: f32) -> f32 {
    let size = f32::abs(x) / cap;
    let power = f32::exp(-2.0f32 * size);
    let tanh = (1.0f32 - power) / (1.0f32 + power);
    select(x < 0.0f32, -tanh, tanh) * cap
}
