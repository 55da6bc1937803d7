//! The MLPs of the chosen experts.
//!
//! Each pair of a row and one of its experts is computed alone, in an order that depends on
//! the sizes alone, so that a row has the same bits in any batch. Rows with the same expert are not
//! grouped: each reads the expert's matrices, mostly from a cache.

use burn_cubecl::CubeRuntime;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use crate::cube::blocks::{self, Buffer, BufferLaunch, Packed, RowShape, table_of};
use crate::cube::linear::{LANES, ROWS, add_lanes};
use crate::cube::{dims, empty_like, vector};
use crate::{BlockFormat, ExpertActivation};

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

/// A stacked matrix as the kernels read it: floats, or words of blocks. The one that a kernel does
/// not read has to be bound all the same.
struct Matrix<R: CubeRuntime> {
    tensor: CubeTensor<R>,
    /// `None` for floats.
    packed: Option<Packed<R>>,
    columns: usize,
}

impl<R: CubeRuntime> Matrix<R> {
    /// `x` `[rows, columns]` is the other factor.
    fn of(tensor: CubeTensor<R>, x: &CubeTensor<R>) -> Self {
        let ([_, input], [_, columns]) = (dims(x), dims(&tensor));
        assert_eq!(
            input, columns,
            "experts: x has {input} columns, a matrix {columns}"
        );
        Self {
            packed: Packed::of(&tensor),
            tensor,
            columns,
        }
    }

    /// The only part of a matrix in blocks.
    ///
    /// # Panics
    /// The matrix has several parts.
    fn part(&self) -> Option<&blocks::Part<R>> {
        let packed = self.packed.as_ref()?;
        Some(packed.whole().expect("stacked experts are in one format"))
    }

    fn format(&self) -> Option<BlockFormat> {
        self.part().map(|part| part.shape().format)
    }

    /// Words of the low bits that are read at once.
    fn width(&self) -> usize {
        self.part().map_or(1, |part| part.shape().width())
    }

    /// The floats; those of `x` where there are none.
    fn floats(&self, x: &CubeTensor<R>) -> CubeTensor<R> {
        match self.packed {
            Some(_) => x.clone(),
            None => self.tensor.clone(),
        }
    }

