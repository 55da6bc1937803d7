//! The kernels for matrix multiplications of many tokens, and which of them is used for how many
//! tokens.

use std::fmt;

use crate::tune::Products;

/// A kernel for matrix multiplications, with its tiling. One is Hearth's own, the others are
/// cubek's. None of them is the fastest on every device and for every size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ProductKernel {
    /// cubek's default: one buffer, and for 16-bit types cooperative matrices where the device has
    /// them.
    #[default]
    Usual,
    /// Hearth's own kernel for tens of tokens (`cube/product/split.rs`), which splits columns among
    /// cubes. It runs on CUDA only.
    SplitColumns,
    /// The default kernel with matrix fragments that the kernel lays out itself (`mma.sync`,
    /// `ldmatrix`).
    Mma,
    /// Double buffering: one buffer is filled while the other is multiplied. A tile has 128 tokens.
    Double,
    /// [`Self::Double`] with fragments that the kernel lays out itself.
    DoubleMma,
    /// [`Self::Double`] without matrix units.
    DoubleUnits,
    /// [`Self::Double`] that loads the activations in the order in which they are multiplied.
    Ordered,
    /// [`Self::Ordered`] with fragments that the kernel lays out itself.
    OrderedMma,
    /// [`Self::OrderedMma`] with tiles of 256 tokens by 128 rows.
    LargeMma,
    /// Asynchronous copies (`cp.async`), which dedicated subgroups issue.
    CopiedMma,
    /// Asynchronous copies of whole tiles (TMA).
    TmaMma,
    /// [`Self::TmaMma`] with dedicated subgroups for the copies.
    TmaCopiedMma,
}

impl ProductKernel {
    /// All kernels. Those that are the fastest on large devices come first, because tuning may stop
    /// before it has tried all of them.
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

    /// The name that is printed and stored in the tuning cache.
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

    /// True if the kernel needs cooperative matrices. For f32 these are no more precise than TF32.
    pub(crate) fn in_matrices(self) -> bool {
        !matches!(self, Self::Usual | Self::DoubleUnits)
    }

    /// True if the kernel waits for asynchronous copies. If a driver does not make such a copy, the
    /// kernel never ends.
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

/// The kernel for each class of numbers of tokens, as tuning found it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProductChoice {
    pub kernels: [ProductKernel; Self::CLASSES.len()],
}

impl ProductChoice {
    /// The number of tokens with which tuning times each class.
    pub const CLASSES: [usize; 3] = [64, 512, 2048];
    /// The largest number of tokens of each class except the last. cubek's tilings change at the
    /// second boundary, and some of them within the first class.
    const MOST: [usize; 2] = [128, 1024];

    /// Multiplications of more tokens use the default kernel.
    pub const MOST_TOKENS: usize = 2048;

    /// The class of a product of so many tokens.
    pub fn class(tokens: usize) -> usize {
        Self::MOST.iter().filter(|most| tokens > **most).count()
    }

    /// The kernel for so many tokens.
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

/// A [`ProductChoice`] and the sizes for which tuning compared its kernels. It is used for no
/// others.
pub(crate) struct Chosen {
    choice: ProductChoice,
    /// Columns and rows of each matrix, and the most tokens it was compared with.
    sizes: Vec<([usize; 2], usize)>,
}

impl Chosen {
    pub fn new(choice: ProductChoice, products: &Products) -> Self {
        Self {
            choice,
            sizes: products.sizes().collect(),
        }
    }

    /// The kernel for a matrix of the given columns and rows. There are few sizes, so searching a
    /// list is faster than hashing.
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
    fn sizes_that_were_not_compared_use_the_default_kernel() {
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
