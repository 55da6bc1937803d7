//! Forward passes whose input ids are the tokens that the previous one samples, submitted before
//! these tokens are read (overlap scheduling).

use std::sync::Arc;

use hearth_forward::{ForwardBatch, ForwardError, SampleParams, SampleRequest, SequenceSpan};
use hearth_model::device::{Api, DeviceSpec};
use hearth_model::{Decoder, Submission};

use super::golden::{Golden, SLOTS, goldens, load, wgpu_devices, wgsl_again};

const STEPS: usize = 12;
/// The step at which the second sequence may sample no token, in the test for that.
const SILENT: usize = 5;

/// The new tokens of one of two sequences, after `past` tokens that are computed already.
struct Part {
    sequence: usize,
    tokens: Vec<u32>,
    past: usize,
}

fn submit(
    decoder: &mut dyn Decoder,
    parts: &[Part],
    carried: &[u32],
    params: impl Fn(usize) -> SampleParams,
) -> Result<Submission, ForwardError> {
    let half = SLOTS / 2;
    let mut batch = ForwardBatch {
        carried_rows: carried.to_vec(),
        ..ForwardBatch::default()
    };
    for part in parts {
        let slot = |position: usize| (part.sequence * half + position * 5 % half) as u32;
        let context = part.past + part.tokens.len();
        batch.sequences.push(SequenceSpan {
            tokens: part.tokens.len() as u32,
            context: context as u32,
            first_slot: batch.slot_table.len() as u32,
        });
        batch.tokens.extend(&part.tokens);
        batch.positions.extend(part.past as u32..context as u32);
        batch.write_slots.extend((part.past..context).map(slot));
        batch.slot_table.extend((0..context).map(slot));
        batch.sample_rows.push(batch.tokens.len() as u32 - 1);
    }
    let request = |part: &Part| SampleRequest::Token(params(part.sequence));
    decoder.submit(&batch, &mut || parts.iter().map(request).collect())
}

/// Samples for two sequences, step by step. Every third step has them in the other order.
fn sampled(
    golden: &Golden,
    device: DeviceSpec,
    overlap: bool,
    silent: bool,
) -> Vec<[Option<u32>; 2]> {
    let mut decoder = load(golden, device);
    let prompts = [&golden.prompt[..7], &golden.prompt[3..20]];
    let params = |step: usize| {
        let nothing: Arc<[u32]> = vec![0; golden.vocab.div_ceil(32)].into();
        move |sequence: usize| SampleParams {
            temperature: 1.0,
            draw: (step * 7 + sequence * 3) as f64 % 10.0 / 10.0,
            mask: (silent && step == SILENT && sequence == 1).then(|| Arc::clone(&nothing)),
            ..SampleParams::GREEDY
        }
    };
    let part = |sequence: usize, tokens: Vec<u32>, past| Part {
        sequence,
        tokens,
        past,
    };
    let prompt = |sequence: usize| part(sequence, prompts[sequence].to_vec(), 0);
    let mut order = [0, 1];
    let first = submit(decoder.as_mut(), &order.map(prompt), &[], params(0));
    let mut submission = Some(first.expect("a submission"));
    let mut steps = Vec::new();
    let mut read = |submission: Option<Submission>, order: [usize; 2]| {
        let output = submission.expect("it was submitted")().expect("a forward pass");
        let mut tokens = [None; 2];
        for (sequence, token) in order.into_iter().zip(output.sampled) {
            tokens[sequence] = token;
        }
        steps.push(tokens);
        tokens
    };
    for step in 1..STEPS {
        let next = if step % 3 == 0 {
            [order[1], order[0]]
        } else {
            order
        };
        let past = |sequence: usize| prompts[sequence].len() + step - 1;
        let decoder = decoder.as_mut();
        if overlap {
            let carried = next.map(|sequence| u32::from(order[0] != sequence));
            let parts = next.map(|sequence| part(sequence, vec![0], past(sequence)));
            let submitted = submit(decoder, &parts, &carried, params(step));
            read(submission.take(), order);
            submission = Some(submitted.expect("a submission"));
        } else {
            let tokens = read(submission.take(), order);
            let token = |sequence: usize| vec![tokens[sequence].unwrap_or(0)];
            let parts = next.map(|sequence| part(sequence, token(sequence), past(sequence)));
            submission = Some(submit(decoder, &parts, &[], params(step)).expect("a submission"));
        }
        order = next;
    }
    read(submission, order);
    steps
}

fn carried_tokens_are_the_sampled_ones(api: Api) {
    let Some(device) = wgpu_devices(api) else {
        return;
    };
    let golden = &goldens()[0];
    let waiting = sampled(golden, device, false, false);
    assert!(waiting.iter().flatten().all(Option::is_some));
    assert_eq!(sampled(golden, device, true, false), waiting);
    // A row without a sampled token carries some token on, and disturbs no other row.
    let silent = sampled(golden, device, true, true);
    assert_eq!(silent[SILENT][1], None);
    assert_eq!(silent, sampled(golden, device, false, true));
}

#[test]
fn on_vulkan_tokens_are_carried_to_the_next_forward_without_being_read() {
    carried_tokens_are_the_sampled_ones(Api::Vulkan);
}

#[test]
fn on_wgsl_tokens_are_carried_to_the_next_forward_without_being_read() {
    if wgsl_again().is_some() {
        carried_tokens_are_the_sampled_ones(Api::WebGpu);
    }
}

#[test]
fn rows_at_which_no_token_was_sampled_are_refused() {
    let Some(device) = wgpu_devices(Api::Vulkan) else {
        return;
    };
    let mut decoder = load(&goldens()[0], device);
    let mut run = |carried: &[u32], tokens: usize| {
        let part = Part {
            sequence: 0,
            tokens: vec![0; tokens],
            past: 0,
        };
        let submission = submit(decoder.as_mut(), &[part], carried, |_| SampleParams::GREEDY);
        submission
            .and_then(|submission| submission())
            .map_err(|error| error.to_string())
    };
    assert!(run(&[0], 1).unwrap_err().contains("carried row 0"));
    assert_eq!(run(&[], 3).expect("a forward pass").sampled.len(), 1);
    assert!(run(&[1], 1).unwrap_err().contains("carried row 1"));
    assert!(run(&[0], 2).unwrap_err().contains("carried rows"));
    assert_eq!(run(&[0], 1).expect("a forward pass").sampled.len(), 1);
}
