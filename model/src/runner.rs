//! A model on a device, behind a trait object: the place where the generic code is
//! made concrete for each backend, so that no other crate waits for it to compile.

mod check;
mod choose;
mod formats;
mod on_threads;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor};
use burn_cuda::Cuda;
use burn_flex::Flex;
use burn_wgpu::Wgpu;
use hearth_shaders::{BlockFormat, Kernels, ProductChoice, Summation};

pub use hearth_forward::{LogitEdit as Edit, SampleParams as Choice};

use crate::checkpoint::Checkpoint;
use crate::config::ModelConfig;
use crate::device::{self, DeviceError, DeviceReport, DeviceSpec, Handle};
use crate::doctor::{choose_products, panic_text, products, refuse_wrong_kernels};
use crate::dtype::Dtype;
use crate::host_pool::HostPool;
use crate::kv_pool::KvPool;
use crate::memory::{self, KvBudget, MemoryError};
use crate::transformer::{Blocks, DeviceBatch, DeviceOutputs, PagedContext, Transformer};
use crate::weights::{Quantization, WeightError};
use check::{below, check, length};
use choose::{Chosen, Latest};
use formats::{choose_blocks, choose_dtype};
use on_threads::OnThreads;

/// One sequence's share of a [`Batch`]: tokens `first_token .. first_token + tokens`
/// are the last of its `context` positions, and it attends
/// `slot_table[first_slot .. first_slot + context]`.
#[derive(Debug, Clone, Copy)]
pub struct SequenceSpan {
    pub first_token: u32,
    pub tokens: u32,
    pub context: u32,
    pub first_slot: u32,
}

/// A ragged batch: prefill chunks and decode rows, one sequence after another.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    /// `[tokens]`
    pub tokens: &'a [u32],
    /// `[tokens]`, or empty: in the place of `tokens` are those that the forward before, which
    /// need not have been waited for, chose at these of its `choice_rows`; any where it chose
    /// none.
    pub carried: &'a [u32],
    /// `[tokens]`
    pub positions: &'a [u32],
    /// `[tokens]`: the slot that receives each token's keys and values.
    pub write_slots: &'a [u32],
    pub sequences: &'a [SequenceSpan],
    /// The slots of every sequence in order of position, concatenated.
    pub slot_table: &'a [u32],
    /// `[rows]`: the tokens whose logits are wanted.
    pub logit_rows: &'a [u32],
    /// `[rows]`: the tokens whose hidden states are wanted.
    pub hidden_rows: &'a [u32],
    /// `[rows]`: the tokens after which one is chosen; none where the decoder does not
    /// [choose](Decoder::chooses).
    pub choice_rows: &'a [u32],
}

/// What is wanted of one of a batch's `choice_rows`.
#[derive(Debug, Clone, PartialEq)]
pub enum Wish {
    /// The token that is chosen so.
    Token(Choice),
    Logits,
    Nothing,
}

/// Gives the wishes of a batch's `choice_rows`; may wait for them.
pub type Wishes<'a> = dyn FnMut() -> Vec<Wish> + 'a;

/// What a forward gives for the rows that were wanted, in their order, row-major.
#[derive(Debug, Clone, Default)]
pub struct Outputs {
    /// `[logit_rows, vocab]`
    pub logits: Vec<f32>,
    /// `[hidden_rows, hidden_size]`, after the last norm.
    pub hidden: Vec<f32>,
    /// One for each [`Wish::Token`]; `None` where there is none to choose from.
    pub chosen: Vec<Option<u32>>,
    /// `[rows, vocab]`, one for each [`Wish::Logits`].
    pub undecided: Vec<f32>,
}

/// Waits for what a forward gives.
pub type Flight = Box<dyn FnOnce() -> Result<Outputs, ForwardError>>;

/// Why a forward pass did not run.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    #[error("batch: {what} {value} is not below {bound}")]
    OutOfRange {
        what: &'static str,
        value: usize,
        bound: usize,
    },
    #[error("batch: {what} has {given} entries, not {expected}")]
    Length {
        what: &'static str,
        given: usize,
        expected: usize,
    },
    #[error("the device returned nothing: {0}")]
    Device(String),
}

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Weights(#[from] WeightError),
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error("--dtype {dtype} does not run on {device}: {reason}")]
    Dtype {
        dtype: Dtype,
        device: String,
        reason: &'static str,
    },
    #[error("--quantization {given} does not work {reason}")]
    Quantization { given: Quantization, reason: String },
    #[error("{device} is refused, because it computes wrongly: {reason} (see hearth doctor)")]
    WrongKernel { device: String, reason: String },
    #[error(
        "{device} failed while kernels were timed: {reason} (the next start leaves that kernel out, \
         and with --no-autotune none is timed)"
    )]
    Tuning { device: String, reason: String },
    #[error("{device} failed while the model was loaded: {reason}")]
    DeviceFailed { device: String, reason: String },
}

