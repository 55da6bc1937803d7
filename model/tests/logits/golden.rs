//! Tiny random checkpoints with the logits that `transformers` gives them in float32.

use std::path::{Path, PathBuf};

use hearth_forward::{ForwardBatch, SequenceSpan};
use hearth_model::checkpoint::{Checkpoint, LoadFormat};
use hearth_model::device::{self, Api, DeviceSpec};
use hearth_model::dtype::Dtype;
use hearth_model::weights::Quantization;
use hearth_model::{AdapterSlots, Decoder, KvDtype, LoadError, LoadOptions};
use safetensors::SafeTensors;

/// Largest absolute difference of a logit.
pub const TOLERANCE: f32 = 1e-3;
/// Slots of the pool in the host's memory.
pub const HOST_SLOTS: usize = 100;
pub const SLOTS: usize = 128;

pub struct Golden {
    /// The checkpoint: a directory, or a GGUF file.
    pub dir: PathBuf,
    pub prompt: Vec<u32>,
    /// `[prompt, vocab]`
    pub prefill: Vec<f32>,
    pub decode_tokens: Vec<u32>,
    /// `[decode_tokens, vocab]`
    pub decode: Vec<f32>,
    pub vocab: usize,
}

pub fn goldens() -> Vec<Golden> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("goldens");
    let mut dirs: Vec<_> = std::fs::read_dir(root)
        .expect("goldens are committed")
        .map(|entry| entry.expect("a readable entry").path())
        .filter(|path| path.join("golden.safetensors").exists())
        .collect();
    dirs.sort();
    assert!(dirs.len() >= 20, "goldens are missing: {dirs:?}");
    dirs.into_iter().map(read).collect()
}

/// True if the tests on GPUs run in full. Most of their time is the compilation of kernels for each
/// model and each shader language, which takes minutes where a CPU stands in for the GPU.
pub fn all_gpu_tests() -> bool {
    std::env::var_os("HEARTH_ALL_GPU_TESTS").is_some()
}

/// The goldens for tests on a GPU: all of them if `HEARTH_ALL_GPU_TESTS` is set, and otherwise one
/// with scaled positions, one with biases, normed heads and sliding windows, one with bounds of scores
/// and logits and norms before and after, and two with experts.
pub fn gpu_goldens() -> Vec<Golden> {
    const SOME: [&str; 5] = [
        "llama-llama3-tied",
        "qwen3-bias-layer-types-old-names",
        "gemma2",
        "qwen2-moe",
        "gpt-oss",
    ];
    let mut goldens = goldens();
    goldens.retain(|golden| all_gpu_tests() || SOME.iter().any(|name| golden.dir.ends_with(name)));
    assert!(goldens.len() >= SOME.len(), "a golden was renamed");
    goldens
}

pub fn read(dir: PathBuf) -> Golden {
    let golden = dir.join("golden.safetensors");
    read_as(dir, &golden)
}

/// Files with a golden beside them: quantized ones, and those of llama.cpp's converter.
const OWN_GOLDENS: [&str; 13] = [
    "mixed", "q8_0", "q4_0", "smollm3", "granite", "olmo2", "phi3", "gemma2", "gemma3", "mixtral",
    "qwen2moe", "qwen3moe", "gpt-oss",
];

/// GGUF files: converted ones, with the golden of the model that they were made from, and
/// quantized ones with their own.
pub fn gguf_goldens() -> Vec<Golden> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("goldens");
    let converted = ["llama-llama3-tied", "qwen2-sharded-tied", "qwen3"];
    let mut goldens: Vec<Golden> = converted
        .iter()
        .map(|name| {
            let file = root.join(format!("gguf/{name}.gguf"));
            read_as(file, &root.join(name).join("golden.safetensors"))
        })
        .collect();
    for name in OWN_GOLDENS {
        let file = root.join(format!("gguf/{name}.gguf"));
        let golden = root.join(format!("gguf/{name}.safetensors"));
        goldens.push(read_as(file, &golden));
    }
    goldens
}

pub fn read_as(dir: PathBuf, golden: &Path) -> Golden {
    let bytes = std::fs::read(golden).expect("a golden");
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let words = |name: &str| -> Vec<[u8; 4]> {
        let tensor = file.tensor(name).expect(name);
        tensor
            .data()
            .chunks_exact(4)
            .map(|word| word.try_into().expect("four bytes"))
            .collect()
    };
    let ids = |name: &str| words(name).into_iter().map(u32::from_le_bytes).collect();
    let floats = |name: &str| words(name).into_iter().map(f32::from_le_bytes).collect();
    let vocab = file
        .tensor("prefill_logits")
        .expect("prefill_logits")
        .shape()[1];
    Golden {
        prompt: ids("prompt"),
        prefill: floats("prefill_logits"),
        decode_tokens: ids("decode_tokens"),
        decode: floats("decode_logits"),
        vocab,
        dir,
    }
}

pub fn load(golden: &Golden, device: DeviceSpec) -> Box<dyn Decoder> {
    load_as(golden, device, Dtype::F32)
}

pub fn load_as(golden: &Golden, device: DeviceSpec, dtype: Dtype) -> Box<dyn Decoder> {
    load_with(golden, device, dtype, None).expect("the golden loads")
}

pub fn load_with(
    golden: &Golden,
    device: DeviceSpec,
    dtype: Dtype,
    quantization: Option<Quantization>,
) -> Result<Box<dyn Decoder>, LoadError> {
    let options = LoadOptions {
        dtype: Some(dtype),
        quantization,
        ..options(device)
    };
    hearth_model::load(&open(golden), &options)
}

