//! Matrices in GGML's blocks (`Q8_0`, `Q4_0`) on a device.
//!
//! A matrix is one buffer of 32-bit words, because not every device has bytes or 16-bit floats. The
//! f16 scales come first, two to a word; each row's scales begin at a word. The elements follow row
//! by row, in their order from the low bits up, with 128 or 8 added so that they are not negative.
//!
//! Weights are dequantised in registers, and activations are not rounded (the CPU rounds them to 8
//! bits). Multiplications of a few tokens ([`kernels::product`], built like the kernel for floats)
//! are bound by reading the words once. Multiplications of many tokens (prefill) are bound by
//! arithmetic, and matrix units take floats only. For these, the matrix is dequantised for the
//! duration of the call, at most [`MOST_COPIED`] bytes at a time, and multiplied as a matrix of
//! floats. Writing and reading this copy takes about eight times as long as reading the words, so
//! it pays only where the words would be read several times.

mod kernels;

use burn::tensor::quantization::{QuantLevel, QuantParam, QuantScheme, QuantStore, QuantValue};
use burn::tensor::{DType, Shape};
use burn_cubecl::CubeRuntime;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use rayon::prelude::*;

use super::linear::{self, Epilogue, LANES, MAX_FEW_TOKENS, are_few};
use super::{dims, empty_like, product};
use crate::cpu::View;
use crate::{BLOCK, BlockFormat, BlockMatrix, Summation};

/// Up to so many tokens are multiplied with the words directly, [`MAX_FEW_TOKENS`] at a time.
pub const MAX_GROUPED_TOKENS: usize = 32;
/// The most bytes of a matrix that are dequantised at a time.
pub const MOST_COPIED: u64 = 256 << 20;
/// The first dimension of a large grid. A dimension is limited to 65,535 cubes.
const MOST_IN_A_GRID_ROW: usize = 32_768;
/// The words of the scales are padded to a multiple of this, so that elements can be read in
/// vectors.
const ALIGNMENT: usize = 4;

/// A matrix in blocks. As a tensor it has the shape `[rows, columns]` and a quantised type, in
/// which the type of the scales stands for the type of the activations.
pub struct Packed<R: CubeRuntime> {
    /// One dimension of u32 words.
    buffer: CubeTensor<R>,
    rows: usize,
    columns: usize,
    bits: usize,
    activations: DType,
}

/// True if the kernels of this module support a matrix whose parts are in `formats`.
pub fn packs(formats: &[BlockFormat]) -> bool {
    let first = formats.first().copied();
    first
        .is_some_and(|first| bits(first).is_some() && formats.iter().all(|format| *format == first))
}

/// Bits of an element; `None` if the kernels do not support the format.
fn bits(format: BlockFormat) -> Option<usize> {
    match format {
        BlockFormat::Q8_0 => Some(8),
        BlockFormat::Q4_0 => Some(4),
        _ => None,
    }
}

/// Bytes of a matrix on the device.
pub fn bytes(format: BlockFormat, rows: usize, columns: usize) -> usize {
    let (_, elements) = words_of_row(columns, bits(format).unwrap_or(0));
    (words_of_scales(rows, columns) + rows * elements) * size_of::<u32>()
}

/// Copies `matrix` to `device`.
pub fn upload<R: CubeRuntime>(
    matrix: BlockMatrix,
    activations: DType,
    device: &R::Device,
) -> CubeTensor<R> {
    let bytes = matrix.into_bytes();
    let view = View::of(&bytes);
    let (value, bits) = match view.format {
        BlockFormat::Q8_0 => (QuantValue::Q8F, 8),
        BlockFormat::Q4_0 => (QuantValue::Q4F, 4),
        other => unreachable!("the backend does not pack {other:?}"),
    };
    let param = match activations {
        DType::F32 => QuantParam::F32,
        DType::F16 => QuantParam::F16,
        DType::BF16 => QuantParam::BF16,
        other => panic!("GPU kernels take f32, f16 and bf16, not {other:?}"),
    };
    let scheme = QuantScheme::default()
        .with_value(value)
        .with_param(param)
        .with_level(QuantLevel::block([BLOCK as u8]))
        .with_store(QuantStore::PackedU32(0));
    let words = words(view, bits);
    let client = R::client(device);
    let handle = client.create_from_slice(bytemuck::cast_slice(&words));
    let shape = Shape::from([view.rows, view.columns]);
    CubeTensor::new_contiguous(client, device.clone(), shape, handle, DType::QFloat(scheme))
}