/// What serving computes at once, at most.
#[derive(Debug, Clone, Copy, Default)]
pub struct LargestStep {
    pub tokens: usize,
    pub sequences: usize,
}

/// How to load a checkpoint.
#[derive(Debug, Clone, Default)]
pub struct LoadOptions {
    pub device: DeviceSpec,
    /// `None`: what the checkpoint is in, if the device computes in it.
    pub dtype: Option<Dtype>,
    /// `None`: the blocks that the checkpoint is in, where the device computes with them.
    pub quantization: Option<Quantization>,
    /// Slots of the KV pool; `None`: what fits.
    pub kv_tokens: Option<usize>,
    /// Longest sequence; `None`: what the model was made for, if the pool holds it.
    pub max_model_len: Option<usize>,
    /// Slots of a second pool in the host's memory.
    pub host_slots: usize,
    /// Whether a token's bits are not to depend on what else is computed with it.
    pub deterministic: bool,
    /// The largest matrix in bytes, where that is less than what the device binds at once.
    pub largest_matrix: Option<u64>,
    /// Whether a GPU has to prove its kernels before anything is loaded onto it.
    pub check_kernels: bool,
    /// The largest step, where a GPU is to time kernels for products of many tokens, and to take
    /// the quickest.
    pub tuned_for: Option<LargestStep>,
    /// A directory where kernels that were compiled stay for the next start of this build.
    pub kernel_cache: Option<PathBuf>,
}

/// What was loaded, and what it takes.
#[derive(Debug, Clone)]
pub struct Report {
    pub architecture: String,
    pub parameters: u64,
    pub vocab_size: usize,
    pub hidden_size: usize,
    /// `cuda:0 (NVIDIA H100)`
    pub device: String,
    pub dtype: Dtype,
    /// What matrices are in where that is not `dtype`: `int8`, `Q4_0, Q8_0`.
    pub quantization: Option<String>,
    pub kv_slots: usize,
    /// Slots of the second pool, in the host's memory.
    pub host_slots: usize,
    pub max_model_len: usize,
    pub weight_bytes: u64,
    pub kv_bytes: u64,
    /// Device memory left beside weights and KV; `None` where it is not known.
    pub headroom_bytes: Option<u64>,
}

/// A loaded model. Not `Send`: a device's queue belongs to the thread that opened it.
pub trait Decoder {
    fn report(&self) -> &Report;

    /// Whether it chooses tokens itself, so that no logits need leave the device.
    fn chooses(&self) -> bool;

    /// Runs the model over `batch`. Keys and values of all tokens are in the pool
    /// afterwards. `wishes` is asked once, with the forward under way, where the batch has
    /// `choice_rows`. A GPU need not be done when this returns; what it is given next comes
    /// after it. Flights are waited for in the order of their launches.
    ///
    /// # Errors
    /// [`ForwardError`] when the batch contradicts itself or the model, before
    /// anything was written, or when the device failed, which may also show in the flight.
    fn launch(
        &mut self,
        batch: &Batch<'_>,
        wishes: &mut Wishes<'_>,
    ) -> Result<Flight, ForwardError>;

    /// Launches a forward and waits for it.
    ///
    /// # Errors
    /// As [`launch`](Self::launch).
    fn forward(
        &mut self,
        batch: &Batch<'_>,
        wishes: &mut Wishes<'_>,
    ) -> Result<Outputs, ForwardError> {
        self.launch(batch, wishes)?()
    }

    /// Copies keys and values between the slots `device` and the slots `host` of the
    /// second pool, one by one.
    ///
    /// # Errors
    /// [`ForwardError`] when there are no such slots, before anything was written, or
    /// when the device failed.
    fn copy(&mut self, way: CopyWay, device: &[u32], host: &[u32]) -> Result<(), ForwardError>;

    /// Bytes that a GPU's memory pool has taken from it and keeps, weights and KV included.
    fn reserved_bytes(&self) -> Option<u64>;

    /// Whether the device still computes: a sum of few numbers comes back right. For when a
    /// forward has failed; a driver that was reset does not come back by itself.
    fn is_alive(&mut self) -> bool;
}

/// Where keys and values are copied to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyWay {
    ToHost,
    ToDevice,
}

