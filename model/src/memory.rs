//! How many tokens of KV fit, and how long a sequence may be.

use crate::config::ModelConfig;
use crate::device::DeviceReport;
use crate::dtype::Dtype;
use crate::kv_pool::bytes_per_token;
use crate::runner::LoadOptions;

/// Share of the memory beside the weights that an unasked-for pool takes: a
/// machine's CPU has other work, a GPU keeps room for activations.
const CPU_SHARE: f64 = 0.25;
const GPU_SHARE: f64 = 0.85;
/// Slots that an unasked-for pool has at most; the radix tree's bookkeeping lives
/// on the host and a short-context model needs no more.
const MAX_DEFAULT_SLOTS: u64 = 1 << 20;
const MAX_DEFAULT_CPU_SLOTS: u64 = 1 << 16;
/// For a device that does not tell how much memory it has.
const UNKNOWN_MEMORY: u64 = 2 << 30;

#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    #[error("--kv-tokens must be at least 1, got 0")]
    NoSlots,
    #[error("--max-model-len must be from 1 to {bound} ({source_of_bound}), got {given}")]
    ModelLength {
        bound: usize,
        source_of_bound: &'static str,
        given: usize,
    },
    #[error("weights of {weights} MiB leave no room for KV in {memory} MiB on {device}")]
    NoRoom {
        weights: u64,
        memory: u64,
        device: String,
    },
    #[error(
        "one KV pool of {tokens} tokens is {bytes} bytes a layer, {device} binds at most {bound}"
    )]
    Binding {
        tokens: usize,
        bytes: u64,
        bound: u64,
        device: String,
    },
}

/// The KV pool that a model gets.
pub struct KvBudget {
    pub slots: usize,
    pub max_model_len: usize,
    pub bytes: u64,
}

impl KvBudget {
    /// # Errors
    /// The options ask for what the model or the device does not have.
    pub fn plan(
        config: &ModelConfig,
        dtype: Dtype,
        weight_bytes: u64,
        options: &LoadOptions,
        at: &DeviceReport,
    ) -> Result<Self, MemoryError> {
        let per_token = bytes_per_token(config, dtype);
        let per_layer = per_token / (2 * config.layers as u64);
        let slots = match options.kv_tokens {
            Some(0) => return Err(MemoryError::NoSlots),
            Some(slots) => {
                let bytes = slots as u64 * per_layer;
                if bytes > at.max_binding {
                    let (tokens, bound, device) = (slots, at.max_binding, at.to_string());
                    return Err(MemoryError::Binding {
                        tokens,
                        bytes,
                        bound,
                        device,
                    });
                }
                slots
            }
            None => {
                let memory = available(at);
                let share = if at.is_cpu() { CPU_SHARE } else { GPU_SHARE };
                let room = memory.saturating_sub(weight_bytes) as f64 * share;
                let most = if at.is_cpu() {
                    MAX_DEFAULT_CPU_SLOTS
                } else {
                    MAX_DEFAULT_SLOTS
                };
                let slots = (room as u64 / per_token)
                    .min(at.max_binding / per_layer)
                    .min(most);
                if slots == 0 {
                    let mib = |bytes: u64| bytes >> 20;
                    return Err(MemoryError::NoRoom {
                        weights: mib(weight_bytes),
                        memory: mib(memory),
                        device: at.to_string(),
                    });
                }
                slots as usize
            }
        };
        let made_for = config.max_position_embeddings;
        let max_model_len = match options.max_model_len {
            None => made_for.min(slots),
            Some(given) => {
                let (bound, source_of_bound) = if slots < made_for {
                    (slots, "the slots of the KV pool")
                } else {
                    (made_for, "the model's max_position_embeddings")
                };
                if given == 0 || given > bound {
                    return Err(MemoryError::ModelLength {
                        bound,
                        source_of_bound,
                        given,
                    });
                }
                given
            }
        };
        Ok(Self {
            slots,
            max_model_len,
            bytes: slots as u64 * per_token,
        })
    }
}

/// Memory of `at` left beside `used` bytes; `None` where it is not known.
pub fn headroom(at: &DeviceReport, used: u64) -> Option<u64> {
    let memory = if at.is_cpu() {
        cpu_available()
    } else {
        at.memory
    };
    memory.map(|memory| memory.saturating_sub(used))
}

fn available(at: &DeviceReport) -> u64 {
    let known = if at.is_cpu() {
        cpu_available()
    } else {
        at.memory
    };
    known.unwrap_or(UNKNOWN_MEMORY)
}

/// Memory that this process can have without swapping, where the system tells.
pub fn cpu_available() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}
