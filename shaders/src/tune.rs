//! Which kernel is the quickest for products of many tokens on a device: every one is tried in the
//! sizes of a model, compared with the usual one, and timed.
//!
//! A kernel that is refused, that fails or that is wrong is left out. What fails on a device may
//! take the device with it; that is an error, as nothing can be computed there any more.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, TensorData};
use cubecl::future::block_on;

use crate::check::{Precision, Random, largest_error, poison};
use crate::{Kernels, ProductChoice, ProductKernel, upload};

/// Fewer tokens have a kernel of their own.
const FEWEST: usize = 9;
/// Rows of a matrix that are compared. Kernels may tile more of them in another way: that is not
/// looked at.
const MOST_COMPARED: usize = 512;
/// What tilings go by: a matrix of fewer rows has the same remainder of it.
const ALIGNED: usize = 256;
/// Bytes of the matrix that is timed: enough to keep any device busy.
const MOST_BYTES: usize = 128 << 20;
/// Calls of a kernel are repeated for so long, twice.
const LONG_ENOUGH: Duration = Duration::from_millis(5);
const MOST_CALLS: u32 = 50;
/// A kernel has to be better than the usual one by this.
const WORTH_IT: f64 = 0.97;
/// Numbers that inputs repeat: a prime, so that no two rows are alike.
const PERIOD: usize = 4099;
/// Any will do; the same each time, so that what fails fails again.
const SEED: u64 = 0x7072_6f64;

/// What a model multiplies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Products {
    /// Columns and rows of its matrices.
    pub matrices: Vec<[usize; 2]>,
    pub dtype: DType,
    /// Tokens of a step.
    pub most_tokens: usize,
}

/// How much to spend.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    /// For timing.
    pub timing: Duration,
    /// For all, compiling included; what is begun is finished.
    pub all: Duration,
}

/// What became of a kernel in a class of numbers of tokens.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    Refused,
    /// The device did not run it, or it computes something else.
    Wrong(String),
    /// Seconds.
    Took(f64),
}

#[derive(Debug, Clone)]
pub struct Finding {
    pub kernel: ProductKernel,
    pub tokens: usize,
    pub outcome: Outcome,
}

#[derive(Debug, Clone, Default)]
pub struct Tuned {
    pub choice: ProductChoice,
    pub findings: Vec<Finding>,
    /// What timing took, and all of it.
    pub timing: Duration,
    pub all: Duration,
}

impl Products {
    /// The classes that come, and the numbers of tokens that they are tried with.
    fn classes(&self) -> impl Iterator<Item = (usize, usize)> {
        let most = self.most_tokens;
        let classes = ProductChoice::CLASSES.into_iter().enumerate();
        classes
            .filter(move |(class, _)| most >= FEWEST && *class <= ProductChoice::class(most))
            .map(move |(class, tokens)| (class, tokens.min(most)))
    }

    /// A step multiplies with all of them.
    fn distinct(&self) -> Vec<[usize; 2]> {
        let mut matrices = self.matrices.clone();
        matrices.sort_unstable();
        matrices.dedup();
        matrices
    }

    /// What is looked at to see that a kernel is right in a class.
    fn compared(&self, tokens: usize) -> impl Iterator<Item = [usize; 3]> {
        let mut matrices: Vec<[usize; 2]> = self.matrices.iter().copied().map(fewer_rows).collect();
        matrices.sort_unstable();
        matrices.dedup();
        matrices.into_iter().flat_map(move |[input, output]| {
            [tokens, uneven(tokens)].map(|tokens| [tokens, input, output])
        })
    }
}

/// The same matrix with fewer rows, of the same remainder.
fn fewer_rows([input, output]: [usize; 2]) -> [usize; 2] {
    let rows = match output > MOST_COMPARED {
        true => MOST_COMPARED + output % ALIGNED,
        false => output,
    };
    [input, rows]
}

/// A number of tokens of the same class that no tile divides.
fn uneven(tokens: usize) -> usize {
    ((tokens - tokens / 3) | 1).min(tokens)
}

