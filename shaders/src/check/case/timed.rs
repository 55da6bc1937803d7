//! The cases that kernels are timed with.

use super::{Case, ExpertSizes, NormWeight, PoolKind};
use crate::{Activation, BlockFormat, ExpertWeights, HeadLayout, Routing, Summation};

impl Case {
    /// Cases that show how fast a device is, in the sizes of Llama-3.2-1B, or an eighth of them if
    /// `small`, for devices that compute in software.
    pub fn for_speed(small: bool) -> Vec<Self> {
        let divisor = if small { 8 } else { 1 };
        let (hidden, inner, vocab) = (2048 / divisor, 8192 / divisor, 128_256 / divisor);
        let layout = HeadLayout {
            heads: 32 / divisor,
            kv_heads: 8 / divisor.min(8),
            head_dim: 64,
        };
        let (context, prompt) = if small { (256, 64) } else { (1024, 2048) };
        let linear = |tokens, summation| Case::Linear {
            tokens,
            input: hidden,
            output: 2 * inner,
            bias: false,
            gated: None,
            summation,
        };
        let attention_over = |pool, sequences, summation| Case::Attention {
            sequences,
            layout,
            window: None,
            capped: false,
            sinks: false,
            summation,
            pool,
        };
        let attention =
            |sequences, summation| attention_over(PoolKind::Floats, sequences, summation);
        let (fastest, fixed) = (Summation::Fastest, Summation::Fixed);
        let decoding = vec![(context, 1); if small { 8 } else { 64 }];
        let many = if small { 64 } else { 2048 };
        let packed = |format, tokens| Case::PackedLinear {
            format,
            tokens,
            input: hidden,
            output: 2 * inner,
            bias: false,
            gated: None,
            summation: fastest,
        };
        let (q8_0, q4_0) = (BlockFormat::Q8_0, BlockFormat::Q4_0);
        let (q4_k, q6_k) = (BlockFormat::Q4_K, BlockFormat::Q6_K);
        let experts = |format, tokens| Case::MixExperts {
            tokens,
            sizes: ExpertSizes {
                hidden,
                width: hidden / 4,
                experts: 32,
                top: 4,
                format,
                bias: false,
                clamped: false,
            },
        };
        vec![
            packed(q8_0, 1),
            packed(q4_0, 1),
            packed(q4_0, 8),
            packed(q4_0, 32),
            packed(q4_0, many),
            packed(q4_k, 1),
            packed(q4_k, 8),
            packed(q4_k, many),
            packed(q6_k, 1),
            linear(1, fastest),
            linear(1, fixed),
            linear(8, fastest),
            linear(8, fixed),
            linear(many, fastest),
            linear(many, fixed),
            // Rows of a large table: this shows how fast the device copies memory.
            Case::Embed {
                tokens: if small { 512 } else { 32_768 },
                vocab,
                hidden,
            },
            Case::LowRank {
                tokens: 8,
                input: hidden,
                slices: vec![hidden, hidden / 4, hidden / 4],
                rank: 16,
            },
            Case::ChooseExperts {
                tokens: 8,
                experts: 128,
                routing: Routing {
                    top: 8,
                    weights: ExpertWeights::OfChosen,
                },
            },
            experts(None, 1),
            experts(None, 8),
            experts(Some(q4_0), 1),
            experts(Some(q4_0), 8),
            Case::RmsNorm {
                tokens: many,
                hidden,
                weight: NormWeight::Same,
            },
            Case::AddRmsNorm {
                tokens: many,
                hidden,
                weight: NormWeight::Same,
            },
            Case::Gate {
                tokens: many,
                inner,
                activation: Activation::Silu,
            },
            Case::RopeAndStore {
                tokens: many,
                layout,
                rotary_dim: 64,
                qk_norm: None,
                pool: PoolKind::Floats,
            },
            attention(vec![(context, 1)], fastest),
            attention(vec![(context, 1)], fixed),
            attention_over(PoolKind::Int8, vec![(context, 1)], fastest),
            attention_over(PoolKind::Int8, decoding.clone(), fastest),
            attention(decoding.clone(), fastest),
            attention(decoding, fixed),
            attention(vec![(prompt, prompt)], fastest),
            attention(vec![(prompt, prompt)], fixed),
            attention_over(PoolKind::Int8, vec![(prompt, prompt)], fastest),
            Case::Sample { rows: 8, vocab },
        ]
    }
}
