//! Matrices in GGML's blocks on a device.
//!
//! A matrix is one buffer of 32-bit words ([`words`]), because not every device has bytes or 16-bit
//! floats. A stack of matrices in several formats, like the projections of a `Q4_K_M` file, has its
//! parts one after another in the buffer; each part is multiplied alone, and the products are
//! put beside each other.
//!
//! Weights are dequantised in registers, and activations are not rounded (the CPU rounds them to 8
//! bits). Multiplications of a few tokens ([`kernels::product`], built like the kernel for floats)
//! are bound by reading the words once. Multiplications of many tokens (prefill) are bound by
//! arithmetic, and matrix units take floats only. For these, the matrix is dequantised for the
//! duration of the call, at most [`MOST_COPIED`] bytes at a time, and multiplied as a matrix of
//! floats. Writing and reading this copy takes about eight times as long as reading the words, so
//! it pays only where the words would be read several times.

mod elements;
mod kernels;
mod stack;
mod words;

use burn::tensor::{DType, Shape};
use burn_cubecl::CubeRuntime;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::linear::{self, Epilogue, LANES, MAX_FEW_TOKENS, are_few};
use super::{dims, empty_like, product, two_dimensions, vector};
use crate::cpu::View;
use crate::{Activation, BlockFormat, BlockMatrix, Summation};
pub use elements::{Buffer, BufferLaunch, RowShape, table_of};
pub use kernels::dot;
use words::Places;

/// Up to so many tokens are multiplied with the words directly, [`MAX_FEW_TOKENS`] at a time.
pub const MAX_GROUPED_TOKENS: usize = 32;
/// The most bytes of a matrix that are dequantised at a time.
pub const MOST_COPIED: u64 = 256 << 20;

/// A matrix in blocks, of one part or several. As a tensor it has the shape `[rows, columns]` and a
/// type that [`stack`] makes.
pub struct Packed<R: CubeRuntime> {
    parts: Vec<Part<R>>,
}

/// Rows in one format, one below another.
pub struct Part<R: CubeRuntime> {
    /// The whole matrix: one dimension of u32 words.
    buffer: CubeTensor<R>,
    format: BlockFormat,
    rows: usize,
    columns: usize,
    /// The first word in the buffer.
    begin: usize,
    activations: DType,
}

/// True if the kernels of this module support a matrix whose parts are in `formats`.
pub fn packs(formats: &[BlockFormat]) -> bool {
    !formats.is_empty() && !formats.contains(&BlockFormat::Bf16)
}

/// Bytes of a matrix on the device.
pub fn bytes(format: BlockFormat, rows: usize, columns: usize) -> usize {
    Places::of(format, rows, columns).words * size_of::<u32>()
}

/// Copies `matrix` to `device`.
///
/// # Panics
/// The matrix has 2^32 words or more: kernels count them in 32 bits.
pub fn upload<R: CubeRuntime>(
    matrix: BlockMatrix,
    activations: DType,
    device: &R::Device,
) -> CubeTensor<R> {
    let bytes = matrix.into_bytes();
    let (mut parts, mut words) = (Vec::new(), Vec::new());
    let mut shape = [0, 0];
    for view in View::parts(&bytes) {
        let places = Places::of(view.format, view.rows, view.columns);
        let begin = words.len();
        words.resize(begin + places.words, 0);
        words::write(view, &mut words[begin..]);
        parts.push((view.format, view.rows));
        shape = [shape[0] + view.rows, view.columns];
    }
    let count = words.len();
    assert!(u32::try_from(count).is_ok(), "a matrix has {count} words");
    let client = R::client(device);
    let handle = client.create_from_slice(bytemuck::cast_slice(&words));
    let dtype = stack::dtype(&parts, activations);
    CubeTensor::new_contiguous(client, device.clone(), Shape::from(shape), handle, dtype)
}

/// An argument in place of words that the kernel does not read: `any` memory.
pub fn unread<W: Size, R: CubeRuntime>(any: &CubeTensor<R>) -> BufferLaunch<W, R> {
    let bound = || any.clone().into_array_arg();
    BufferLaunch::new(bound(), bound(), 0, 0, 0)
}

impl<R: CubeRuntime> Packed<R> {
    /// The matrix behind a tensor; `None` if it is a matrix of floats.
    pub fn of(matrix: &CubeTensor<R>) -> Option<Self> {
        let (formats, activations) = stack::parts(matrix.dtype)?;
        let [_, columns] = dims(matrix);
        let words = |(format, rows): &(BlockFormat, usize)| Places::of(*format, *rows, columns);
        let all = formats.iter().map(|part| words(part).words).sum::<usize>();
        let buffer = CubeTensor::new_contiguous(
            matrix.client.clone(),
            matrix.device.clone(),
            Shape::from([all]),
            matrix.handle.clone(),
            DType::U32,
        );
        let mut begin = 0;
        let parts = formats.iter().map(|part| {
            let (format, rows) = *part;
            let here = Part {
                buffer: buffer.clone(),
                format,
                rows,
                columns,
                begin,
                activations,
            };
            begin += words(part).words;
            here
        });
        let parts = parts.collect();
        Some(Self { parts })
    }