/// Tries every kernel there is but those that are `left_out`, and takes none that is not better
/// than the usual one. `trying` is told of each before it runs.
///
/// # Errors
/// The device computes nothing any more after it was asked to run a kernel, which is named.
pub fn tune<B: Kernels>(
    products: &Products,
    budget: Budget,
    left_out: &[ProductKernel],
    mut trying: impl FnMut(ProductKernel),
    device: &B::Device,
) -> Result<Tuned, String> {
    let started = Instant::now();
    let mut tuned = Tuned::default();
    let matrices = products.distinct();
    if matrices.is_empty() {
        return Ok(tuned);
    }
    for (class, tokens) in products.classes() {
        let inputs = |[input, output]: &[usize; 2]| {
            Inputs::<B>::of(
                at_most([tokens, *input, *output], products),
                products,
                device,
            )
        };
        let timed: Vec<_> = matrices.iter().map(inputs).collect();
        let mut took: Vec<(f64, ProductKernel)> = Vec::new();
        let kernels = ProductKernel::ALL.into_iter();
        for kernel in kernels.filter(|kernel| !left_out.contains(kernel)) {
            let spent = tuned.timing >= budget.timing || started.elapsed() >= budget.all;
            if spent && kernel != ProductKernel::Usual {
                break;
            }
            trying(kernel);
            let outcome = time_all(&timed, &matrices, kernel, &mut tuned.timing);
            if let Outcome::Wrong(reason) = &outcome {
                alive::<B>(products.dtype, device)
                    .map_err(|lost| format!("{lost} after the kernel {kernel}: {reason}"))?;
            }
            if let Outcome::Took(seconds) = outcome {
                took.push((seconds, kernel));
            }
            tuned.findings.push(Finding {
                kernel,
                tokens,
                outcome,
            });
        }
        for kernel in quicker(took) {
            trying(kernel);
            if right_in_class::<B>(kernel, tokens, products, device)? {
                tuned.choice.kernels[class] = kernel;
                break;
            }
        }
    }
    B::memory_cleanup(device);
    tuned.all = started.elapsed();
    Ok(tuned)
}

/// The kernels that are worth taking in the place of the usual one, the quickest first.
fn quicker(mut took: Vec<(f64, ProductKernel)>) -> impl Iterator<Item = ProductKernel> {
    let usual = took
        .iter()
        .find(|(_, kernel)| *kernel == ProductKernel::Usual);
    // Nothing is quicker than what is not known.
    let usual = usual.map_or(0.0, |(seconds, _)| *seconds);
    took.retain(|(seconds, _)| *seconds < usual * WORTH_IT);
    took.sort_by(|a, b| a.0.total_cmp(&b.0));
    took.into_iter().map(|(_, kernel)| kernel)
}

/// Whether the kernels of `choice` are right in every size of `products`.
///
/// # Errors
/// As [`tune`].
pub fn is_right<B: Kernels>(
    choice: &ProductChoice,
    products: &Products,
    device: &B::Device,
) -> Result<bool, String> {
    for (class, tokens) in products.classes() {
        let kernel = choice.kernels[class];
        if kernel != ProductKernel::Usual && !right_in_class::<B>(kernel, tokens, products, device)?
        {
            return Ok(false);
        }
    }
    B::memory_cleanup(device);
    Ok(true)
}

/// A refusal is no error: such sizes go to the usual kernel.
fn right_in_class<B: Kernels>(
    kernel: ProductKernel,
    tokens: usize,
    products: &Products,
    device: &B::Device,
) -> Result<bool, String> {
    for sizes in products.compared(tokens) {
        if let Err(Outcome::Wrong(reason)) =
            Inputs::<B>::of(sizes, products, device).compare(kernel)
        {
            alive::<B>(products.dtype, device)
                .map_err(|lost| format!("{lost} after the kernel {kernel}: {reason}"))?;
            return Ok(false);
        }
    }
    Ok(true)
}

/// How far `kernel` is off the usual one, at most, relative to the value or to the root mean square
/// of all.
///
/// # Errors
/// [`Outcome::Refused`], or [`Outcome::Wrong`] beyond what rounding explains.
pub fn compare<B: Kernels>(
    kernel: ProductKernel,
    [tokens, input, output]: [usize; 3],
    dtype: DType,
    device: &B::Device,
) -> Result<f64, Outcome> {
    let products = Products {
        matrices: vec![[input, output]],
        dtype,
        most_tokens: tokens,
    };
    Inputs::<B>::of([tokens, input, output], &products, device).compare(kernel)
}

/// As many rows of the matrix as [`MOST_BYTES`] are.
fn at_most([tokens, input, output]: [usize; 3], products: &Products) -> [usize; 3] {
    let rows = MOST_BYTES / (input * products.dtype.size()).max(1);
    let rows = match rows < output {
        true => (rows / ALIGNED * ALIGNED).max(ALIGNED),
        false => output,
    };
    [tokens, input, rows.min(output)]
}

/// A product's factors on the device.
struct Inputs<'a, B: Kernels> {
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    outputs: usize,
    tokens: usize,
    products: &'a Products,
    device: &'a B::Device,
}

