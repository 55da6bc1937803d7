//! Logits of tiny random checkpoints against transformers' float32 logits
//! (`goldens/`), on the CPU and on every wgpu device of this machine.

use std::path::{Path, PathBuf};

use hearth_model::checkpoint::{Checkpoint, LoadFormat};
use hearth_model::device::{self, Api, DeviceSpec};
use hearth_model::dtype::Dtype;
use hearth_model::runner::{self, Batch, CopyWay, Decoder, LoadError, LoadOptions, SequenceSpan};
use hearth_model::weights::Quantization;
use safetensors::SafeTensors;

/// Largest absolute difference of a logit.
const TOLERANCE: f32 = 1e-3;
/// Of the pool in the host's memory.
const HOST_SLOTS: usize = 100;
const SLOTS: usize = 128;

struct Golden {
    /// The checkpoint: a directory, or a GGUF file.
    dir: PathBuf,
    prompt: Vec<u32>,
    /// `[prompt, vocab]`
    prefill: Vec<f32>,
    decode_tokens: Vec<u32>,
    /// `[decode_tokens, vocab]`
    decode: Vec<f32>,
    vocab: usize,
}

fn goldens() -> Vec<Golden> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("goldens");
    let mut dirs: Vec<_> = std::fs::read_dir(root)
        .expect("goldens are committed")
        .map(|entry| entry.expect("a readable entry").path())
        .filter(|path| path.join("golden.safetensors").exists())
        .collect();
    dirs.sort();
    assert!(dirs.len() >= 10, "goldens are missing: {dirs:?}");
    dirs.into_iter().map(read).collect()
}

fn read(dir: PathBuf) -> Golden {
    let golden = dir.join("golden.safetensors");
    read_as(dir, &golden)
}

/// GGUF files: converted, with the golden of what they were made from, and quantised.
fn gguf_goldens() -> Vec<Golden> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("goldens");
    let converted = ["llama-llama3-tied", "qwen2-sharded-tied", "qwen3"];
    let mut goldens: Vec<Golden> = converted
        .iter()
        .map(|name| {
            let file = root.join(format!("gguf/{name}.gguf"));
            read_as(file, &root.join(name).join("golden.safetensors"))
        })
        .collect();
    for name in ["mixed", "q8_0", "q4_0"] {
        let file = root.join(format!("gguf/{name}.gguf"));
        let golden = root.join(format!("gguf/{name}.safetensors"));
        goldens.push(read_as(file, &golden));
    }
    goldens
}

