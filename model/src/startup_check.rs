//! The check of a GPU's kernels at every start, before the GPU serves.
//!
//! Every kernel runs once, in the sizes of the model that is about to be loaded, so that the
//! kernels checked are the ones that will serve. Where bits must not depend on the batch, each
//! kernel has to prove that as well. What diagnoses a device in depth is [`doctor`](crate::doctor).

use hearth_shaders::check::{Case, ModelShape, Precision, Random, same_bits};
use hearth_shaders::{BlockFormat, HeadLayout, Kernels, Summation};

use crate::config::ModelConfig;
use crate::driver_panic::caught;
use crate::dtype::Dtype;
use crate::kernel_check::{check_case, precision};

/// Any seed will do. It is the same at each start, so that a failure can be reproduced.
const SEED: u64 = 0x6865_6172_7468;

/// Runs every kernel of the backend in the sizes of the model. `packed` lists the formats of
/// quantized blocks that the model's matrices are in; `adapter_rank` is 0 for a model without
/// adapters.
///
/// # Errors
/// Which kernel computed a value that no rounding explains, or how the kernel failed.
pub(crate) fn refuse_wrong_kernels<B: Kernels>(
    config: &ModelConfig,
    dtype: Dtype,
    packed: [Option<BlockFormat>; 2],
    adapter_rank: usize,
    summation: Summation,
    device: &B::Device,
) -> Result<(), String> {
    refuse::<B>(
        &shape(config, packed, adapter_rank),
        precision(dtype, false),
        summation,
        Precision::wrong,
        device,
    )
}

fn refuse<B: Kernels>(
    shape: &ModelShape,
    precision: Precision,
    summation: Summation,
    tolerance: impl Fn(Precision) -> f64,
    device: &B::Device,
) -> Result<(), String> {
    let mut random = Random::seeded(SEED);
    let cases = Case::of_model(shape, summation);
    let mut available = cases
        .iter()
        .filter(|case| case.kernel().is_supported::<B>());
    available.try_for_each(|case| {
        check_case::<B>(case, precision, tolerance(precision), &mut random, device)?;
        if summation == Summation::Fixed {
            caught(|| same_bits::<B>(case, precision, &mut random, device))?
                .map_err(|differs| differs.to_string())?;
        }
        Ok(())
    })
}

fn shape(
    config: &ModelConfig,
    packed: [Option<BlockFormat>; 2],
    adapter_rank: usize,
) -> ModelShape {
    ModelShape {
        hidden: config.hidden_size,
        inner: config.intermediate_size,
        vocab: config.vocab_size,
        layout: HeadLayout {
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
        },
        rotary_dim: config.rope.rotary_dim / 2 * 2,
        qk_norm: config.qk_norm,
        qkv_bias: config.attention_bias.qkv,
        adapter_rank,
        window: config.sliding_window.iter().copied().flatten().next(),
        packed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn_flex::Flex;

    #[test]
    fn kernels_are_checked_in_a_models_sizes_and_wrong_ones_are_refused() {
        let json = r#"{"architectures": ["Qwen3ForCausalLM"], "vocab_size": 300,
            "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 16,
            "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 512}"#;
        let shape = shape(&ModelConfig::from_json(json).unwrap(), [None; 2], 4);
        assert!(shape.qk_norm && shape.layout.head_dim == 16);
        let on_cpu = precision(Dtype::F32, true);
        let device = Default::default();
        for summation in [Summation::Fastest, Summation::Fixed] {
            let result = refuse::<Flex>(&shape, on_cpu, summation, Precision::wrong, &device);
            assert_eq!(result, Ok(()));
        }
        // No kernel is exact, and the error names the first one that is not.
        let order = Summation::Fastest;
        let refused = refuse::<Flex>(&shape, on_cpu, order, |_| 0.0, &device).unwrap_err();
        assert!(refused.contains("Linear"), "{refused}");
    }
}
