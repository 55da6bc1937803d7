//! Low-rank changes of a matrix on GPUs: two launches for the rows of all adapters.
//!
//! A row of units computes one element of one token, in an order that depends on the sizes alone,
//! so that a token has the same bits in any batch. Rows of the base model end at once.

use burn::tensor::{DType, Shape};
use burn_cubecl::CubeRuntime;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::linear::{LANES, ROWS, add_lanes, grid};
use super::{dims, vector};

/// Columns that a cube of the second kernel computes.
const COLUMNS: usize = 256;

/// The tensors of a [`LowRankStack`](crate::LowRankStack), contiguous.
pub struct Stack<R: CubeRuntime> {
    pub a: CubeTensor<R>,
    pub b: CubeTensor<R>,
    pub bias: CubeTensor<R>,
    pub scale: CubeTensor<R>,
    pub ranks: CubeTensor<R>,
    pub slices: Vec<usize>,
    pub rank: usize,
}

/// [`Kernels::shrink`](crate::Kernels::shrink); the result is f32.
pub fn shrink<R: CubeRuntime>(
    x: CubeTensor<R>,
    stack: Stack<R>,
    slots: CubeTensor<R>,
) -> CubeTensor<R> {
    let [rows, input] = dims(&x);
    let [_, width] = dims(&stack.a);
    assert_eq!(input, width, "shrink: x has {input} columns, a {width}");
    let inner = stack.slices.len() * stack.rank;
    let (client, device, dtype) = (x.client.clone(), x.device.clone(), x.dtype);
    let shape = Shape::from([rows, inner]);
    let out = empty_device_contiguous_dtype(client.clone(), device, shape, DType::F32);
    // SAFETY: there is a row of cubes for each row of `x`; units whose element is beyond the last
    // neither read `a` nor write, and slots are below the number of slots, which the caller
    // checked.
    unsafe {
        shrink_kernel::launch_unchecked(
            &client,
            grid(rows, inner, ROWS),
            CubeDim::new_2d(LANES as u32, ROWS as u32),
            vector(dtype, input),
            x.into_array_arg(),
            stack.a.into_array_arg(),
            slots.into_array_arg(),
            stack.ranks.into_array_arg(),
            out.clone().into_array_arg(),
            input,
            stack.slices.len(),
            stack.rank,
            dtype.into(),
        );
    }
    out
}

/// [`Kernels::expand`](crate::Kernels::expand), in place.
pub fn expand<R: CubeRuntime>(
    y: CubeTensor<R>,
    h: CubeTensor<R>,
    stack: Stack<R>,
    slots: CubeTensor<R>,
) -> CubeTensor<R> {
    let [rows, output] = dims(&y);
    let all: usize = stack.slices.iter().sum();
    assert_eq!(output, all, "expand: y has {output} columns, b {all}");
    let (client, dtype, inner_dtype) = (y.client.clone(), y.dtype, h.dtype);
    // The columns at which the second and the third slice begin.
    let second = stack.slices[0];
    let third = second + stack.slices.get(1).copied().unwrap_or(0);
    // SAFETY: a unit reads and writes its own element of `y`, if its column is below the last.
    // Ranks are at most `rank`, and slots below the number of slots, which the caller checked.
    unsafe {
        expand_kernel::launch_unchecked(
            &client,
            CubeCount::Static(rows as u32, output.div_ceil(COLUMNS) as u32, 1),
            CubeDim::new_1d(COLUMNS as u32),
            y.clone().into_array_arg(),
            h.into_array_arg(),
            stack.b.into_array_arg(),
            stack.bias.into_array_arg(),
            stack.scale.into_array_arg(),
            slots.into_array_arg(),
            stack.ranks.into_array_arg(),
            output,
            second,
            third,
            stack.slices.len(),
            stack.rank,
            dtype.into(),
            inner_dtype.into(),
        );
    }
    y
}

#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments)]
fn shrink_kernel<E: Float, N: Size>(
    x: &Array<Vector<E, N>>,
    a: &Array<Vector<E, N>>,
    slots: &Array<i32>,
    ranks: &Array<i32>,
    out: &mut Array<f32>,
    #[comptime] input: usize,
    #[comptime] slices: usize,
    #[comptime] rank: usize,
    #[define(E)] _dtype: StorageType,
) {
    let vector = N::value();
    let vectors = comptime!(input / vector);
    let inner = comptime!(slices * rank);
    let lane = UNIT_POS_X as usize;
    let row = CUBE_POS_X as usize;
    let cube = CUBE_POS_Z * CUBE_COUNT_Y + CUBE_POS_Y;
    let element = cube as usize * ROWS + UNIT_POS_Y as usize;
    let slot = slots[row];
    let mut sum = 0.0f32;
    if slot >= 0i32 && element < inner {
        let slot = slot as usize;
        let slice = element / rank;
        if element % rank < ranks[slot * slices + slice] as usize {
            let first = (slot * inner + element) * vectors;
            for i in range_stepped(lane, vectors, LANES) {
                let w = a[first + i];
                let v = x[row * vectors + i];
                #[unroll]
                for n in 0..vector {
                    sum += f32::cast_from(w[n]) * f32::cast_from(v[n]);
                }
            }
        }
    }
    let mut scratch = SharedMemory::<f32>::new(comptime!(LANES * ROWS));
    let unit = UNIT_POS as usize;
    scratch[unit] = sum;
    add_lanes(&mut scratch, 1usize);
    if lane == 0 && element < inner {
        out[row * inner + element] = scratch[unit];
    }
}

// The outer conditions are decided when the kernel is compiled, so they stay apart.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, clippy::collapsible_if)]
fn expand_kernel<E: Float, H: Float>(
    y: &mut Array<E>,
    h: &Array<H>,
    b: &Array<E>,
    bias: &Array<E>,
    scale: &Array<f32>,
    slots: &Array<i32>,
    ranks: &Array<i32>,
    #[comptime] output: usize,
    #[comptime] second: usize,
    #[comptime] third: usize,
    #[comptime] slices: usize,
    #[comptime] rank: usize,
    #[define(E)] _dtype: StorageType,
    #[define(H)] _inner: StorageType,
) {
    let row = CUBE_POS_X as usize;
    let column = CUBE_POS_Y as usize * COLUMNS + UNIT_POS as usize;
    let slot = slots[row];
    if slot >= 0i32 && column < output {
        let slot = slot as usize;
        let mut slice = 0usize;
        if comptime!(slices > 1) {
            if column >= second {
                slice = 1usize;
            }
        }
        if comptime!(slices > 2) {
            if column >= third {
                slice = 2usize;
            }
        }
        let here = ranks[slot * slices + slice] as usize;
        if here > 0usize {
            let at = row * output + column;
            let mut sum = f32::cast_from(y[at]) * scale[slot * output + column];
            sum += f32::cast_from(bias[slot * output + column]);
            let from = row * comptime!(slices * rank) + slice * rank;
            let first = slot * comptime!(rank * output) + column;
            for j in 0..here {
                sum += f32::cast_from(h[from + j]) * f32::cast_from(b[first + j * output]);
            }
            y[at] = E::cast_from(sum);
        }
    }
}
