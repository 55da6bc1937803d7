//! The check of a GPU's kernels at every start, before the GPU serves.
//!
//! Every kernel runs once, in the sizes of the model that is about to be loaded, so that the
//! kernels checked are the ones that will serve. Where bits must not depend on the batch, each
//! kernel has to prove that as well. What diagnoses a device in depth is [`doctor`](crate::doctor).

use hearth_shaders::check::{
    Case, ExpertsShape, ModelShape, NormWeight, PoolKind, Precision, QkNormShape, Random, same_bits,
};
use hearth_shaders::{BlockFormat, ExpertActivation, HeadLayout, Kernels, KvFormat, Summation};

use crate::config::{ModelConfig, QkNorms};
use crate::driver_panic::caught;
use crate::dtype::Dtype;
use crate::kernel_check::{check_case, precision};
use crate::progress::Progress;

/// Any seed will do. It is the same at each start, so that a failure can be reproduced.
const SEED: u64 = 0x6865_6172_7468;

/// Runs every kernel of the backend in the sizes of the model, with KV pools in `kv_format`.
/// `packed` lists the formats of quantized blocks that the model's matrices are in; `adapter_rank` is
/// 0 for a model without adapters.
///
/// # Errors
/// Which kernel computed a value that no rounding explains, or how the kernel failed.
pub(crate) fn refuse_wrong_kernels<B: Kernels>(
    config: &ModelConfig,
    dtype: Dtype,
    kv_format: KvFormat,
    packed: Vec<BlockFormat>,
    adapter_rank: usize,
    summation: Summation,
    device: &B::Device,
) -> Result<(), String> {
    refuse::<B>(
        &shape(config, PoolKind::of(kv_format), packed, adapter_rank),
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
    let mut cases = Case::of_model(shape, summation);
    cases.retain(|case| case.kernel().is_supported::<B>());
    let progress = Progress::begin("checking kernels");
    cases.iter().enumerate().try_for_each(|(done, case)| {
        let part = format!("{}, {case}", case.kernel().name());
        progress.at(done, cases.len(), part);
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
    pool: PoolKind,
    packed: Vec<BlockFormat>,
    adapter_rank: usize,
) -> ModelShape {
    ModelShape {
        hidden: config.hidden_size,
        // Where all tokens go to experts, any width will do.
        inner: match (config.widest_mlp(), config.experts()) {
            (0, Some(experts)) => experts.width,
            (width, _) => width,
        },
        experts: config.experts().map(|experts| ExpertsShape {
            experts: experts.experts,
            routing: experts.routing,
            width: experts.width,
            bias: experts.bias,
            clamped: experts.activation != ExpertActivation::Silu,
        }),
        vocab: config.vocab_size,
        layout: HeadLayout {
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
        },
        rotary_dims: rotary_dims(config),
        qk_norm: match config.qk_norms {
            QkNorms::None => QkNormShape::None,
            QkNorms::Heads => QkNormShape::Heads,
            QkNorms::Projections => QkNormShape::Projections,
        },
        norm_weight: match config.norms_from_one {
            true => NormWeight::Wide,
            false => NormWeight::Same,
        },
        activation: config.activation,
        qkv_bias: config.attention_bias.qkv,
        pool,
        adapter_rank,
        window: config.layers.iter().find_map(|layer| layer.window),
        capped: config.attention_cap.is_some(),
        sinks: config.layers.iter().any(|layer| layer.sinks),
        logits_capped: config.scales_logits().then_some(config.logit_cap.is_some()),
        packed,
    }
}

/// The numbers of rotated elements of a head, of which there are at most two: that of the rotations
/// of a model, which rotate the same share of a head, and 0 for layers without a rotation.
fn rotary_dims(config: &ModelConfig) -> [Option<usize>; 2] {
    let dims = config.layers.iter().map(|layer| match layer.rope {
        Some(rope) => config.ropes[rope].rotary_dim,
        None => 0,
    });
    [dims.clone().max(), dims.min().filter(|dim| *dim == 0)]
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
        let config = ModelConfig::from_json(json).unwrap();
        let shape_of = |pool| shape(&config, pool, Vec::new(), 4);
        let shape = shape_of(PoolKind::Floats);
        assert_eq!(shape.qk_norm, QkNormShape::Heads);
        assert_eq!(shape.layout.head_dim, 16);
        let on_cpu = precision(Dtype::F32, true);
        let device = Default::default();
        for summation in [Summation::Fastest, Summation::Fixed] {
            for shape in [&shape, &shape_of(PoolKind::Int8)] {
                let result = refuse::<Flex>(shape, on_cpu, summation, Precision::wrong, &device);
                assert_eq!(result, Ok(()));
            }
        }
        // No kernel is exact, and the error names the first one that is not.
        let order = Summation::Fastest;
        let refused = refuse::<Flex>(&shape, on_cpu, order, |_| 0.0, &device).unwrap_err();
        assert!(refused.contains("Linear"), "{refused}");
    }
}
