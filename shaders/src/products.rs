//! How products of many tokens are computed: by which kernel, for how many tokens.

use std::fmt;

use crate::tune::Products;

/// A kernel for a product of matrices, with its tiling: one is Hearth's own, the others are cubek's.
/// None is the quickest on every device and for every size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ProductKernel {
    /// What cubek takes by itself: one buffer, for 16-bit types in cooperative matrices where the
    /// device has them.
    #[default]
    Usual,
    /// Hearth's own for tens of tokens: columns are split among cubes. On CUDA.
    SplitColumns,
    /// The usual one with registers that the kernel lays out itself (`mma.sync`, `ldmatrix`).
    Mma,
    /// Two buffers, of which one is filled while the other is multiplied; 128 tokens in a tile.
    Double,
    DoubleMma,
    /// The same without matrix units.
    DoubleUnits,
    /// As these, with what is read of the tokens in the order in which it is multiplied.
    Ordered,
    OrderedMma,
    /// 256 tokens by 128 rows in a tile.
    LargeMma,
    /// Copies that the device makes by itself (`cp.async`), by subgroups that do nothing else.
    CopiedMma,
    /// Whole tiles that the device copies by itself (TMA).
    TmaMma,
    /// By subgroups that do nothing else.
    TmaCopiedMma,
}

impl ProductKernel {
    /// Those first that are the quickest on large devices: a start does not try them for ever.
    pub const ALL: [Self; 12] = [
        Self::Usual,
        Self::SplitColumns,
        Self::OrderedMma,
        Self::LargeMma,
        Self::TmaMma,
        Self::TmaCopiedMma,
        Self::CopiedMma,
        Self::DoubleMma,
        Self::Mma,
        Self::Ordered,
        Self::Double,
        Self::DoubleUnits,
    ];

    /// As it is printed, and kept in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Usual => "usual",
            Self::SplitColumns => "split-columns",
            Self::Mma => "mma",
            Self::Double => "double",
            Self::DoubleMma => "double-mma",
            Self::DoubleUnits => "double-units",
            Self::Ordered => "ordered",
            Self::OrderedMma => "ordered-mma",
            Self::LargeMma => "large-mma",
            Self::CopiedMma => "copied-mma",
            Self::TmaMma => "tma-mma",
            Self::TmaCopiedMma => "tma-copied-mma",
        }
    }

    /// Whether it needs cooperative matrices, which for f32 are no more exact than TF32.
    pub(crate) fn in_matrices(self) -> bool {
        !matches!(self, Self::Usual | Self::DoubleUnits)
    }

    /// Whether its units wait for copies that the device makes by itself, and for ever where one
    /// is not made: such a kernel may never end.
    pub fn waits(self) -> bool {
        matches!(self, Self::CopiedMma | Self::TmaMma | Self::TmaCopiedMma)
    }

    /// The kernel of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kernel| kernel.name() == name)
    }
}

impl fmt::Display for ProductKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The kernel for each class of numbers of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProductChoice {
    pub kernels: [ProductKernel; Self::CLASSES.len()],
}

impl ProductChoice {
    /// The number of tokens that a class is timed with.
    pub const CLASSES: [usize; 3] = [64, 512, 2048];
    /// The most tokens of a class, but of the last. cubek's tilings change at the second, and some
    /// within the first.
    const MOST: [usize; 2] = [128, 1024];

    /// Products of more take the usual kernel.
    pub const MOST_TOKENS: usize = 2048;

    /// The class of a product of so many tokens.
    pub fn class(tokens: usize) -> usize {
        Self::MOST.iter().filter(|most| tokens > **most).count()
    }

    pub fn of(&self, tokens: usize) -> ProductKernel {
        self.kernels[Self::class(tokens)]
    }
}

/// `64 tokens: usual, 512: ordered-mma, 2048: large-mma`
impl fmt::Display for ProductChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (class, kernel)) in Self::CLASSES.iter().zip(self.kernels).enumerate() {
            match index {
                0 => write!(f, "{class} tokens: {kernel}")?,
                _ => write!(f, ", {class}: {kernel}")?,
            }
        }
        Ok(())
    }
}

/// A choice, for the sizes in which it was compared and no others.
pub(crate) struct Chosen {
    choice: ProductChoice,
    /// Columns and rows of a matrix, and the most tokens that come with it.
    sizes: Vec<([usize; 2], usize)>,
}

impl Chosen {
    pub fn new(choice: ProductChoice, products: &Products) -> Self {
        Self {
            choice,
            sizes: products.sizes().collect(),
        }
    }

    /// The kernel for a matrix of that many columns and rows. There are few of them: a list is found
    /// through sooner than a map.
    pub fn kernel(&self, tokens: usize, matrix: [usize; 2]) -> ProductKernel {
        let compared = |(size, most): &([usize; 2], usize)| *size == matrix && tokens <= *most;
        match self.sizes.iter().any(compared) {
            true => self.choice.of(tokens),
            false => ProductKernel::Usual,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::DType;

    #[test]
    fn what_was_not_compared_goes_to_the_usual_kernel() {
        use ProductKernel::{Double, LargeMma, Ordered, Usual};
        let choice = ProductChoice {
            kernels: [Double, Ordered, LargeMma],
        };
        let products = Products {
            matrices: vec![[64, 192], [96, 64]],
            layers: 2,
            head: Some([64, 1000]),
            dtype: DType::F16,
            most_tokens: 4000,
            most_rows: 200,
        };
        let chosen = Chosen::new(choice, &products);
        for (tokens, matrix, kernel) in [
            (9, [64, 192], Double),
            (2048, [96, 64], LargeMma),
            (2049, [96, 64], Usual),
            (100, [64, 1000], Double),
            (200, [64, 1000], Ordered),
            (201, [64, 1000], Usual),
            (100, [64, 64], Usual),
            (100, [192, 64], Usual),
        ] {
            assert_eq!(
                chosen.kernel(tokens, matrix),
                kernel,
                "{tokens}, {matrix:?}"
            );
        }
    }

    #[test]
    fn every_number_of_tokens_has_the_kernel_of_its_class() {
        use ProductKernel::{LargeMma, OrderedMma, Usual};
        let choice = ProductChoice {
            kernels: [Usual, OrderedMma, LargeMma],
        };
        for (index, tokens) in ProductChoice::CLASSES.into_iter().enumerate() {
            assert_eq!(ProductChoice::class(tokens), index);
        }
        for (tokens, kernel) in [
            (9, Usual),
            (128, Usual),
            (129, OrderedMma),
            (1024, OrderedMma),
            (1025, LargeMma),
            (100_000, LargeMma),
        ] {
            assert_eq!(choice.of(tokens), kernel, "{tokens} tokens");
        }
        assert_eq!(
            choice.to_string(),
            "64 tokens: usual, 512: ordered-mma, 2048: large-mma"
        );
    }

    #[test]
    fn a_kernel_is_known_by_its_name() {
        for kernel in ProductKernel::ALL {
            assert_eq!(ProductKernel::named(kernel.name()), Some(kernel));
        }
        assert_eq!(ProductKernel::named("matmul"), None);
    }
}