fn read_as(dir: PathBuf, golden: &Path) -> Golden {
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

fn load(golden: &Golden, device: DeviceSpec) -> Box<dyn Decoder> {
    load_as(golden, device, Dtype::F32)
}

fn load_as(golden: &Golden, device: DeviceSpec, dtype: Dtype) -> Box<dyn Decoder> {
    load_with(golden, device, dtype, None).expect("the golden loads")
}

fn load_with(
    golden: &Golden,
    device: DeviceSpec,
    dtype: Dtype,
    quantization: Option<Quantization>,
) -> Result<Box<dyn Decoder>, LoadError> {
    let path = golden.dir.to_str().expect("a path in UTF-8");
    let checkpoint = Checkpoint::open(path, LoadFormat::Safetensors).expect("the golden opens");
    let options = LoadOptions {
        device,
        dtype: Some(dtype),
        quantization,
        kv_tokens: Some(SLOTS),
        max_model_len: Some(SLOTS),
        host_slots: HOST_SLOTS,
        // The logits are the proof.
        check_kernels: false,
        kernel_cache: None,
    };
    runner::load(&checkpoint, &options)
}

/// Slots in no order, so that an index mistaken for a position shows.
fn slot(position: usize) -> u32 {
    (position * 37 % SLOTS) as u32
}

/// Feeds `tokens` after `past` positions in one forward; logits of all of them.
fn feed(decoder: &mut dyn Decoder, tokens: &[u32], past: usize) -> Vec<f32> {
    let context = past + tokens.len();
    let positions: Vec<u32> = (past as u32..context as u32).collect();
    let slots: Vec<u32> = (0..context).map(slot).collect();
    let rows: Vec<u32> = (0..tokens.len() as u32).collect();
    let span = SequenceSpan {
        first_token: 0,
        tokens: tokens.len() as u32,
        context: context as u32,
        first_slot: 0,
    };
    decoder
        .forward(&Batch {
            tokens,
            positions: &positions,
            write_slots: &slots[past..],
            sequences: &[span],
            slot_table: &slots,
            logit_rows: &rows,
            hidden_rows: &[],
            greedy_rows: &[],
        })
        .expect("a forward")
        .logits
}

fn assert_close(what: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{what}: length");
    let worst = got
        .iter()
        .zip(want)
        .map(|(got, want)| (got - want).abs())
        .fold(0.0, f32::max);
    // A NaN is never the larger of two, so it is looked for by itself.
    assert!(got.iter().all(|x| x.is_finite()), "{what}: not finite");
    assert!(worst <= TOLERANCE, "{what}: off by {worst}");
}

fn prefill_and_decode_agree(device: DeviceSpec, goldens: Vec<Golden>) {
    for golden in goldens {
        let name = golden
            .dir
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        let mut decoder = load(&golden, device);
        let decoder = decoder.as_mut();
        let logits = feed(decoder, &golden.prompt, 0);
        assert_close(
            &format!("{device} {name} prefill"),
            &logits,
            &golden.prefill,
        );
        for (step, token) in golden.decode_tokens.iter().enumerate() {
            let logits = feed(decoder, &[*token], golden.prompt.len() + step);
            let want = &golden.decode[step * golden.vocab..][..golden.vocab];
            assert_close(
                &format!("{device} {name} decode step {step}"),
                &logits,
                want,
            );
        }
    }
}

/// A prompt's keys and values go to the host, and come back when their slots have held
/// something else.
fn what_was_on_the_host_is_the_same_to_the_bit(device: DeviceSpec, dtype: Dtype) {
    for golden in goldens() {
        let mut decoder = load_as(&golden, device, dtype);
        let decoder = decoder.as_mut();
        let length = golden.prompt.len();
        feed(decoder, &golden.prompt, 0);
        let next = golden.decode_tokens[0];
        let expected = feed(decoder, &[next], length);
        let slots: Vec<u32> = (0..length).map(slot).collect();
        let host: Vec<u32> = (0..length).map(|i| (i * 3 % HOST_SLOTS) as u32).collect();
        decoder
            .copy(CopyWay::ToHost, &slots, &host)
            .expect("a copy to the host");
        let other: Vec<u32> = golden.prompt.iter().map(|token| token ^ 1).collect();
        feed(decoder, &other, 0);
        assert_ne!(feed(decoder, &[next], length), expected);
        decoder
            .copy(CopyWay::ToDevice, &slots, &host)
            .expect("a copy from the host");
        assert_eq!(feed(decoder, &[next], length), expected, "{device} {dtype}");
    }
}

#[test]
fn keys_and_values_survive_on_the_host_on_the_cpu() {
    for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
        what_was_on_the_host_is_the_same_to_the_bit(CPU, dtype);
    }
}

#[test]
fn keys_and_values_survive_on_the_host_beside_vulkan() {
    if let Some(device) = wgpu_devices(Api::Vulkan) {
        what_was_on_the_host_is_the_same_to_the_bit(device, Dtype::F32);
        what_was_on_the_host_is_the_same_to_the_bit(device, Dtype::F16);
    }
}

#[test]
fn slots_that_are_not_there_are_not_copied() {
    let golden = &goldens()[0];
    let mut decoder = load(golden, CPU);
    for (device, host) in [
        (vec![SLOTS as u32], vec![0]),
        (vec![0], vec![HOST_SLOTS as u32]),
        (vec![0, 1], vec![0]),
    ] {
        for way in [CopyWay::ToHost, CopyWay::ToDevice] {
            decoder
                .copy(way, &device, &host)
                .expect_err("a slot that is not there");
        }
    }
}

fn chunks_agree(device: DeviceSpec) {
    for golden in goldens() {
        let name = golden
            .dir
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        let mut decoder = load(&golden, device);
        let mut past = 0;
        for chunk in golden.prompt.chunks(13) {
            let logits = feed(decoder.as_mut(), chunk, past);
            let want = &golden.prefill[past * golden.vocab..][..chunk.len() * golden.vocab];
            assert_close(&format!("{device} {name} chunk at {past}"), &logits, want);
            past += chunk.len();
        }
    }
}