/// The numbers of words of a row's scales and of its elements.
fn words_of_row(columns: usize, bits: usize) -> (usize, usize) {
    let blocks = columns.div_ceil(BLOCK);
    (blocks.div_ceil(2), blocks * bits)
}

/// The number of words before the first element.
fn words_of_scales(rows: usize, columns: usize) -> usize {
    let (scales, _) = words_of_row(columns, 0);
    (rows * scales).next_multiple_of(ALIGNMENT)
}

/// Rearranges a matrix as it is packed for the CPU to the words of the device.
fn words(view: View<'_>, bits: usize) -> Vec<u32> {
    let (scales, elements) = words_of_row(view.columns, bits);
    let before = words_of_scales(view.rows, view.columns);
    let mut words = vec![0u32; before + view.rows * elements];
    let (all_scales, all_elements) = words.split_at_mut(before);
    let rows = all_elements
        .par_chunks_mut(elements)
        .zip(all_scales.par_chunks_mut(scales));
    rows.enumerate().for_each(|(row, (elements, scales))| {
        for (index, to) in elements.chunks_exact_mut(bits).enumerate() {
            let (scale, block) = view.block(row, index);
            scales[index / 2] |= u32::from(scale.to_bits()) << (index % 2 * 16);
            let per_word = block.chunks_exact(u32::BITS as usize / bits);
            for (word, elements) in to.iter_mut().zip(per_word) {
                for (place, element) in elements.iter().enumerate() {
                    *word |= u32::from(*element) << (place * bits);
                }
            }
        }
    });
    words
}

impl<R: CubeRuntime> Packed<R> {
    /// The matrix behind a tensor; `None` if it is a matrix of floats.
    pub fn of(matrix: &CubeTensor<R>) -> Option<Self> {
        let DType::QFloat(scheme) = matrix.dtype else {
            return None;
        };
        let [rows, columns] = dims(matrix);
        let bits = match scheme.value {
            QuantValue::Q8F => 8,
            QuantValue::Q4F => 4,
            other => panic!("GPU kernels have no blocks of {other:?}"),
        };
        let activations = match scheme.param {
            QuantParam::F32 => DType::F32,
            QuantParam::F16 => DType::F16,
            QuantParam::BF16 => DType::BF16,
            other => panic!("GPU kernels have no activations in {other:?}"),
        };
        let (_, elements) = words_of_row(columns, bits);
        let words = words_of_scales(rows, columns) + rows * elements;
        let buffer = CubeTensor::new_contiguous(
            matrix.client.clone(),
            matrix.device.clone(),
            Shape::from([words]),
            matrix.handle.clone(),
            DType::U32,
        );
        Some(Self {
            buffer,
            rows,
            columns,
            bits,
            activations,
        })
    }

    /// Words of [`kernels::UNIT`] elements, which a unit reads at once.
    fn width(&self) -> usize {
        kernels::UNIT * self.bits / u32::BITS as usize
    }

    /// Where the elements begin, in multiples of [`Self::width`] words.
    fn first(&self) -> u32 {
        (words_of_scales(self.rows, self.columns) / self.width()) as u32
    }

    /// Elements of activations in 16 bytes, or fewer where the length of the rows requires it.
    fn vector(&self) -> usize {
        let widest = if self.activations == DType::F32 { 4 } else { 8 };
        [widest, 4, 2, 1]
            .into_iter()
            .find(|n| self.columns.is_multiple_of(*n))
            .unwrap_or(1)
    }

    /// The rows `ids` `[tokens]`, dequantised: `[tokens, columns]`.
    pub fn embed(self, ids: CubeTensor<R>) -> CubeTensor<R> {
        let tokens = ids.meta.shape()[0];
        self.dequantised(0, tokens, Some(ids))
    }

