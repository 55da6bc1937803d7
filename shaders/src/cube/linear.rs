//! `y = x W^T + b` with `W` in the `[out, in]` layout of Hugging Face checkpoints.
//!
//! Multiplications of a few tokens (decoding) are bound by reading `W` once: [`few_tokens`] reads
//! it in vectors along its rows and multiplies each vector with all tokens. Multiplications of many
//! tokens (prefill) are bound by arithmetic and go to tiled kernels ([`product`]), which use matrix
//! units where the device has them.

use burn::tensor::Shape;
use burn_cubecl::CubeRuntime;
use burn_cubecl::ops::numeric::add;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{dims, elementwise, empty_like, product, two_dimensions, vector};
use crate::{Activation, Summation};

/// The most tokens that one cube of the few-token kernel computes: their sums live in registers.
pub const MAX_FEW_TOKENS: usize = 8;
/// Units that share a row of `W`, and rows of units in a cube.
pub const LANES: usize = 32;
pub const ROWS: usize = 8;

/// The last step of a kernel: what it makes of the products with the rows of a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Epilogue {
    /// Each row gives one element.
    None,
    /// A gated MLP: the first half of the rows are gates, the second half the values they are
    /// multiplied with. One half of a cube's units computes gates, the other half values, and each
    /// pair of rows gives one element, with the same bits as two separate kernels.
    Gated(Activation),
}

impl Epilogue {
    /// The activation of the gates, if there are any.
    pub fn activation(self) -> Option<Activation> {
        match self {
            Self::None => None,
            Self::Gated(activation) => Some(activation),
        }
    }

    /// Rows of units in a cube that compute different elements.
    pub fn units(self) -> usize {
        match self {
            Self::None => ROWS,
            Self::Gated(_) => ROWS / 2,
        }
    }

    /// The number of elements that a matrix of `rows` rows gives.
    pub fn elements(self, rows: usize) -> usize {
        match self {
            Self::None => rows,
            Self::Gated(_) => {
                assert!(
                    rows.is_multiple_of(2),
                    "a gated MLP needs an even number of rows, got {rows}"
                );
                rows / 2
            }
        }
    }
}

/// True if so many tokens go to the few-token kernel, which takes up to `most` and is the only one
/// with a fixed order of summation.
pub fn are_few(tokens: usize, most: usize, summation: Summation) -> bool {
    tokens <= most || summation == Summation::Fixed
}

/// [`Kernels::project`](crate::Kernels::project) with a matrix of floats.
pub fn linear<R: CubeRuntime>(
    x: CubeTensor<R>,
    weight: CubeTensor<R>,
    bias: Option<CubeTensor<R>>,
    summation: Summation,
) -> CubeTensor<R> {
    let [tokens, _] = dims(&x);
    if are_few(tokens, MAX_FEW_TOKENS, summation) {
        few_tokens(x, weight, bias, summation, Epilogue::None)
    } else {
        let product = product::product(x, weight);
        match bias {
            Some(bias) => add_bias(product, bias),
            None => product,
        }
    }
}

/// As [`linear`], always by the few-token kernel, and with an `epilogue`.
pub fn few_tokens<R: CubeRuntime>(
    x: CubeTensor<R>,
    weight: CubeTensor<R>,
    bias: Option<CubeTensor<R>>,
    summation: Summation,
    epilogue: Epilogue,
) -> CubeTensor<R> {
    let [tokens, input] = dims(&x);
    let [rows, width] = dims(&weight);
    assert_eq!(
        input, width,
        "linear: x has {input} columns, weight {width}"
    );
    let output = epilogue.elements(rows);
    let out = empty_like(&x, tokens, output);
    let (client, dtype) = (x.client.clone(), x.dtype);
    let group = match summation {
        Summation::Fastest => tokens,
        Summation::Fixed => MAX_FEW_TOKENS,
    };
    let has_bias = bias.is_some();
    // Without a bias, the argument has to be bound but is never read.
    let bias = bias.unwrap_or_else(|| x.clone());
    let count = grid(tokens.div_ceil(group), output, epilogue.units());
    // SAFETY: units whose row of `weight` is beyond the last compute nothing, and neither reads nor
    // writes touch tokens beyond the last. `bias` is read only if there is one.
    unsafe {
        few_tokens_kernel::launch_unchecked(
            &client,
            count,
            CubeDim::new_2d(LANES as u32, ROWS as u32),
            vector(dtype, input),
            x.into_array_arg(),
            weight.into_array_arg(),
            bias.into_array_arg(),
            out.clone().into_array_arg(),
            tokens as u32,
            output as u32,
            group,
            summation == Summation::Fastest,
            input,
            has_bias,
            epilogue,
            dtype.into(),
        );
    }
    out
}

