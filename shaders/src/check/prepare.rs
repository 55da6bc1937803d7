//! Prepares a case: the inputs on the device, the call, and the expected outputs.

mod blocks;
mod experts;
mod low_rank;
mod pool;
mod products;
mod rows;
mod sequences;

use burn::tensor::ops::{FloatTensor, IntTensor};
use burn::tensor::{DType, TensorData};

#[cfg(test)]
pub use blocks::random_blocks;
pub use experts::{ExpertRows, RandomExperts};
pub use low_rank::{RandomStack, random_slots};
pub use pool::Pool;

use super::sampling::{acceptable_tokens, logits, random_params};
use super::{Case, NormWeight, PoolKind, Precision, Random, reference};
use crate::{BlockFormat, Kernels};

/// The epsilon of norms.
pub const EPS: f32 = 1e-3;
/// The factor of what is added to the residual.
pub const RESIDUAL_SCALE: f32 = 0.4;
/// The factor of scores, relative to the usual `1 / sqrt(head_dim)`.
pub const SCORE_SCALE: f32 = 0.8;
/// The factor of logits, and the bounds of logits and scores. The bounds are low enough for random
/// values to exceed them.
pub const LOGIT_SCALE: f32 = 1.7;
pub const CAP: f32 = 1.5;

pub enum Output<B: Kernels> {
    Float(FloatTensor<B>),
    Int(IntTensor<B>),
    Pool(Pool<B>),
}

/// The least work of a case: the bytes that have to be moved, and the floating-point operations.
#[derive(Debug, Clone, Copy, Default)]
pub struct Work {
    pub bytes: u64,
    pub flops: u64,
}

/// The expected elements of an output.
pub enum Expected {
    /// The expected values; NaN where nothing may be written.
    Values(Vec<f64>),
    /// As `Values`, and the size of what each value is a product or a sum of. The error of a factor
    /// is multiplied by the other factor, and terms that cancel each other keep their errors, so
    /// rounding alone can change a value by far more than a fraction of itself.
    Composed { values: Vec<f64>, sizes: Vec<f64> },
    /// As `Values`, but each row of `width` values may be rounded to 255 steps.
    Rounded { values: Vec<f64>, width: usize },
    /// The acceptable values of each element: one, or several where rounding decides.
    OneOf(Vec<Vec<i32>>),
}

impl Expected {
    /// The expected values beside the values that a kernel returned.
    pub fn beside(&self, got: &[f32]) -> Vec<f64> {
        match self {
            Self::Values(values) | Self::Composed { values, .. } => values.clone(),
            Self::Rounded { values, width } => {
                let got = got.iter().copied().chain(std::iter::repeat(f32::NAN));
                let steps = values.chunks(*width).flat_map(|row| {
                    let largest = row.iter().copied().fold(0.0, |most, x| x.abs().max(most));
                    std::iter::repeat_n(largest / 127.0, row.len())
                });
                // Half a step for the rounding, and a little for the values before it.
                let near = |((want, step), got): ((&f64, f64), f32)| {
                    let got = f64::from(got);
                    match (got - want).abs() <= 0.51 * step {
                        true => got,
                        false => *want,
                    }
                };
                values.iter().zip(steps).zip(got).map(near).collect()
            }
            Self::OneOf(rows) => {
                let got = got.iter().copied().chain(std::iter::repeat(f32::NAN));
                let nearest = |(right, got): (&Vec<i32>, f32)| {
                    let right = || right.iter().map(|right| f64::from(*right));
                    let same = right().find(|right| *right == f64::from(got));
                    same.or(right().next()).unwrap_or(f64::NAN)
                };
                rows.iter().zip(got).map(nearest).collect()
            }
        }
    }

    /// The sizes of [`Composed`](Self::Composed), one for each value. The error of a value is
    /// relative to its size where that is larger than the value. Other outputs have none.
    pub fn sizes(&self) -> Option<&[f64]> {
        match self {
            Self::Composed { sizes, .. } => Some(sizes),
            _ => None,
        }
    }

    /// The tolerance for this output. Where [`beside`](Self::beside) accepts what is right, there is
    /// none.
    pub fn tolerance(&self, tolerance: f64) -> f64 {
        match self {
            Self::Values(_) | Self::Composed { .. } => tolerance,
            Self::OneOf(_) | Self::Rounded { .. } => 0.0,
        }
    }
}

type Named = (&'static str, Expected);

pub struct Prepared<B: Kernels> {
    pub launch: Box<dyn FnMut() -> Vec<Output<B>>>,
    /// The expected outputs with their names, in the order of the outputs.
    pub want: Box<dyn Fn() -> Vec<Named>>,
    pub work: Work,
}

pub fn float<B: Kernels>(
    values: &[f32],
    shape: &[usize],
    dtype: DType,
    device: &B::Device,
) -> FloatTensor<B> {
    let data = TensorData::new(values.to_vec(), shape.to_vec()).convert_dtype(dtype);
    B::float_from_data(data, device)
}

/// A random matrix `[rows, columns]` in blocks of integers: its values, and the matrix on the
/// device.
pub fn packed<B: Kernels>(
    format: BlockFormat,
    [rows, columns]: [usize; 2],
    activations: DType,
    random: &mut Random,
    device: &B::Device,
) -> (Vec<f32>, FloatTensor<B>) {
    let (values, matrix) = blocks::blocks(format, rows, columns, random);
    (values, B::packed(matrix, activations, device))
}

fn exact(values: &[f32]) -> Vec<f64> {
    values.iter().map(|value| f64::from(*value)).collect()
}

/// The type of the weights of a norm.
pub fn norm_dtype(weight: NormWeight, precision: Precision) -> DType {
    match weight {
        NormWeight::Same => precision.activations,
        NormWeight::Wide => DType::F32,
    }
}

/// Makes the values and tensors of one case.
struct Maker<'a, B: Kernels> {
    precision: Precision,
    random: &'a mut Random,
    device: &'a B::Device,
}

