//! The names of the kernels.

use crate::Kernels;

/// A kernel of [`Kernels`](crate::Kernels).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kernel {
    Linear,
    /// [`Kernel::Linear`] with a matrix in blocks of integers.
    PackedLinear,
    Embed,
    /// [`Kernel::Embed`] with a table in blocks of integers.
    PackedEmbed,
    LowRank,
    ChooseExperts,
    MixExperts,
    /// [`Kernel::MixExperts`] with matrices in blocks of integers.
    MixPackedExperts,
    RmsNorm,
    AddRmsNorm,
    NormProjections,
    Gate,
    ScaleAndCap,
    RopeAndStore,
    /// [`Kernel::RopeAndStore`] into a pool of 8-bit integers.
    RopeAndRound,
    Attention,
    /// [`Kernel::Attention`] over a pool of 8-bit integers.
    RoundedAttention,
    Sample,
}

impl Kernel {
    pub const ALL: [Kernel; 18] = [
        Kernel::Linear,
        Kernel::PackedLinear,
        Kernel::Embed,
        Kernel::PackedEmbed,
        Kernel::LowRank,
        Kernel::ChooseExperts,
        Kernel::MixExperts,
        Kernel::MixPackedExperts,
        Kernel::RmsNorm,
        Kernel::AddRmsNorm,
        Kernel::NormProjections,
        Kernel::Gate,
        Kernel::ScaleAndCap,
        Kernel::RopeAndStore,
        Kernel::RopeAndRound,
        Kernel::Attention,
        Kernel::RoundedAttention,
        Kernel::Sample,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Kernel::Linear => "linear",
            Kernel::PackedLinear => "packed_linear",
            Kernel::Embed => "embed",
            Kernel::PackedEmbed => "packed_embed",
            Kernel::LowRank => "low_rank",
            Kernel::ChooseExperts => "choose_experts",
            Kernel::MixExperts => "mix_experts",
            Kernel::MixPackedExperts => "mix_packed_experts",
            Kernel::RmsNorm => "rms_norm",
            Kernel::AddRmsNorm => "add_rms_norm",
            Kernel::NormProjections => "norm_projections",
            Kernel::Gate => "gate",
            Kernel::ScaleAndCap => "scale_and_cap",
            Kernel::RopeAndStore => "rope_and_store",
            Kernel::RopeAndRound => "store_int8",
            Kernel::Attention => "attention",
            Kernel::RoundedAttention => "attention_int8",
            Kernel::Sample => "sample",
        }
    }

    /// True if a backend has the kernel and its results can be checked.
    pub fn is_supported<B: Kernels>(self) -> bool {
        match self {
            Kernel::Sample => B::samples_on_device(),
            // The reference does not round activations, so a backend that does cannot be compared
            // with it.
            Kernel::PackedLinear | Kernel::PackedEmbed | Kernel::MixPackedExperts => {
                !B::rounds_activations()
            }
            _ => true,
        }
    }
}
