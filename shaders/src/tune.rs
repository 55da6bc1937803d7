//! Finds the fastest kernel for matrix multiplications of many tokens on a device: each kernel is
//! run with the sizes of the model, compared with the default kernel, and timed.
//!
//! A kernel that does not support one of the sizes, fails or computes wrong results is left out. A
//! kernel that fails may take the device with it; this is an error, because the device then
//! computes nothing any more.

mod inputs;
mod sizes;

use std::time::{Duration, Instant};

use burn::tensor::DType;

use crate::{Kernels, ProductChoice, ProductKernel};
use inputs::{Matrix, Sequence, Tokens, alive};
pub use sizes::Products;

/// A kernel is used if it takes less than this fraction of the default kernel's time.
const WORTH_IT: f64 = 0.97;

/// How much time to spend on each class of numbers of tokens. A measurement that has begun is
/// finished.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    /// Time for timing alone.
    pub timing: Duration,
    /// Time in total, compiling included.
    pub all: Duration,
}

/// The result of trying one kernel in one class.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The kernel does not support the sizes, the type or the device.
    Refused,
    /// The device failed to run the kernel, or the kernel computed wrong results.
    Wrong(String),
    /// Seconds that the multiplications of one step take.
    Took(f64),
}

/// The finding of tuning about one kernel for one number of tokens.
#[derive(Debug, Clone)]
pub struct Finding {
    pub kernel: ProductKernel,
    pub tokens: usize,
    pub outcome: Outcome,
}

/// The device computes nothing any more.
#[derive(Debug, Clone)]
pub struct Lost {
    /// The kernel that ran last.
    pub kernel: ProductKernel,
    pub reason: String,
}

/// The result of tuning.
#[derive(Debug, Clone, Default)]
pub struct Tuned {
    pub choice: ProductChoice,
    pub findings: Vec<Finding>,
    /// True if the default kernel could not be timed in some class, for example for lack of memory.
    pub unknown: bool,
    /// Time spent on timing alone, and in total.
    pub timing: Duration,
    pub all: Duration,
}

/// Tries `kernels` in every class of sizes that `products` has, and chooses those that are faster
/// than the default kernel and compute the right results for all sizes they would be used for.
/// `trying` is called with each kernel before it runs.
///
/// # Errors
/// The device computes nothing any more. The error names the kernel that ran last.
pub fn tune<B: Kernels>(
    products: &Products,
    budget: Budget,
    kernels: &[ProductKernel],
    mut trying: impl FnMut(ProductKernel),
    device: &B::Device,
) -> Result<Tuned, Lost> {
    let started = Instant::now();
    let mut tuned = Tuned::default();
    if products.matrices.is_empty() {
        return Ok(tuned);
    }
    for (class, tokens) in products.classes() {
        let (begun, mut timing) = (Instant::now(), Duration::ZERO);
        let mut find = |kernel, outcome| {
            let finding = Finding {
                kernel,
                tokens,
                outcome,
            };
            tuned.findings.push(finding);
        };
        // If tuning ends here, no other kernel caused it.
        trying(ProductKernel::Usual);
        let step = match Step::<B>::new(products, class, tokens, device) {
            Ok(step) => step,
            Err(outcome) => {
                survived::<B>(&outcome, ProductKernel::Usual, products, device)?;
                find(ProductKernel::Usual, outcome);
                tuned.unknown = true;
                continue;
            }
        };
        let mut took: Vec<(f64, ProductKernel)> = Vec::new();
        for &kernel in kernels {
            let spent = timing >= budget.timing || begun.elapsed() >= budget.all;
            if spent && kernel != ProductKernel::Usual {
                break;
            }
            trying(kernel);
            let outcome = match step.time(kernel, &mut timing) {
                Ok(seconds) => Outcome::Took(seconds),
                Err(outcome) => outcome,
            };
            survived::<B>(&outcome, kernel, products, device)?;
            if let Outcome::Took(seconds) = outcome {
                took.push((seconds, kernel));
            }
            find(kernel, outcome);
        }
        drop(step);
        tuned.unknown |= took
            .iter()
            .all(|(_, kernel)| *kernel != ProductKernel::Usual);
        for kernel in quicker(took) {
            if begun.elapsed() >= budget.all {
                break;
            }
            trying(kernel);
            match compare_in::<B>(&products.compared(class), kernel, products, device)? {
                None => {
                    tuned.choice.kernels[class] = kernel;
                    break;
                }
                Some(outcome) => find(kernel, outcome),
            }
        }
        tuned.timing += timing;
    }
    B::memory_cleanup(device);
    tuned.all = started.elapsed();
    Ok(tuned)
}

/// The kernels that are clearly faster than the default kernel, fastest first.
fn quicker(mut took: Vec<(f64, ProductKernel)>) -> impl Iterator<Item = ProductKernel> {
    let usual = took
        .iter()
        .find(|(_, kernel)| *kernel == ProductKernel::Usual);
    // If the default kernel was not timed, no kernel counts as faster.
    let usual = usual.map_or(0.0, |(seconds, _)| *seconds);
    took.retain(|(seconds, _)| *seconds < usual * WORTH_IT);
    took.sort_by(|a, b| a.0.total_cmp(&b.0));
    took.into_iter().map(|(_, kernel)| kernel)
}