impl<'a, B: Kernels> Inputs<'a, B> {
    fn of(
        [tokens, input, output]: [usize; 3],
        products: &'a Products,
        device: &'a B::Device,
    ) -> Self {
        let mut random = Random::seeded(SEED);
        let mut make = |rows: usize| {
            let data = repeated(&mut random, rows, input, products.dtype);
            upload::<B, 2>(data, products.dtype, device)
                .into_primitive()
                .tensor()
        };
        Self {
            x: make(tokens),
            weight: make(output),
            outputs: tokens * output,
            tokens,
            products,
            device,
        }
    }

    /// Launches the product, and waits for nothing.
    fn launch(&self, kernel: ProductKernel) -> Result<FloatTensor<B>, Outcome> {
        let (x, weight) = (self.x.clone(), self.weight.clone());
        match caught(|| B::product_by(kernel, x, weight)) {
            Ok(Some(product)) => Ok(product),
            Ok(None) => Err(Outcome::Refused),
            Err(reason) => Err(Outcome::Wrong(reason)),
        }
    }

    fn values(&self, kernel: ProductKernel) -> Result<Vec<f32>, Outcome> {
        poison::<B>(self.outputs, self.products.dtype, self.device);
        let product = self.launch(kernel)?;
        let read = caught(|| block_on(B::float_into_data(product)));
        let data = read.and_then(|data| data.map_err(|error| format!("{error:?}")));
        let values = data.map(|data| data.convert::<f32>().into_vec().expect("converted to f32"));
        values.map_err(|reason| {
            // What else failed is asked for here, so that nobody else is told.
            let _ = caught(|| B::sync(self.device));
            Outcome::Wrong(reason)
        })
    }

    fn compare(&self, kernel: ProductKernel) -> Result<f64, Outcome> {
        // Not in memory that the usual one has written.
        let got = self.values(kernel)?;
        let want = self.values(ProductKernel::Usual)?;
        let want: Vec<f64> = want.into_iter().map(f64::from).collect();
        let allowed = Precision::uniform(self.products.dtype).tolerance();
        let (error, index) = largest_error(&got, &want, usize::MAX);
        if got.len() == want.len() && error <= allowed {
            return Ok(error);
        }
        let (got, want) = (got.get(index), want.get(index));
        Err(Outcome::Wrong(format!(
            "element {index} is {got:?}, not {want:?}"
        )))
    }

    fn time(&self, kernel: ProductKernel, matrix: [usize; 2], spent: &mut Duration) -> Outcome {
        // What is not right here need not be timed; more sizes are looked at where it is quick.
        let [input, output] = fewer_rows(matrix);
        let few = Self::of([self.tokens, input, output], self.products, self.device);
        if let Err(outcome) = few.compare(kernel) {
            return outcome;
        }
        let mut time = |calls: u32| -> Result<f64, Outcome> {
            let started = Instant::now();
            for _ in 0..calls {
                self.launch(kernel)?;
            }
            let done = caught(|| B::sync(self.device));
            done.and_then(|done| done.map_err(|error| format!("{error:?}")))
                .map_err(Outcome::Wrong)?;
            let took = started.elapsed();
            // The first call may have been compiled.
            *spent += took;
            Ok(took.as_secs_f64() / f64::from(calls))
        };
        let mut run = || {
            time(1)?;
            let once = time(1)?.max(1e-9);
            let calls = (LONG_ENOUGH.as_secs_f64() / once) as u32;
            if calls < 2 {
                return Ok(once);
            }
            let calls = calls.min(MOST_CALLS);
            Ok(time(calls)?.min(time(calls)?))
        };
        match run() {
            Ok(seconds) => Outcome::Took(seconds),
            Err(outcome) => outcome,
        }
    }
}

/// The sum of what products with each of `matrices` take, or the first that has no time.
fn time_all<B: Kernels>(
    inputs: &[Inputs<'_, B>],
    matrices: &[[usize; 2]],
    kernel: ProductKernel,
    spent: &mut Duration,
) -> Outcome {
    let mut all = 0.0;
    for (inputs, matrix) in inputs.iter().zip(matrices) {
        match inputs.time(kernel, *matrix, spent) {
            Outcome::Took(seconds) => all += seconds,
            other => return other,
        }
    }
    Outcome::Took(all)
}

/// Normal numbers, of which [`PERIOD`] are drawn.
fn repeated(random: &mut Random, rows: usize, columns: usize, dtype: DType) -> TensorData {
    let drawn = TensorData::new(random.normal(PERIOD), [PERIOD]).convert_dtype(dtype);
    let drawn = drawn.as_bytes();
    let bytes = rows * columns * dtype.size();
    let mut all = Vec::with_capacity(bytes.next_multiple_of(drawn.len()));
    while all.len() < bytes {
        all.extend_from_slice(drawn);
    }
    all.truncate(bytes);
    TensorData::from_bytes_vec(all, [rows, columns], dtype)
}

/// Whether the device still gives the usual product.
fn alive<B: Kernels>(dtype: DType, device: &B::Device) -> Result<(), String> {
    let products = Products {
        matrices: Vec::new(),
        dtype,
        most_tokens: FEWEST,
    };
    let inputs = Inputs::<B>::of([16, 64, 64], &products, device);
    match caught(|| inputs.values(ProductKernel::Usual)) {
        Ok(Ok(values)) if values.iter().all(|value| value.is_finite()) => Ok(()),
        _ => Err("the device computes nothing any more".to_owned()),
    }
}

fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| text(&*panic))
}

