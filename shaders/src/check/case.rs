//! What a kernel is asked to do: sizes, without values.

use std::fmt;

use super::Random;
use crate::{BlockFormat, HeadLayout, Kernels, Summation};

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
    Choose,
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
        Kernel::Choose,
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
            Kernel::Choose => "choose",
        }
    }

    /// Whether a backend has it.
    pub fn is_there<B: Kernels>(self) -> bool {
        match self {
            Kernel::Choose => B::chooses(),
            // What rounds activations is not to be compared with what does not.
            Kernel::PackedLinear | Kernel::PackedEmbed => !B::rounds_activations(),
            _ => true,
        }
    }
}

/// One call of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Case {
    Linear {
        tokens: usize,
        input: usize,
        output: usize,
        bias: bool,
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
        summation: Summation,
    },
    PackedEmbed {
        format: BlockFormat,
        tokens: usize,
        vocab: usize,
        hidden: usize,
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
        /// Context and new tokens of each sequence.
        sequences: Vec<(usize, usize)>,
        layout: HeadLayout,
        window: Option<u32>,
        summation: Summation,
    },
    Choose {
        rows: usize,
        vocab: usize,
    },
}

/// The sizes of a model that kernels are compiled for.
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
    /// The blocks of integers that matrices are in.
    pub packed: [Option<BlockFormat>; 2],
}

/// The blocks of integers that a GPU computes with.
const PACKED: [BlockFormat; 2] = [BlockFormat::Q8_0, BlockFormat::Q4_0];

/// Random cases that share the sizes a kernel is compiled for: compiling is what a case
/// costs.
pub const SHAPE_KEPT_FOR: usize = 25;

impl Case {
    pub fn kernel(&self) -> Kernel {
        match self {
            Case::Linear { .. } => Kernel::Linear,
            Case::PackedLinear { .. } => Kernel::PackedLinear,
            Case::Embed { .. } => Kernel::Embed,
            Case::PackedEmbed { .. } => Kernel::PackedEmbed,
            Case::RmsNorm { .. } => Kernel::RmsNorm,
            Case::AddRmsNorm { .. } => Kernel::AddRmsNorm,
            Case::SiluMul { .. } => Kernel::SiluMul,
            Case::RopeAndStore { .. } => Kernel::RopeAndStore,
            Case::Attention { .. } => Kernel::Attention,
            Case::Choose { .. } => Kernel::Choose,
        }
    }

