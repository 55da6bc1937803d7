//! Mixture of experts on GPUs: one launch chooses the experts of all rows, one computes the gated
//! halves of their MLPs, and one the second products and their sum. The choice stays on the device.
//!
//! Each pair of a row and one of its experts is multiplied by itself, in an order that depends on the
//! sizes alone, so that a row has the same bits in any batch. Rows with the same expert are not
//! grouped: each reads the expert's matrices, mostly from a cache.

use burn::tensor::{DType, Shape};
use burn_cubecl::CubeRuntime;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::blocks::{self, Packed, table_of};
use super::linear::{LANES, ROWS};
use super::reduce::cube_sum;
use super::sample::{clean, finite, order};
use super::{dims, empty_like};
use crate::{BlockFormat, ExpertActivation, ExpertWeights, Routing};

/// Units of the cube that chooses a row's experts.
const THREADS: usize = 64;

/// The tensors of [`Experts`](crate::Experts), contiguous.
pub struct Stack<R: CubeRuntime> {
    pub gate_up: CubeTensor<R>,
    pub gate_up_bias: Option<CubeTensor<R>>,
    pub down: CubeTensor<R>,
    pub down_bias: Option<CubeTensor<R>>,
    pub hidden: usize,
    pub width: usize,
    pub activation: ExpertActivation,
}

/// [`Kernels::choose_experts`](crate::Kernels::choose_experts): ids and weights.
pub fn choose<R: CubeRuntime>(
    logits: CubeTensor<R>,
    routing: Routing,
) -> (CubeTensor<R>, CubeTensor<R>) {
    let [rows, experts] = dims(&logits);
    assert!(
        routing.top <= experts,
        "choose_experts: {} of {experts} experts",
        routing.top
    );
    let (client, device, dtype) = (logits.client.clone(), logits.device.clone(), logits.dtype);
    let empty = |dtype| {
        let shape = Shape::from([rows, routing.top]);
        empty_device_contiguous_dtype(client.clone(), device.clone(), shape, dtype)
    };
    let (ids, weights) = (empty(DType::I32), empty(DType::F32));
    // SAFETY: there is one cube per row of `logits`, `ids` and `weights`, and its units stay within
    // the row: a row has at least as many experts as are chosen.
    unsafe {
        choose_kernel::launch_unchecked(
            &client,
            CubeCount::Static(rows as u32, 1, 1),
            CubeDim::new_1d(THREADS as u32),
            logits.into_array_arg(),
            ids.clone().into_array_arg(),
            weights.clone().into_array_arg(),
            experts,
            routing.top,
            routing.weights == ExpertWeights::OfAll,
            dtype.into(),
        );
    }
    (ids, weights)
}

/// A stacked matrix as the kernels read it: floats, or words of blocks. What a kernel does not read
/// has to be bound all the same.
struct Matrix<R: CubeRuntime> {
    floats: CubeTensor<R>,
    words: CubeTensor<R>,
    /// `None` for floats.
    format: Option<BlockFormat>,
    /// Words that are read at once.
    width: usize,
    /// As in [`blocks::Words`].
    begins: [u32; 3],
    /// Elements of the other factor that are read at once.
    vector: usize,
}

impl<R: CubeRuntime> Matrix<R> {
    /// `x` `[rows, columns]` is the other factor.
    fn of(matrix: CubeTensor<R>, x: &CubeTensor<R>) -> Self {
        let ([_, input], [_, columns]) = (dims(x), dims(&matrix));
        assert_eq!(
            input, columns,
            "experts: x has {input} columns, a matrix {columns}"
        );
        let widest = if x.dtype == DType::F32 { 4 } else { 8 };
        let vector = [widest, 4, 2, 1]
            .into_iter()
            .find(|n| columns.is_multiple_of(*n))
            .unwrap_or(1);
        match Packed::of(&matrix) {
            Some(packed) => {
                let words = packed.words();
                Self {
                    floats: x.clone(),
                    words: words.buffer,
                    format: Some(words.format),
                    width: words.width,
                    begins: words.begins,
                    vector,
                }
            }
            None => Self {
                floats: matrix.clone(),
                words: matrix,
                format: None,
                width: 1,
                begins: [0; 3],
                vector,
            },
        }
    }
}

