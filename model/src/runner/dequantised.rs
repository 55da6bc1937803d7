//! The cost of quantized matrices that are served as floats.

use hearth_shaders::{BlockFormat, Kernels};

use crate::config::ModelConfig;
use crate::dtype::Dtype;
use crate::transformer::Blocks;
use crate::weights::Weights;

/// Warns if matrices that several tensors hold are not served in blocks, and says what that costs.
pub(super) fn warn_of_dequantised<B: Kernels>(
    config: &ModelConfig,
    weights: &Weights,
    blocks: Blocks,
    dtype: Dtype,
) {
    let (mut matrices, mut stored, mut served) = (0, 0, 0);
    for stack in config.stacks() {
        let parts = stack.parts.iter();
        let packed: Vec<_> = parts
            .filter_map(|(name, _)| weights.packed_bytes(name))
            .collect();
        let formats = blocks.formats::<B>(weights, &stack);
        let floats = formats.is_none_or(|formats| formats.contains(&BlockFormat::Bf16));
        if floats && !packed.is_empty() {
            matrices += packed.len();
            stored += packed.iter().sum::<usize>() as u64;
            served += blocks.stack_bytes::<B>(weights, &stack, dtype);
        }
    }
    if matrices > 0 {
        tracing::warn!(
            matrices,
            stored_bytes = stored,
            served_bytes = served,
            %dtype,
            "quantized matrices are dequantised, because no kernel of this device computes with them as \
             they are; docs/QUANTIZATION.md says which ones stay packed"
        );
    }
}
