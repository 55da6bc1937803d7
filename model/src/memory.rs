//! Memory plan: how many tokens of KV fit, how long a sequence may be, and which matrices a device
//! can bind.

mod window;

use hearth_forward::WindowLimits;
use hearth_shaders::KvFormat;

use crate::config::{ModelConfig, Stack};
use crate::device::{DeviceReport, available_host_memory};
use crate::dtype::Dtype;
use crate::kv_pool::bytes_per_token;
use crate::load_options::LoadOptions;

pub(crate) use window::WindowPlan;

/// The share of the memory beside the weights that the KV pool takes by default. A machine needs
/// memory for other work than serving, and a GPU needs some for activations.
const CPU_SHARE: f64 = 0.25;
const GPU_SHARE: f64 = 0.85;
/// The largest default number of slots. The radix tree's bookkeeping needs memory on the host as
/// well, and a model with a short context needs no more.
const MAX_DEFAULT_SLOTS: u64 = 1 << 20;
const MAX_DEFAULT_CPU_SLOTS: u64 = 1 << 16;
/// Bytes of KV on a device that does not tell how much memory it has (Metal, Direct3D 12).
const UNKNOWN_MEMORY_KV: u64 = 1 << 30;
/// The largest number of units that sample from a row together.
const SAMPLING_UNITS: usize = 1024;
/// Slot ids are i32 on the device.
const MAX_SLOTS: usize = i32::MAX as usize;

#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    #[error("--kv-tokens must be from 1 to {bound} ({source_of_bound}), got {given}")]
    Slots {
        bound: usize,
        source_of_bound: String,
        given: usize,
    },
    #[error(
        "--host-cache-tokens must be at most {bound} (what fits into the host's memory, \
         {per_token} bytes each), got {given}"
    )]
    HostSlots {
        bound: u64,
        per_token: u64,
        given: usize,
    },
    #[error("--max-model-len must be from 1 to {bound} ({source_of_bound}), got {given}")]
    ModelLength {
        bound: usize,
        source_of_bound: &'static str,
        given: usize,
    },
    #[error(
        "weights of {weights} MiB leave no room for KV in {memory} MiB on {device}; \
         a smaller --dtype or another --device may fit"
    )]
    NoRoom {
        weights: u64,
        memory: u64,
        device: String,
    },
    #[error("{matrix} takes {bytes} bytes as {dtype}, {device} binds at most {bound} at once")]
    Binding {
        matrix: &'static str,
        dtype: Dtype,
        bytes: u64,
        bound: u64,
        device: String,
    },
}

/// The planned size of the KV pool.
pub struct KvBudget {
    pub slots: usize,
    /// The window slots, if layers that attend a window get slots of their own.
    pub window: Option<WindowLimits>,
    pub max_model_len: usize,
    pub bytes: u64,
}

impl KvBudget {
    /// Plans a pool as the options ask for, or with defaults.
    ///
    /// # Errors
    /// The options ask for more than the model or the device has, or nothing fits.
    pub fn plan(
        config: &ModelConfig,
        format: KvFormat,
        weight_bytes: u64,
        options: &LoadOptions,
        at: &DeviceReport,
    ) -> Result<Self, MemoryError> {
        let windows = WindowPlan::new(config, options);
        let token = bytes_per_token(config, format);
        let slots = slots(config, token, windows, weight_bytes, options, at)?;
        let window = windows.limits(slots);
        Ok(Self {
            slots,
            window,
            max_model_len: max_model_len(config, slots, options.max_model_len)?,
            bytes: windows.bytes(slots, window, token),
        })
    }
}

