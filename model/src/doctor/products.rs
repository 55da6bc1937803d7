//! Which kernel multiplies many tokens on a GPU: what was kept for the same device and sizes, or
//! what is the quickest now. What is kept is a file beside the kernels of this build; its kernels
//! are compared with the usual one again at every start.

mod kept;

use std::path::Path;
use std::time::Duration;

use burn::tensor::DType;
use hearth_shaders::tune::{Budget, Lost, Outcome, Products, Tuned, is_right, tune};
use hearth_shaders::{Kernels, MOST_COPIED, ProductChoice, ProductKernel};

use crate::config::ModelConfig;
use crate::device::{DeviceReport, Kind};
use crate::dtype::Dtype;
use crate::memory::rows_at_once;
use crate::progress::counting_bar;
use crate::runner::LargestStep;
use kept::Kept;

/// What a start takes for each class of numbers of tokens at most.
const BUDGET: Budget = Budget {
    timing: Duration::from_secs(2),
    all: Duration::from_secs(40),
};

/// What a model multiplies with many tokens as one matrix: what takes more than `largest` bytes, or
/// is copied in parts as it is `packed`, is left to the usual kernel.
pub(crate) fn products(
    config: &ModelConfig,
    dtype: Dtype,
    most: LargestStep,
    largest: u64,
    packed: bool,
) -> Products {
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    let heads = config.heads * config.head_dim;
    let qkv = heads + 2 * config.kv_heads * config.head_dim;
    let dtype = DType::from(dtype);
    let whole = if packed {
        largest.min(MOST_COPIED)
    } else {
        largest
    };
    let is_whole = |[input, output]: &[usize; 2]| (input * output * dtype.size()) as u64 <= whole;
    let mut matrices = vec![
        [hidden, qkv],
        [heads, hidden],
        [hidden, 2 * inner],
        [inner, hidden],
    ];
    matrices.retain(is_whole);
    Products {
        matrices,
        layers: config.layers,
        head: Some([hidden, config.vocab_size]).filter(is_whole),
        dtype,
        most_tokens: most.tokens,
        most_rows: most.sequences.min(rows_at_once(config.vocab_size, largest)),
    }
}

/// Whether kernels are timed there. Software takes the usual ones: it has no matrix units, and to
/// try them takes it minutes.
pub(super) fn are_tuned(at: &DeviceReport) -> bool {
    !at.is_cpu() && at.kind != Kind::Software
}

/// What would be taken in the sizes of Llama-3.2-1B, of all kernels that there are.
pub(super) fn tune_llama<B: Kernels>(dtype: Dtype, device: &B::Device) -> Result<Tuned, String> {
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

/// Has the device take the kernels that are the quickest for `products`.
///
/// # Errors
/// The device did not survive it.
pub(crate) fn choose_products<B: Kernels>(
    products: &Products,
    cache: Option<&Path>,
    at: &DeviceReport,
    device: &B::Device,
) -> Result<(), String> {
    if !are_tuned(at) {
        return Ok(());
    }
    // Where nothing is kept, every start would time them, and end at the same kernel.
    let kept = cache.map(|cache| Kept::open(cache, at, products));
    let mut kept = match kept {
        Some(Ok(kept)) => kept,
        Some(Err(error)) => {
            tracing::warn!(?cache, %error, "kernels are not timed: no choice can be kept");
            return Ok(());
        }
        None => {
            tracing::warn!("kernels are not timed: there is no directory to keep a choice in");
            return Ok(());
        }
    };
    let chosen = choose::<B>(products, &mut kept, device);
    if let Err(lost) = &chosen {
        kept.leave_out(lost.kernel);
    }
    let choice = chosen.map_err(|lost| lost.reason)?;
    B::choose_products(choice, products, device);
    Ok(())
}

fn choose<B: Kernels>(
    products: &Products,
    kept: &mut Kept,
    device: &B::Device,
) -> Result<ProductChoice, Lost> {
    if let Some(choice) = kept.choice()
        && is_right::<B>(&choice, products, |kernel| kept.begin(kernel), device)?
    {
        tracing::info!(%choice, "products of many tokens: the kernels of an earlier start");
        kept.done(Some(choice));
        return Ok(choice);
    }
    let left_out = kept.left_out();
    if !left_out.is_empty() {
        tracing::warn!(
            ?left_out,
            "kernels that are not tried: earlier starts ended at them"
        );
    }
    // One that never ends would keep a start from ending.
    let tried = ProductKernel::ALL.into_iter();
    let tried: Vec<_> = tried
        .filter(|kernel| !kernel.waits() && !left_out.contains(kernel))
        .collect();
    tracing::info!("timing kernels, once for a device and a model");
    let bar = counting_bar("timing kernels");
    bar.set_length((tried.len() * ProductChoice::CLASSES.len()) as u64);
    let trying = |kernel| {
        kept.begin(kernel);
        bar.inc(1);
    };
    let tuned = tune::<B>(products, BUDGET, &tried, trying, device);
    bar.finish_and_clear();
    let tuned = tuned?;
    report(&tuned);
    kept.done(Some(tuned.choice).filter(|_| !tuned.unknown));
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
        "products of many tokens: the quickest kernels"
    );
}
