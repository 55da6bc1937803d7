//! The cases in which a model uses its kernels.

use super::{Case, ExpertsShape, NormWeight, PoolKind};
use crate::{Activation, BlockFormat, HeadLayout, Summation};

/// Which norms a model has over queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNormShape {
    None,
    /// Over each head.
    Heads,
    /// Over all heads of a token together.
    Projections,
}

/// The sizes and properties of a model that kernels are compiled for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelShape {
    pub hidden: usize,
    pub inner: usize,
    pub vocab: usize,
    pub layout: HeadLayout,
    /// The number of rotated elements of a head, for each of the tables that layers use; 0 for
    /// layers without a rotation.
    pub rotary_dims: [Option<usize>; 2],
    pub qk_norm: QkNormShape,
    pub norm_weight: NormWeight,
    pub activation: Activation,
    pub qkv_bias: bool,
    pub window: Option<u32>,
    /// True if the scores of attention are bounded.
    pub capped: bool,
    pub sinks: bool,
    /// `Some` if the logits are scaled, with `true` if they are bounded.
    pub logits_capped: Option<bool>,
    /// The KV pools.
    pub pool: PoolKind,
    /// The largest rank of an adapter; 0 for a model without them.
    pub adapter_rank: usize,
    /// The model's experts.
    pub experts: Option<ExpertsShape>,
    /// The formats of the model's packed matrices.
    pub packed: Vec<BlockFormat>,
}

impl Case {
    /// The cases in which a model of `shape` uses its kernels: single tokens, decoding with long
    /// and short contexts, and chunks of short and long prompts. The matrices have few rows,
    /// because the compiled kernel does not depend on the number of rows.
    pub fn of_model(shape: &ModelShape, summation: Summation) -> Vec<Self> {
        let ModelShape {
            hidden,
            inner,
            layout,
            ..
        } = *shape;
        let attention = layout.heads * layout.head_dim;
        let mut cases = Vec::new();
        for tokens in [1, 4, 33] {
            for (input, output, bias, gated) in [
                (hidden, layout.qkv_width(), shape.qkv_bias, None),
                (attention, hidden, false, None),
                (hidden, inner, false, Some(shape.activation)),
                (inner, hidden, false, None),
            ] {
                cases.push(Case::Linear {
                    tokens,
                    input,
                    output: output.min(96),
                    bias,
                    gated,
                    summation,
                });
            }
            cases.extend([
                Case::Embed {
                    tokens,
                    vocab: shape.vocab.min(256),
                    hidden,
                },
                Case::RmsNorm {
                    tokens,
                    hidden,
                    weight: shape.norm_weight,
                },
                Case::AddRmsNorm {
                    tokens,
                    hidden,
                    weight: shape.norm_weight,
                },
                Case::Gate {
                    tokens,
                    inner,
                    activation: shape.activation,
                },
            ]);
            if shape.qk_norm == QkNormShape::Projections {
                cases.push(Case::NormProjections {
                    tokens,
                    layout,
                    weight: shape.norm_weight,
                });
            }
            let rotary_dims = shape.rotary_dims.into_iter().flatten();
            cases.extend(rotary_dims.map(|rotary_dim| Case::RopeAndStore {
                tokens,
                layout,
                rotary_dim,
                qk_norm: (shape.qk_norm == QkNormShape::Heads).then_some(shape.norm_weight),
                pool: shape.pool,
            }));
        }
        if let Some(capped) = shape.logits_capped {
            cases.push(Case::ScaleAndCap {
                rows: 9,
                vocab: shape.vocab,
                capped,
            });
        }
        if shape.adapter_rank > 0 {
            cases.extend(Self::of_adapters(shape));
        }
        if let Some(experts) = &shape.experts {
            cases.extend(experts.cases(hidden, &shape.packed));
        }
        let packed = shape.packed.iter();
        cases.extend(packed.flat_map(|format| Self::of_packed_model(shape, *format, summation)));
        // Attention computes chunks of few tokens as blocks, chunks of many tokens as tiles where
        // the device has them, and splits long contexts.
        let chunks = [
            vec![(3, 1), (70, 1)],
            vec![(700, 1)],
            vec![(150, 33), (90, 3), (9, 1)],
            vec![(700, 33)],
            vec![(700, 3)],
        ];
        cases.extend(chunks.map(|sequences| Case::Attention {
            sequences,
            layout,
            window: shape.window,
            capped: shape.capped,
            sinks: shape.sinks,
            summation,
            pool: shape.pool,
        }));
        cases.push(Case::Sample {
            rows: 9,
            vocab: shape.vocab,
        });
        cases
    }

