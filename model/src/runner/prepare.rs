//! Puts a model onto an open device: checks and tunes kernels, plans the memory, loads the
//! weights and allocates the KV pools.

use hearth_shaders::{BlockFormat, Kernels, ProductChoice, Summation};

use super::dequantised::warn_of_dequantised;
use super::formats::{choose_blocks, choose_dtype};
use super::model_runner::ModelRunner;
use super::sample::SampledTokens;
use crate::checkpoint::Checkpoint;
use crate::device::DeviceReport;
use crate::dtype::Dtype;
use crate::host_pool::HostPool;
use crate::kv_pool::KvPool;
use crate::kv_rows::KvRows;
use crate::load_error::LoadError;
use crate::load_options::{AdapterSlots, LoadOptions};
use crate::memory::{self, KvBudget};
use crate::report::Report;
use crate::startup_check::refuse_wrong_kernels;
use crate::transformer::{
    AdapterStacks, Blocks, PagedContext, ServedAs, Transformer, adapter_bytes, own_table_bytes,
};
use crate::tuning::{choose_products, products};

/// Makes a model ready to run on `device`, which `at` describes.
pub(super) fn prepare<B: Kernels>(
    checkpoint: &Checkpoint,
    options: &LoadOptions,
    at: &DeviceReport,
    device: &B::Device,
) -> Result<ModelRunner<B>, LoadError> {
    let config = checkpoint.config.clone();
    let dtype = choose_dtype(options.dtype, checkpoint.weights.dtype(), &config, at)?;
    let kv_format = options.kv_dtype.format(dtype, &config)?;
    // The CPU widens values in registers; a GPU kernel takes one type for everything.
    let vector = if at.is_cpu() { Dtype::F32 } else { dtype };
    let summation = match options.deterministic {
        true => Summation::Fixed,
        false => Summation::Fastest,
    };
    let weights = &checkpoint.weights;
    let blocks = Blocks {
        quantized: choose_blocks(options.quantization, weights, dtype, at)?,
        bf16: dtype == Dtype::Bf16 && B::packs(&[BlockFormat::Bf16]),
    };
    let largest = options.largest_matrix.unwrap_or(u64::MAX);
    let largest = largest.min(at.max_binding);
    memory::check_bindings(&config, dtype, at, largest, |stack| {
        blocks.stack_bytes::<B>(weights, stack, dtype)
    })?;
    if blocks.dequantises_experts::<B>(&config, weights) {
        tracing::warn!(
            %dtype,
            device = %at,
            "experts in blocks are dequantised, because they cannot be computed with as they are; \
             they take several times the memory"
        );
    }
    let packed = blocks.integers::<B>(&config, weights);
    let any_packed = !packed.is_empty();
    if options.check_kernels && !at.is_cpu() {
        let rank = match options.adapters.slots {
            0 => 0,
            _ => options.adapters.rank,
        };
        refuse_wrong_kernels::<B>(&config, dtype, kv_format, packed, rank, summation, device)
            .map_err(|reason| LoadError::WrongKernel {
                device: at.to_string(),
                reason,
            })?;
    }
    let most = options.tuned_for.unwrap_or_default();
    let products = products(&config, dtype, most, largest, any_packed);
    // The process may hold a choice from before the device was lost, which must not apply here.
    B::choose_products(ProductChoice::default(), &products, device);
    if options.tuned_for.is_some() && summation == Summation::Fastest {
        let directory = options.kernel_cache.as_deref();
        choose_products::<B>(&products, directory, at, device).map_err(|reason| {
            LoadError::Tuning {
                device: at.to_string(),
                reason,
            }
        })?;
    }
    let weight_bytes = blocks.weight_bytes::<B>(&config, weights, dtype);
    let served = ServedAs {
        matrix: dtype,
        vector,
        blocks,
        largest,
    };
    let AdapterSlots { slots, rank, .. } = options.adapters;
    let [adapter_bytes, widest] = adapter_bytes(&config, slots, rank, dtype);
    memory::check_adapters(widest, dtype, at, largest)?;
    let taken = weight_bytes
        .saturating_add(adapter_bytes)
        .saturating_add(own_table_bytes::<B>(&config, options.adapters, served));
    let budget = KvBudget::plan(&config, kv_format, taken, options, at)?;
    warn_of_dequantised::<B>(&config, weights, blocks, dtype);
    let transformer = Transformer::load_for_serving(&config, weights, served, device)?;
    let window_slots = budget.window.map(|window| window.slots);
    let pool = KvPool::new(&config, budget.slots, window_slots, kv_format, device);
    let adapters =
        (slots > 0).then(|| AdapterStacks::<B>::new(&config, options.adapters, served, device));
    let context = PagedContext::new(&config, pool, budget.max_model_len, device);
    memory::check_host(&config, kv_format, options.host_slots)?;
    let rows = KvRows::new(&config, kv_format);
    let host = match options.host_slots {
        0 => None,
        slots => Some(
            HostPool::new(&rows, slots).map_err(|error| LoadError::DeviceFailed {
                device: "the host".to_owned(),
                reason: error.to_string(),
            })?,
        ),
    };
    let report = Report {
        architecture: config.architecture.to_string(),
        parameters: config.parameters(),
        vocab_size: config.vocab_size,
        hidden_size: config.hidden_size,
        device: at.to_string(),
        dtype,
        quantization: blocks.describe::<B>(&config, weights),
        kv_dtype: kv_format.to_string(),
        kv_slots: budget.slots,
        window: budget.window,
        host_slots: options.host_slots,
        max_model_len: budget.max_model_len,
        weight_bytes,
        kv_bytes: budget.bytes,
        headroom_bytes: memory::headroom(at, taken + budget.bytes),
    };
    Ok(ModelRunner {
        rows_at_once: memory::rows_at_once(config.vocab_size, largest),
        config,
        transformer,
        context,
        rows,
        host,
        adapters,
        summation,
        sampled: SampledTokens::none(),
        device: device.clone(),
        report,
    })
}
