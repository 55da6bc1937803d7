//! Adapters over a base model whose matrices are in blocks of 8 and 4 bits: the logits are those of
//! the same adapter over the dequantised matrices in f32.

use hearth_forward::LayerMatrix::{Down, Gate, Key, Output, Query, Up, Value};
use hearth_forward::{AdaptedMatrix, Adapter, LowRank};
use hearth_model::Decoder;
use hearth_model::config::ModelConfig;
use hearth_model::device::{Api, DeviceSpec};
use hearth_model::dtype::Dtype;

use super::golden::{
    CPU, Golden, TOLERANCE, all_gpu_tests, feed, feed_adapted, gguf_goldens, load_with_adapters,
    open, wgpu_devices,
};

const RANK: usize = 5;

/// Numbers of mean 0 and variance 1, the same in every run.
struct Numbers(u64);

impl Numbers {
    fn take(&mut self, count: usize, size: f64) -> Vec<f32> {
        let mut uniform = || {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005);
            self.0 = self.0.wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 40) as f64 / (1 << 24) as f64
        };
        // Variance 1/12 each.
        let mut one = || (0..12).map(|_| uniform()).sum::<f64>() - 6.0;
        (0..count).map(|_| (one() * size) as f32).collect()
    }
}

/// An adapter that changes every matrix of the model, with and without biases and scales.
fn adapter_of_all(config: &ModelConfig) -> Adapter {
    let (hidden, inner) = (config.hidden_size, config.widest_mlp());
    let (q, kv) = (
        config.heads * config.head_dim,
        config.kv_heads * config.head_dim,
    );
    let mut numbers = Numbers(1);
    let mut change = |matrix, input: usize, output: usize, biased: bool| LowRank {
        matrix,
        rank: RANK,
        a: numbers.take(RANK * input, (input as f64).powf(-0.5)),
        b: numbers.take(RANK * output, 0.2),
        bias: numbers.take(output * usize::from(biased), 0.2),
        scale: Vec::new(),
    };
    let mut changes = vec![
        // Its `a` has a row for each token.
        LowRank {
            a: Vec::new(),
            ..change(AdaptedMatrix::Embedding, 0, hidden, false)
        },
        change(AdaptedMatrix::LmHead, hidden, config.vocab_size, false),
    ];
    for layer in 0..config.layers.len() as u32 {
        for (matrix, input, output, biased) in [
            (Query, hidden, q, false),
            (Key, hidden, kv, true),
            (Value, hidden, kv, false),
            (Output, q, hidden, true),
            (Gate, hidden, inner, false),
            (Up, hidden, inner, true),
            (Down, inner, hidden, false),
        ] {
            let matrix = AdaptedMatrix::Layer(layer, matrix);
            changes.push(change(matrix, input, output, biased));
        }
    }
    changes[0].a = numbers.take(config.vocab_size * RANK, 0.3);
    for change in changes.iter_mut().step_by(2) {
        let scale = numbers.take(change.b.len() / RANK, 0.2);
        change.scale = scale.into_iter().map(|by| 1.0 + by).collect();
    }
    Adapter {
        digest: "all".to_owned(),
        changes,
        tables: Vec::new(),
    }
}

/// The logits of the prompt and of each token after it, with the adapter in a slot.
fn logits(decoder: &mut dyn Decoder, golden: &Golden, slot: u32) -> Vec<f32> {
    let mut logits = feed_adapted(decoder, &golden.prompt, 0, slot);
    for (step, token) in golden.decode_tokens.iter().enumerate() {
        let past = golden.prompt.len() + step;
        logits.extend(feed_adapted(decoder, &[*token], past, slot));
    }
    logits
}

/// The root mean square of the differences, as a share of that of `want`.
fn relative_error(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    let square = |values: &mut dyn Iterator<Item = f32>| values.map(|x| x * x).sum::<f32>();
    let errors = square(&mut got.iter().zip(want).map(|(got, want)| got - want));
    (errors / square(&mut want.iter().copied())).sqrt()
}

/// The largest difference, and the relative error, of logits over blocks from those over the
/// dequantised matrices.
fn off(device: DeviceSpec, dtype: Dtype, name: &str) -> [f32; 2] {
    let mut goldens = gguf_goldens().into_iter();
    let golden = goldens.find(|golden| golden.dir.ends_with(name));
    let golden = golden.expect(name);
    let adapter = adapter_of_all(&open(&golden).config);
    // On a CPU, f32 dequantises.
    let mut plain = load_with_adapters(&golden, CPU, Dtype::F32, None, 1);
    assert_eq!(plain.report().quantization, None, "{name}");
    plain.load_adapter(1, &adapter).expect("it is loaded");
    let want = logits(plain.as_mut(), &golden, 1);
    let base = logits(plain.as_mut(), &golden, 0);
    let change = relative_error(&base, &want);
    assert!(change > 0.5, "{name}: the adapter changes little: {change}");

    let mut blocks = load_with_adapters(&golden, device, dtype, None, 2);
    assert!(blocks.report().quantization.is_some(), "{device} {name}");
    blocks.load_adapter(2, &adapter).expect("it is loaded");
    let got = logits(blocks.as_mut(), &golden, 2);
    assert!(got.iter().all(|logit| logit.is_finite()));
    let whole = feed(blocks.as_mut(), &golden.prompt, 0);
    let error = relative_error(&whole, &base[..whole.len()]);
    assert!(
        error < 0.1,
        "{device} {name}: the base model is off by {error}"
    );
    let pairs = got.iter().zip(&want);
    let worst = pairs.map(|(got, want)| (got - want).abs());
    [worst.fold(0.0, f32::max), relative_error(&got, &want)]
}

/// A CPU rounds the activations to 8 bits for the blocks, and the adapter's numbers to bf16.
#[test]
fn on_the_cpu_adapters_over_blocks_are_off_by_the_rounding_of_activations_alone() {
    for name in ["q8_0.gguf", "q4_0.gguf"] {
        let [_, error] = off(CPU, Dtype::Bf16, name);
        println!("{name}: relative error {error}");
        assert!(error < 0.03, "{name}: off by {error}");
    }
}

/// A GPU rounds nothing in f32.
#[test]
fn on_vulkan_adapters_over_blocks_have_the_logits_of_dequantised_matrices() {
    if let Some(device) = wgpu_devices(Api::Vulkan) {
        let names = ["q4_0.gguf", "q8_0.gguf"];
        let some = if all_gpu_tests() { 2 } else { 1 };
        for name in &names[..some] {
            let [worst, _] = off(device, Dtype::F32, name);
            println!("{name}: off by {worst}");
            assert!(worst <= TOLERANCE, "{name}: off by {worst}");
        }
    }
}
