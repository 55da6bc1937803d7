//! The kernels, by name.

use crate::Kernels;

/// A kernel of [`Kernels`](crate::Kernels).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kernel {
    Linear,
    /// With a matrix in blocks of integers.
    PackedLinear,
    Embed,
    /// Of a table in such blocks.
    PackedEmbed,
    RmsNorm,
    AddRmsNorm,
    SiluMul,
    RopeAndStore,
    Attention,
    Sample,
}

impl Kernel {
    pub const ALL: [Kernel; 10] = [
        Kernel::Linear,
        Kernel::PackedLinear,
        Kernel::Embed,
        Kernel::PackedEmbed,
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
            Kernel::RmsNorm => "rms_norm",
            Kernel::AddRmsNorm => "add_rms_norm",
            Kernel::SiluMul => "silu_mul",
            Kernel::RopeAndStore => "rope_and_store",
            Kernel::Attention => "attention",
            Kernel::Sample => "sample",
        }
    }

    /// Whether a backend has it.
    pub fn is_there<B: Kernels>(self) -> bool {
        match self {
            Kernel::Sample => B::samples_on_device(),
            // What rounds activations is not to be compared with what does not.
            Kernel::PackedLinear | Kernel::PackedEmbed => !B::rounds_activations(),
            _ => true,
        }
    }
}