    /// The rows `ids`, or without `ids` the `rows` rows from `from` on, dequantised.
    fn dequantised(&self, from: usize, rows: usize, ids: Option<CubeTensor<R>>) -> CubeTensor<R> {
        let (client, device) = (self.buffer.client.clone(), self.buffer.device.clone());
        let shape = Shape::from([rows, self.columns]);
        let out = empty_device_contiguous_dtype(client.clone(), device, shape, self.activations);
        let named = ids.is_some();
        // Without ids, the argument has to be bound but is never read.
        let ids = ids.unwrap_or_else(|| self.buffer.clone());
        let across = rows.min(MOST_IN_A_GRID_ROW);
        // SAFETY: `ids` are token ids, which the caller has checked to be below the number of rows;
        // `from + rows` is at most the number of rows. Cubes beyond the last row write nothing.
        unsafe {
            kernels::rows::launch_unchecked(
                &client,
                CubeCount::Static(across as u32, rows.div_ceil(across) as u32, 1),
                CubeDim::new_1d(kernels::THREADS as u32),
                self.vector(),
                self.width(),
                self.buffer.clone().into_array_arg(),
                self.buffer.clone().into_array_arg(),
                ids.into_array_arg(),
                out.clone().into_array_arg(),
                rows as u32,
                self.first(),
                from as u32,
                self.columns,
                self.bits,
                named,
                self.activations.into(),
            );
        }
        out
    }

    /// As [`linear::linear`]. `beside` concatenates matrices along their columns.
    pub fn linear(
        self,
        x: CubeTensor<R>,
        bias: Option<CubeTensor<R>>,
        summation: Summation,
        beside: impl Fn(Vec<CubeTensor<R>>) -> CubeTensor<R>,
    ) -> CubeTensor<R> {
        let ([tokens, _], columns) = (dims(&x), self.columns);
        if are_few(tokens, MAX_GROUPED_TOKENS, summation) {
            return self.few_tokens(x, bias, summation, Epilogue::None);
        }
        let largest = MOST_COPIED.min(x.client.properties().memory.max_page_size);
        let at_once = (largest as usize / (columns * x.dtype.size())).max(1);
        let mut parts = self.copied_products(x, at_once);
        let product = match parts.len() {
            1 => parts.remove(0),
            _ => beside(parts),
        };
        match bias {
            Some(bias) => linear::add_bias(product, bias),
            None => product,
        }
    }

    /// The products with the rows in parts of `at_once` rows. Each part is dequantised only while
    /// it is multiplied.
    fn copied_products(&self, x: CubeTensor<R>, at_once: usize) -> Vec<CubeTensor<R>> {
        let parts = (0..self.rows).step_by(at_once);
        let product = |from: usize| {
            let copy = self.dequantised(from, at_once.min(self.rows - from), None);
            product::product(x.clone(), copy)
        };
        parts.map(product).collect()
    }

    /// As [`linear::few_tokens`].
    pub fn few_tokens(
        self,
        x: CubeTensor<R>,
        bias: Option<CubeTensor<R>>,
        summation: Summation,
        epilogue: Epilogue,
    ) -> CubeTensor<R> {
        let [tokens, input] = dims(&x);
        let columns = self.columns;
        assert_eq!(
            input, columns,
            "linear: x has {input} columns, weight {columns}"
        );
        let output = epilogue.elements(self.rows);
        let out = empty_like(&x, tokens, output);
        let (client, dtype) = (x.client.clone(), x.dtype);
        let full = summation == Summation::Fastest && tokens <= MAX_FEW_TOKENS;
        let group = if full { tokens } else { MAX_FEW_TOKENS };
        let has_bias = bias.is_some();
        // Without a bias, the argument has to be bound but is never read.
        let bias = bias.unwrap_or_else(|| x.clone());
        // SAFETY: row indices are clamped to the last row when reading; elements and tokens beyond
        // the last are not written. `bias` is read only if there is one.
        unsafe {
            kernels::product::launch_unchecked(
                &client,
                linear::grid(
                    tokens.div_ceil(group),
                    output,
                    epilogue.units() * kernels::EACH,
                ),
                CubeDim::new_2d(LANES as u32, linear::ROWS as u32),
                self.vector(),
                self.width(),
                x.into_array_arg(),
                self.buffer.clone().into_array_arg(),
                self.buffer.clone().into_array_arg(),
                bias.into_array_arg(),
                out.clone().into_array_arg(),
                tokens as u32,
                output as u32,
                self.first(),
                group,
                full,
                kernels::ahead(group),
                input,
                self.bits,
                has_bias,
                epilogue,
                dtype.into(),
            );
        }
        out
    }
}

#[cfg(test)]
mod tests;