/// One forward over a prefill of the whole prompt and decode rows of a second copy
/// of it, each in its own slots.
fn a_mixed_batch_agrees(device: DeviceSpec) {
    let half = SLOTS / 2;
    for golden in goldens() {
        let name = golden
            .dir
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        let mut decoder = load(&golden, device);
        let length = golden.prompt.len();
        let first = |position: usize| (position * 5 % half) as u32;
        let second = |position: usize| (half + position * 11 % half) as u32;
        let before = length - 1;
        let table: Vec<u32> = (0..before).map(second).collect();
        let positions: Vec<u32> = (0..before as u32).collect();
        let span = |first_token, tokens, context, first_slot| SequenceSpan {
            first_token,
            tokens: tokens as u32,
            context: context as u32,
            first_slot: first_slot as u32,
        };
        let none = decoder
            .forward(&Batch {
                tokens: &golden.prompt[..before],
                positions: &positions,
                write_slots: &table,
                sequences: &[span(0, before, before, 0)],
                slot_table: &table,
                logit_rows: &[],
                hidden_rows: &[],
                greedy_rows: &[],
            })
            .expect("a forward without logits");
        assert!(none.logits.is_empty() && none.hidden.is_empty());

        let tokens: Vec<u32> = golden.prompt[before..]
            .iter()
            .chain(&golden.prompt)
            .copied()
            .collect();
        let positions: Vec<u32> = (before as u32..length as u32)
            .chain(0..length as u32)
            .collect();
        let table: Vec<u32> = (0..length)
            .map(second)
            .chain((0..length).map(first))
            .collect();
        let write: Vec<u32> = std::iter::once(second(before))
            .chain((0..length).map(first))
            .collect();
        let logits = decoder
            .forward(&Batch {
                tokens: &tokens,
                positions: &positions,
                write_slots: &write,
                sequences: &[span(0, 1, length, 0), span(1, length, length, length)],
                slot_table: &table,
                logit_rows: &[0, length as u32],
                hidden_rows: &[],
                greedy_rows: &[],
            })
            .expect("a mixed forward")
            .logits;
        let last = &golden.prefill[before * golden.vocab..];
        let what = format!("{device} {name} mixed batch");
        assert_close(&what, &logits[..golden.vocab], last);
        assert_close(&what, &logits[golden.vocab..], last);
    }
}

/// Weights stored in 16 bits and computed with as such: what `--dtype auto` does. Only
/// the rounding of KV (and, on a GPU or on matrix tiles, of activations) sets it apart from
/// the golden.
fn sixteen_bits_stay_close(device: DeviceSpec, dtype: Dtype, name: &str, tolerance: f32) {
    let golden = goldens()
        .into_iter()
        .chain(gguf_goldens())
        .find(|golden| golden.dir.ends_with(name))
        .expect(name);
    let mut decoder = load_as(&golden, device, dtype);
    let worst = worst_of(&golden, decoder.as_mut());
    assert!(
        worst <= tolerance,
        "{device} {name} as {dtype}: off by {worst}"
    );
}

/// The root mean square of all differences from the golden, as a share of that of its logits.
fn relative_error(golden: &Golden, decoder: &mut dyn Decoder) -> f32 {
    let (mut errors, mut size) = (0.0, 0.0);
    let mut check = |tokens: &[u32], past: usize, want: &[f32]| {
        for (got, want) in feed(decoder, tokens, past).iter().zip(want) {
            errors += (got - want) * (got - want);
            size += want * want;
        }
    };
    check(&golden.prompt, 0, &golden.prefill);
    for (step, token) in golden.decode_tokens.iter().enumerate() {
        let want = &golden.decode[step * golden.vocab..][..golden.vocab];
        check(&[*token], golden.prompt.len() + step, want);
    }
    (errors / size).sqrt()
}

/// The largest difference of a logit from the golden.
fn worst_of(golden: &Golden, decoder: &mut dyn Decoder) -> f32 {
    let mut worst = 0.0f32;
    let mut check = |tokens: &[u32], past: usize, want: &[f32]| {
        let got = feed(decoder, tokens, past);
        assert!(got.iter().all(|x| x.is_finite()));
        let pairs = got.iter().zip(want);
        worst = pairs
            .map(|(got, want)| (got - want).abs())
            .fold(worst, f32::max);
    };
    check(&golden.prompt, 0, &golden.prefill);
    for (step, token) in golden.decode_tokens.iter().enumerate() {
        let want = &golden.decode[step * golden.vocab..][..golden.vocab];
        check(&[*token], golden.prompt.len() + step, want);
    }
    worst
}

#[test]
fn the_cpu_stays_close_in_bf16_and_f16() {
    // On matrix tiles activations are bf16 too. `transformers` in bf16 is off by up to 0.53.
    sixteen_bits_stay_close(CPU, Dtype::Bf16, "mistral-window-bf16", 0.25);
    sixteen_bits_stay_close(CPU, Dtype::F16, "llama-f16-old-names", 0.02);
}

#[test]
fn vulkan_stays_close_in_f16() {
    if let Some(device) = wgpu_devices(Api::Vulkan) {
        sixteen_bits_stay_close(device, Dtype::F16, "llama-f16-old-names", 0.05);
    }
}