/// Multiplies `group` tokens with [`ROWS`] rows of `weight` per cube, which gives `output` elements
/// per token in total. `full` means that every group has all its tokens.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments)]
fn few_tokens_kernel<E: Float, N: Size>(
    x: &Array<Vector<E, N>>,
    weight: &Array<Vector<E, N>>,
    bias: &Array<E>,
    out: &mut Array<E>,
    tokens: u32,
    output: u32,
    #[comptime] group: usize,
    #[comptime] full: bool,
    #[comptime] input: usize,
    #[comptime] has_bias: bool,
    #[comptime] epilogue: Epilogue,
    #[define(E)] _dtype: StorageType,
) {
    let vector = N::value();
    let vectors = comptime!(input / vector);
    let lane = UNIT_POS_X as usize;
    let first = CUBE_POS_X as usize * group;
    let cube = CUBE_POS_Z * CUBE_COUNT_Y + CUBE_POS_Y;
    let element = first_of(cube as usize, 1usize, epilogue);
    let live = element < output as usize;
    let row = row_of(element, output, epilogue);
    let here = tokens as usize - first;

    let mut sums = Array::<f32>::new(group);
    #[unroll]
    for token in 0..group {
        sums[token] = 0.0f32;
    }
    if live {
        for i in range_stepped(lane, vectors, LANES) {
            let w = weight[row * vectors + i];
            #[unroll]
            for token in 0..group {
                if full || token < here {
                    let a = x[(first + token) * vectors + i];
                    let mut sum = sums[token];
                    #[unroll]
                    for n in 0..vector {
                        sum += f32::cast_from(w[n]) * f32::cast_from(a[n]);
                    }
                    sums[token] = sum;
                }
            }
        }
    }
    finish::<E>(
        &sums, bias, out, element, first, here, output, group, 1usize, full, has_bias, epilogue,
    );
}

/// The first of the `each` elements that a row of units computes.
#[cube]
pub fn first_of(cube: usize, #[comptime] each: usize, #[comptime] epilogue: Epilogue) -> usize {
    let units = comptime!(epilogue.units());
    (cube * units + UNIT_POS_Y as usize % units) * each
}

/// The row of the matrix that a row of units reads for `element`.
#[cube]
pub fn row_of(element: usize, output: u32, #[comptime] epilogue: Epilogue) -> usize {
    let half = UNIT_POS_Y as usize / comptime!(epilogue.units());
    element + half * output as usize
}

/// The grid for so many `groups` of tokens and `elements` per token, with `each` elements in a
/// cube. Groups that read the same rows are neighbours, so that they find them in a cache. Large
/// vocabularies need two dimensions.
pub fn grid(groups: usize, elements: usize, each: usize) -> CubeCount {
    let [across, down] = two_dimensions(elements.div_ceil(each));
    CubeCount::Static(groups as u32, across, down)
}

/// Adds up the lanes' `sums`, `[group, each]`, applies bias and epilogue, and writes the elements
/// from `element` on for the `here` tokens that exist.
#[cube]
#[allow(clippy::too_many_arguments)]
pub fn finish<E: Float>(
    sums: &Array<f32>,
    bias: &Array<E>,
    out: &mut Array<E>,
    element: usize,
    first: usize,
    here: usize,
    output: u32,
    #[comptime] group: usize,
    #[comptime] each: usize,
    #[comptime] full: bool,
    #[comptime] has_bias: bool,
    #[comptime] epilogue: Epilogue,
) {
    let count = comptime!(group * each);
    let mut scratch = SharedMemory::<f32>::new(comptime!(LANES * ROWS * group * each));
    let unit = UNIT_POS as usize;
    #[unroll]
    for sum in 0..count {
        scratch[sum * comptime!(LANES * ROWS) + unit] = sums[sum];
    }
    add_lanes(&mut scratch, count);
    if UNIT_POS_X == 0 && (UNIT_POS_Y as usize) < comptime!(epilogue.units()) {
        #[unroll]
        for token in 0..group {
            if full || token < here {
                #[unroll]
                for next in 0..each {
                    let element = element + next;
                    if element < output as usize {
                        let at = comptime!((token * each + next) * LANES * ROWS) + unit;
                        let sum = biased::<E>(scratch[at], bias, element, has_bias);
                        let to = (first + token) * output as usize + element;
                        if comptime!(epilogue.activation().is_some()) {
                            let up = scratch[at + comptime!(epilogue.units() * LANES)];
                            let up = biased::<E>(up, bias, element + output as usize, has_bias);
                            // Round both to the stored type, as the separate kernels do between
                            // them.
                            let gate = f32::cast_from(E::cast_from(sum));
                            let up = f32::cast_from(E::cast_from(up));
                            let activation = comptime!(epilogue.activation().unwrap_or_default());
                            out[to] = E::cast_from(elementwise::activated(gate, activation) * up);
                        } else {
                            out[to] = E::cast_from(sum);
                        }
                    }
                }
            }
        }
    }
}

/// In each of `count` arrays `[ROWS, LANES]`, one behind the other in `sums`, the first lane of a
/// row gets the sum of all lanes. Begins and ends with a barrier.
#[cube]
pub fn add_lanes(sums: &mut SharedMemory<f32>, #[comptime] count: usize) {
    let (lane, unit) = (UNIT_POS_X as usize, UNIT_POS as usize);
    sync_cube();
    // Halve the number of lanes until one holds the sum.
    let steps = comptime!(LANES.ilog2());
    #[unroll]
    for step in 0..steps {
        let stride = comptime!(LANES >> (step as usize + 1));
        if lane < stride {
            #[unroll]
            for sum in 0..count {
                let at = sum * comptime!(LANES * ROWS) + unit;
                sums[at] = sums[at] + sums[at + stride];
            }
        }
        sync_cube();
    }
}

#[cube]
fn biased<E: Float>(sum: f32, bias: &Array<E>, row: usize, #[comptime] has_bias: bool) -> f32 {
    let mut sum = sum;
    if comptime!(has_bias) {
        sum += f32::cast_from(bias[row]);
    }
    sum
}

/// Adds `bias` `[out]` to each row of `product` `[tokens, out]`.
pub fn add_bias<R: CubeRuntime>(product: CubeTensor<R>, mut bias: CubeTensor<R>) -> CubeTensor<R> {
    let output = bias.meta.num_elements();
    let shape = Shape::from([1, output]);
    bias = CubeTensor::new_contiguous(bias.client, bias.device, shape, bias.handle, bias.dtype);
    add(product, bias)
}
