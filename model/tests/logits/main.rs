//! Logits of tiny random checkpoints against transformers' float32 logits
//! (`goldens/`), on the CPU and on every wgpu device of this machine.

mod adapter_tables;
mod adapters;
mod adapters_over_blocks;
mod carried;
mod certified;
mod dense;
mod golden;
mod hidden;
mod host;
mod int8_kv;
mod parts;
mod quantised;
mod refused;
mod rounding;
mod same_bits;

use hearth_forward::{ForwardBatch, SequenceSpan};
use hearth_model::Decoder;
use hearth_model::device::{self, Api, DeviceSpec};

use golden::{
    CPU, CUDA, Golden, SLOTS, assert_close, feed, gguf_goldens, goldens, gpu_goldens, load,
    wgpu_devices,
};

/// A check of a golden's decoder. The text is the golden's name.
type Look = fn(&mut dyn Decoder, &Golden, &str);

/// Makes every check of every golden. Each golden is loaded once, because a decoder on a GPU
/// compiles its kernels.
fn agrees(device: DeviceSpec, goldens: Vec<Golden>, looks: &[Look]) {
    for golden in goldens {
        let file = golden.dir.file_name().expect("a name").to_string_lossy();
        let mut decoder = load(&golden, device);
        for (index, look) in looks.iter().enumerate() {
            if index > 0 {
                forget(decoder.as_mut(), golden.vocab);
            }
            look(decoder.as_mut(), &golden, &format!("{device} {file}"));
        }
    }
}

/// Overwrites every slot, so that what one check has left in the slots cannot hide that the next
/// one fails to write them.
fn forget(decoder: &mut dyn Decoder, vocab: usize) {
    let ids = vocab as u32;
    let tokens: Vec<u32> = (0..SLOTS as u32).map(|at| (at * 7 + 3) % ids).collect();
    feed(decoder, &tokens, 0);
}

fn prefill_and_decode(decoder: &mut dyn Decoder, golden: &Golden, name: &str) {
    let logits = feed(decoder, &golden.prompt, 0);
    assert_close(&format!("{name} prefill"), &logits, &golden.prefill);
    for (step, token) in golden.decode_tokens.iter().enumerate() {
        let logits = feed(decoder, &[*token], golden.prompt.len() + step);
        let want = &golden.decode[step * golden.vocab..][..golden.vocab];
        assert_close(&format!("{name} decode step {step}"), &logits, want);
    }
}

fn chunks(decoder: &mut dyn Decoder, golden: &Golden, name: &str) {
    let mut past = 0;
    for chunk in golden.prompt.chunks(13) {
        let logits = feed(decoder, chunk, past);
        let want = &golden.prefill[past * golden.vocab..][..chunk.len() * golden.vocab];
        assert_close(&format!("{name} chunk at {past}"), &logits, want);
        past += chunk.len();
    }
}

/// One forward pass over a prefill of the whole prompt and the decode row of a second copy of it,
/// each in its own slots.
fn a_mixed_batch(decoder: &mut dyn Decoder, golden: &Golden, name: &str) {
    let half = SLOTS / 2;
    let length = golden.prompt.len();
    let first = |position: usize| (position * 5 % half) as u32;
    let second = |position: usize| (half + position * 11 % half) as u32;
    let before = length - 1;
    let table: Vec<u32> = (0..before).map(second).collect();
    let span = |tokens, context, first_slot| SequenceSpan {
        tokens: tokens as u32,
        context: context as u32,
        first_slot: first_slot as u32,
    };
    let batch = ForwardBatch {
        tokens: golden.prompt[..before].to_vec(),
        positions: (0..before as u32).collect(),
        write_slots: table.clone(),
        sequences: vec![span(before, before, 0)],
        slot_table: table,
        ..ForwardBatch::default()
    };
    let none = decoder
        .forward(&batch, &mut Vec::new)
        .expect("a forward pass without logits");
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
    let batch = ForwardBatch {
        tokens,
        positions,
        write_slots: write,
        sequences: vec![span(1, length, 0), span(length, length, length)],
        slot_table: table,
        logit_rows: vec![0, length as u32],
        ..ForwardBatch::default()
    };
    let logits = decoder
        .forward(&batch, &mut Vec::new)
        .expect("a mixed forward pass")
        .logits;
    let last = &golden.prefill[before * golden.vocab..];
    let what = format!("{name} mixed batch");
    assert_close(&what, &logits[..golden.vocab], last);
    assert_close(&what, &logits[golden.vocab..], last);
}

#[test]
fn the_cpu_agrees_with_transformers() {
    agrees(CPU, goldens(), &[prefill_and_decode]);
}

#[test]
fn the_cpu_agrees_in_chunks_and_in_mixed_batches() {
    agrees(CPU, goldens(), &[chunks, a_mixed_batch]);
}

#[test]
fn gguf_files_give_the_logits_of_their_dequantised_weights() {
    agrees(CPU, gguf_goldens(), &[prefill_and_decode]);
}

#[test]
fn vulkan_agrees_with_transformers() {
    if let Some(device) = wgpu_devices(Api::Vulkan) {
        let looks: [Look; 3] = [prefill_and_decode, chunks, a_mixed_batch];
        agrees(device, gpu_goldens(), &looks);
    }
}

#[test]
fn wgsl_agrees_with_transformers() {
    if let Some(device) = wgpu_devices(Api::WebGpu) {
        agrees(device, gpu_goldens(), &[prefill_and_decode, a_mixed_batch]);
    }
}

#[test]
fn cuda_agrees_with_transformers() {
    if device::choose(&CUDA, &device::list()).is_err() {
        eprintln!("skipped: no usable CUDA device on this machine");
        return;
    }
    let looks: [Look; 3] = [prefill_and_decode, chunks, a_mixed_batch];
    agrees(CUDA, goldens(), &looks);
}