/// [`Kernels::mix_experts`](crate::Kernels::mix_experts).
pub fn mix<R: CubeRuntime>(
    x: CubeTensor<R>,
    ids: CubeTensor<R>,
    weights: CubeTensor<R>,
    stack: Stack<R>,
) -> CubeTensor<R> {
    let ([rows, hidden], [_, top]) = (dims(&x), dims(&ids));
    assert_eq!(hidden, stack.hidden, "experts: columns of x");
    let (client, dtype, width) = (x.client.clone(), x.dtype, stack.width);
    let gated = empty_like(&x, rows * top, width);
    let out = empty_like(&x, rows, hidden);
    let clamp = stack.activation.clamp();
    let (alpha, limit) = clamp.unwrap_or_default();
    let cubes = |elements: usize, ranks: usize| {
        CubeCount::Static(rows as u32, elements.div_ceil(ROWS) as u32, ranks as u32)
    };
    let matrix = Matrix::of(stack.gate_up, &x);
    let biased = stack.gate_up_bias.is_some();
    // Without a bias, the argument has to be bound but is never read.
    let bias = stack.gate_up_bias.unwrap_or_else(|| x.clone());
    // SAFETY: there are cubes for each row of `x`, each of its experts and each element of `gated`;
    // units beyond the last element neither read nor write. Ids are below the number of experts.
    unsafe {
        gated_kernel::launch_unchecked(
            &client,
            cubes(width, top),
            CubeDim::new_2d(LANES as u32, ROWS as u32),
            matrix.vector,
            matrix.width,
            x.clone().into_array_arg(),
            matrix.floats.into_array_arg(),
            matrix.words.clone().into_array_arg(),
            matrix.words.into_array_arg(),
            bias.into_array_arg(),
            ids.clone().into_array_arg(),
            gated.clone().into_array_arg(),
            width as u32,
            matrix.begins[0],
            matrix.begins[1],
            matrix.begins[2],
            alpha,
            limit,
            top,
            hidden,
            matrix.format,
            biased,
            clamp.is_some(),
            dtype.into(),
        );
    }
    let matrix = Matrix::of(stack.down, &gated);
    let biased = stack.down_bias.is_some();
    let bias = stack.down_bias.unwrap_or_else(|| x.clone());
    // SAFETY: as above, with the elements of `out`; `gated` has a row for each row and expert.
    unsafe {
        mixed_kernel::launch_unchecked(
            &client,
            cubes(hidden, 1),
            CubeDim::new_2d(LANES as u32, ROWS as u32),
            matrix.vector,
            matrix.width,
            gated.into_array_arg(),
            matrix.floats.into_array_arg(),
            matrix.words.clone().into_array_arg(),
            matrix.words.into_array_arg(),
            bias.into_array_arg(),
            ids.into_array_arg(),
            weights.into_array_arg(),
            out.clone().into_array_arg(),
            hidden as u32,
            matrix.begins[0],
            matrix.begins[1],
            matrix.begins[2],
            top,
            width,
            matrix.format,
            biased,
            dtype.into(),
        );
    }
    out
}

