//! Forwards whose input ids are what the one before chose, launched before that is read.

use std::sync::Arc;

use hearth_model::device::{Api, DeviceSpec};
use hearth_model::runner::{Batch, Choice, Decoder, Flight, ForwardError, SequenceSpan, Wish};

use super::golden::{Golden, SLOTS, goldens, load, wgpu_devices};

const STEPS: usize = 12;
/// The step at which the second sequence has no token to choose, if it is to have none.
const SILENT: usize = 5;

/// The new tokens of one of two sequences, of which so many are computed.
struct Part {
    sequence: usize,
    tokens: Vec<u32>,
    past: usize,
}

fn launch(
    decoder: &mut dyn Decoder,
    parts: &[Part],
    carried: &[u32],
    wish: impl Fn(usize) -> Choice,
) -> Result<Flight, ForwardError> {
    let half = SLOTS / 2;
    let (mut tokens, mut positions, mut write, mut table) = (vec![], vec![], vec![], vec![]);
    let (mut spans, mut rows) = (Vec::new(), Vec::new());
    for part in parts {
        let slot = |position: usize| (part.sequence * half + position * 5 % half) as u32;
        let context = part.past + part.tokens.len();
        spans.push(SequenceSpan {
            first_token: tokens.len() as u32,
            tokens: part.tokens.len() as u32,
            context: context as u32,
            first_slot: table.len() as u32,
        });
        tokens.extend(&part.tokens);
        positions.extend(part.past as u32..context as u32);
        write.extend((part.past..context).map(slot));
        table.extend((0..context).map(slot));
        rows.push(tokens.len() as u32 - 1);
    }
    let batch = Batch {
        tokens: &tokens,
        carried,
        positions: &positions,
        write_slots: &write,
        sequences: &spans,
        slot_table: &table,
        logit_rows: &[],
        hidden_rows: &[],
        choice_rows: &rows,
    };
    let wishes = || parts.iter().map(|part| Wish::Token(wish(part.sequence)));
    decoder.launch(&batch, &mut || wishes().collect())
}

/// What is chosen for two sequences, step by step. Every third step has them in the other order.
fn chosen(golden: &Golden, device: DeviceSpec, ahead: bool, silent: bool) -> Vec<[Option<u32>; 2]> {
    let mut decoder = load(golden, device);
    let prompts = [&golden.prompt[..7], &golden.prompt[3..20]];
    let wish = |step: usize| {
        let nothing: Arc<[u32]> = vec![0; golden.vocab.div_ceil(32)].into();
        move |sequence: usize| Choice {
            temperature: 1.0,
            draw: (step * 7 + sequence * 3) as f64 % 10.0 / 10.0,
            mask: (silent && step == SILENT && sequence == 1).then(|| Arc::clone(&nothing)),
            ..Choice::GREEDY
        }
    };
    let part = |sequence: usize, tokens: Vec<u32>, past| Part {
        sequence,
        tokens,
        past,
    };
    let prompt = |sequence: usize| part(sequence, prompts[sequence].to_vec(), 0);
    let mut order = [0, 1];
    let first = launch(decoder.as_mut(), &order.map(prompt), &[], wish(0));
    let mut flight = Some(first.expect("a launch"));
    let mut steps = Vec::new();
    let mut read = |flight: Option<Flight>, order: [usize; 2]| {
        let outputs = flight.expect("it was launched")().expect("a forward");
        let mut tokens = [None; 2];
        for (sequence, token) in order.into_iter().zip(outputs.chosen) {
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
        if ahead {
            let carried = next.map(|sequence| u32::from(order[0] != sequence));
            let parts = next.map(|sequence| part(sequence, vec![0], past(sequence)));
            let launched = launch(decoder, &parts, &carried, wish(step));
            read(flight.take(), order);
            flight = Some(launched.expect("a launch"));
        } else {
            let tokens = read(flight.take(), order);
            let token = |sequence: usize| vec![tokens[sequence].unwrap_or(0)];
            let parts = next.map(|sequence| part(sequence, token(sequence), past(sequence)));
            flight = Some(launch(decoder, &parts, &[], wish(step)).expect("a launch"));
        }
        order = next;
    }
    read(flight, order);
    steps
}

fn carried_tokens_are_the_chosen_ones(api: Api) {
    let Some(device) = wgpu_devices(api) else {
        return;
    };
    let golden = &goldens()[0];
    let waiting = chosen(golden, device, false, false);
    assert!(waiting.iter().flatten().all(Option::is_some));
    assert_eq!(chosen(golden, device, true, false), waiting);
    // A row that has no token carries some token on, and disturbs no other.
    let silent = chosen(golden, device, true, true);
    assert_eq!(silent[SILENT][1], None);
    assert_eq!(silent, chosen(golden, device, false, true));
}

#[test]
fn on_vulkan_tokens_are_carried_to_the_next_forward_without_being_read() {
    carried_tokens_are_the_chosen_ones(Api::Vulkan);
}

#[test]
fn on_wgsl_tokens_are_carried_to_the_next_forward_without_being_read() {
    carried_tokens_are_the_chosen_ones(Api::WebGpu);
}

#[test]
fn rows_that_nothing_was_chosen_at_are_refused() {
    let Some(device) = wgpu_devices(Api::Vulkan) else {
        return;
    };
    let mut decoder = load(&goldens()[0], device);
    let mut launch = |carried: &[u32], tokens: usize| {
        let part = Part {
            sequence: 0,
            tokens: vec![0; tokens],
            past: 0,
        };
        let flight = launch(decoder.as_mut(), &[part], carried, |_| Choice::GREEDY);
        flight
            .and_then(|flight| flight())
            .map_err(|error| error.to_string())
    };
    assert!(launch(&[0], 1).unwrap_err().contains("carried row 0"));
    assert_eq!(launch(&[], 3).expect("a forward").chosen.len(), 1);
    assert!(launch(&[1], 1).unwrap_err().contains("carried row 1"));
    assert!(launch(&[0], 2).unwrap_err().contains("carried rows"));
    assert_eq!(launch(&[0], 1).expect("a forward").chosen.len(), 1);
}
