//! A matrix on the device, and what its products take there.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, TensorData};
use cubecl::future::block_on;
use hearth_forward::panic_text;

use super::Outcome;
use crate::check::{Precision, Random, largest_error, poison};
use crate::{Kernels, ProductKernel, upload};

/// Products are repeated for so long, twice.
const LONG_ENOUGH: Duration = Duration::from_millis(10);
const MOST_ROUNDS: usize = 50;
/// Bytes of matrices that no cache of a device holds.
const LARGER_THAN_CACHES: usize = 128 << 20;
const MOST_COPIES: usize = 32;
/// Numbers that inputs repeat: a prime, so that no two rows are alike.
const PERIOD: usize = 4099;
/// Any will do; the same each time, so that what fails fails again.
const SEED: u64 = 0x7072_6f64;

/// A matrix and its size: columns and rows.
pub(super) struct Matrix<'a, B: Kernels> {
    weight: FloatTensor<B>,
    pub size: [usize; 2],
    dtype: DType,
    device: &'a B::Device,
}

/// What it is multiplied with.
pub(super) struct Tokens<B: Kernels> {
    x: FloatTensor<B>,
    count: usize,
}

impl<'a, B: Kernels> Matrix<'a, B> {
    /// # Errors
    /// The device has no room for it.
    pub fn new(size: [usize; 2], dtype: DType, device: &'a B::Device) -> Result<Self, Outcome> {
        let [input, output] = size;
        Ok(Self {
            weight: caught(|| random::<B>(SEED, [output, input], dtype, device))?,
            size,
            dtype,
            device,
        })
    }

    /// # Errors
    /// As [`Self::new`].
    pub fn tokens(&self, count: usize) -> Result<Tokens<B>, Outcome> {
        let shape = [count, self.size[0]];
        let x = caught(|| random::<B>(SEED + 1, shape, self.dtype, self.device))?;
        Ok(Tokens { x, count })
    }

    /// Launches the product, and waits for nothing.
    fn launch(&self, kernel: ProductKernel, tokens: &Tokens<B>) -> Result<FloatTensor<B>, Outcome> {
        let (x, weight) = (tokens.x.clone(), self.weight.clone());
        caught(|| B::product_by(kernel, x, weight))?.ok_or(Outcome::Refused)
    }

    pub fn values(&self, kernel: ProductKernel, tokens: &Tokens<B>) -> Result<Vec<f32>, Outcome> {
        caught(|| poison::<B>(tokens.count * self.size[1], self.dtype, self.device))?;
        let product = self.launch(kernel, tokens)?;
        let data = caught(|| block_on(B::float_into_data(product)))
            .and_then(|data| data.map_err(|error| Outcome::Wrong(format!("{error:?}"))))
            .inspect_err(|_| {
                // What else failed is asked for here, so that nobody else is told.
                let _ = caught(|| B::sync(self.device));
            })?;
        Ok(data.convert::<f32>().into_vec().expect("converted to f32"))
    }

    /// How far `kernel` is off the usual one, at most, relative to the value or to the root mean
    /// square of all.
    ///
    /// # Errors
    /// [`Outcome::Refused`], or [`Outcome::Wrong`] beyond what rounding explains.
    pub fn compare(&self, kernel: ProductKernel, tokens: &Tokens<B>) -> Result<f64, Outcome> {
        // Not in memory that the usual one has written.
        let got = self.values(kernel, tokens)?;
        let want = self.values(ProductKernel::Usual, tokens)?;
        let want: Vec<f64> = want.into_iter().map(f64::from).collect();
        let allowed = Precision::uniform(self.dtype).tolerance();
        let (error, index) = largest_error(&got, &want, usize::MAX);
        if got.len() == want.len() && error <= allowed {
            return Ok(error);
        }
        let (got, want) = (got.get(index), want.get(index));
        let ([input, output], tokens) = (self.size, tokens.count);
        Err(Outcome::Wrong(format!(
            "{tokens} tokens, {input} to {output}: element {index} is {got:?}, not {want:?}"
        )))
    }
}