/// The slots of a pool as the options ask for, or as many as fit, where a token takes `token` bytes over
/// all layers.
///
/// # Errors
/// The options ask for more than the device has, or nothing fits.
fn slots(
    config: &ModelConfig,
    token: u64,
    windows: WindowPlan,
    weight_bytes: u64,
    options: &LoadOptions,
    at: &DeviceReport,
) -> Result<usize, MemoryError> {
    let per_layer = token / (2 * config.layers.len() as u64);
    let beside_weights = at.memory.map(|memory| memory.saturating_sub(weight_bytes));
    let most = {
        let by_binding = (
            at.max_binding / per_layer,
            format!("what {at} binds at once"),
        );
        let by_memory = beside_weights.map(|bytes| {
            (
                windows.slots_in(bytes, token),
                format!("what fits beside the weights on {at}"),
            )
        });
        let by_index = (MAX_SLOTS as u64, "the width of an index".to_owned());
        let bounds = [Some(by_binding), by_memory, Some(by_index)];
        bounds
            .into_iter()
            .flatten()
            .min()
            .expect("there are bounds that always hold")
    };
    let slots = match options.kv_tokens {
        Some(given) if given == 0 || given as u64 > most.0 => {
            return Err(MemoryError::Slots {
                bound: most.0 as usize,
                source_of_bound: most.1,
                given,
            });
        }
        Some(given) => given,
        None => {
            let bytes = match beside_weights {
                Some(bytes) if at.is_cpu() => bytes as f64 * CPU_SHARE,
                Some(bytes) => bytes as f64 * GPU_SHARE,
                None => UNKNOWN_MEMORY_KV as f64,
            };
            let unasked = if at.is_cpu() {
                MAX_DEFAULT_CPU_SLOTS
            } else {
                MAX_DEFAULT_SLOTS
            };
            let fitting = windows.slots_in(bytes as u64, token);
            fitting.min(unasked).min(most.0) as usize
        }
    };
    if slots == 0 {
        return Err(MemoryError::NoRoom {
            weights: weight_bytes >> 20,
            memory: at.memory.unwrap_or_default() >> 20,
            device: at.to_string(),
        });
    }
    Ok(slots)
}

/// The most tokens of one sequence, in a pool of `slots`, where `asked` is `--max-model-len`.
///
/// # Errors
/// More is asked for than the model or the pool has, or nothing.
pub fn max_model_len(
    config: &ModelConfig,
    slots: usize,
    asked: Option<usize>,
) -> Result<usize, MemoryError> {
    let made_for = config.max_position_embeddings;
    let (bound, source_of_bound) = if slots < made_for {
        (slots, "the slots of the KV pool")
    } else {
        (made_for, "the model's max_position_embeddings")
    };
    match asked {
        None => Ok(bound),
        Some(given) if given == 0 || given > bound => Err(MemoryError::ModelLength {
            bound,
            source_of_bound,
            given,
        }),
        Some(given) => Ok(given),
    }
}

/// Checks that the device can bind the largest tensor of the slots for adapters, which has `widest`
/// bytes.
///
/// # Errors
/// It has more than `largest` bytes.
pub fn check_adapters(
    widest: u64,
    dtype: Dtype,
    at: &DeviceReport,
    largest: u64,
) -> Result<(), MemoryError> {
    if widest <= largest {
        return Ok(());
    }
    Err(MemoryError::Binding {
        matrix: "a matrix of all adapters (--max-loras times --max-lora-rank)",
        dtype,
        bytes: widest,
        bound: largest,
        device: at.to_string(),
    })
}

/// Checks that the device can bind every matrix of a layer, each of which is one buffer. Embedding
/// and output projection are not checked, because they are split where they are too large.
/// `bytes` returns the bytes of stacked matrices.
///
/// # Errors
/// A matrix has more than `largest` bytes.
pub fn check_bindings(
    config: &ModelConfig,
    dtype: Dtype,
    at: &DeviceReport,
    largest: u64,
    bytes: impl Fn(&Stack) -> u64,
) -> Result<(), MemoryError> {
    for layer in 0..config.layers.len() {
        for linear in config.layer_tensors(layer).linears() {
            let bytes = bytes(&linear.stack());
            if bytes > largest {
                return Err(MemoryError::Binding {
                    matrix: linear.what,
                    dtype,
                    bytes,
                    bound: largest,
                    device: at.to_string(),
                });
            }
        }
    }
    Ok(())
}

/// Rows of logits that fit into `largest` bytes, which a device binds at once. Sampling from a row
/// takes the memory of up to [`SAMPLING_UNITS`] more logits.
pub fn rows_at_once(vocab: usize, largest: u64) -> usize {
    let row = (vocab + SAMPLING_UNITS) * size_of::<f32>();
    let rows = usize::try_from(largest / row as u64).unwrap_or(usize::MAX);
    // The device refuses a single row that is too large.
    rows.max(1)
}

/// Checks that the host has memory for a second pool of `slots` slots.
///
/// # Errors
/// The host has too little memory.
pub fn check_host(config: &ModelConfig, format: KvFormat, slots: usize) -> Result<(), MemoryError> {
    let per_token = bytes_per_token(config, format);
    let most = available_host_memory().map_or(u64::MAX, |bytes| bytes / per_token);
    let bound = most.min(MAX_SLOTS as u64);
    if slots as u64 > bound {
        return Err(MemoryError::HostSlots {
            bound,
            per_token,
            given: slots,
        });
    }
    Ok(())
}

