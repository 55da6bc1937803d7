//! The cases in which a model uses its kernels.

use super::Case;
use crate::{BlockFormat, HeadLayout, Summation};

/// The sizes and properties of a model that kernels are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelShape {
    pub hidden: usize,
    pub inner: usize,
    pub vocab: usize,
    pub layout: HeadLayout,
    pub rotary_dim: usize,
    pub qk_norm: bool,
    pub qkv_bias: bool,
    pub window: Option<u32>,
    /// The largest rank of an adapter; 0 for a model without them.
    pub adapter_rank: usize,
    /// The formats of the model's packed matrices.
    pub packed: [Option<BlockFormat>; 2],
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
                (hidden, layout.qkv_width(), shape.qkv_bias, false),
                (attention, hidden, false, false),
                (hidden, inner, false, true),
                (inner, hidden, false, false),
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
                Case::RmsNorm { tokens, hidden },
                Case::AddRmsNorm { tokens, hidden },
                Case::SiluMul { tokens, inner },
                Case::RopeAndStore {
                    tokens,
                    layout,
                    rotary_dim: shape.rotary_dim,
                    qk_norm: shape.qk_norm,
                },
            ]);
        }
        if shape.adapter_rank > 0 {
            cases.extend(Self::of_adapters(shape));
        }
        let packed = shape.packed.into_iter().flatten();
        cases.extend(packed.flat_map(|format| Self::of_packed_model(shape, format, summation)));
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
            summation,
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

    /// The additional cases of a model whose matrices are in blocks: one token, a few, more than
    /// one group of tokens, and a chunk of a prompt.
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
                (hidden, layout.qkv_width(), shape.qkv_bias, false),
                (attention, hidden, false, false),
                (hidden, inner, false, true),
                (inner, hidden, false, false),
            ] {
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
        cases.push(Case::PackedEmbed {
            format,
            tokens: 4,
            vocab: shape.vocab.min(256),
            hidden,
        });
        cases
    }
}
