//! An embedding and an output projection that are larger than what a device binds at once.

use hearth_model::device::{Api, DeviceSpec};
use hearth_model::dtype::Dtype;
use hearth_model::runner::Decoder;
use hearth_model::weights::Quantization;

use super::golden::{CPU, Golden, feed, goldens, load_in_parts, load_with, wgpu_devices};

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

/// Bounds that give two even parts of 256 rows, and parts of 86, 86 and 84. Every token is in some
/// part, and both a tied table and two of them are split.
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
    if let Some(device) = wgpu_devices(Api::WebGpu) {
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
