//! The sizes of a call of a kernel, without its values.

mod kernel;
mod model;
mod text;
mod timed;

pub use kernel::Kernel;
pub use model::ModelShape;

use super::Random;
use crate::{BlockFormat, HeadLayout, Summation};

/// One call of a kernel, by its sizes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Case {
    Linear {
        tokens: usize,
        input: usize,
        output: usize,
        bias: bool,
        /// Whether the matrix has `2 * output` rows and SwiGLU makes `output` elements of them.
        gated: bool,
        summation: Summation,
    },
    Embed {
        tokens: usize,
        vocab: usize,
        hidden: usize,
    },
    PackedLinear {
        format: BlockFormat,
        tokens: usize,
        input: usize,
        output: usize,
        bias: bool,
        /// As in [`Case::Linear`].
        gated: bool,
        summation: Summation,
    },
    PackedEmbed {
        format: BlockFormat,
        tokens: usize,
        vocab: usize,
        hidden: usize,
    },
    /// Both halves of the changes by several adapters, and rows of the base model.
    LowRank {
        tokens: usize,
        input: usize,
        slices: Vec<usize>,
        /// The largest rank.
        rank: usize,
    },
    RmsNorm {
        tokens: usize,
        hidden: usize,
    },
    AddRmsNorm {
        tokens: usize,
        hidden: usize,
    },
    SiluMul {
        tokens: usize,
        inner: usize,
    },
    RopeAndStore {
        tokens: usize,
        layout: HeadLayout,
        rotary_dim: usize,
        qk_norm: bool,
    },
    Attention {
        /// The context and the number of new tokens of each sequence.
        sequences: Vec<(usize, usize)>,
        layout: HeadLayout,
        window: Option<u32>,
        summation: Summation,
    },
    Sample {
        rows: usize,
        vocab: usize,
    },
}

/// The formats of packed matrices that GPUs compute with.
const PACKED: [BlockFormat; 2] = [BlockFormat::Q8_0, BlockFormat::Q4_0];

/// Number of random cases that share the sizes a kernel is compiled for. Most of the time of a case
/// is spent compiling.
pub const CASES_PER_SHAPE: usize = 25;

impl Case {
    pub fn kernel(&self) -> Kernel {
        match self {
            Case::Linear { .. } => Kernel::Linear,
            Case::PackedLinear { .. } => Kernel::PackedLinear,
            Case::Embed { .. } => Kernel::Embed,
            Case::PackedEmbed { .. } => Kernel::PackedEmbed,
            Case::LowRank { .. } => Kernel::LowRank,
            Case::RmsNorm { .. } => Kernel::RmsNorm,
            Case::AddRmsNorm { .. } => Kernel::AddRmsNorm,
            Case::SiluMul { .. } => Kernel::SiluMul,
            Case::RopeAndStore { .. } => Kernel::RopeAndStore,
            Case::Attention { .. } => Kernel::Attention,
            Case::Sample { .. } => Kernel::Sample,
        }
    }

    /// A random case of `kernel`. The sizes it is compiled for come from `shape`, those of the
    /// batch from `random`.
    pub fn random(kernel: Kernel, mut shape: Random, random: &mut Random) -> Self {
        let layout = |shape: &mut Random| {
            let kv_heads = shape.within(1, 4);
            HeadLayout {
                heads: kv_heads * shape.within(1, 9),
                kv_heads,
                head_dim: shape.within(1, 20) * [2, 4, 8][shape.below(3)],
            }
        };
        let summation = |shape: &mut Random| match shape.one_in(3) {
            true => Summation::Fixed,
            false => Summation::Fastest,
        };
        match kernel {
            Kernel::Linear => Case::Linear {
                input: shape.within(1, 25) * [1, 4, 8][shape.below(3)],
                output: shape.within(1, 300),
                bias: shape.one_in(2),
                gated: shape.one_in(3),
                summation: summation(&mut shape),
                tokens: match random.below(4) {
                    0 => random.within(9, 70),
                    _ => random.within(1, 8),
                },
            },
            Kernel::PackedLinear => Case::PackedLinear {
                format: PACKED[shape.below(2)],
                // Sometimes the last block of a row is incomplete.
                input: shape.within(1, 70) * [32, 32, 20, 7][shape.below(4)],
                output: shape.within(1, 300),
                bias: shape.one_in(2),
                gated: shape.one_in(3),
                summation: summation(&mut shape),
                tokens: match random.below(4) {
                    0 => random.within(9, 70),
                    _ => random.within(1, 8),
                },
            },
            Kernel::PackedEmbed => Case::PackedEmbed {
                format: PACKED[shape.below(2)],
                hidden: shape.within(1, 20) * [32, 32, 20, 7][shape.below(4)],
                tokens: random.within(1, 60),
                vocab: random.within(1, 400),
            },
            Kernel::Embed => Case::Embed {
                hidden: shape.within(1, 600),
                tokens: random.within(1, 60),
                vocab: random.within(1, 400),
            },
            Kernel::LowRank => Case::LowRank {
                input: shape.within(1, 25) * [1, 4, 8][shape.below(3)],
                slices: (0..shape.within(1, 3))
                    .map(|_| shape.within(1, 300))
                    .collect(),
                rank: shape.within(1, 20),
                tokens: random.within(1, 40),
            },
            Kernel::RmsNorm => Case::RmsNorm {
                hidden: shape.within(1, 800),
                tokens: random.within(1, 40),
            },
            Kernel::AddRmsNorm => Case::AddRmsNorm {
                hidden: shape.within(1, 800),
                tokens: random.within(1, 40),
            },
            Kernel::SiluMul => Case::SiluMul {
                inner: shape.within(1, 800),
                tokens: random.within(1, 40),
            },
            Kernel::RopeAndStore => {
                let layout = layout(&mut shape);
                Case::RopeAndStore {
                    layout,
                    rotary_dim: 2 * shape.within(1, layout.head_dim / 2),
                    qk_norm: shape.one_in(2),
                    tokens: random.within(1, 30),
                }
            }
            Kernel::Attention => {
                let decoding = random.one_in(2);
                let longest = [40, 300, 900][random.below(3)];
                let sequence = |random: &mut Random| {
                    let context = random.within(1, longest);
                    let new = if decoding || random.one_in(3) {
                        1
                    } else {
                        context.min(50)
                    };
                    (context, random.within(1, new))
                };
                Case::Attention {
                    layout: layout(&mut shape),
                    sequences: (0..random.within(1, 6)).map(|_| sequence(random)).collect(),
                    window: random.one_in(3).then(|| random.within(1, longest) as u32),
                    summation: summation(&mut shape),
                }
            }
            Kernel::Sample => {
                let most = [40, 3000, 9000][random.below(3)];
                Case::Sample {
                    rows: random.within(1, 9),
                    vocab: random.within(1, most),
                }
            }
        }
    }

    /// The order of summation, if the kernel has a choice.
    pub fn summation(&self) -> Option<Summation> {
        match self {
            Case::Linear { summation, .. }
            | Case::PackedLinear { summation, .. }
            | Case::Attention { summation, .. } => Some(*summation),
            _ => None,
        }
    }

    /// The same case with another order of summation, if the kernel has a choice.
    pub fn summed(mut self, order: Summation) -> Self {
        if let Case::Linear { summation, .. }
        | Case::PackedLinear { summation, .. }
        | Case::Attention { summation, .. } = &mut self
        {
            *summation = order;
        }
        self
    }
}
