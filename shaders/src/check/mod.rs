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
/// value, the root mean square of all expected values, and that of the values of the same head.
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
            Expected::Values(values) | Expected::Rounded { values, .. } => {
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
        let (error, index) = largest_error(&got, &want, row);
        if error > wanted.tolerance(tolerance) {
            return Err(wrong(index));
        }
        worst = worst.max(error);
    }
    Ok(worst)
}

/// The root mean square of the expected values.
fn scale(want: &[f64]) -> f64 {
    let known = || want.iter().filter(|want| !want.is_nan());
    let squares: f64 = known().map(|want| want * want).sum();
    (squares / known().count().max(1) as f64).sqrt()
}

/// The largest error and its index. Where the expected value is NaN, the memory was poisoned and
/// the kernel must not have written it.
pub(crate) fn largest_error(got: &[f32], want: &[f64], row: usize) -> (f64, usize) {
    let all = scale(want);
    let rows = want.chunks(row);
    let scales = rows.flat_map(|row| std::iter::repeat_n(scale(row).max(all), row.len()));
    let mut worst = (0.0, 0);
    for (index, ((got, want), scale)) in got.iter().zip(want).zip(scales).enumerate() {
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

    #[test]
    fn wrong_missing_and_surplus_values_are_found() {
        let want = [1.0, -2.0, f64::NAN, 0.0];
        let error = |got: [f32; 4]| largest_error(&got, &want, usize::MAX);
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
        let off = largest_error(&[1.0, 7.0, 0.7, 1.0], &[1.0, 7.0, 0.0, 1.0], 2);
        assert!((off.0 - 0.7 / 51f64.sqrt() * 2.0).abs() < 1e-6, "{off:?}");
        let off = largest_error(&[1.7, 7.0, 0.0, 1.0], &[1.0, 7.0, 0.0, 1.0], 2);
        assert!((off.0 - 0.14).abs() < 1e-6 && off.1 == 0, "{off:?}");
    }
}