/// Products that follow one another, each with its own matrix, as the layers of a step do: what a
/// device keeps of one is gone when it is read again.
pub(super) struct Sequence<'a, B: Kernels> {
    products: Vec<(Matrix<'a, B>, Tokens<B>)>,
    /// How often each size comes.
    copies: usize,
}

impl<'a, B: Kernels> Sequence<'a, B> {
    pub fn new(
        sizes: &[[usize; 2]],
        tokens: usize,
        dtype: DType,
        device: &'a B::Device,
    ) -> Result<Self, Outcome> {
        let elements: usize = sizes.iter().map(|[input, output]| input * output).sum();
        let copies = LARGER_THAN_CACHES.div_ceil((elements * dtype.size()).max(1));
        let copies = copies.min(MOST_COPIES);
        let all = (0..copies).flat_map(|_| sizes);
        let products = all.map(|size| {
            let matrix = Matrix::new(*size, dtype, device)?;
            let tokens = matrix.tokens(tokens)?;
            Ok((matrix, tokens))
        });
        Ok(Self {
            products: products.collect::<Result<_, _>>()?,
            copies,
        })
    }

    /// Seconds of one product of each size; what was timed is `spent`, without the first of each,
    /// which may be compiled.
    pub fn time(&self, kernel: ProductKernel, spent: &mut Duration) -> Result<f64, Outcome> {
        let Some((Matrix { device, .. }, _)) = self.products.first() else {
            return Ok(0.0);
        };
        let sizes = self.products.len() / self.copies;
        let run = |rounds: usize| -> Result<Duration, Outcome> {
            let started = Instant::now();
            for (matrix, tokens) in self.products.iter().cycle().take(rounds * sizes) {
                matrix.launch(kernel, tokens)?;
            }
            let done = caught(|| B::sync(device))?;
            done.map_err(|error| Outcome::Wrong(format!("{error:?}")))?;
            Ok(started.elapsed())
        };
        run(1)?;
        let mut time = |rounds: usize| -> Result<f64, Outcome> {
            let took = run(rounds)?;
            *spent += took;
            Ok(took.as_secs_f64() / rounds as f64)
        };
        let once = time(1)?;
        let rounds = (LONG_ENOUGH.as_secs_f64() / once.max(1e-9)) as usize;
        if rounds < 2 {
            return Ok(once);
        }
        let rounds = rounds.min(MOST_ROUNDS);
        Ok(time(rounds)?.min(time(rounds)?))
    }
}

/// Normal numbers, of which [`PERIOD`] are drawn.
fn random<B: Kernels>(
    seed: u64,
    [rows, columns]: [usize; 2],
    dtype: DType,
    device: &B::Device,
) -> FloatTensor<B> {
    let drawn = TensorData::new(Random::seeded(seed).normal(PERIOD), [PERIOD]).convert_dtype(dtype);
    let drawn = drawn.as_bytes();
    let bytes = rows * columns * dtype.size();
    let mut all = Vec::with_capacity(bytes.next_multiple_of(drawn.len()));
    while all.len() < bytes {
        all.extend_from_slice(drawn);
    }
    all.truncate(bytes);
    let data = TensorData::from_bytes_vec(all, [rows, columns], dtype);
    upload::<B, 2>(data, dtype, device)
        .into_primitive()
        .tensor()
}

/// Whether the device still gives the usual product.
///
/// # Errors
/// It does not.
pub(super) fn alive<B: Kernels>(dtype: DType, device: &B::Device) -> Result<(), String> {
    let values = Matrix::<B>::new([64, 64], dtype, device)
        .and_then(|matrix| matrix.values(ProductKernel::Usual, &matrix.tokens(16)?));
    match values {
        Ok(values) if values.iter().all(|value| value.is_finite()) => Ok(()),
        _ => Err("the device computes nothing any more".to_owned()),
    }
}

/// What `work` gives, or that it panicked.
fn caught<T>(work: impl FnOnce() -> T) -> Result<T, Outcome> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| Outcome::Wrong(panic_text(&*panic)))
}
