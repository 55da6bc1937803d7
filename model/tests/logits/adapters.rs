//! Adapters: the logits of PEFT, several in one batch, and what is refused.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hearth_forward::{
    AdaptedMatrix, Adapter, ForwardBatch, SequenceSpan, TableNumbers, WholeTable,
};
use hearth_model::Decoder;
use hearth_model::device::{Api, DeviceSpec};
use hearth_model::dtype::Dtype;
use hearth_model::lora::{self, Base, LoraError};
use hearth_model::weights::Quantization;

use super::golden::{
    CPU, CUDA, Golden, SLOTS, assert_close, feed, feed_adapted, load_with_adapters,
    load_with_tables, open, read_as, wgpu_devices,
};

pub const RANK: usize = 16;
/// The ones that PEFT saved, with what it computes.
const ADAPTERS: [&str; 19] = [
    "bias-lora-only",
    "changed-tables-dora",
    "changed-tables-tied",
    "dora-all",
    "dora-bias-all",
    "dora-rslora",
    "dora-tables",
    "list",
    "lora-bias",
    "patterns-layers",
    "regex",
    "rslora-all",
    "saved-embedding-tied",
    "saved-head-tied",
    "saved-tables",
    "saved-tables-gemma",
    "saved-tied-ensured",
    "tables",
    "tied-embedding",
];

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("goldens")
}

pub fn path(name: &str) -> PathBuf {
    root().join("adapters").join(name)
}

/// The base model of an adapter, with the logits of the adapter.
pub fn golden(name: &str) -> Golden {
    let config = std::fs::read_to_string(path(name).join("adapter_config.json")).expect("a config");
    let (_, base) = config
        .split_once("\"base_model_name_or_path\": \"")
        .expect("a base");
    let base = base.split('"').next().expect("a name");
    read_as(root().join(base), &path(name).join("golden.safetensors"))
}

pub fn try_read(file: &Path, golden: &Golden, most_rank: usize) -> Result<Adapter, LoraError> {
    let weights = || -> Result<_, String> { Ok(open(golden).weights) };
    lora::read(file, &Base::new(&open(golden).config, &weights), most_rank)
}

pub fn read(file: &Path, golden: &Golden) -> Adapter {
    try_read(file, golden, RANK).expect("the adapter is read")
}

fn agrees(device: DeviceSpec, name: &str, file: &Path) {
    agrees_in_parts(device, name, file, None);
}

/// With no matrix of more than `largest_matrix` bytes.
pub fn agrees_in_parts(device: DeviceSpec, name: &str, file: &Path, largest_matrix: Option<u64>) {
    let golden = golden(name);
    let adapter = read(file, &golden);
    // Only the first slot has room for tables.
    let (slot, empty) = if adapter.has_tables() { (1, 2) } else { (2, 1) };
    let slots = [2, usize::from(adapter.has_tables())];
    let mut decoder = load_with_tables(&golden, device, Dtype::F32, None, slots, largest_matrix);
    let decoder = decoder.as_mut();
    decoder.load_adapter(slot, &adapter).expect("it is loaded");
    let what = format!("{device} {}", file.display());
    let prompt = &golden.prompt;
    let logits = feed_adapted(decoder, prompt, 0, slot);
    assert_close(&format!("{what} prefill"), &logits, &golden.prefill);
    for (step, token) in golden.decode_tokens.iter().enumerate() {
        let logits = feed_adapted(decoder, &[*token], prompt.len() + step, slot);
        let want = &golden.decode[step * golden.vocab..][..golden.vocab];
        assert_close(&format!("{what} decode step {step}"), &logits, want);
    }
    // The base model is as it was, and an empty slot is the base model.
    let base = feed(decoder, prompt, 0);
    assert!(
        base.iter()
            .zip(&golden.prefill)
            .any(|(a, b)| (a - b).abs() > 0.5)
    );
    assert!(
        base == feed_adapted(decoder, prompt, 0, empty),
        "{what}: an empty slot"
    );
}

#[test]
fn adapters_agree_with_peft() {
    for name in ADAPTERS {
        agrees(CPU, name, &path(name));
    }
}

#[test]
fn adapters_in_gguf_files_agree_with_peft() {
    for name in ["list", "rslora-all"] {
        agrees(CPU, name, &path(&format!("{name}.gguf")));
    }
}

