//! The choice of the kernels that multiply matrices of many tokens on a GPU: the choice in the
//! [tuning cache](cache) for the same device and sizes, or the fastest kernels of a timing now.
//!
//! The cache is a file beside the compiled kernels of this build. Every start compares the kernels
//! that it names with the usual kernel again, so that a cache cannot make a device compute wrongly.

mod cache;

use std::path::Path;
use std::time::Duration;

use burn::tensor::DType;
use hearth_shaders::tune::{Budget, Lost, Outcome, Products, Tuned, is_right, tune};
use hearth_shaders::{Kernels, MOST_COPIED, ProductChoice, ProductKernel};

use crate::config::ModelConfig;
use crate::device::{DeviceReport, Kind};
use crate::dtype::Dtype;
use crate::load_options::LargestStep;
use crate::memory::rows_at_once;
use crate::progress::counting_bar;
use cache::TuningCache;

/// The longest that a start may spend on each class of numbers of tokens.
const BUDGET: Budget = Budget {
    timing: Duration::from_secs(2),
    all: Duration::from_secs(40),
};

/// The matrices that a model multiplies as a whole with many tokens. Matrices of more than
/// `largest` bytes, and `packed` ones that are copied in parts, are left to the usual kernel.
pub(crate) fn products(
    config: &ModelConfig,
    dtype: Dtype,
    most: LargestStep,
    largest: u64,
    packed: bool,
) -> Products {
    let (hidden, inner) = (config.hidden_size, config.widest_mlp());
    let heads = config.heads * config.head_dim;
    let qkv = heads + 2 * config.kv_heads * config.head_dim;
    let dtype = DType::from(dtype);
    let whole = if packed {
        largest.min(MOST_COPIED)
    } else {
        largest
    };
    // A model whose tokens all go to experts has no MLP.
    let is_whole = |[input, output]: &[usize; 2]| {
        let bytes = (input * output * dtype.size()) as u64;
        (1..=whole).contains(&bytes)
    };
    let mut matrices = vec![
        [hidden, qkv],
        [heads, hidden],
        [hidden, 2 * inner],
        [inner, hidden],
    ];
    matrices.retain(is_whole);
    Products {
        matrices,
        layers: config.layers.len(),
        head: Some([hidden, config.vocab_size]).filter(is_whole),
        dtype,
        most_tokens: most.tokens,
        most_rows: most.sequences.min(rows_at_once(config.vocab_size, largest)),
    }
}

/// True if kernels are timed on this device. A device in software uses the usual kernels: it has
/// no matrix units, and timing the others would take minutes.
pub(crate) fn is_tuned(at: &DeviceReport) -> bool {
    !at.is_cpu() && at.kind != Kind::Software
}

/// Times all kernels in the sizes of Llama-3.2-1B, without a cache.
///
/// # Errors
/// Why the device was lost.
pub(crate) fn tune_llama<B: Kernels>(dtype: Dtype, device: &B::Device) -> Result<Tuned, String> {
    let products = Products {
        matrices: vec![[2048, 3072], [2048, 2048], [2048, 16_384], [8192, 2048]],
        layers: 16,
        head: None,
        dtype: DType::from(dtype),
        most_tokens: 2048,
        most_rows: 0,
    };
    tune::<B>(&products, BUDGET, &ProductKernel::ALL, |_| (), device).map_err(|lost| lost.reason)
}

/// Makes the device use the fastest kernels for `products`, as the tuning cache has them or as
/// they are timed now.
///
/// # Errors
/// Why the device was lost.
pub(crate) fn choose_products<B: Kernels>(
    products: &Products,
    directory: Option<&Path>,
    at: &DeviceReport,
    device: &B::Device,
) -> Result<(), String> {
    if !is_tuned(at) {
        return Ok(());
    }
    // Without a cache every start would time the kernels again, and a kernel at which the process
    // ends would end every start.
    let Some(directory) = directory else {
        tracing::warn!("kernels are not timed: there is no directory for the tuning cache");
        return Ok(());
    };
    let mut cache = match TuningCache::open(directory, at, products) {
        Ok(cache) => cache,
        Err(error) => {
            tracing::warn!(?directory, %error, "kernels are not timed: the tuning cache cannot be opened");
            return Ok(());
        }
    };
    let chosen = choose::<B>(products, &mut cache, device);
    if let Err(lost) = &chosen {
        cache.leave_out(lost.kernel);
    }
    let choice = chosen.map_err(|lost| lost.reason)?;
    B::choose_products(choice, products, device);
    Ok(())
}

fn choose<B: Kernels>(
    products: &Products,
    cache: &mut TuningCache,
    device: &B::Device,
) -> Result<ProductChoice, Lost> {
    if let Some(choice) = cache.choice()
        && is_right::<B>(&choice, products, |kernel| cache.begin(kernel), device)?
    {
        tracing::info!(%choice, "matrix multiplications of many tokens: the kernels of an earlier start");
        cache.finish(Some(choice));
        return Ok(choice);
    }
    let left_out = cache.left_out();
    if !left_out.is_empty() {
        tracing::warn!(
            ?left_out,
            "these kernels are not timed, because earlier starts ended at them"
        );
    }
    // A kernel that waits for copies which the device makes by itself might never return.
    let tried: Vec<_> = ProductKernel::ALL
        .into_iter()
        .filter(|kernel| !kernel.waits() && !left_out.contains(kernel))
        .collect();
    tracing::info!("timing kernels, once for each device and model");
    let bar = counting_bar("timing kernels");
    bar.set_length((tried.len() * ProductChoice::CLASSES.len()) as u64);
    let trying = |kernel| {
        cache.begin(kernel);
        bar.inc(1);
    };
    let tuned = tune::<B>(products, BUDGET, &tried, trying, device);
    bar.finish_and_clear();
    let tuned = tuned?;
    report(&tuned);
    cache.finish(Some(tuned.choice).filter(|_| !tuned.unknown));
    Ok(tuned.choice)
}

fn report(tuned: &Tuned) {
    for finding in &tuned.findings {
        let (kernel, tokens) = (finding.kernel, finding.tokens);
        match &finding.outcome {
            Outcome::Took(seconds) => tracing::debug!(%kernel, tokens, seconds, "timed"),
            Outcome::Refused => tracing::debug!(%kernel, tokens, "refused"),
            Outcome::Wrong(reason) => tracing::warn!(%kernel, tokens, reason, "left out"),
        }
    }
    tracing::info!(
        choice = %tuned.choice,
        timing_s = tuned.timing.as_secs_f64(),
        all_s = tuned.all.as_secs_f64(),
        "matrix multiplications of many tokens: the fastest kernels"
    );
}