    fn words<W: Size>(&self) -> BufferLaunch<W, R> {
        match self.part() {
            Some(part) => part.buffer(),
            None => blocks::unread(&self.tensor),
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
    let ([both, _], [outer, _]) = (dims(&stack.gate_up), dims(&stack.down));
    assert_eq!(
        both * hidden,
        outer * 2 * width,
        "experts: rows of the two matrices"
    );
    for (bias, rows) in [(&stack.gate_up_bias, both), (&stack.down_bias, outer)] {
        let elements = bias.as_ref().map(|bias| bias.meta.num_elements());
        assert!(
            elements.is_none_or(|elements| elements == rows),
            "experts: length of a bias"
        );
    }
    let gated = empty_like(&x, rows * top, width);
    let out = empty_like(&x, rows, hidden);
    let clamp = stack.activation.clamp();
    let (alpha, limit) = clamp.unwrap_or_default();
    let cubes = |elements: usize, ranks: usize| {
        CubeCount::Static(rows as u32, elements.div_ceil(ROWS) as u32, ranks as u32)
    };
    let matrix = Matrix::of(stack.gate_up, &x);
    let has_bias = stack.gate_up_bias.is_some();
    // Without a bias, the argument has to be bound but is never read.
    let bias = stack.gate_up_bias.unwrap_or_else(|| x.clone());
    // SAFETY: there are cubes for each row of `x`, each of its experts and each element of `gated`;
    // units beyond the last element neither read nor write. The caller guarantees that ids are
    // below the number of experts.
    unsafe {
        gated_kernel::launch_unchecked(
            &client,
            cubes(width, top),
            CubeDim::new_2d(LANES as u32, ROWS as u32),
            vector(dtype, hidden),
            matrix.width(),
            x.clone().into_array_arg(),
            matrix.floats(&x).into_array_arg(),
            matrix.words(),
            bias.into_array_arg(),
            ids.clone().into_array_arg(),
            gated.clone().into_array_arg(),
            width as u32,
            alpha,
            limit,
            top,
            matrix.columns,
            matrix.format(),
            has_bias,
            clamp.is_some(),
            dtype.into(),
        );
    }
    let matrix = Matrix::of(stack.down, &gated);
    let has_bias = stack.down_bias.is_some();
    let bias = stack.down_bias.unwrap_or_else(|| x.clone());
    // SAFETY: as above, with the elements of `out`; `gated` has a row for each row and expert.
    unsafe {
        mixed_kernel::launch_unchecked(
            &client,
            cubes(hidden, 1),
            CubeDim::new_2d(LANES as u32, ROWS as u32),
            vector(dtype, width),
            matrix.width(),
            gated.clone().into_array_arg(),
            matrix.floats(&gated).into_array_arg(),
            matrix.words(),
            bias.into_array_arg(),
            ids.into_array_arg(),
            weights.into_array_arg(),
            out.clone().into_array_arg(),
            hidden as u32,
            top,
            matrix.columns,
            matrix.format(),
            has_bias,
            dtype.into(),
        );
    }
    out
}

/// One half of an expert's MLP: the products of `x` `[rows, columns]` with its gates and with its
/// other rows, and their activation `[rows * top, width]`.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments)]
fn gated_kernel<E: Float, N: Size, W: Size>(
    x: &Array<Vector<E, N>>,
    floats: &Array<Vector<E, N>>,
    words: &Buffer<W>,
    bias: &Array<E>,
    ids: &Array<i32>,
    out: &mut Array<E>,
    width: u32,
    alpha: f32,
    limit: f32,
    #[comptime] top: usize,
    #[comptime] columns: usize,
    #[comptime] format: Option<BlockFormat>,
    #[comptime] has_bias: bool,
    #[comptime] clamped: bool,
    #[define(E)] _dtype: StorageType,
) {
    let pair = CUBE_POS_X as usize * top + CUBE_POS_Z as usize;
    let element = CUBE_POS_Y as usize * ROWS + UNIT_POS_Y as usize;
    let width = width as usize;
    let first = ids[pair] as usize * 2 * width + element;
    let row = CUBE_POS_X as usize;
    let table = table_of(comptime!(row_shape(format, columns).format));
    let mut gate = 0.0f32;
    let mut up = 0.0f32;
    if element < width {
        gate = dot::<E, N, W>(x, row, floats, words, &table, first, columns, format);
        up = dot::<E, N, W>(
            x,
            row,
            floats,
            words,
            &table,
            first + width,
            columns,
            format,
        );
    }
    // The gates of all units, and behind them the other products.
    let mut sums = SharedMemory::<f32>::new(comptime!(2 * LANES * ROWS));
    let unit = UNIT_POS as usize;
    sums[unit] = gate;
    sums[comptime!(LANES * ROWS) + unit] = up;
    add_lanes(&mut sums, 2usize);
    if UNIT_POS_X == 0 && element < width {
        gate = sums[unit];
        up = sums[comptime!(LANES * ROWS) + unit];
        if comptime!(has_bias) {
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

/// The second products of a row's experts, added with their weights: `x` `[rows * top, columns]`
/// gives `[rows, hidden]`.
// The outer condition is decided when the kernel is compiled, so it stays apart.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, clippy::collapsible_if)]
fn mixed_kernel<E: Float, N: Size, W: Size>(
    x: &Array<Vector<E, N>>,
    floats: &Array<Vector<E, N>>,
    words: &Buffer<W>,
    bias: &Array<E>,
    ids: &Array<i32>,
    weights: &Array<f32>,
    out: &mut Array<E>,
    hidden: u32,
    #[comptime] top: usize,
    #[comptime] columns: usize,
    #[comptime] format: Option<BlockFormat>,
    #[comptime] has_bias: bool,
    #[define(E)] _dtype: StorageType,
) {
    let row = CUBE_POS_X as usize;
    let element = CUBE_POS_Y as usize * ROWS + UNIT_POS_Y as usize;
    let hidden = hidden as usize;
    let table = table_of(comptime!(row_shape(format, columns).format));
    let mut sum = 0.0f32;
    if element < hidden {
        for rank in 0..top {
            let pair = row * top + rank;
            let from = ids[pair] as usize * hidden + element;
            let mut y = dot::<E, N, W>(x, pair, floats, words, &table, from, columns, format);
            if comptime!(has_bias) {
                if UNIT_POS_X == 0 {
                    y += f32::cast_from(bias[from]);
                }
            }
            sum += y * weights[pair];
        }
    }
    let mut sums = SharedMemory::<f32>::new(comptime!(LANES * ROWS));
    sums[UNIT_POS as usize] = sum;
    add_lanes(&mut sums, 1usize);
    if UNIT_POS_X == 0 && element < hidden {
        out[row * hidden + element] = E::cast_from(sums[UNIT_POS as usize]);
    }
}

/// The rows of a matrix. For floats, they are those of any format without a table, and are not
/// read.
fn row_shape(format: Option<BlockFormat>, columns: usize) -> RowShape {
    let format = format.unwrap_or(BlockFormat::Q8_0);
    RowShape { format, columns }
}

/// A lane's part of the product of row `from` of a matrix with row `row` of `x`. The matrix is
/// `floats` without a `format`, otherwise `words`, whose table is `table`.
#[cube]
#[allow(clippy::too_many_arguments)]
fn dot<E: Float, N: Size, W: Size>(
    x: &Array<Vector<E, N>>,
    row: usize,
    floats: &Array<Vector<E, N>>,
    words: &Buffer<W>,
    table: &SharedMemory<f32>,
    from: usize,
    #[comptime] columns: usize,
    #[comptime] format: Option<BlockFormat>,
) -> f32 {
    let mut sum = 0.0f32;
    if comptime!(format.is_none()) {
        let vector = N::value();
        let vectors = comptime!(columns / vector);
        for i in range_stepped(UNIT_POS_X as usize, vectors, LANES) {
            let w = floats[from * vectors + i];
            let a = x[row * vectors + i];
            #[unroll]
            for n in 0..vector {
                sum += f32::cast_from(w[n]) * f32::cast_from(a[n]);
            }
        }
    } else {
        let shape = comptime!(row_shape(format, columns));
        sum = blocks::dot::<E, N, W>(x, row, words, table, from, shape);
    }
    sum
}