/// True if the kernels of `choice`, which an earlier start made for this device, compute the right
/// results for a sample of the sizes of `products`. `trying` is called with each kernel before it
/// runs.
///
/// # Errors
/// As [`tune`].
pub fn is_right<B: Kernels>(
    choice: &ProductChoice,
    products: &Products,
    mut trying: impl FnMut(ProductKernel),
    device: &B::Device,
) -> Result<bool, Lost> {
    let mut right = true;
    for (class, _) in products.classes() {
        let kernel = choice.kernels[class];
        if right && kernel != ProductKernel::Usual {
            trying(kernel);
            right =
                compare_in::<B>(&products.looked_at(class), kernel, products, device)?.is_none();
        }
    }
    B::memory_cleanup(device);
    Ok(right)
}

/// Compares `kernel` with the default kernel and returns the outcome for the first size that fails.
fn compare_in<B: Kernels>(
    sizes: &[([usize; 2], Vec<usize>)],
    kernel: ProductKernel,
    products: &Products,
    device: &B::Device,
) -> Result<Option<Outcome>, Lost> {
    let compare = || {
        for (size, tokens) in sizes {
            let matrix = Matrix::<B>::new(*size, products.dtype, device)?;
            for tokens in tokens {
                matrix.compare(kernel, &matrix.tokens(*tokens)?)?;
            }
        }
        Ok(())
    };
    let failed = compare().err();
    if let Some(outcome) = &failed {
        survived::<B>(outcome, kernel, products, device)?;
    }
    Ok(failed)
}

/// Checks that the device still works after a kernel failed.
fn survived<B: Kernels>(
    outcome: &Outcome,
    kernel: ProductKernel,
    products: &Products,
    device: &B::Device,
) -> Result<(), Lost> {
    let Outcome::Wrong(reason) = outcome else {
        return Ok(());
    };
    alive::<B>(products.dtype, device).map_err(|lost| Lost {
        kernel,
        reason: format!("{lost} after the kernel {kernel}: {reason}"),
    })
}

/// The largest error of `kernel` relative to the default kernel, as a fraction of the value or of
/// the root mean square of all values.
///
/// # Errors
/// [`Outcome::Refused`], or [`Outcome::Wrong`] if the error is larger than rounding explains.
pub fn compare<B: Kernels>(
    kernel: ProductKernel,
    [tokens, input, output]: [usize; 3],
    dtype: DType,
    device: &B::Device,
) -> Result<f64, Outcome> {
    let matrix = Matrix::<B>::new([input, output], dtype, device)?;
    matrix.compare(kernel, &matrix.tokens(tokens)?)
}

/// The matrices of one step, on the device.
struct Step<'a, B: Kernels> {
    /// The multiplications, each with the number of times that a step runs it.
    products: Vec<(Sequence<'a, B>, usize)>,
    /// A few rows of each matrix, to see whether a kernel is worth timing.
    parts: Vec<(Matrix<'a, B>, Tokens<B>)>,
}

impl<'a, B: Kernels> Step<'a, B> {
    fn new(
        products: &Products,
        class: usize,
        tokens: usize,
        device: &'a B::Device,
    ) -> Result<Self, Outcome> {
        let mut step = Self {
            products: Vec::new(),
            parts: Vec::new(),
        };
        for (sizes, tokens, times) in products.timed(class, tokens) {
            for size in &sizes {
                let part = Matrix::new(sizes::few_rows(*size), products.dtype, device)?;
                let tokens = part.tokens(tokens)?;
                step.parts.push((part, tokens));
            }
            let sequence = Sequence::new(&sizes, tokens, products.dtype, device)?;
            step.products.push((sequence, times));
        }
        Ok(step)
    }

    /// Seconds that the step's multiplications take with `kernel`.
    fn time(&self, kernel: ProductKernel, spent: &mut Duration) -> Result<f64, Outcome> {
        for (part, tokens) in &self.parts {
            part.compare(kernel, tokens)?;
        }
        let mut all = 0.0;
        for (sequence, times) in &self.products {
            all += sequence.time(kernel, spent)? * *times as f64;
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn_flex::Flex;

    #[test]
    fn kernels_that_are_faster_by_more_than_noise_are_taken_fastest_first() {
        use ProductKernel::{Double, Mma, Ordered, Usual};
        let took = vec![(1.0, Usual), (0.6, Mma), (0.98, Double), (0.5, Ordered)];
        assert_eq!(quicker(took).collect::<Vec<_>>(), [Ordered, Mma]);
        assert_eq!(quicker(vec![(0.5, Mma)]).count(), 0);
        assert_eq!(quicker(Vec::new()).count(), 0);
    }

    #[test]
    fn a_backend_without_such_kernels_keeps_what_it_has() {
        let products = sizes::tests::products(64);
        let budget = Budget {
            timing: Duration::from_secs(1),
            all: Duration::from_secs(1),
        };
        let mut tried = Vec::new();
        let kernels = [ProductKernel::Usual, ProductKernel::TmaMma];
        let trying = |kernel| tried.push(kernel);
        let device = Default::default();
        let tuned = tune::<Flex>(&products, budget, &kernels, trying, &device).unwrap();
        assert_eq!(tuned.choice, ProductChoice::default());
        assert_eq!(tried, [&kernels[..1], &kernels].concat());
        assert!(tuned.unknown);
        let refused = |finding: &Finding| finding.outcome == Outcome::Refused;
        assert!(tuned.findings.iter().all(refused));
    }
}