    /// The additional cases of a model with adapters. Their kernels are compiled for all sizes of a
    /// matrix.
    fn of_adapters(shape: &ModelShape) -> impl Iterator<Item = Self> {
        let ModelShape {
            hidden,
            inner,
            layout,
            vocab,
            adapter_rank: rank,
            ..
        } = *shape;
        let attention = layout.heads * layout.head_dim;
        let kv = layout.kv_heads * layout.head_dim;
        let matrices = [
            (hidden, vec![attention, kv, kv]),
            (attention, vec![hidden]),
            (hidden, vec![inner, inner]),
            (inner, vec![hidden]),
            (hidden, vec![vocab]),
        ];
        matrices
            .into_iter()
            .map(move |(input, slices)| Case::LowRank {
                tokens: 9,
                input,
                slices,
                rank,
            })
    }

    /// The additional cases of a model of whose matrices some are in blocks of `format`: one token,
    /// a few, more than one group of tokens, and a chunk of a prompt. Rows that the format cannot
    /// have are those of other matrices.
    fn of_packed_model(shape: &ModelShape, format: BlockFormat, summation: Summation) -> Vec<Self> {
        let ModelShape {
            hidden,
            inner,
            layout,
            ..
        } = *shape;
        let attention = layout.heads * layout.head_dim;
        let mut cases = Vec::new();
        for tokens in [1, 4, 12, 33] {
            for (input, output, bias, gated) in [
                (hidden, layout.qkv_width(), shape.qkv_bias, None),
                (attention, hidden, false, None),
                (hidden, inner, false, Some(shape.activation)),
                (inner, hidden, false, None),
            ] {
                if !format.fits(input) {
                    continue;
                }
                cases.push(Case::PackedLinear {
                    format,
                    tokens,
                    input,
                    output: output.min(96),
                    bias,
                    gated,
                    summation,
                });
            }
        }
        if format.fits(hidden) {
            cases.push(Case::PackedEmbed {
                format,
                tokens: 4,
                vocab: shape.vocab.min(256),
                hidden,
            });
        }
        cases
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ExpertWeights, Routing};

    /// In a file in `Q4_K_M`, matrices whose rows are not whole blocks of 256 are in smaller blocks.
    #[test]
    fn a_model_in_several_formats_has_only_cases_that_each_format_can_have() {
        use BlockFormat::{Q4_K, Q5_0};
        let shape = ModelShape {
            hidden: 896,
            inner: 4864,
            vocab: 300,
            layout: HeadLayout {
                heads: 14,
                kv_heads: 2,
                head_dim: 64,
            },
            rotary_dims: [Some(64), None],
            qk_norm: QkNormShape::None,
            norm_weight: NormWeight::Same,
            activation: Activation::Silu,
            qkv_bias: true,
            window: None,
            capped: false,
            sinks: false,
            logits_capped: None,
            pool: PoolKind::Floats,
            adapter_rank: 0,
            experts: Some(ExpertsShape {
                experts: 8,
                routing: Routing {
                    top: 2,
                    weights: ExpertWeights::OfChosen,
                },
                width: 512,
                bias: false,
                clamped: false,
            }),
            packed: vec![Q5_0, Q4_K],
        };
        let (mut inputs, mut tables, mut mixed) = (Vec::new(), Vec::new(), Vec::new());
        for case in Case::of_model(&shape, Summation::Fastest) {
            match case {
                Case::PackedLinear { format, input, .. } => inputs.push((format, input)),
                Case::PackedEmbed { format, .. } => tables.push(format),
                Case::MixExperts { sizes, .. } => {
                    mixed.push((sizes.format, sizes.hidden, sizes.width));
                }
                _ => {}
            }
        }
        assert!(inputs.iter().all(|(format, input)| format.fits(*input)));
        for held in [(Q5_0, 896), (Q5_0, 4864), (Q4_K, 4864)] {
            assert!(inputs.contains(&held), "{held:?}");
        }
        assert_eq!(tables, [Q5_0]);
        let (none, q5, q4) = (
            (None, 896, 512),
            (Some(Q5_0), 896, 512),
            (Some(Q4_K), 1024, 512),
        );
        assert_eq!(mixed, [none, q5, q4]);
    }
}