impl<B: Kernels> Maker<'_, B> {
    /// A random matrix of weights, in blocks of integers if a `format` is given.
    fn matrix(
        &mut self,
        format: Option<BlockFormat>,
        rows: usize,
        columns: usize,
    ) -> (Vec<f32>, FloatTensor<B>) {
        let (stored, activations) = (self.precision.stored, self.precision.activations);
        match format {
            None => self.make(&[rows, columns], stored),
            Some(format) => packed::<B>(
                format,
                [rows, columns],
                activations,
                self.random,
                self.device,
            ),
        }
    }

    /// Bytes of such a matrix on the device.
    fn matrix_bytes(&self, format: Option<BlockFormat>, rows: usize, columns: usize) -> u64 {
        let (stored, _) = self.precision.sizes();
        match format {
            None => (rows * columns) as u64 * stored,
            Some(format) => B::packed_bytes(format, rows, columns) as u64,
        }
    }

    fn activations(&mut self, shape: &[usize]) -> (Vec<f32>, FloatTensor<B>) {
        self.make(shape, self.precision.activations)
    }

    /// The weights of a norm.
    fn norm(&mut self, weight: NormWeight, size: usize) -> (Vec<f32>, FloatTensor<B>) {
        self.make(&[size], norm_dtype(weight, self.precision))
    }

    fn make(&mut self, shape: &[usize], dtype: DType) -> (Vec<f32>, FloatTensor<B>) {
        let values = self.random.normal_as(dtype, shape.iter().product());
        let tensor = float::<B>(&values, shape, dtype, self.device);
        (values, tensor)
    }
}

/// Makes random values for `case` and puts them on `device`.
pub fn prepare<B: Kernels>(
    case: &Case,
    precision: Precision,
    random: &mut Random,
    device: &B::Device,
) -> Prepared<B> {
    let maker = Maker::<B> {
        precision,
        random,
        device,
    };
    match case.clone() {
        Case::Linear {
            tokens,
            input,
            output,
            bias,
            gated,
            summation,
        } => products::linear(maker, None, [tokens, input, output], bias, gated, summation),
        Case::Embed {
            tokens,
            vocab,
            hidden,
        } => products::embed(maker, None, [tokens, vocab, hidden]),
        Case::PackedLinear {
            format,
            tokens,
            input,
            output,
            bias,
            gated,
            summation,
        } => products::linear(
            maker,
            Some(format),
            [tokens, input, output],
            bias,
            gated,
            summation,
        ),
        Case::PackedEmbed {
            format,
            tokens,
            vocab,
            hidden,
        } => products::embed(maker, Some(format), [tokens, vocab, hidden]),
        Case::LowRank {
            tokens,
            input,
            slices,
            rank,
        } => low_rank::low_rank(maker, [tokens, input, rank], slices),
        Case::ChooseExperts {
            tokens,
            experts,
            routing,
        } => experts::choose(maker, [tokens, experts], routing),
        Case::MixExperts { tokens, sizes } => experts::mix(maker, tokens, sizes),
        Case::RmsNorm {
            tokens,
            hidden,
            weight,
        } => rows::rms_norm(maker, [tokens, hidden], weight),
        Case::AddRmsNorm {
            tokens,
            hidden,
            weight,
        } => rows::add_rms_norm(maker, [tokens, hidden], weight),
        Case::NormProjections {
            tokens,
            layout,
            weight,
        } => rows::norm_projections(maker, tokens, layout, weight),
        Case::Gate {
            tokens,
            inner,
            activation,
        } => rows::gate(maker, [tokens, inner], activation),
        Case::ScaleAndCap {
            rows,
            vocab,
            capped,
        } => rows::scale_and_cap(maker, [rows, vocab], capped),
        Case::RopeAndStore {
            tokens,
            layout,
            rotary_dim,
            qk_norm,
            pool,
        } => sequences::rope_and_store(maker, tokens, layout, rotary_dim, qk_norm, pool),
        Case::Attention {
            sequences,
            layout,
            window,
            capped,
            sinks,
            summation,
            pool,
        } => sequences::attention(
            maker,
            &sequences,
            layout,
            window,
            [capped, sinks],
            summation,
            pool,
        ),
        Case::Sample { rows, vocab } => sample(maker, [rows, vocab]),
    }
}

fn sample<B: Kernels>(make: Maker<B>, [rows, vocab]: [usize; 2]) -> Prepared<B> {
    let dtype = make.precision.activations;
    let (mut all, mut params) = (Vec::new(), Vec::new());
    for _ in 0..rows {
        params.push(random_params(vocab, make.random));
        all.extend(logits(vocab, dtype, make.random));
    }
    let logits_on = float::<B>(&all, &[rows, vocab], dtype, make.device);
    let plan = crate::sample_plan::<B>(&params, vocab, make.device);
    let (_, activation) = make.precision.sizes();
    Prepared {
        launch: Box::new(move || vec![Output::Int(B::sample(logits_on.clone(), plan.clone()))]),
        want: Box::new(move || {
            let rows = all.chunks_exact(vocab).zip(&params);
            let acceptable = rows.map(|(row, params)| acceptable_tokens(row, params));
            vec![("token", Expected::OneOf(acceptable.collect()))]
        }),
        work: Work {
            bytes: (rows * vocab) as u64 * activation,
            flops: 0,
        },
    }
}
