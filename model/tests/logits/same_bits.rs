//! Deterministic inference: the bits of a token's logits do not depend on the batch. A prompt is
//! computed as a whole, in chunks, token by token, and as decode rows beside another prompt.

use hearth_forward::{ForwardBatch, SequenceSpan};
use hearth_model::Decoder;
use hearth_model::device::{Api, DeviceSpec};
use hearth_model::dtype::Dtype;

use super::golden::{
    CPU, Golden, SLOTS, feed, goldens, gpu_goldens, load_as, load_deterministic, wgpu_devices,
    wgsl_again,
};

/// Tokens at the end that are computed one by one. Each is a forward pass, so they take most of
/// the time of these tests.
const ONE_BY_ONE: usize = 12;
/// The largest number of tokens of the other sequence.
const MOST_OF_ANOTHER: u32 = 5;

/// The prompt and the tokens that were decoded after it.
fn tokens(golden: &Golden) -> Vec<u32> {
    [&golden.prompt[..], &golden.decode_tokens].concat()
}

fn in_chunks(decoder: &mut dyn Decoder, tokens: &[u32], sizes: &[usize]) -> Vec<u32> {
    let (mut logits, mut past) = (Vec::new(), 0);
    for size in sizes.iter().cycle() {
        let chunk = &tokens[past..tokens.len().min(past + size)];
        logits.extend(feed(decoder, chunk, past));
        past += chunk.len();
        if past == tokens.len() {
            break;
        }
    }
    bits(&logits)
}

/// Computes all but the last tokens at once, then the last ones one by one, each in a batch after a
/// chunk of another sequence.
fn beside_another(decoder: &mut dyn Decoder, tokens: &[u32]) -> Vec<u32> {
    // The slots of the other sequence lie behind all slots of this one.
    let behind = SLOTS as u32 - MOST_OF_ANOTHER;
    assert!(tokens.len() <= behind as usize);
    let slots: Vec<u32> = (0..tokens.len() as u32).map(|at| at * 7 % behind).collect();
    let alone = tokens.len() - ONE_BY_ONE;
    let mut logits = beside(decoder, &tokens[..alone], &slots[..alone], 0);
    for position in alone..tokens.len() {
        // The other sequence always begins at its first token.
        let other = 1 + position as u32 % MOST_OF_ANOTHER;
        let slots = &slots[..=position];
        logits.extend(beside(decoder, &tokens[position..=position], slots, other));
    }
    bits(&logits)
}

/// The logits of `tokens`, which are the last of a sequence in these `slots`, in a batch after
/// `other` tokens of another sequence.
fn beside(decoder: &mut dyn Decoder, tokens: &[u32], slots: &[u32], other: u32) -> Vec<f32> {
    let behind = SLOTS as u32 - MOST_OF_ANOTHER;
    let others = behind..behind + other;
    let (count, context) = (tokens.len() as u32, slots.len() as u32);
    let past = context - count;
    let table: Vec<u32> = others.clone().chain(slots.iter().copied()).collect();
    let own = slots[past as usize..].iter().copied();
    let write: Vec<u32> = others.chain(own).collect();
    let sequences = [
        SequenceSpan {
            tokens: other,
            context: other,
            first_slot: 0,
        },
        SequenceSpan {
            tokens: count,
            context,
            first_slot: other,
        },
    ];
    let batch = ForwardBatch {
        tokens: (0..other).chain(tokens.iter().copied()).collect(),
        positions: (0..other).chain(past..context).collect(),
        write_slots: write,
        sequences: sequences[usize::from(other == 0)..].to_vec(),
        slot_table: table,
        logit_rows: (other..other + count).collect(),
        ..ForwardBatch::default()
    };
    let output = decoder.forward(&batch, &mut Vec::new);
    output.expect("a forward pass").logits
}

fn bits(logits: &[f32]) -> Vec<u32> {
    assert!(logits.iter().all(|logit| logit.is_finite()));
    logits.iter().map(|logit| logit.to_bits()).collect()
}

/// The first way of computing the golden's tokens that gives other bits than one pass over all.
pub fn differs(decoder: &mut dyn Decoder, golden: &Golden) -> Option<String> {
    let tokens = tokens(golden);
    let whole = in_chunks(decoder, &tokens, &[tokens.len()]);
    let last = ONE_BY_ONE.min(tokens.len() - 1);
    let mut one_by_one = vec![1; last + 1];
    one_by_one[0] = tokens.len() - last;
    for sizes in [&[13][..], &one_by_one[..], &[8, 9, 1, 2]] {
        if whole != in_chunks(decoder, &tokens, sizes) {
            return Some(format!("in chunks of {sizes:?}"));
        }
    }
    let mixed = beside_another(decoder, &tokens);
    (whole != mixed).then(|| "beside another sequence".to_owned())
}

fn bits_are_the_same_in_any_batch(device: DeviceSpec, dtype: Dtype, goldens: Vec<Golden>) {
    for golden in goldens {
        let mut decoder = load_deterministic(&golden, device, dtype);
        let different = differs(decoder.as_mut(), &golden);
        assert_eq!(different, None, "{device} {dtype} {:?}", golden.dir);
    }
}

#[test]
fn on_the_cpu_bits_do_not_depend_on_the_batch() {
    bits_are_the_same_in_any_batch(CPU, Dtype::F32, goldens());
}

#[test]
fn on_vulkan_bits_need_not_depend_on_the_batch() {
    if let Some(device) = wgpu_devices(Api::Vulkan) {
        bits_are_the_same_in_any_batch(device, Dtype::F32, gpu_goldens());
        let some = gpu_goldens().into_iter().take(2).collect();
        bits_are_the_same_in_any_batch(device, Dtype::F16, some);
        // The fastest kernels give other bits, so that the equality above is no accident.
        let golden = &gpu_goldens()[0];
        let tokens = tokens(golden);
        let mut decoder = load_as(golden, device, Dtype::F32);
        let whole = in_chunks(decoder.as_mut(), &tokens, &[tokens.len()]);
        assert!(whole != in_chunks(decoder.as_mut(), &tokens, &[1]));
    }
}

#[test]
fn on_wgsl_bits_need_not_depend_on_the_batch() {
    if let Some(device) = wgsl_again() {
        let some = gpu_goldens().into_iter().take(2).collect();
        bits_are_the_same_in_any_batch(device, Dtype::F32, some);
    }
}