/// Finds the largest logit as often as there are experts to choose.
#[cube(launch_unchecked)]
fn choose_kernel<E: Float>(
    logits: &Array<E>,
    ids: &mut Array<i32>,
    weights: &mut Array<f32>,
    #[comptime] experts: usize,
    #[comptime] top: usize,
    #[comptime] of_all: bool,
    #[define(E)] _dtype: StorageType,
) {
    let row = CUBE_POS_X as usize;
    let unit = UNIT_POS as usize;
    // Integers in the order of the logits; 0 for those that were chosen.
    let mut left = SharedMemory::<u32>::new(experts);
    let mut best = SharedMemory::<u32>::new(comptime!(THREADS));
    let mut at = SharedMemory::<u32>::new(comptime!(THREADS));
    let mut chosen = SharedMemory::<f32>::new(top);
    let mut scratch = SharedMemory::<f32>::new(comptime!(THREADS));
    for id in range_stepped(unit, experts, THREADS) {
        left[id] = order(clean(finite(f32::cast_from(logits[row * experts + id]))));
    }
    sync_cube();
    for rank in 0..top {
        let mut largest = 0u32;
        let mut place = 0u32;
        // A unit sees its experts by ascending id, so that of equal ones it keeps the first.
        for id in range_stepped(unit, experts, THREADS) {
            if left[id] > largest {
                largest = left[id];
                place = id as u32;
            }
        }
        best[unit] = largest;
        at[unit] = place;
        sync_cube();
        let steps = comptime!(THREADS.ilog2());
        #[unroll]
        for step in 0..steps {
            let stride = comptime!(THREADS >> (step as usize + 1));
            if unit < stride {
                let (mine, other) = (best[unit], best[unit + stride]);
                let (my_place, its_place) = (at[unit], at[unit + stride]);
                if other > mine || (other == mine && its_place < my_place) {
                    best[unit] = other;
                    at[unit] = its_place;
                }
            }
            sync_cube();
        }
        if unit == 0 {
            let id = at[0] as usize;
            ids[row * top + rank] = i32::cast_from(at[0]);
            chosen[rank] = finite(f32::cast_from(logits[row * experts + id]));
            left[id] = 0u32;
        }
        sync_cube();
    }
    let largest = chosen[0];
    let mut sum = 0.0f32;
    if comptime!(of_all) {
        let mut part = 0.0f32;
        for id in range_stepped(unit, experts, THREADS) {
            part += f32::exp(finite(f32::cast_from(logits[row * experts + id])) - largest);
        }
        sum = cube_sum(part, &mut scratch, THREADS);
    } else {
        for rank in 0..top {
            sum += f32::exp(chosen[rank] - largest);
        }
    }
    for rank in range_stepped(unit, top, THREADS) {
        weights[row * top + rank] = f32::exp(chosen[rank] - largest) / sum;
    }
}

/// One half of an expert's MLP: the products with its gates and with its other rows, and their
/// activation.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments)]
fn gated_kernel<E: Float, N: Size, W: Size>(
    x: &Array<Vector<E, N>>,
    floats: &Array<Vector<E, N>>,
    low: &Array<Vector<u32, W>>,
    words: &Array<u32>,
    bias: &Array<E>,
    ids: &Array<i32>,
    out: &mut Array<E>,
    width: u32,
    first_scale: u32,
    first_low: u32,
    first_high: u32,
    alpha: f32,
    limit: f32,
    #[comptime] top: usize,
    #[comptime] input: usize,
    #[comptime] format: Option<BlockFormat>,
    #[comptime] biased: bool,
    #[comptime] clamped: bool,
    #[define(E)] _dtype: StorageType,
) {
    let pair = CUBE_POS_X as usize * top + CUBE_POS_Z as usize;
    let element = CUBE_POS_Y as usize * ROWS + UNIT_POS_Y as usize;
    let width = width as usize;
    let first = ids[pair] as usize * 2 * width + element;
    let row = CUBE_POS_X as usize;
    let table = table_of(comptime!(format.unwrap_or(BlockFormat::Q8_0)));
    let mut gate = 0.0f32;
    let mut up = 0.0f32;
    if element < width {
        gate = dot::<E, N, W>(
            x,
            row,
            floats,
            low,
            words,
            &table,
            first,
            first_scale,
            first_low,
            first_high,
            input,
            format,
        );
        up = dot::<E, N, W>(
            x,
            row,
            floats,
            low,
            words,
            &table,
            first + width,
            first_scale,
            first_low,
            first_high,
            input,
            format,
        );
    }
    let mut gates = SharedMemory::<f32>::new(comptime!(LANES * ROWS));
    let mut ups = SharedMemory::<f32>::new(comptime!(LANES * ROWS));
    gates[UNIT_POS as usize] = gate;
    ups[UNIT_POS as usize] = up;
    add_lanes(&mut gates);
    add_lanes(&mut ups);
    if UNIT_POS_X == 0 && element < width {
        gate = gates[UNIT_POS as usize];
        up = ups[UNIT_POS as usize];
        if comptime!(biased) {
            gate += f32::cast_from(bias[first]);
            up += f32::cast_from(bias[first + width]);
        }
        let mut scaled = gate;
        if comptime!(clamped) {
            gate = cubecl::prelude::min(gate, limit);
            up = cubecl::prelude::max(cubecl::prelude::min(up, limit), -limit) + 1.0f32;
            scaled = gate * alpha;
        }
        out[pair * width + element] = E::cast_from(gate / (1.0f32 + f32::exp(-scaled)) * up);
    }
}

