//! Which kernel is the quickest for products of many tokens on a device: every one is tried in the
//! sizes of a model, compared with the usual one, and timed.
//!
//! A kernel that refuses one of the sizes, that fails or that is wrong is left out. What fails on a
//! device may take the device with it; that is an error, as nothing can be computed there any more.

mod inputs;
mod sizes;

use std::time::{Duration, Instant};

use burn::tensor::DType;

use crate::{Kernels, ProductChoice, ProductKernel};
use inputs::{Matrix, Sequence, Tokens, alive};
pub use sizes::Products;

/// A kernel has to be better than the usual one by this.
const WORTH_IT: f64 = 0.97;

/// How much to spend on each class of numbers of tokens. What is begun is finished.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    /// For timing.
    pub timing: Duration,
    /// For all, compiling included.
    pub all: Duration,
}

/// What became of a kernel in a class of numbers of tokens.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    Refused,
    /// The device did not run it, or it computes something else.
    Wrong(String),
    /// Seconds of a step's products.
    Took(f64),
}

#[derive(Debug, Clone)]
pub struct Finding {
    pub kernel: ProductKernel,
    pub tokens: usize,
    pub outcome: Outcome,
}

/// The device computes nothing any more.
#[derive(Debug, Clone)]
pub struct Lost {
    /// What it was asked to run before.
    pub kernel: ProductKernel,
    pub reason: String,
}

#[derive(Debug, Clone, Default)]
pub struct Tuned {
    pub choice: ProductChoice,
    pub findings: Vec<Finding>,
    /// Whether the usual kernel could not be timed in some class, as where there was no memory.
    pub unknown: bool,
    /// What timing took, and all of it.
    pub timing: Duration,
    pub all: Duration,
}

/// Tries `kernels`, and takes none that is not better than the usual one, or that is not right
/// wherever it would serve. `trying` is told of each before it runs.
///
/// # Errors
/// The device computes nothing any more after it was asked to run a kernel, which is named.
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
        // What ends a start here is no other kernel's fault.
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

/// Whether the kernels of `choice`, which was made on such a device before, are right in some of
/// the sizes of `products`. `trying` is told of each before it runs.
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

/// What `kernel` comes to in the first of `sizes` in which it is not right, if there is one.
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

/// Looks after the device where a kernel failed.
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
    let matrix = Matrix::<B>::new([input, output], dtype, device)?;
    matrix.compare(kernel, &matrix.tokens(tokens)?)
}

/// What a step multiplies, on the device.
struct Step<'a, B: Kernels> {
    /// Each with how often a step has it.
    products: Vec<(Sequence<'a, B>, usize)>,
    /// A part of each matrix, to see whether a kernel is worth timing.
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

    /// Seconds of the step's products by `kernel`.
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
    fn the_quickest_is_taken_that_is_better_by_more_than_chance() {
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
