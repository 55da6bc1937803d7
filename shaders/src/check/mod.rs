//! Checks every kernel against a plain reference in f64, on random inputs. The memory that the
//! kernel will write to is filled with NaN first, so that elements it does not write are noticed.
//! The tests, `hearth doctor` and the check of a device before serving use this.

mod case;
mod prepare;
mod random;
pub mod reference;
mod same_bits;
mod sampling;
mod speed;

pub use case::{
    CASES_PER_SHAPE, Case, ExpertsShape, Kernel, ModelShape, NormWeight, PoolKind, QkNormShape,
};
pub use random::Random;
pub use same_bits::{Differs, same_bits};
pub use sampling::acceptable_tokens;
pub use speed::{Speed, measure};

use burn::tensor::DType;
use cubecl::future::block_on;

use crate::Kernels;
#[cfg(test)]
pub(crate) use prepare::random_blocks;
use prepare::{Expected, Output, Prepared, prepare};
use reference::root_mean_square;

/// The types that a backend is checked with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Precision {
    /// The type of matrices and KV pools.
    pub stored: DType,
    /// The type of activations, norms and biases: f32 on the CPU, the same as `stored` on GPUs.
    pub activations: DType,
}

impl Precision {
    /// One type for everything, as on GPUs.
    pub fn uniform(dtype: DType) -> Self {
        Self {
            stored: dtype,
            activations: dtype,
        }
    }

    /// Activations in f32 whatever the type of the weights, as on the CPU.
    pub fn on_cpu(stored: DType) -> Self {
        Self {
            stored,
            activations: DType::F32,
        }
    }

    /// Bytes of an element of each.
    fn sizes(self) -> (u64, u64) {
        (self.stored.size() as u64, self.activations.size() as u64)
    }

    /// The largest relative error that rounding can cause.
    pub fn tolerance(self) -> f64 {
        match self.stored {
            DType::F16 => 4e-3,
            DType::BF16 => 2e-2,
            _ => 3e-5,
        }
    }

    /// A relative error that rounding cannot cause.
    pub fn wrong(self) -> f64 {
        match self.stored {
            DType::F32 => 1e-2,
            _ => 6e-2,
        }
    }
}

/// A value that a kernel computed wrongly.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{case:?} in {precision:?}: {what}[{index}] is {got}, not {want}")]
pub struct Mismatch {
    pub case: Case,
    pub precision: Precision,
    pub what: &'static str,
    pub index: usize,
    pub got: f32,
    pub want: f64,
}

/// Runs `case` and returns the largest error. An error is relative to the largest of: the expected
/// value, the root mean square of all expected values, that of the values of the same head, and the
/// size of the factors or terms of a gated product or a mixture of experts.
///
/// # Errors
/// An error is above `tolerance`, or a value was written where none should be.
pub fn check<B: Kernels>(
    case: &Case,
    precision: Precision,
    tolerance: f64,
    random: &mut Random,
    device: &B::Device,
) -> Result<f64, Box<Mismatch>> {
    let Prepared {
        mut launch, want, ..
    } = prepare::<B>(case, precision, random, device);
    let want = want();
    // Weights that are rounded to 16 bits are off by a fraction of themselves, which matters most
    // in rows that attend few positions: their values are large.
    let row = match case {
        Case::Attention { layout, .. } => layout.head_dim,
        _ => usize::MAX,
    };
    for (_, wanted) in &want {
        match wanted {
            Expected::Values(values)
            | Expected::Composed { values, .. }
            | Expected::Rounded { values, .. } => {
                poison::<B>(values.len(), precision.activations, device)
            }
            Expected::OneOf(rows) => poison::<B>(rows.len(), DType::F32, device),
        }
    }
    let mut worst = 0.0f64;
    for (output, (what, wanted)) in launch().into_iter().zip(want) {
        let got = read::<B>(output);
        let want = wanted.beside(&got);
        let wrong = |index: usize| {
            Box::new(Mismatch {
                case: case.clone(),
                precision,
                what,
                index,
                got: got.get(index).copied().unwrap_or(f32::NAN),
                want: want.get(index).copied().unwrap_or(f64::NAN),
            })
        };
        if got.len() != want.len() {
            return Err(wrong(got.len().min(want.len())));
        }
        let (error, index) = largest_error(&got, &want, wanted.sizes(), row);
        if error > wanted.tolerance(tolerance) {
            return Err(wrong(index));
        }
        worst = worst.max(error);
    }
    Ok(worst)
}

/// The largest error and its index; `sizes` are those of [`Expected::sizes`]. Where the expected
/// value is NaN, the memory was poisoned and the kernel must not have written it.
pub(crate) fn largest_error(
    got: &[f32],
    want: &[f64],
    sizes: Option<&[f64]>,
    row: usize,
) -> (f64, usize) {
    let all = root_mean_square(want);
    let rows = want.chunks(row);
    let scales = rows.flat_map(|row| {
        let scale = root_mean_square(row).max(all);
        std::iter::repeat_n(scale, row.len())
    });
    let mut worst = (0.0, 0);
    for (index, ((got, want), scale)) in got.iter().zip(want).zip(scales).enumerate() {
        let scale = sizes.map_or(scale, |sizes| sizes[index].max(scale));
        let error = match (got.is_nan(), want.is_nan()) {
            (true, true) => 0.0,
            (false, false) => {
                let off = (f64::from(*got) - want).abs();
                if off == 0.0 {
                    0.0
                } else {
                    off / scale.max(want.abs())
                }
            }
            _ => f64::INFINITY,
        };
        if error > worst.0 {
            worst = (error, index);
        }
    }
    worst
}

