//! The sizes of a call of a kernel, without its values.

mod experts;
mod kernel;
mod model;
mod text;
mod timed;

pub use experts::{ExpertSizes, ExpertsShape};
pub use kernel::Kernel;
pub use model::{ModelShape, QkNormShape};

use burn::tensor::DType;

use super::Random;
use crate::kv_format::PER_WORD;
use crate::{
    Activation, BLOCK, BlockFormat, ExpertWeights, HeadLayout, KvFormat, Routing, Summation,
};

/// One call of a kernel, by its sizes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Case {
    Linear {
        tokens: usize,
        input: usize,
        output: usize,
        bias: bool,
        /// With an activation, the matrix has `2 * output` rows, and the gate makes `output`
        /// elements of them.
        gated: Option<Activation>,
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
        gated: Option<Activation>,
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
    ChooseExperts {
        tokens: usize,
        experts: usize,
        routing: Routing,
    },
    MixExperts {
        tokens: usize,
        sizes: ExpertSizes,
    },
    RmsNorm {
        tokens: usize,
        hidden: usize,
        weight: NormWeight,
    },
    AddRmsNorm {
        tokens: usize,
        hidden: usize,
        weight: NormWeight,
    },
    NormProjections {
        tokens: usize,
        layout: HeadLayout,
        weight: NormWeight,
    },
    Gate {
        tokens: usize,
        inner: usize,
        activation: Activation,
    },
    ScaleAndCap {
        rows: usize,
        vocab: usize,
        capped: bool,
    },
    RopeAndStore {
        tokens: usize,
        layout: HeadLayout,
        /// 0 to leave the heads as they are.
        rotary_dim: usize,
        qk_norm: Option<NormWeight>,
        pool: PoolKind,
    },
    Attention {
        /// The context and the number of new tokens of each sequence.
        sequences: Vec<(usize, usize)>,
        layout: HeadLayout,
        window: Option<u32>,
        /// True if the scores are bounded.
        capped: bool,
        /// True if each head has a sink.
        sinks: bool,
        summation: Summation,
        pool: PoolKind,
    },
    Sample {
        rows: usize,
        vocab: usize,
    },
}

/// The elements of a KV pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolKind {
    /// Floats of the type of the matrices.
    Floats,
    /// [`KvFormat::Int8`]
    Int8,
}

impl PoolKind {
    /// The elements of pools in `format`.
    pub fn of(format: KvFormat) -> Self {
        match format {
            KvFormat::Floats(_) => PoolKind::Floats,
            KvFormat::Int8 => PoolKind::Int8,
        }
    }

    /// The format of a pool where matrices are `stored` as floats.
    pub(super) fn format(self, stored: DType) -> KvFormat {
        match self {
            PoolKind::Floats => KvFormat::Floats(stored),
            PoolKind::Int8 => KvFormat::Int8,
        }
    }
}