#[test]
fn adapters_agree_with_peft_on_vulkan() {
    if let Some(device) = wgpu_devices(Api::Vulkan) {
        for name in [
            "rslora-all",
            "tables",
            "lora-bias",
            "dora-all",
            "dora-bias-all",
            "saved-tables",
            "changed-tables-dora",
        ] {
            agrees(device, name, &path(name));
        }
    }
}

#[test]
fn adapters_agree_with_peft_on_cuda() {
    let devices = hearth_model::device::list();
    if hearth_model::device::choose(&CUDA, &devices).is_err() {
        eprintln!("skipped: no usable CUDA device on this machine");
        return;
    }
    for name in ADAPTERS {
        agrees(CUDA, name, &path(name));
    }
}

/// The digest of an adapter follows from its numbers, and its numbers from all of its files.
#[test]
fn the_digest_is_that_of_the_content_and_the_scale() {
    let golden = golden("list");
    let adapter = read(&path("list"), &golden);
    assert_eq!(adapter.digest, read(&path("list"), &golden).digest);
    let dir = std::env::temp_dir().join(format!("hearth-digest-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        std::fs::copy(path("list").join(file), dir.join(file)).expect("a copy");
    }
    assert_eq!(
        adapter.digest,
        read(&dir, &golden).digest,
        "the path does not count"
    );
    let config = std::fs::read_to_string(dir.join("adapter_config.json")).expect("a config");
    let other = config.replace("\"lora_alpha\": 8", "\"lora_alpha\": 9");
    assert_ne!(config, other);
    std::fs::write(dir.join("adapter_config.json"), other).expect("a config");
    assert_ne!(
        adapter.digest,
        read(&dir, &golden).digest,
        "the scale counts"
    );
    std::fs::remove_dir_all(dir).expect("it was there");
}

/// Scales and biases relative to the base model count, too.
#[test]
fn the_digest_is_that_of_the_magnitudes_and_of_the_biases() {
    for (name, part) in [
        ("dora-all", "lora_magnitude_vector"),
        ("dora-bias-all", "k_proj.bias"),
        ("bias-lora-only", "base_layer.bias"),
    ] {
        let golden = golden(name);
        let before = read(&path(name), &golden).digest;
        let dir = std::env::temp_dir().join(format!("hearth-{part}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        let (config, tensors) = ("adapter_config.json", "adapter_model.safetensors");
        std::fs::copy(path(name).join(config), dir.join(config)).expect("a copy");
        let mut bytes = std::fs::read(path(name).join(tensors)).expect("a file");
        let (length, rest) = bytes.split_first_chunk::<8>().expect("a length");
        let length = u64::from_le_bytes(*length) as usize;
        let header: serde_json::Value = serde_json::from_slice(&rest[..length]).expect("a header");
        let tensor = header.as_object().expect("an object").iter();
        let mut tensor = tensor.filter(|(name, _)| name.ends_with(part));
        let (_, tensor) = tensor.next().expect(part);
        let at = tensor["data_offsets"][0].as_u64().expect("a number") as usize;
        // The upper bits of a fraction: it stays finite.
        bytes[8 + length + at + 2] ^= 0x40;
        std::fs::write(dir.join(tensors), bytes).expect("a file");
        assert_ne!(before, read(&dir, &golden).digest, "{name}");
        std::fs::remove_dir_all(dir).expect("it was there");
    }
}

#[test]
fn a_sum_of_adapters_is_the_sum_of_their_changes() {
    for name in [
        "rslora-all",
        "tables",
        "lora-bias",
        "dora-tables",
        "dora-bias-all",
    ] {
        let golden = golden(name);
        let adapter = read(&path(name), &golden);
        let once = lora::combined(&[(&adapter, 1.0)], RANK).expect("a sum");
        assert_eq!(once.digest, adapter.digest);
        let halves = lora::combined(&[(&adapter, 0.75), (&adapter, 0.25)], RANK).expect("a sum");
        assert_eq!(halves.rank(), 2 * adapter.rank());
        let mut decoder = load_with_adapters(&golden, CPU, Dtype::F32, None, 1);
        decoder.load_adapter(1, &halves).expect("it is loaded");
        let logits = feed_adapted(decoder.as_mut(), &golden.prompt, 0, 1);
        assert_close(&format!("{name}, in two parts"), &logits, &golden.prefill);
        let error = lora::combined(&[(&adapter, 1.0), (&adapter, 1.0)], adapter.rank());
        assert!(
            error
                .unwrap_err()
                .to_string()
                .contains("greater than max_lora_rank")
        );
    }
}

/// The last tokens of a sequence of `tokens` in slots from `first` on, `chunk` of them.
pub struct Row<'a> {
    pub tokens: &'a [u32],
    pub adapter: u32,
    pub chunk: usize,
    pub first: u32,
}

/// The logits of all computed tokens, sequence by sequence.
pub fn forward(decoder: &mut dyn Decoder, rows: &[Row<'_>]) -> Vec<Vec<u32>> {
    let mut batch = ForwardBatch::default();
    for row in rows {
        let context = row.tokens.len();
        let past = context - row.chunk;
        let slots: Vec<u32> = (0..context as u32).map(|at| row.first + at).collect();
        batch.sequences.push(SequenceSpan {
            tokens: row.chunk as u32,
            context: context as u32,
            first_slot: batch.slot_table.len() as u32,
        });
        batch.adapters.push(row.adapter);
        batch.tokens.extend_from_slice(&row.tokens[past..]);
        batch.positions.extend(past as u32..context as u32);
        batch.write_slots.extend_from_slice(&slots[past..]);
        batch.slot_table.extend(slots);
    }
    batch.logit_rows = (0..batch.tokens.len() as u32).collect();
    let logits = decoder
        .forward(&batch, &mut Vec::new)
        .expect("a forward pass")
        .logits;
    let vocab = logits.len() / batch.tokens.len();
    let mut rest = &logits[..];
    rows.iter()
        .map(|row| {
            let (own, others) = rest.split_at(row.chunk * vocab);
            rest = others;
            own.iter().map(|logit| logit.to_bits()).collect()
        })
        .collect()
}

/// A table of random numbers.
pub fn some_table(matrix: AdaptedMatrix, golden: &Golden, seed: u32) -> WholeTable {
    let config = open(golden).config;
    let mut state = seed;
    let numbers = (0..config.vocab_size * config.hidden_size).flat_map(|_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let number = (state >> 8) as f32 / (1 << 24) as f32 - 0.5;
        number.to_le_bytes()
    });
    WholeTable {
        matrix,
        numbers: TableNumbers::F32,
        bytes: Arc::new(numbers.collect()),
    }
}

/// A batch of the base model and eight adapters gives each row the bits that it has alone, whether
/// prompts are computed whole or in chunks.
fn bits_do_not_depend_on_other_adapters(
    device: DeviceSpec,
    dtype: Dtype,
    quantization: Option<Quantization>,
) {
    let golden = golden("rslora-all");
    let adapter = read(&path("rslora-all"), &golden);
    let slots = [8, 2];
    let mut decoder = load_with_tables(&golden, device, dtype, quantization, slots, None);
    let decoder = decoder.as_mut();
    for slot in 1..=8 {
        let factor = 0.1 * slot as f32;
        let mut changed = lora::combined(&[(&adapter, factor)], RANK).expect("an adapter");
        // Two have tables of their own, one of them only an output projection.
        let own = [AdaptedMatrix::LmHead, AdaptedMatrix::Embedding];
        let own = own[..3usize.saturating_sub(slot as usize)].iter().rev();
        changed.tables = own
            .map(|matrix| some_table(*matrix, &golden, slot))
            .collect();
        decoder.load_adapter(slot, &changed).expect("it is loaded");
    }
    let what = format!("{device} {dtype} {quantization:?}");
    let room = SLOTS as u32 / 9;
    let prompt = |slot: u32| &golden.prompt[slot as usize..][..room as usize];
    let row = |slot: u32, tokens: usize, chunk: usize| Row {
        tokens: &prompt(slot)[..tokens],
        adapter: slot,
        chunk,
        first: slot * room,
    };
    // In no order of slots, and with one adapter twice in a row.
    let order = [3, 0, 8, 1, 7, 2, 5, 4, 6];
    let before = room as usize - 4;
    let together = forward(decoder, &order.map(|slot| row(slot, before, before)));
    let mut decoded = Vec::new();
    for tokens in before + 1..=room as usize {
        decoded.push(forward(decoder, &order.map(|slot| row(slot, tokens, 1))));
    }
    for (index, slot) in order.into_iter().enumerate() {
        let alone = forward(decoder, &[row(slot, before, before)]);
        assert!(alone[0] == together[index], "{what}: slot {slot}, prompt");
        for (tokens, decoded) in (before + 1..).zip(&decoded) {
            let alone = forward(decoder, &[row(slot, tokens, 1)]);
            assert!(
                alone[0] == decoded[index],
                "{what}: slot {slot}, token {tokens}"
            );
        }
        // In two chunks.
        forward(decoder, &[row(slot, 3, 3)]);
        let rest = forward(decoder, &[row(slot, before, before - 3)]);
        let all = &together[index];
        assert!(
            rest[0] == all[all.len() - rest[0].len()..],
            "{what}: slot {slot}, chunks"
        );
    }
    let distinct: std::collections::BTreeSet<_> = order
        .map(|slot| {
            forward(
                decoder,
                &[Row {
                    adapter: slot,
                    ..row(0, 5, 5)
                }],
            )
        })
        .into_iter()
        .collect();
    assert_eq!(distinct.len(), 9, "{what}: every adapter changes something");
}

#[test]
fn on_the_cpu_rows_of_nine_models_have_the_bits_that_they_have_alone() {
    for dtype in [Dtype::F32, Dtype::Bf16] {
        bits_do_not_depend_on_other_adapters(CPU, dtype, None);
    }
    for (dtype, quantization) in [
        (Dtype::F32, Quantization::Int8),
        (Dtype::Bf16, Quantization::Int4),
    ] {
        bits_do_not_depend_on_other_adapters(CPU, dtype, Some(quantization));
    }
}

#[test]
fn on_vulkan_rows_of_nine_models_have_the_bits_that_they_have_alone() {
    if let Some(device) = wgpu_devices(Api::Vulkan) {
        bits_do_not_depend_on_other_adapters(device, Dtype::F32, None);
    }
}

#[test]
fn a_slot_is_overwritten_whole_and_a_wrong_adapter_leaves_the_base_model() {
    let golden = golden("list");
    let small = read(&path("list"), &golden);
    let mut decoder = load_with_adapters(&golden, CPU, Dtype::F32, None, 1);
    let decoder = decoder.as_mut();
    let base = feed(decoder, &golden.prompt, 0);
    // The other adapter changes other matrices, and the embedding.
    let tied = path("tied-embedding");
    let other = read(&tied, &golden);
    decoder.load_adapter(1, &other).expect("it is loaded");
    decoder.load_adapter(1, &small).expect("it is loaded");
    let logits = feed_adapted(decoder, &golden.prompt, 0, 1);
    assert_close("after another adapter", &logits, &golden.prefill);
    let mut wrong = small.clone();
    wrong.changes[0].a.pop();
    assert!(decoder.load_adapter(1, &wrong).is_err());
    assert!(feed_adapted(decoder, &golden.prompt, 0, 1) == base);
    let mut wrong = small.clone();
    if let AdaptedMatrix::Layer(layer, _) = &mut wrong.changes[0].matrix {
        *layer = 99;
    }
    assert!(decoder.load_adapter(1, &wrong).is_err());
    assert!(
        decoder.load_adapter(2, &small).is_err(),
        "there is one slot"
    );
    assert!(decoder.load_adapter(0, &small).is_err());
}

#[test]
fn what_is_not_implemented_is_refused_by_its_name() {
    for (name, base, field) in [
        (
            "refused-saved-linear",
            "mistral-window",
            "`modules_to_save` in adapter_config.json names \"v_proj\"",
        ),
        (
            "refused-resized",
            "mistral-window",
            "table has 260 tokens; the vocabulary of this model has 256",
        ),
        (
            "refused-trainable-tokens",
            "mistral-window",
            "`trainable_token_indices`",
        ),
        // Adapters of other models.
        ("patterns-layers", "llama-llama3-tied", "this model"),
        ("rslora-all", "llama-yarn", "this model"),
    ] {
        let dir = root().join(base);
        let golden = read_as(dir.clone(), &dir.join("golden.safetensors"));
        let error = try_read(&path(name), &golden, RANK).unwrap_err();
        assert!(error.to_string().contains(field), "{name}: {error}");
    }
    let golden = golden("rslora-all");
    let error = try_read(&path("rslora-all"), &golden, 4).unwrap_err();
    assert_eq!(
        error.to_string(),
        "LoRA rank 8 is greater than max_lora_rank 4."
    );
}