fn text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("no reason given").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn_flex::Flex;

    fn products(most_tokens: usize) -> Products {
        Products {
            matrices: vec![[64, 192], [96, 700], [64, 192]],
            dtype: DType::F32,
            most_tokens,
        }
    }

    #[test]
    fn only_numbers_of_tokens_that_come_are_tried() {
        let tried = |most| products(most).classes().collect::<Vec<_>>();
        assert_eq!(tried(8), []);
        assert_eq!(tried(9), [(0, 9)]);
        assert_eq!(tried(100), [(0, 64)]);
        assert_eq!(tried(200), [(0, 64), (1, 200)]);
        assert_eq!(tried(576), [(0, 64), (1, 512)]);
        assert_eq!(tried(1025), [(0, 64), (1, 512), (2, 1025)]);
        assert_eq!(tried(9000), [(0, 64), (1, 512), (2, 2048)]);
    }

    #[test]
    fn every_matrix_is_compared_once_with_a_remainder_of_tokens_and_without() {
        let compared: Vec<_> = products(64).compared(64).collect();
        let both = [[64, 64, 192], [43, 64, 192], [64, 96, 700], [43, 96, 700]];
        assert_eq!(
            compared,
            both.map(|[tokens, input, output]| { [tokens, input, fewer_rows([input, output])[1]] })
        );
        // What is left out of its rows changes nothing for a tiling.
        for output in [513, 700, 1024, 16_384, 28_672, 151_937] {
            let [_, rows] = fewer_rows([64, output]);
            assert!(rows < 2 * MOST_COMPARED && rows % ALIGNED == output % ALIGNED);
        }
        for tokens in [9, 10, 64, 512, 1025, 2048] {
            let uneven = uneven(tokens);
            assert!(uneven % 2 == 1 && uneven <= tokens, "{uneven} of {tokens}");
            assert!(tokens < 64 || uneven < tokens);
        }
        assert_eq!(ProductChoice::class(uneven(2048)), 2);
        assert_eq!(ProductChoice::class(uneven(512)), 1);
    }

    #[test]
    fn what_is_timed_is_bounded() {
        let products = products(64);
        assert_eq!(at_most([64, 2048, 16_384], &products)[2], 16_384);
        let [_, input, output] = at_most([64, 8192, 57_344], &products);
        assert!(input * output * 4 <= MOST_BYTES && output.is_multiple_of(ALIGNED));
    }

    #[test]
    fn the_quickest_is_taken_that_is_better_by_more_than_chance() {
        use ProductKernel::{Double, Mma, Ordered, Usual};
        let took = vec![(1.0, Usual), (0.6, Mma), (0.98, Double), (0.5, Ordered)];
        assert_eq!(quicker(took).collect::<Vec<_>>(), [Ordered, Mma]);
        assert_eq!(quicker(vec![(0.5, Mma)]).count(), 0);
        assert_eq!(quicker(Vec::new()).count(), 0);
    }

    #[test]
    fn a_backend_without_such_kernels_keeps_what_it_has() {
        let budget = Budget {
            timing: Duration::from_secs(1),
            all: Duration::from_secs(1),
        };
        let mut tried = Vec::new();
        let left_out = [ProductKernel::TmaMma];
        let trying = |kernel| tried.push(kernel);
        let device = Default::default();
        let tuned = tune::<Flex>(&products(64), budget, &left_out, trying, &device).unwrap();
        assert_eq!(tuned.choice, ProductChoice::default());
        let all = ProductKernel::ALL.into_iter();
        assert!(all.filter(|kernel| !left_out.contains(kernel)).eq(tried));
        let refused = |finding: &Finding| finding.outcome == Outcome::Refused;
        assert!(tuned.findings.iter().all(refused));
    }
}