/// The second products of a row's experts, added with their weights.
// The outer condition is decided when the kernel is compiled, so it stays apart.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, clippy::collapsible_if)]
fn mixed_kernel<E: Float, N: Size, W: Size>(
    x: &Array<Vector<E, N>>,
    floats: &Array<Vector<E, N>>,
    low: &Array<Vector<u32, W>>,
    words: &Array<u32>,
    bias: &Array<E>,
    ids: &Array<i32>,
    weights: &Array<f32>,
    out: &mut Array<E>,
    hidden: u32,
    first_scale: u32,
    first_low: u32,
    first_high: u32,
    #[comptime] top: usize,
    #[comptime] input: usize,
    #[comptime] format: Option<BlockFormat>,
    #[comptime] biased: bool,
    #[define(E)] _dtype: StorageType,
) {
    let row = CUBE_POS_X as usize;
    let element = CUBE_POS_Y as usize * ROWS + UNIT_POS_Y as usize;
    let hidden = hidden as usize;
    let table = table_of(comptime!(format.unwrap_or(BlockFormat::Q8_0)));
    let mut sum = 0.0f32;
    if element < hidden {
        for rank in 0..top {
            let pair = row * top + rank;
            let from = ids[pair] as usize * hidden + element;
            let mut y = dot::<E, N, W>(
                x,
                pair,
                floats,
                low,
                words,
                &table,
                from,
                first_scale,
                first_low,
                first_high,
                input,
                format,
            );
            if comptime!(biased) {
                if UNIT_POS_X == 0 {
                    y += f32::cast_from(bias[from]);
                }
            }
            sum += y * weights[pair];
        }
    }
    let mut sums = SharedMemory::<f32>::new(comptime!(LANES * ROWS));
    sums[UNIT_POS as usize] = sum;
    add_lanes(&mut sums);
    if UNIT_POS_X == 0 && element < hidden {
        out[row * hidden + element] = E::cast_from(sums[UNIT_POS as usize]);
    }
}

/// A lane's part of the product of row `from` of a matrix with row `row` of `x`.
#[cube]
#[allow(clippy::too_many_arguments)]
fn dot<E: Float, N: Size, W: Size>(
    x: &Array<Vector<E, N>>,
    row: usize,
    floats: &Array<Vector<E, N>>,
    low: &Array<Vector<u32, W>>,
    words: &Array<u32>,
    table: &SharedMemory<f32>,
    from: usize,
    first_scale: u32,
    first_low: u32,
    first_high: u32,
    #[comptime] input: usize,
    #[comptime] format: Option<BlockFormat>,
) -> f32 {
    let mut sum = 0.0f32;
    if comptime!(format.is_none()) {
        let vector = N::value();
        let vectors = comptime!(input / vector);
        for i in range_stepped(UNIT_POS_X as usize, vectors, LANES) {
            let w = floats[from * vectors + i];
            let a = x[row * vectors + i];
            #[unroll]
            for n in 0..vector {
                sum += f32::cast_from(w[n]) * f32::cast_from(a[n]);
            }
        }
    } else {
        sum = blocks::dot::<E, N, W>(
            x,
            row,
            low,
            words,
            table,
            from,
            first_scale,
            first_low,
            first_high,
            input,
            comptime!(format.unwrap_or(BlockFormat::Q8_0)),
        );
    }
    sum
}

/// Adds the lanes of each row of units up in the first.
#[cube]
fn add_lanes(sums: &mut SharedMemory<f32>) {
    sync_cube();
    let unit = UNIT_POS as usize;
    let lane = UNIT_POS_X as usize;
    let steps = comptime!(LANES.ilog2());
    #[unroll]
    for step in 0..steps {
        let stride = comptime!(LANES >> (step as usize + 1));
        if lane < stride {
            sums[unit] = sums[unit] + sums[unit + stride];
        }
        sync_cube();
    }
}
