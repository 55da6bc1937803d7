//! Checkpoints in the formats of quantized Hugging Face models.

use std::path::Path;

use hearth_model::device::DeviceSpec;
use hearth_model::dtype::Dtype;
use hearth_model::{LoadOptions, estimate};

use super::golden::{CPU, Golden, feed, load_as, open, read};
use super::prefill_and_decode;

fn goldens() -> Vec<Golden> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("goldens/quantised");
    let entries = std::fs::read_dir(root).expect("goldens are committed");
    let mut dirs: Vec<_> = entries
        .map(|entry| entry.expect("readable").path())
        .collect();
    dirs.sort();
    assert!(dirs.len() >= 11, "{dirs:?}");
    dirs.into_iter().map(read).collect()
}

#[test]
fn quantized_checkpoints_give_the_logits_of_their_dequantised_weights() {
    for golden in goldens() {
        let mut decoder = load_as(&golden, CPU, Dtype::F32);
        let name = golden.dir.display().to_string();
        assert_eq!(decoder.report().quantization, None, "{name}");
        prefill_and_decode(decoder.as_mut(), &golden, &name);
    }
}

#[test]
fn matrices_that_fit_into_blocks_stay_packed_in_bf16() {
    for golden in goldens() {
        let mut decoder = load_as(&golden, CPU, Dtype::Bf16);
        let name = golden.dir.file_name().expect("a name").to_string_lossy();
        let packed = decoder.report().quantization.clone();
        let expected = match &*name {
            "gptq-4-32" | "compressed-4" => Some("Q4_0"),
            "gptq-4-old" | "awq-32" | "compressed-4-asymmetric" => Some("Q5_0"),
            "gptq-8-channel-v2" | "compressed-int8" => Some("Q8_0"),
            _ => None,
        };
        assert_eq!(packed.as_deref(), expected, "{name}");
        // Activations and the KV cache are rounded.
        let logits = feed(decoder.as_mut(), &golden.prompt, 0);
        let power = |values: &mut dyn Iterator<Item = f32>| values.map(|x| x * x).sum::<f32>();
        let pairs = logits.iter().zip(&golden.prefill);
        let error = power(&mut pairs.map(|(got, want)| got - want));
        let whole = power(&mut golden.prefill.iter().copied());
        assert!(error < 0.01 * whole, "{name}: {error} of {whole}");
    }
}

#[test]
fn the_estimated_memory_is_that_of_the_loaded_model() {
    for golden in goldens() {
        let name = golden.dir.display().to_string();
        let of = |dtype: Option<Dtype>, device: DeviceSpec| {
            let options = LoadOptions {
                device,
                dtype,
                ..LoadOptions::default()
            };
            estimate(&open(&golden), &options).unwrap()
        };
        for dtype in [Dtype::F32, Dtype::Bf16] {
            let decoder = load_as(&golden, CPU, dtype);
            let report = decoder.report();
            let estimate = of(Some(dtype), CPU);
            assert_eq!(estimate.weight_bytes, report.weight_bytes, "{name}");
            let slots = report.kv_slots as u64;
            assert_eq!(estimate.token_bytes * slots, report.kv_bytes, "{name}");
        }
        // Unasked it is bf16, in which matrices stay in their blocks.
        let unasked = of(None, DeviceSpec::Auto);
        assert_eq!(unasked, of(Some(Dtype::Bf16), CPU), "{name}");
    }
}
