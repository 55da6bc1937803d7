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
    RmsNorm,
    AddRmsNorm,
    SiluMul,
    RopeAndStore,
    Attention,
    Sample,
}

impl Kernel {
    pub const ALL: [Kernel; 11] = [
        Kernel::Linear,
        Kernel::PackedLinear,
        Kernel::Embed,
        Kernel::PackedEmbed,
        Kernel::LowRank,
        Kernel::RmsNorm,
        Kernel::AddRmsNorm,
        Kernel::SiluMul,
        Kernel::RopeAndStore,
        Kernel::Attention,
        Kernel::Sample,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Kernel::Linear => "linear",
            Kernel::PackedLinear => "packed_linear",
            Kernel::Embed => "embed",
            Kernel::PackedEmbed => "packed_embed",
            Kernel::LowRank => "low_rank",
            Kernel::RmsNorm => "rms_norm",
            Kernel::AddRmsNorm => "add_rms_norm",
            Kernel::SiluMul => "silu_mul",
            Kernel::RopeAndStore => "rope_and_store",
            Kernel::Attention => "attention",
            Kernel::Sample => "sample",
        }
    }

    /// Whether a backend has the kernel and its results can be checked.
    pub fn is_supported<B: Kernels>(self) -> bool {
        match self {
            Kernel::Sample => B::samples_on_device(),
            // The reference does not round activations, so a backend that does cannot be compared
            // with it.
            Kernel::PackedLinear | Kernel::PackedEmbed => !B::rounds_activations(),
            _ => true,
        }
    }
}