    /// The only part; `None` if there are several.
    pub fn whole(&self) -> Option<&Part<R>> {
        match self.parts.as_slice() {
            [part] => Some(part),
            _ => None,
        }
    }

    /// The rows `ids` `[tokens]`, dequantised: `[tokens, columns]`.
    ///
    /// # Panics
    /// The matrix has several parts.
    pub fn embed(self, ids: CubeTensor<R>) -> CubeTensor<R> {
        let tokens = ids.meta.shape()[0];
        let part = self.whole().expect("a table is in one format");
        part.dequantised(0, tokens, Some(ids))
    }

    /// As [`linear::linear`]. `beside` concatenates matrices along their columns.
    pub fn linear(
        self,
        x: CubeTensor<R>,
        bias: Option<CubeTensor<R>>,
        summation: Summation,
        beside: impl Fn(Vec<CubeTensor<R>>) -> CubeTensor<R>,
    ) -> CubeTensor<R> {
        let [tokens, _] = dims(&x);
        let few = are_few(tokens, MAX_GROUPED_TOKENS, summation);
        if few && let Some(part) = self.whole() {
            return part.few_tokens(x, bias, summation, Epilogue::None);
        }
        let mut products = Vec::new();
        for part in &self.parts {
            if few {
                products.push(part.few_tokens(x.clone(), None, summation, Epilogue::None));
            } else {
                let largest = MOST_COPIED.min(x.client.properties().memory.max_page_size);
                let at_once = (largest as usize / (part.columns * x.dtype.size())).max(1);
                products.extend(part.copied_products(&x, at_once));
            }
        }
        let product = match products.len() {
            1 => products.remove(0),
            _ => beside(products),
        };
        match bias {
            Some(bias) => linear::add_bias(product, bias),
            None => product,
        }
    }

    /// [`linear::few_tokens`] with an epilogue; `None` for a matrix of several parts, whose gates
    /// and values are computed by different kernels.
    pub fn gated(
        &self,
        x: CubeTensor<R>,
        bias: Option<CubeTensor<R>>,
        summation: Summation,
        activation: Activation,
    ) -> Option<CubeTensor<R>> {
        let part = self.whole()?;
        Some(part.few_tokens(x, bias, summation, Epilogue::Gated(activation)))
    }
}

impl<R: CubeRuntime> Part<R> {
    /// The rows, as kernels are compiled for them.
    pub fn shape(&self) -> RowShape {
        RowShape {
            format: self.format,
            columns: self.columns,
        }
    }

    /// The words, as an argument of kernels that read vectors of [`RowShape::width`] words.
    pub fn buffer<W: Size>(&self) -> BufferLaunch<W, R> {
        let [scales, low, high] = Places::of(self.format, self.rows, self.columns)
            .begin
            .map(|begin| self.begin + begin);
        // `upload` has checked that these numbers fit into 32 bits.
        BufferLaunch::new(
            self.buffer.clone().into_array_arg(),
            self.buffer.clone().into_array_arg(),
            scales as u32,
            (low / self.shape().width()) as u32,
            high as u32,
        )
    }

    /// The rows `ids`, or without `ids` the `rows` rows from `from` on, dequantised.
    fn dequantised(&self, from: usize, rows: usize, ids: Option<CubeTensor<R>>) -> CubeTensor<R> {
        let (client, device) = (self.buffer.client.clone(), self.buffer.device.clone());
        let shape = Shape::from([rows, self.columns]);
        let out = empty_device_contiguous_dtype(client.clone(), device, shape, self.activations);
        let named = ids.is_some();
        // Without ids, the argument has to be bound but is never read.
        let ids = ids.unwrap_or_else(|| self.buffer.clone());
        let [across, down] = two_dimensions(rows);
        // SAFETY: `ids` are token ids, which the caller has checked to be below the number of rows;
        // `from + rows` is at most the number of rows. Cubes beyond the last row write nothing.
        unsafe {
            kernels::rows::launch_unchecked(
                &client,
                CubeCount::Static(across, down, 1),
                CubeDim::new_1d(kernels::THREADS as u32),
                vector(self.activations, self.columns),
                self.shape().width(),
                self.buffer(),
                ids.into_array_arg(),
                out.clone().into_array_arg(),
                rows as u32,
                from as u32,
                self.shape(),
                named,
                self.activations.into(),
            );
        }
        out
    }

    /// The products with the rows in parts of `at_once` rows. Each part is dequantised only while
    /// it is multiplied.
    fn copied_products(&self, x: &CubeTensor<R>, at_once: usize) -> Vec<CubeTensor<R>> {
        let parts = (0..self.rows).step_by(at_once);
        let product = |from: usize| {
            let copy = self.dequantised(from, at_once.min(self.rows - from), None);
            product::product(x.clone(), copy)
        };
        parts.map(product).collect()
    }

    /// As [`linear::few_tokens`].
    fn few_tokens(
        &self,
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
                vector(dtype, columns),
                self.shape().width(),
                x.into_array_arg(),
                self.buffer(),
                bias.into_array_arg(),
                out.clone().into_array_arg(),
                tokens as u32,
                output as u32,
                group,
                full,
                kernels::ahead(group),
                self.shape(),
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
