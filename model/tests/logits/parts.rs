//! An embedding and an output projection that are larger than what a device binds at once.

use hearth_forward::{ForwardBatch, SampleParams, SampleRequest, SequenceSpan};
use hearth_model::Decoder;
use hearth_model::device::{Api, DeviceSpec};
use hearth_model::dtype::Dtype;
use hearth_model::weights::Quantization;

use super::golden::{
    CPU, Golden, feed, goldens, load_in_parts, load_with, slot, wgpu_devices, wgsl_again,
};

/// The logits of the prompt in two pieces and of each token after it.
fn logits(golden: &Golden, decoder: &mut dyn Decoder) -> Vec<f32> {
    let (first, rest) = golden.prompt.split_at(1);
    let mut logits = feed(decoder, first, 0);
    logits.extend(feed(decoder, rest, 1));
    for (step, token) in golden.decode_tokens.iter().enumerate() {
        logits.extend(feed(decoder, &[*token], golden.prompt.len() + step));
    }
    logits
}

/// The bounds give two even parts of 256 rows, and parts of 86, 86 and 84. The tokens occur in all
/// parts, and the tables are one tied table and two separate ones.
fn tables_in_parts_give_the_same(device: DeviceSpec) {
    for name in ["llama-llama3-tied", "mistral-window"] {
        let golden = goldens()
            .into_iter()
            .find(|golden| golden.dir.ends_with(name))
            .expect(name);
        for (quantization, bound) in [
            (None, 24_576),
            (Some(Quantization::Int8), 9_000),
            (Some(Quantization::Int4), 7_000),
        ] {
            let mut whole = load_with(&golden, device, Dtype::F32, quantization).expect(name);
            let mut parts = load_in_parts(&golden, device, quantization, bound).expect(name);
            let whole = logits(&golden, whole.as_mut());
            let parts = logits(&golden, parts.as_mut());
            assert_eq!(whole.len(), parts.len());
            for (index, (whole, part)) in whole.iter().zip(&parts).enumerate() {
                assert!(
                    (whole - part).abs() <= 1e-4 * whole.abs().max(1.0),
                    "{device} {name} {quantization:?}: logit {index} is {part}, not {whole}"
                );
            }
        }
    }
}

/// Samples after each token of the prompt, except every third one, whose logits are requested.
/// Returns the tokens and the logits.
fn sampled(golden: &Golden, decoder: &mut dyn Decoder) -> (Vec<Option<u32>>, Vec<f32>) {
    let count = golden.prompt.len() as u32;
    let rows: Vec<u32> = (0..count).collect();
    let slots: Vec<u32> = (0..golden.prompt.len()).map(slot).collect();
    let batch = ForwardBatch {
        tokens: golden.prompt.clone(),
        positions: rows.clone(),
        write_slots: slots.clone(),
        sequences: vec![SequenceSpan {
            tokens: count,
            context: count,
            first_slot: 0,
        }],
        slot_table: slots,
        // These logits come from the same multiplication, if all rows fit.
        logit_rows: rows[..2].to_vec(),
        sample_rows: rows.clone(),
        ..ForwardBatch::default()
    };
    let request = |row: u32| match row % 3 {
        0 => SampleRequest::Logits,
        1 => SampleRequest::Token(SampleParams::GREEDY),
        _ => SampleRequest::Nothing,
    };
    let mut requests = || rows.iter().map(|row| request(*row)).collect();
    let output = decoder
        .forward(&batch, &mut requests)
        .expect("a forward pass");
    let logits = [output.logits, output.sample_logits].concat();
    (output.sampled, logits)
}

/// The bounds give parts of four and of six rows.
fn rows_in_parts_give_the_same(device: DeviceSpec) {
    let golden = &goldens()[0];
    let mut whole = load_with(golden, device, Dtype::F32, None).expect("it loads");
    let (tokens, logits) = sampled(golden, whole.as_mut());
    assert!(tokens.len() > 6 && tokens.iter().all(Option::is_some));
    for bound in [24_576, 32_768] {
        let mut parts = load_in_parts(golden, device, None, bound).expect("it loads");
        let (tokens_of_parts, logits_of_parts) = sampled(golden, parts.as_mut());
        assert_eq!(tokens, tokens_of_parts, "{device} {bound}");
        assert_eq!(logits.len(), logits_of_parts.len());
        for (whole, part) in logits.iter().zip(&logits_of_parts) {
            let off = (whole - part).abs();
            assert!(
                off <= 1e-4 * whole.abs().max(1.0),
                "{device}: {part}, not {whole}"
            );
        }
    }
}

#[test]
fn vulkan_takes_logits_in_parts() {
    if let Some(device) = wgpu_devices(Api::Vulkan) {
        rows_in_parts_give_the_same(device);
    }
}

#[test]
fn wgsl_takes_logits_in_parts() {
    if let Some(device) = wgsl_again() {
        rows_in_parts_give_the_same(device);
    }
}

#[test]
fn the_cpu_takes_tables_in_parts() {
    tables_in_parts_give_the_same(CPU);
}

#[test]
fn vulkan_takes_tables_in_parts() {
    if let Some(device) = wgpu_devices(Api::Vulkan) {
        tables_in_parts_give_the_same(device);
    }
}

#[test]
fn wgsl_takes_tables_in_parts() {
    if let Some(device) = wgsl_again() {
        tables_in_parts_give_the_same(device);
    }
}

#[test]
fn a_matrix_of_a_layer_that_is_too_large_is_named() {
    let golden = &goldens()[0];
    let refused = load_in_parts(golden, CPU, None, 20_000);
    let error = refused.err().expect("too large").to_string();
    assert!(
        error.contains("projection") && error.contains("20480") && error.contains("20000"),
        "{error}"
    );
}