/// Opens the device and loads the model onto it.
///
/// # Errors
/// [`LoadError`] names the device, tensor or amount of memory that is at fault.
pub fn load(checkpoint: &Checkpoint, options: &LoadOptions) -> Result<Box<dyn Decoder>, LoadError> {
    let opened = device::open(&options.device, options.kernel_cache.as_deref())?;
    let report = &opened.report;
    match &opened.handle {
        Handle::Cpu => {
            hearth_shaders::check_limit().map_err(|reason| LoadError::DeviceFailed {
                device: report.to_string(),
                reason,
            })?;
            let runner = Runner::<Flex>::load(checkpoint, options, report, &Default::default())?;
            Ok(Box::new(OnThreads::new(runner)?))
        }
        Handle::Cuda(cuda) => guarded(report, || {
            Ok(Box::new(Runner::<Cuda>::load(
                checkpoint, options, report, cuda,
            )?))
        }),
        Handle::Wgpu(wgpu) => guarded(report, || {
            Ok(Box::new(Runner::<Wgpu>::load(
                checkpoint, options, report, wgpu,
            )?))
        }),
    }
}

/// Burn reports a device's refusal by a panic; here it becomes an error.
fn guarded(
    report: &DeviceReport,
    load: impl FnOnce() -> Result<Box<dyn Decoder>, LoadError>,
) -> Result<Box<dyn Decoder>, LoadError> {
    catch_unwind(AssertUnwindSafe(load)).unwrap_or_else(|panic| {
        let reason = panic_text(&*panic);
        Err(LoadError::DeviceFailed {
            device: report.to_string(),
            reason,
        })
    })
}

struct Runner<B: Kernels> {
    config: ModelConfig,
    transformer: Transformer<B>,
    context: PagedContext<B>,
    host: Option<HostPool<B>>,
    summation: Summation,
    latest: Latest<B>,
    /// Rows of logits that the device binds at once.
    rows_at_once: usize,
    device: B::Device,
    report: Report,
}