/// Leaves NaN in the memory that the next tensor of `count` elements will get.
pub fn poison<B: Kernels>(count: usize, dtype: DType, device: &B::Device) {
    let values = vec![f32::NAN; count];
    drop(prepare::float::<B>(&values, &[count], dtype, device));
}

fn read<B: Kernels>(output: Output<B>) -> Vec<f32> {
    let data = match output {
        Output::Pool(pool) => return pool.into_values(),
        Output::Float(tensor) => block_on(B::float_into_data(tensor)),
        Output::Int(tensor) => block_on(B::int_into_data(tensor)),
    };
    let data = data.expect("a tensor that was computed can be read");
    data.convert::<f32>().into_vec().expect("converted to f32")
}

/// True if [`poison`] reaches the next tensor of the same size. Nothing is written in between.
pub fn poison_is_seen<B: Kernels>(count: usize, device: &B::Device) -> bool {
    poison::<B>(count, DType::F32, device);
    let fresh = B::empty_pool(device, [count, 1, 1], DType::F32);
    read::<B>(Output::Float(fresh)).iter().all(|x| x.is_nan())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Activation;

    #[test]
    fn wrong_missing_and_surplus_values_are_found() {
        let want = [1.0, -2.0, f64::NAN, 0.0];
        let error = |got: [f32; 4]| largest_error(&got, &want, None, usize::MAX);
        assert_eq!(error([1.0, -2.0, f32::NAN, 0.0]).0, 0.0);
        let (off, index) = error([1.0, -2.2, f32::NAN, 0.0]);
        assert!((off - 0.1).abs() < 1e-6 && index == 1, "{off} at {index}");
        // The error of a value that should be zero is relative to the root mean square of all
        // values.
        assert!((error([1.0, -2.0, f32::NAN, 0.13]).0 - 0.1).abs() < 2e-3);
        assert_eq!(error([1.0, f32::NAN, f32::NAN, 0.0]), (f64::INFINITY, 1));
        assert_eq!(error([1.0, -2.0, 0.0, 0.0]), (f64::INFINITY, 2));
        // In a row whose values are larger than those of other rows, errors are relative to that
        // row.
        let off = largest_error(&[1.0, 7.0, 0.7, 1.0], &[1.0, 7.0, 0.0, 1.0], None, 2);
        assert!((off.0 - 0.7 / 51f64.sqrt() * 2.0).abs() < 1e-6, "{off:?}");
        let off = largest_error(&[1.7, 7.0, 0.0, 1.0], &[1.0, 7.0, 0.0, 1.0], None, 2);
        assert!((off.0 - 0.14).abs() < 1e-6 && off.1 == 0, "{off:?}");
    }

    /// The values of a gate, computed in steps that each round to bf16, as GPUs do.
    fn gate_in_bf16(gate_up: &[f64], inner: usize) -> Vec<f32> {
        let round = |values: &[f64]| -> Vec<f64> {
            let rounded = values.iter().map(|x| half::bf16::from_f64(*x).to_f64());
            rounded.collect()
        };
        let gated = reference::gate(&round(gate_up), inner, Activation::Silu);
        round(&gated).iter().map(|x| *x as f32).collect()
    }

    #[test]
    fn rounding_of_the_factors_is_no_fault_of_a_gated_product_and_a_wrong_factor_is() {
        let (tokens, inner) = (45, 37);
        let tolerance = Precision::uniform(DType::BF16).tolerance();
        let mut random = Random::seeded(17);
        // Errors relative to the values alone, and relative to the factors as well.
        let (mut alone, mut composed) = (0.0f64, 0.0f64);
        for _ in 0..200 {
            // The columns differ in size as the rows of a matrix in blocks do.
            let columns = random.normal(2 * inner);
            let gate_up: Vec<f64> = random
                .normal(tokens * 2 * inner)
                .chunks(2 * inner)
                .flat_map(|row| row.iter().zip(&columns).map(|(x, size)| x * size * 20.0))
                .map(f64::from)
                .collect();
            let want = reference::gate(&gate_up, inner, Activation::Silu);
            let sizes = reference::gate_sizes(&gate_up, inner, Activation::Silu);
            let got = gate_in_bf16(&gate_up, inner);
            let error = |sizes| largest_error(&got, &want, sizes, usize::MAX).0;
            alone = alone.max(error(None));
            composed = composed.max(error(Some(&sizes)));

            // A quarter is missing in one column, where neither factor is small.
            let mut wrong = gate_up;
            let column = random.below(2 * inner);
            let other = (column + inner) % (2 * inner);
            if columns[column].abs().min(columns[other].abs()) > 0.5 {
                for row in wrong.chunks_mut(2 * inner) {
                    row[column] *= 0.75;
                }
                let got = gate_in_bf16(&wrong, inner);
                let (error, _) = largest_error(&got, &want, Some(&sizes), usize::MAX);
                assert!(error > tolerance, "column {column} is off by {error}");
            }
        }
        assert!(composed < tolerance / 2.0, "{composed}");
        assert!(alone > composed, "{alone}, {composed}");
    }
}
