//! Matrices on the device, and the time that multiplying with them takes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, TensorData};
use cubecl::future::block_on;
use hearth_forward::panic_text;

use super::Outcome;
use crate::check::{Precision, Random, largest_error, poison};
use crate::{Kernels, ProductKernel, upload};

/// Multiplications are repeated for so long, twice.
const LONG_ENOUGH: Duration = Duration::from_millis(10);
const MOST_ROUNDS: usize = 50;
/// Bytes of matrices that no device's cache can hold.
const LARGER_THAN_CACHES: usize = 128 << 20;
const MOST_COPIES: usize = 32;
/// Random numbers that an input consists of, repeated. A prime, so that no two rows are alike.
const PERIOD: usize = 4099;
/// An arbitrary seed, always the same, so that failures can be reproduced.
const SEED: u64 = 0x7072_6f64;

/// A matrix on the device.
pub(super) struct Matrix<'a, B: Kernels> {
    weight: FloatTensor<B>,
    /// Columns and rows.
    pub size: [usize; 2],
    dtype: DType,
    device: &'a B::Device,
}

/// Activations to multiply a matrix with.
pub(super) struct Tokens<B: Kernels> {
    x: FloatTensor<B>,
    count: usize,
}

impl<'a, B: Kernels> Matrix<'a, B> {
    /// # Errors
    /// The device has no memory for it.
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

    /// Queues the multiplication and does not wait for it.
    fn launch(&self, kernel: ProductKernel, tokens: &Tokens<B>) -> Result<FloatTensor<B>, Outcome> {
        let (x, weight) = (tokens.x.clone(), self.weight.clone());
        caught(|| B::product_by(kernel, x, weight))?.ok_or(Outcome::Refused)
    }

    /// The result of the multiplication, `[tokens, rows]`.
    ///
    /// # Errors
    /// The kernel does not support the sizes, or the device failed to run it.
    pub fn values(&self, kernel: ProductKernel, tokens: &Tokens<B>) -> Result<Vec<f32>, Outcome> {
        caught(|| poison::<B>(tokens.count * self.size[1], self.dtype, self.device))?;
        let product = self.launch(kernel, tokens)?;
        let data = caught(|| block_on(B::float_into_data(product)))
            .and_then(|data| data.map_err(|error| Outcome::Wrong(format!("{error:?}"))))
            .inspect_err(|_| {
                // Ask the device for further errors here, so that they are not reported to a later,
                // unrelated call.
                let _ = caught(|| B::sync(self.device));
            })?;
        Ok(data.convert::<f32>().into_vec().expect("converted to f32"))
    }

    /// The largest error of `kernel` relative to the default kernel, as a fraction of the value or
    /// of the root mean square of all values.
    ///
    /// # Errors
    /// [`Outcome::Refused`], or [`Outcome::Wrong`] if the error is larger than rounding explains.
    pub fn compare(&self, kernel: ProductKernel, tokens: &Tokens<B>) -> Result<f64, Outcome> {
        // This kernel runs first, so that it does not find the default kernel's result in its
        // memory.
        let got = self.values(kernel, tokens)?;
        let want = self.values(ProductKernel::Usual, tokens)?;
        let want: Vec<f64> = want.into_iter().map(f64::from).collect();
        let allowed = Precision::uniform(self.dtype).tolerance();
        let (error, index) = largest_error(&got, &want, None, usize::MAX);
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

/// Multiplications that follow one another, each with its own matrix, as the layers of a step do.
/// No matrix is still in the device's cache when it is read again.
pub(super) struct Sequence<'a, B: Kernels> {
    products: Vec<(Matrix<'a, B>, Tokens<B>)>,
    /// How many matrices of each size there are.
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

    /// Seconds of one multiplication of each size with `kernel`. The time spent measuring is added
    /// to `spent`, except for the first run of each size, which may have to compile the kernel.
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

/// Normally distributed numbers: [`PERIOD`] different ones, repeated.
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

/// Checks that the device still computes a plausible product with the default kernel.
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

/// The result of `work`, or the text of its panic.
fn caught<T>(work: impl FnOnce() -> T) -> Result<T, Outcome> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| Outcome::Wrong(panic_text(&*panic)))
}