    /// A case of `kernel`: its sizes come from `shape`, its batch from `random`.
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
                summation: summation(&mut shape),
                tokens: match random.below(4) {
                    0 => random.within(9, 70),
                    _ => random.within(1, 8),
                },
            },
            Kernel::PackedLinear => Case::PackedLinear {
                format: PACKED[shape.below(2)],
                // Now and then a block that the rows do not fill.
                input: shape.within(1, 70) * [32, 32, 20, 7][shape.below(4)],
                output: shape.within(1, 300),
                bias: shape.one_in(2),
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
            Kernel::Choose => {
                let most = [40, 3000, 9000][random.below(3)];
                Case::Choose {
                    rows: random.within(1, 9),
                    vocab: random.within(1, most),
                }
            }
        }
    }

    /// The order of its sums, where it has several.
    pub fn summation(&self) -> Option<Summation> {
        match self {
            Case::Linear { summation, .. }
            | Case::PackedLinear { summation, .. }
            | Case::Attention { summation, .. } => Some(*summation),
            _ => None,
        }
    }

    /// The same with its sums in another order, where it has one.
    pub fn summed(mut self, order: Summation) -> Self {
        if let Case::Linear { summation, .. }
        | Case::PackedLinear { summation, .. }
        | Case::Attention { summation, .. } = &mut self
        {
            *summation = order;
        }
        self
    }

    /// What a model of `shape` asks of its kernels: a lone token, decoding with long and
    /// short contexts, and a chunk of a prompt. Matrices have few rows: which rows a
    /// kernel computes is no part of what it was compiled for.
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
            for (input, output, bias) in [
                (hidden, layout.qkv_width(), shape.qkv_bias),
                (attention, hidden, false),
                (inner, hidden, false),
            ] {
                cases.push(Case::Linear {
                    tokens,
                    input,
                    output: output.min(96),
                    bias,
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
        let packed = shape.packed.into_iter().flatten();
        cases.extend(packed.flat_map(|format| Self::of_packed_model(shape, format, summation)));
        let (short, long, chunk) = (
            vec![(3, 1), (70, 1)],
            vec![(700, 1)],
            vec![(150, 33), (9, 1)],
        );
        cases.extend([short, long, chunk].map(|sequences| Case::Attention {
            sequences,
            layout,
            window: shape.window,
            summation,
        }));
        cases.push(Case::Choose {
            rows: 9,
            vocab: shape.vocab,
        });
        cases
    }

    /// What it asks where its matrices are in blocks: products of one token, a few, more than are
    /// computed at once, and a chunk of a prompt.
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
            for (input, output, bias) in [
                (hidden, layout.qkv_width(), shape.qkv_bias),
                (attention, hidden, false),
                (inner, hidden, false),
            ] {
                cases.push(Case::PackedLinear {
                    format,
                    tokens,
                    input,
                    output: output.min(96),
                    bias,
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

    /// Calls that show how fast a device is, in the sizes of Llama-3.2-1B; `small` for a
    /// device that computes in software.
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
            summation,
        };
        let attention = |sequences, summation| Case::Attention {
            sequences,
            layout,
            window: None,
            summation,
        };
        let (fastest, fixed) = (Summation::Fastest, Summation::Fixed);
        let decoding = vec![(context, 1); if small { 8 } else { 64 }];
        let many = if small { 64 } else { 2048 };
        let packed = |format, tokens| Case::PackedLinear {
            format,
            tokens,
            input: hidden,
            output: 2 * inner,
            bias: false,
            summation: fastest,
        };
        let [q8_0, q4_0] = PACKED;
        vec![
            packed(q8_0, 1),
            packed(q4_0, 1),
            packed(q4_0, 8),
            packed(q4_0, 32),
            packed(q4_0, many),
            linear(1, fastest),
            linear(1, fixed),
            linear(8, fastest),
            linear(8, fixed),
            linear(many, fastest),
            linear(many, fixed),
            // Rows of a large table: how fast the device copies.
            Case::Embed {
                tokens: if small { 512 } else { 32_768 },
                vocab,
                hidden,
            },
            Case::RmsNorm {
                tokens: many,
                hidden,
            },
            Case::AddRmsNorm {
                tokens: many,
                hidden,
            },
            Case::SiluMul {
                tokens: many,
                inner,
            },
            Case::RopeAndStore {
                tokens: many,
                layout,
                rotary_dim: 64,
                qk_norm: false,
            },
            attention(vec![(context, 1)], fastest),
            attention(vec![(context, 1)], fixed),
            attention(decoding.clone(), fastest),
            attention(decoding, fixed),
            attention(vec![(prompt, prompt)], fastest),
            attention(vec![(prompt, prompt)], fixed),
            Case::Choose { rows: 8, vocab },
        ]
    }
}

/// The sizes, without the kernel's name.
impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Case::Linear {
                tokens,
                input,
                output,
                summation,
                ..
            } => {
                write!(f, "{tokens} x {input} by {input} x {output}")?;
                write_order(f, *summation)
            }
            Case::PackedLinear {
                format,
                tokens,
                input,
                output,
                summation,
                ..
            } => {
                write!(f, "{tokens} x {input} by {input} x {output} in {format:?}")?;
                write_order(f, *summation)
            }
            Case::PackedEmbed {
                format,
                tokens,
                vocab,
                hidden,
            } => write!(f, "{tokens} rows of {vocab} x {hidden} in {format:?}"),
            Case::Embed {
                tokens,
                vocab,
                hidden,
            } => write!(f, "{tokens} rows of {vocab} x {hidden}"),
            Case::RmsNorm { tokens, hidden } | Case::AddRmsNorm { tokens, hidden } => {
                write!(f, "{tokens} x {hidden}")
            }
            Case::SiluMul { tokens, inner } => write!(f, "{tokens} x 2 * {inner}"),
            Case::RopeAndStore { tokens, layout, .. } => write!(
                f,
                "{tokens} tokens, {}/{} heads of {}",
                layout.heads, layout.kv_heads, layout.head_dim
            ),
            Case::Attention {
                sequences,
                layout,
                summation,
                ..
            } => {
                let tokens: usize = sequences.iter().map(|(_, new)| new).sum();
                let longest = sequences.iter().map(|(context, _)| context).max();
                write!(
                    f,
                    "{tokens} tokens, contexts to {}, {}/{} heads of {}",
                    longest.unwrap_or(&0),
                    layout.heads,
                    layout.kv_heads,
                    layout.head_dim
                )?;
                write_order(f, *summation)
            }
            Case::Choose { rows, vocab } => {
                write!(f, "{rows} x {vocab}")
            }
        }
    }
}

fn write_order(f: &mut fmt::Formatter<'_>, summation: Summation) -> fmt::Result {
    match summation {
        Summation::Fastest => Ok(()),
        Summation::Fixed => f.write_str(", in a fixed order"),
    }
}