/// The wgpu devices here; a machine that must have one says so in the environment.
fn wgpu_devices(api: Api) -> Option<DeviceSpec> {
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

const CPU: DeviceSpec = DeviceSpec::Named {
    api: Api::Cpu,
    index: None,
};
const CUDA: DeviceSpec = DeviceSpec::Named {
    api: Api::Cuda,
    index: None,
};

#[test]
fn the_cpu_agrees_with_transformers() {
    prefill_and_decode_agree(CPU, goldens());
}

#[test]
fn the_cpu_agrees_in_chunks_and_in_mixed_batches() {
    chunks_agree(CPU);
    a_mixed_batch_agrees(CPU);
}

#[test]
fn gguf_files_give_the_logits_of_their_dequantised_weights() {
    prefill_and_decode_agree(CPU, gguf_goldens());
}

/// Activations are rounded to 8 bits for weights in blocks.
#[test]
fn weights_that_stay_in_their_blocks_stay_close() {
    for name in ["q8_0.gguf", "q4_0.gguf", "mixed.gguf"] {
        sixteen_bits_stay_close(CPU, Dtype::Bf16, name, 0.25);
    }
}

#[test]
fn weights_quantized_at_load_stay_close_and_are_alone_what_they_are_in_chunks() {
    for golden in goldens() {
        for (quantization, tolerance) in [(Quantization::Int8, 0.1), (Quantization::Int4, 0.6)] {
            let mut decoder =
                load_with(&golden, CPU, Dtype::F32, Some(quantization)).expect("the golden loads");
            let decoder = decoder.as_mut();
            assert_eq!(
                decoder.report().quantization,
                Some(quantization.to_string())
            );
            let error = relative_error(&golden, decoder);
            assert!(
                error <= tolerance,
                "{} in {quantization}: off by {error}",
                golden.dir.display()
            );
            let whole = feed(decoder, &golden.prompt, 0);
            let mut pieces = Vec::new();
            for chunk in golden.prompt.chunks(3) {
                pieces.extend(feed(decoder, chunk, pieces.len() / golden.vocab));
            }
            assert_eq!(whole, pieces, "{} in {quantization}", golden.dir.display());
        }
    }
}

#[test]
fn what_cannot_be_quantized_is_refused() {
    let int8 = Some(Quantization::Int8);
    let file = gguf_goldens()
        .into_iter()
        .find(|golden| golden.dir.ends_with("q4_0.gguf"));
    let refused = load_with(&file.expect("a file in blocks"), CPU, Dtype::Bf16, int8);
    let error = refused.err().expect("weights in blocks").to_string();
    assert!(error.contains("already (Q4_0)"), "{error}");
    if let Some(device) = wgpu_devices(Api::Vulkan) {
        let refused = load_with(&goldens()[0], device, Dtype::F32, int8);
        let error = refused.err().expect("a GPU").to_string();
        assert!(error.contains("only on the CPU"), "{error}");
    }
}

#[test]
fn vulkan_agrees_with_transformers() {
    if let Some(device) = wgpu_devices(Api::Vulkan) {
        prefill_and_decode_agree(device, goldens());
        chunks_agree(device);
        a_mixed_batch_agrees(device);
    }
}

#[test]
fn wgsl_agrees_with_transformers() {
    if let Some(device) = wgpu_devices(Api::WebGpu) {
        prefill_and_decode_agree(device, goldens());
        a_mixed_batch_agrees(device);
    }
}

#[test]
fn cuda_agrees_with_transformers() {
    if device::choose(&CUDA, &device::list()).is_err() {
        eprintln!("skipped: no usable CUDA device on this machine");
        return;
    }
    prefill_and_decode_agree(CUDA, goldens());
    chunks_agree(CUDA);
    a_mixed_batch_agrees(CUDA);
}

#[test]
fn a_batch_that_would_index_out_of_the_model_is_refused() {
    let golden = &goldens()[0];
    let mut decoder = load(golden, CPU);
    let span = SequenceSpan {
        first_token: 0,
        tokens: 1,
        context: 1,
        first_slot: 0,
    };
    let good = Batch {
        tokens: &[1],
        positions: &[0],
        write_slots: &[0],
        sequences: &[span],
        slot_table: &[0],
        logit_rows: &[0],
        hidden_rows: &[],
        greedy_rows: &[],
    };
    let outputs = decoder.forward(&good).expect("a good batch");
    assert_eq!(outputs.logits.len(), golden.vocab);
    let bad = [
        (
            Batch {
                tokens: &[golden.vocab as u32],
                ..good
            },
            "token",
        ),
        (
            Batch {
                positions: &[SLOTS as u32],
                ..good
            },
            "position",
        ),
        (
            Batch {
                write_slots: &[SLOTS as u32],
                ..good
            },
            "slot",
        ),
        (
            Batch {
                slot_table: &[SLOTS as u32],
                ..good
            },
            "slot",
        ),
        (
            Batch {
                logit_rows: &[1],
                ..good
            },
            "logit row",
        ),
        (
            Batch {
                hidden_rows: &[1],
                greedy_rows: &[],
                ..good
            },
            "hidden row",
        ),
        (
            Batch {
                slot_table: &[],
                ..good
            },
            "slots",
        ),
        (
            Batch {
                positions: &[],
                ..good
            },
            "positions",
        ),
        (
            Batch {
                positions: &[5],
                ..good
            },
            "position in its sequence",
        ),
    ];
    for (batch, word) in bad {
        let error = decoder
            .forward(&batch)
            .expect_err("a bad batch")
            .to_string();
        assert!(error.contains(word), "{error}");
    }
}

/// Hidden states are what the output projection reads: projected here, in f64, they give the
/// golden's logits.
fn hidden_states_project_to_the_logits(device: DeviceSpec) {
    for golden in goldens() {
        let mut decoder = load(&golden, device);
        let hidden_size = decoder.report().hidden_size;
        let length = golden.prompt.len();
        let positions: Vec<u32> = (0..length as u32).collect();
        let slots: Vec<u32> = (0..length).map(slot).collect();
        let rows: Vec<u32> = (0..length as u32).step_by(3).collect();
        let span = SequenceSpan {
            first_token: 0,
            tokens: length as u32,
            context: length as u32,
            first_slot: 0,
        };
        let outputs = decoder
            .forward(&Batch {
                tokens: &golden.prompt,
                positions: &positions,
                write_slots: &slots,
                sequences: &[span],
                slot_table: &slots,
                logit_rows: &[length as u32 - 1],
                hidden_rows: &rows,
                greedy_rows: &[],
            })
            .expect("a forward");
        let name = golden.dir.display().to_string();
        let last = &golden.prefill[(length - 1) * golden.vocab..];
        assert_close(&format!("{device} {name}"), &outputs.logits, last);
        assert_eq!(outputs.hidden.len(), rows.len() * hidden_size);
        let projection = output_projection(&golden);
        for (row, hidden) in rows.iter().zip(outputs.hidden.chunks(hidden_size)) {
            let logits: Vec<f32> = projection
                .chunks(hidden_size)
                .map(|weights| {
                    let terms = weights.iter().zip(hidden);
                    terms
                        .map(|(w, h)| f64::from(*w) * f64::from(*h))
                        .sum::<f64>() as f32
                })
                .collect();
            let want = &golden.prefill[*row as usize * golden.vocab..][..golden.vocab];
            assert_close(&format!("{device} {name} hidden row {row}"), &logits, want);
        }
    }
}

/// `[vocab, hidden]`, read from the checkpoint by itself.
fn output_projection(golden: &Golden) -> Vec<f32> {
    let files = std::fs::read_dir(&golden.dir).expect("a golden");
    let files = files.map(|entry| entry.expect("an entry").path());
    let mut tied = None;
    for path in files.filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.ends_with(".safetensors") && name != "golden.safetensors"
    }) {
        let bytes = std::fs::read(path).expect("weights");
        let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
        for name in file.names() {
            let found = name.ends_with("lm_head.weight");
            if found || name.ends_with("embed_tokens.weight") {
                let tensor = file.tensor(name).expect(name);
                let data = tensor.data();
                let values: Vec<f32> = match tensor.dtype() {
                    safetensors::Dtype::F32 => data
                        .chunks_exact(4)
                        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                        .collect(),
                    safetensors::Dtype::BF16 => data
                        .chunks_exact(2)
                        .map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32())
                        .collect(),
                    safetensors::Dtype::F16 => data
                        .chunks_exact(2)
                        .map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32())
                        .collect(),
                    other => panic!("{name} is {other:?}"),
                };
                if found {
                    return values;
                }
                tied = Some(values);
            }
        }
    }
    tied.expect("a checkpoint has embeddings")
}

#[test]
fn hidden_states_are_what_the_output_projection_reads() {
    hidden_states_project_to_the_logits(CPU);
    if let Some(device) = wgpu_devices(Api::Vulkan) {
        hidden_states_project_to_the_logits(device);
    }
}