impl<B: Kernels> Runner<B> {
    fn load(
        checkpoint: &Checkpoint,
        options: &LoadOptions,
        at: &DeviceReport,
        device: &B::Device,
    ) -> Result<Self, LoadError> {
        let config = checkpoint.config.clone();
        let dtype = choose_dtype(options.dtype, checkpoint.weights.dtype(), at)?;
        // The CPU widens in registers; a GPU kernel takes one type for everything.
        let vector = if at.is_cpu() { Dtype::F32 } else { dtype };
        let summation = match options.deterministic {
            true => Summation::Fixed,
            false => Summation::Fastest,
        };
        let weights = &checkpoint.weights;
        let blocks = Blocks {
            quantized: choose_blocks(options.quantization, weights, dtype, at)?,
            bf16: dtype == Dtype::Bf16 && B::packs(BlockFormat::Bf16),
        };
        let largest = options.largest_matrix.unwrap_or(u64::MAX);
        let largest = largest.min(at.max_binding);
        memory::check_bindings(&config, dtype, at, largest, |name, shape| {
            blocks.matrix_bytes::<B>(weights, name, shape, dtype)
        })?;
        if options.check_kernels && !at.is_cpu() {
            let packed = blocks.integers(&config, weights);
            refuse_wrong_kernels::<B>(&config, dtype, packed, summation, device).map_err(
                |reason| LoadError::WrongKernel {
                    device: at.to_string(),
                    reason,
                },
            )?;
        }
        let packed = blocks.integers(&config, weights) != [None; 2];
        let most = options.tuned_for.unwrap_or_default();
        let products = products(&config, dtype, most, largest, packed);
        // What was chosen before, as on a device that was lost since, is no choice of now.
        B::choose_products(ProductChoice::default(), &products, device);
        if options.tuned_for.is_some() && summation == Summation::Fastest {
            let cache = options.kernel_cache.as_deref();
            choose_products::<B>(&products, cache, at, device).map_err(|reason| {
                LoadError::Tuning {
                    device: at.to_string(),
                    reason,
                }
            })?;
        }
        let weight_bytes = blocks.weight_bytes::<B>(&config, weights, dtype);
        let budget = KvBudget::plan(&config, dtype, weight_bytes, options, at)?;
        let transformer = Transformer::load_for_serving(
            &config, weights, dtype, vector, blocks, largest, device,
        )?;
        let pool = KvPool::new(&config, budget.slots, dtype, device);
        let context = PagedContext::new(&config, pool, budget.max_model_len, device);
        memory::check_host(&config, dtype, options.host_slots)?;
        let host = match options.host_slots {
            0 => None,
            slots => Some(
                HostPool::new(&config, slots, dtype, vector, device).map_err(|error| {
                    LoadError::DeviceFailed {
                        device: "the host".to_owned(),
                        reason: error.to_string(),
                    }
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
            quantization: blocks.describe(&config, weights),
            kv_slots: budget.slots,
            host_slots: options.host_slots,
            max_model_len: budget.max_model_len,
            weight_bytes,
            kv_bytes: budget.bytes,
            headroom_bytes: memory::headroom(at, weight_bytes + budget.bytes),
        };
        let device = device.clone();
        Ok(Self {
            rows_at_once: memory::rows_at_once(config.vocab_size, largest),
            config,
            transformer,
            context,
            host,
            summation,
            latest: Latest::none(),
            device,
            report,
        })
    }
}

impl<B: Kernels> Decoder for Runner<B> {
    fn report(&self) -> &Report {
        &self.report
    }

    fn chooses(&self) -> bool {
        B::samples_on_device()
    }

    fn launch(
        &mut self,
        batch: &Batch<'_>,
        wishes: &mut Wishes<'_>,
    ) -> Result<Flight, ForwardError> {
        check(batch, &self.report)?;
        if !B::samples_on_device() {
            length("choice rows", batch.choice_rows.len(), 0)?;
        }
        let carried = self.latest.carry(batch.carried, &self.device)?;
        self.latest = Latest::none();
        if batch.tokens.is_empty() {
            return Ok(Box::new(|| Ok(Outputs::default())));
        }
        let layout = self.context.layout;
        let uploaded = DeviceBatch::upload(
            batch,
            carried,
            layout,
            self.summation,
            self.rows_at_once,
            &self.device,
        );
        let DeviceOutputs {
            logits,
            hidden,
            to_choose,
        } = self
            .transformer
            .forward_paged(&self.config, uploaded, &mut self.context);
        let device = self.device.clone();
        if logits.is_empty() && hidden.is_none() && to_choose.is_empty() {
            // A device reports a failed launch when it is waited for. What follows would
            // otherwise build on KV that was never written.
            return Ok(Box::new(move || {
                B::sync(&device)
                    .map(|()| Outputs::default())
                    .map_err(|error| ForwardError::Device(format!("{error:?}")))
            }));
        }
        let mut chosen = Chosen::default();
        if !to_choose.is_empty() {
            // What waits in a queue runs while the wishes are waited for.
            B::flush(&device);
            (chosen, self.latest) = Chosen::enqueue(to_choose, wishes(), &device)?;
        }
        Ok(Box::new(move || {
            let (chosen, undecided) = chosen.read()?;
            Ok(Outputs {
                logits: all_to_host(logits)?,
                hidden: hidden.map_or_else(|| Ok(Vec::new()), to_host)?,
                chosen,
                undecided,
            })
        }))
    }

    fn copy(&mut self, way: CopyWay, device: &[u32], host: &[u32]) -> Result<(), ForwardError> {
        length("host slots", host.len(), device.len())?;
        below("slot", device, self.report.kv_slots)?;
        below("host slot", host, self.report.host_slots)?;
        let Some(pool) = &mut self.host else {
            return Ok(());
        };
        let kv = &mut self.context.pool;
        match way {
            CopyWay::ToHost => pool.fetch(kv, device, host, &self.device),
            CopyWay::ToDevice => pool.restore(kv, host, device, &self.device),
        }
        .map_err(ForwardError::Device)
    }

    fn reserved_bytes(&self) -> Option<u64> {
        B::reserved_bytes(&self.device)
    }

    fn is_alive(&mut self) -> bool {
        let sum = || {
            let numbers = Tensor::<B, 1>::from_data([1.0f32, 2.0, 4.0], (&self.device, DType::F32));
            let data = numbers.sum().try_into_data().ok()?;
            data.convert::<f32>().into_vec::<f32>().ok()
        };
        matches!(catch_unwind(AssertUnwindSafe(sum)), Ok(Some(sum)) if sum == [7.0])
    }
}

/// Rows that come in parts.
fn all_to_host<B: Backend>(parts: Vec<Tensor<B, 2>>) -> Result<Vec<f32>, ForwardError> {
    let mut rows = Vec::new();
    for part in parts {
        let part = to_host(part)?;
        if rows.is_empty() {
            rows = part;
        } else {
            rows.extend(part);
        }
    }
    Ok(rows)
}

fn to_host<B: Backend>(rows: Tensor<B, 2>) -> Result<Vec<f32>, ForwardError> {
    let data = rows
        .try_into_data()
        .map_err(|error| ForwardError::Device(error.to_string()))?;
    data.convert::<f32>()
        .into_vec()
        .map_err(|error| ForwardError::Device(format!("{error:?}")))
}