/// Bytes that remain free on `at` beside `used` bytes; `None` if its memory is not known.
pub fn headroom(at: &DeviceReport, used: u64) -> Option<u64> {
    at.memory.map(|memory| memory.saturating_sub(used))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::list;

    const CONFIG: &str = r#"{"architectures": ["LlamaForCausalLM"], "vocab_size": 256,
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "max_position_embeddings": 512}"#;

    fn plan(
        at: &DeviceReport,
        kv_tokens: Option<usize>,
        max_model_len: Option<usize>,
    ) -> Result<KvBudget, String> {
        let config = ModelConfig::from_json(CONFIG).unwrap();
        let options = LoadOptions {
            kv_tokens,
            max_model_len,
            ..LoadOptions::default()
        };
        let format = options.kv_dtype.format(Dtype::F32, &config);
        let format = format.map_err(|e| e.to_string())?;
        KvBudget::plan(&config, format, 1 << 20, &options, at).map_err(|e| e.to_string())
    }

    fn machine(memory: Option<u64>, max_binding: u64) -> DeviceReport {
        let cpu = list().pop().expect("the CPU is always there");
        DeviceReport {
            memory,
            max_binding,
            ..cpu
        }
    }

    #[test]
    fn the_default_pool_takes_a_share_of_the_memory_beside_the_weights() {
        // 1024 bytes of KV a token: 2 layers, K and V, 4 heads of 16, f32.
        let budget = plan(&machine(Some(9 << 20), u64::MAX), None, None).unwrap();
        assert_eq!(budget.slots, (8 << 20) / 4 / 1024);
        assert_eq!(budget.max_model_len, 512);
        let unknown = plan(&machine(None, u64::MAX), None, None).unwrap();
        assert_eq!(unknown.slots, 1 << 16);
    }

    #[test]
    fn more_slots_than_memory_indices_or_bindings_hold_are_refused() {
        let at = machine(Some(9 << 20), u64::MAX);
        assert_eq!(plan(&at, Some(8192), None).unwrap().slots, 8192);
        let error = plan(&at, Some(8193), None).err().unwrap();
        assert!(error.contains("8192") && error.contains("8193"), "{error}");
        assert!(plan(&at, Some(0), None).is_err());
        let error = plan(&machine(None, u64::MAX), Some(1 << 40), None)
            .err()
            .unwrap();
        assert!(error.contains("2147483647"), "{error}");
        let error = plan(&machine(None, 1 << 16), Some(300), None)
            .err()
            .unwrap();
        assert!(error.contains("256") && error.contains("binds"), "{error}");
    }

    #[test]
    fn a_matrix_of_a_layer_that_is_larger_than_a_binding_is_refused_as_it_is_stored() {
        let config = ModelConfig::from_json(CONFIG).unwrap();
        let at = machine(None, u64::MAX);
        let check = |bits: usize| {
            let bytes = |stack: &Stack| (stack.rows() * stack.columns * bits / 8) as u64;
            check_bindings(&config, Dtype::F32, &at, 1 << 15, bytes)
                .map_err(|error| error.to_string())
        };
        let error = check(32).unwrap_err();
        assert!(
            error.contains("queries, keys") && error.contains("49152") && error.contains("32768"),
            "{error}"
        );
        assert_eq!(check(8), Ok(()));
    }

    #[test]
    fn logits_of_more_rows_than_a_binding_holds_come_in_parts() {
        // Llama 3's vocabulary, in what WebGPU binds by default.
        assert_eq!(rows_at_once(128_256, 128 << 20), 259);
        assert_eq!(rows_at_once(128_256, 1000), 1);
        assert!(rows_at_once(128_256, u64::MAX) > 1 << 40);
    }

    #[test]
    fn the_longest_sequence_fits_the_pool_and_the_model() {
        let at = machine(Some(1 << 30), u64::MAX);
        assert_eq!(plan(&at, Some(100), None).unwrap().max_model_len, 100);
        assert!(plan(&at, Some(100), Some(101)).is_err());
        let error = plan(&at, None, Some(513)).err().unwrap();
        assert!(error.contains("512"), "{error}");
    }
}
