//! Weights in 16, 8 and 4 bits.

use hearth_model::Decoder;
use hearth_model::device::{Api, DeviceSpec};
use hearth_model::dtype::Dtype;
use hearth_model::weights::Quantization;

use super::golden::{
    CPU, Golden, TOLERANCE, feed, gguf_goldens, goldens, load_as, load_with, wgpu_devices,
    wgsl_again,
};

/// Weights that are stored in 16 bits are used in 16 bits, as with `--dtype auto`. The results
/// differ from the golden only by the rounding of KV and, on a GPU or on matrix tiles, of
/// activations.
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

/// The root mean square of the differences from the golden, as a share of that of its logits: of all
/// tokens, or of a model with experts the median of the tokens. Rounding may choose another expert
/// where two are nearly as good, which changes some tokens by more than their rounding.
pub fn relative_error(golden: &Golden, decoder: &mut dyn Decoder) -> f32 {
    let mut tokens = Vec::new();
    let mut check = |given: &[u32], past: usize, want: &[f32]| {
        let got = feed(decoder, given, past);
        let rows = got.chunks(golden.vocab).zip(want.chunks(golden.vocab));
        tokens.extend(rows.map(|(got, want)| {
            let pairs = got.iter().zip(want);
            let error: f32 = pairs.map(|(got, want)| (got - want).powi(2)).sum();
            (error, want.iter().map(|want| want * want).sum::<f32>())
        }));
    };
    check(&golden.prompt, 0, &golden.prefill);
    for (step, token) in golden.decode_tokens.iter().enumerate() {
        let want = &golden.decode[step * golden.vocab..][..golden.vocab];
        check(&[*token], golden.prompt.len() + step, want);
    }
    if has_experts(golden) {
        let mut errors: Vec<f32> = tokens.iter().map(|(error, size)| error / size).collect();
        errors.sort_by(f32::total_cmp);
        return errors[errors.len() / 2].sqrt();
    }
    let sum = |of: fn(&(f32, f32)) -> f32| tokens.iter().map(of).sum::<f32>();
    (sum(|(error, _)| *error) / sum(|(_, size)| *size)).sqrt()
}

fn has_experts(golden: &Golden) -> bool {
    let config = std::fs::read_to_string(golden.dir.join("config.json"));
    config.is_ok_and(|config| config.contains("num_experts_per_tok"))
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

/// Activations are rounded to 8 bits for weights in blocks.
#[test]
fn weights_that_stay_in_their_blocks_stay_close() {
    for name in ["q8_0.gguf", "q4_0.gguf", "mixed.gguf"] {
        sixteen_bits_stay_close(CPU, Dtype::Bf16, name, 0.25);
    }
    let mut all = goldens().into_iter();
    let golden = all.find(|golden| golden.dir.ends_with("gpt-oss-mxfp4"));
    let golden = golden.expect("a golden of experts in blocks");
    let mut decoder = load_as(&golden, CPU, Dtype::Bf16);
    assert_eq!(
        decoder.report().quantization.as_deref(),
        Some("MXFP4"),
        "the experts stay in their blocks"
    );
    let error = relative_error(&golden, decoder.as_mut());
    assert!(error <= 0.1, "experts in blocks: off by {error}");
}

#[test]
fn weights_quantized_at_load_stay_close_and_chunks_change_no_bit() {
    // Weights in blocks are not rounded again.
    let in_floats = |golden: &Golden| !golden.dir.ends_with("gpt-oss-mxfp4");
    for golden in goldens().into_iter().filter(in_floats) {
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

/// A GPU rounds no activations, so weights stored in blocks give the logits of the dequantised
/// weights, and weights rounded at load come as close as on the CPU. The reports describe what is
/// on the device.
fn a_gpu_computes_with_blocks(device: DeviceSpec, files: &[&str], some: usize) {
    for golden in gguf_goldens() {
        let name = golden.dir.file_name().expect("a name").to_string_lossy();
        if !files.contains(&name.as_ref()) {
            continue;
        }
        let mut decoder = load_as(&golden, device, Dtype::F32);
        let blocks = decoder.report().quantization.clone();
        assert!(blocks.is_some(), "{device} {name} is not in blocks");
        let worst = worst_of(&golden, decoder.as_mut());
        assert!(worst <= TOLERANCE, "{device} {name}: off by {worst}");
    }
    for golden in goldens().into_iter().take(some) {
        let plain = load_as(&golden, device, Dtype::F32).report().weight_bytes;
        for (quantization, tolerance, share) in [
            // Norms and biases stay floats, and they are a large part of such small models.
            (Quantization::Int8, 0.1, 2.0),
            (Quantization::Int4, 0.6, 2.5),
        ] {
            let mut decoder = load_with(&golden, device, Dtype::F32, Some(quantization))
                .expect("the golden loads");
            let name = golden.dir.display();
            let bytes = decoder.report().weight_bytes;
            assert!(
                bytes as f64 * share < plain as f64,
                "{name} in {quantization}: {bytes} bytes of {plain}"
            );
            let error = relative_error(&golden, decoder.as_mut());
            assert!(
                error > 0.0 && error <= tolerance,
                "{device} {name} in {quantization}: off by {error}"
            );
        }
    }
}

#[test]
fn vulkan_computes_with_blocks() {
    if let Some(device) = wgpu_devices(Api::Vulkan) {
        a_gpu_computes_with_blocks(device, &["q8_0.gguf", "q4_0.gguf", "mixed.gguf"], 1);
    }
}

#[test]
fn wgsl_computes_with_blocks() {
    if let Some(device) = wgsl_again() {
        a_gpu_computes_with_blocks(device, &["mixed.gguf"], 0);
    }
}

#[test]
fn quantized_weights_are_not_quantized_again() {
    let int8 = Some(Quantization::Int8);
    let file = gguf_goldens()
        .into_iter()
        .find(|golden| golden.dir.ends_with("q4_0.gguf"));
    let refused = load_with(&file.expect("a file in blocks"), CPU, Dtype::Bf16, int8);
    let error = refused.err().expect("weights in blocks").to_string();
    assert!(error.contains("already (Q4_0)"), "{error}");
}