/// Loads in f32 with the KV pools in 8 bits, as [`load_deterministic`] does.
pub fn load_with_int8_kv(golden: &Golden, device: DeviceSpec) -> Box<dyn Decoder> {
    let options = LoadOptions {
        dtype: Some(Dtype::F32),
        kv_dtype: KvDtype::Int8,
        deterministic: true,
        ..options(device)
    };
    hearth_model::load(&open(golden), &options).expect("the golden loads")
}

/// Loads with no matrix larger than `largest_matrix` bytes.
pub fn load_in_parts(
    golden: &Golden,
    device: DeviceSpec,
    quantization: Option<Quantization>,
    largest_matrix: u64,
) -> Result<Box<dyn Decoder>, LoadError> {
    let options = LoadOptions {
        dtype: Some(Dtype::F32),
        quantization,
        largest_matrix: Some(largest_matrix),
        ..options(device)
    };
    hearth_model::load(&open(golden), &options)
}

/// Loads so that the bits of a token's logits depend only on its sequence.
pub fn load_deterministic(golden: &Golden, device: DeviceSpec, dtype: Dtype) -> Box<dyn Decoder> {
    let options = LoadOptions {
        dtype: Some(dtype),
        deterministic: true,
        ..options(device)
    };
    hearth_model::load(&open(golden), &options).expect("the golden loads")
}

/// Loads with slots for adapters of at most rank 16, as [`load_deterministic`] does.
pub fn load_with_adapters(
    golden: &Golden,
    device: DeviceSpec,
    dtype: Dtype,
    quantization: Option<Quantization>,
    slots: usize,
) -> Box<dyn Decoder> {
    load_with_tables(golden, device, dtype, quantization, [slots, 0], None)
}

/// As [`load_with_adapters`], where the first `tables` of the `slots` have room for whole tables, which are
/// in parts of at most `largest_matrix` bytes.
pub fn load_with_tables(
    golden: &Golden,
    device: DeviceSpec,
    dtype: Dtype,
    quantization: Option<Quantization>,
    [slots, tables]: [usize; 2],
    largest_matrix: Option<u64>,
) -> Box<dyn Decoder> {
    let options = LoadOptions {
        dtype: Some(dtype),
        quantization,
        deterministic: true,
        adapters: AdapterSlots {
            slots,
            rank: 16,
            tables,
        },
        largest_matrix,
        ..options(device)
    };
    hearth_model::load(&open(golden), &options).expect("the golden loads")
}

pub fn open(golden: &Golden) -> Checkpoint {
    let path = golden.dir.to_str().expect("a path in UTF-8");
    Checkpoint::open(path, LoadFormat::Safetensors).expect("the golden opens")
}

fn options(device: DeviceSpec) -> LoadOptions {
    LoadOptions {
        device,
        kv_tokens: Some(SLOTS),
        max_model_len: Some(SLOTS),
        host_slots: HOST_SLOTS,
        // The logits prove that the kernels are correct.
        check_kernels: false,
        ..LoadOptions::default()
    }
}

/// The slot of a position. Slots are in no order, so that an index mistaken for a position shows.
pub fn slot(position: usize) -> u32 {
    (position * 37 % SLOTS) as u32
}

/// Computes `tokens` after `past` positions in one forward pass, and returns the logits of all of
/// them.
pub fn feed(decoder: &mut dyn Decoder, tokens: &[u32], past: usize) -> Vec<f32> {
    feed_adapted(decoder, tokens, past, 0)
}

/// As [`feed`], with the adapter in `adapter`.
pub fn feed_adapted(
    decoder: &mut dyn Decoder,
    tokens: &[u32],
    past: usize,
    adapter: u32,
) -> Vec<f32> {
    let context = past + tokens.len();
    let slots: Vec<u32> = (0..context).map(slot).collect();
    let batch = ForwardBatch {
        tokens: tokens.to_vec(),
        positions: (past as u32..context as u32).collect(),
        write_slots: slots[past..].to_vec(),
        sequences: vec![SequenceSpan {
            tokens: tokens.len() as u32,
            context: context as u32,
            first_slot: 0,
        }],
        adapters: vec![adapter],
        slot_table: slots,
        logit_rows: (0..tokens.len() as u32).collect(),
        ..ForwardBatch::default()
    };
    let output = decoder.forward(&batch, &mut Vec::new);
    output.expect("a forward pass").logits
}

pub fn assert_close(what: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{what}: length");
    let worst = got
        .iter()
        .zip(want)
        .map(|(got, want)| (got - want).abs())
        .fold(0.0, f32::max);
    // `max` skips NaN, so NaN is looked for by itself.
    assert!(got.iter().all(|x| x.is_finite()), "{what}: not finite");
    assert!(worst <= TOLERANCE, "{what}: off by {worst}");
}

/// The best device of an API, if there is one. `HEARTH_REQUIRE_VULKAN` makes its absence a failure.
/// The device of a test that repeats in WGSL what another one tests in SPIR-V; `None` unless
/// `HEARTH_ALL_GPU_TESTS` is set.
pub fn wgsl_again() -> Option<DeviceSpec> {
    all_gpu_tests().then(|| wgpu_devices(Api::WebGpu)).flatten()
}

pub fn wgpu_devices(api: Api) -> Option<DeviceSpec> {
    let spec = DeviceSpec::Named { api, index: None };
    if device::choose(&spec, &device::list()).is_ok() {
        return Some(spec);
    }
    assert!(
        std::env::var_os("HEARTH_REQUIRE_VULKAN").is_none(),
        "HEARTH_REQUIRE_VULKAN is set, but there is no {spec} device"
    );
    eprintln!("skipped: no {spec} device on this machine");
    None
}

pub const CPU: DeviceSpec = DeviceSpec::Named {
    api: Api::Cpu,
    index: None,
};
pub const CUDA: DeviceSpec = DeviceSpec::Named {
    api: Api::Cuda,
    index: None,
};