/// The type of the weights of a norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormWeight {
    /// The type of the activations.
    Same,
    /// f32
    Wide,
}

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
            Case::ChooseExperts { .. } => Kernel::ChooseExperts,
            Case::MixExperts { sizes, .. } => match sizes.format {
                None => Kernel::MixExperts,
                Some(_) => Kernel::MixPackedExperts,
            },
            Case::RmsNorm { .. } => Kernel::RmsNorm,
            Case::AddRmsNorm { .. } => Kernel::AddRmsNorm,
            Case::NormProjections { .. } => Kernel::NormProjections,
            Case::Gate { .. } => Kernel::Gate,
            Case::ScaleAndCap { .. } => Kernel::ScaleAndCap,
            Case::RopeAndStore { pool, .. } => match pool {
                PoolKind::Floats => Kernel::RopeAndStore,
                PoolKind::Int8 => Kernel::RopeAndRound,
            },
            Case::Attention { pool, .. } => match pool {
                PoolKind::Floats => Kernel::Attention,
                PoolKind::Int8 => Kernel::RoundedAttention,
            },
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
        let weight = |shape: &mut Random| match shape.one_in(3) {
            true => NormWeight::Wide,
            false => NormWeight::Same,
        };
        let activation = |shape: &mut Random| Activation::ALL[shape.below(Activation::ALL.len())];
        let gated = |shape: &mut Random| shape.one_in(3).then(|| activation(shape));
        match kernel {
            Kernel::Linear => Case::Linear {
                input: shape.within(1, 25) * [1, 4, 8][shape.below(3)],
                output: shape.within(1, 300),
                bias: shape.one_in(2),
                gated: gated(&mut shape),
                summation: summation(&mut shape),
                tokens: match random.below(4) {
                    0 => random.within(9, 70),
                    _ => random.within(1, 8),
                },
            },
            Kernel::PackedLinear => {
                let (format, input) = packed(&mut shape, 70);
                Case::PackedLinear {
                    format,
                    input,
                    output: shape.within(1, 300),
                    bias: shape.one_in(2),
                    gated: gated(&mut shape),
                    summation: summation(&mut shape),
                    tokens: match random.below(4) {
                        0 => random.within(9, 70),
                        _ => random.within(1, 8),
                    },
                }
            }
            Kernel::PackedEmbed => {
                let (format, hidden) = packed(&mut shape, 20);
                Case::PackedEmbed {
                    format,
                    hidden,
                    tokens: random.within(1, 60),
                    vocab: random.within(1, 400),
                }
            }
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
            Kernel::ChooseExperts => {
                let experts = shape.within(1, 200);
                Case::ChooseExperts {
                    experts,
                    routing: Routing {
                        top: shape.within(1, experts.min(12)),
                        weights: match shape.one_in(2) {
                            true => ExpertWeights::OfAll,
                            false => ExpertWeights::OfChosen,
                        },
                    },
                    tokens: random.within(1, 60),
                }
            }
            Kernel::MixExperts => Case::MixExperts {
                sizes: ExpertSizes::random(None, &mut shape),
                tokens: random.within(1, 40),
            },
            Kernel::MixPackedExperts => Case::MixExperts {
                sizes: {
                    let (format, _) = packed(&mut shape, 1);
                    ExpertSizes::random(Some(format), &mut shape)
                },
                tokens: random.within(1, 40),
            },
            Kernel::RmsNorm => Case::RmsNorm {
                hidden: shape.within(1, 800),
                weight: weight(&mut shape),
                tokens: random.within(1, 40),
            },
            Kernel::AddRmsNorm => Case::AddRmsNorm {
                hidden: shape.within(1, 800),
                weight: weight(&mut shape),
                tokens: random.within(1, 40),
            },
            Kernel::NormProjections => Case::NormProjections {
                layout: layout(&mut shape),
                weight: weight(&mut shape),
                tokens: random.within(1, 40),
            },
            Kernel::Gate => Case::Gate {
                inner: shape.within(1, 800),
                activation: activation(&mut shape),
                tokens: random.within(1, 40),
            },
            Kernel::ScaleAndCap => Case::ScaleAndCap {
                capped: shape.one_in(2),
                rows: random.within(1, 9),
                vocab: random.within(1, 3000),
            },
            Kernel::RopeAndStore | Kernel::RopeAndRound => {
                let pool = pool(kernel);
                let layout = fitting(layout(&mut shape), pool);
                Case::RopeAndStore {
                    pool,
                    layout,
                    rotary_dim: match shape.one_in(6) {
                        true => 0,
                        false => 2 * shape.within(1, layout.head_dim / 2),
                    },
                    qk_norm: shape.one_in(2).then(|| weight(&mut shape)),
                    tokens: random.within(1, 30),
                }
            }
            Kernel::Attention | Kernel::RoundedAttention => {
                let pool = pool(kernel);
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
                    pool,
                    layout: fitting(layout(&mut shape), pool),
                    sequences: (0..random.within(1, 6)).map(|_| sequence(random)).collect(),
                    window: random.one_in(3).then(|| random.within(1, longest) as u32),
                    capped: shape.one_in(4),
                    sinks: shape.one_in(4),
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

/// The pools that a kernel takes.
fn pool(kernel: Kernel) -> PoolKind {
    match kernel {
        Kernel::RopeAndRound | Kernel::RoundedAttention => PoolKind::Int8,
        _ => PoolKind::Floats,
    }
}

/// `layout`, or one with more elements in a head that fits the pool.
fn fitting(layout: HeadLayout, pool: PoolKind) -> HeadLayout {
    let mut head_dim = layout.head_dim;
    if pool == PoolKind::Int8 {
        head_dim = head_dim.next_multiple_of(PER_WORD);
    }
    HeadLayout { head_dim, ..layout }
}

/// A random format of packed matrices, and a number of columns, at most about `32 * most`.
/// Sometimes the last block of a row is incomplete, where the format allows that.
fn packed(shape: &mut Random, most: usize) -> (BlockFormat, usize) {
    let formats: Vec<_> = BlockFormat::integers().collect();
    let format = formats[shape.below(formats.len())];
    let columns = match format.elements() {
        BLOCK => shape.within(1, most) * [32, 32, 20, 7][shape.below(4)],
        whole => shape.within(1, (BLOCK * most).div_ceil(whole)) * whole,
    };
    (format, columns)
}
