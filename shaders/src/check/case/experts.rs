//! The sizes of experts.

use super::Case;
use crate::check::Random;
use crate::{BLOCK, BlockFormat, Routing};

/// The sizes of [`Experts`](crate::Experts), and how many of them a row has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertSizes {
    pub hidden: usize,
    pub width: usize,
    pub experts: usize,
    /// Experts of a row, of which some may be the same.
    pub top: usize,
    /// The format of matrices in blocks of integers.
    pub format: Option<BlockFormat>,
    pub bias: bool,
    /// True if the activation is [`ExpertActivation::Clamped`](crate::ExpertActivation::Clamped).
    pub clamped: bool,
}

impl ExpertSizes {
    /// Random sizes, with matrices in `format`.
    pub(super) fn random(format: Option<BlockFormat>, shape: &mut Random) -> Self {
        let mut columns = || match format {
            None => shape.within(1, 25) * [1, 4, 8][shape.below(3)],
            // Sometimes the last block of a row is incomplete.
            Some(format) if format.elements() == BLOCK => {
                shape.within(1, 12) * [32, 20, 7][shape.below(3)]
            }
            Some(format) => shape.within(1, 3) * format.elements(),
        };
        let (hidden, width) = (columns(), columns());
        Self {
            hidden,
            width,
            experts: shape.within(1, 9),
            top: shape.within(1, 9),
            format,
            bias: shape.one_in(2),
            clamped: shape.one_in(2),
        }
    }
}

/// The experts of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertsShape {
    pub experts: usize,
    pub routing: Routing,
    pub width: usize,
    pub bias: bool,
    pub clamped: bool,
}

impl ExpertsShape {
    /// The additional cases of a model with experts. There are few experts, because the compiled
    /// kernels do not depend on their number.
    pub(super) fn cases(self, hidden: usize, packed: &[BlockFormat]) -> impl Iterator<Item = Case> {
        let choice = Case::ChooseExperts {
            tokens: 33,
            experts: self.experts,
            routing: self.routing,
        };
        // The formats that neither matrix can have are those of others. If one of the two can have a
        // format, the rows of the other are made longer.
        let fits = move |format: &BlockFormat| format.fits(hidden) || format.fits(self.width);
        let whole = |columns: usize, format: Option<BlockFormat>| match format {
            Some(format) if !format.fits(columns) => columns.next_multiple_of(format.elements()),
            _ => columns,
        };
        let packed = packed.iter().copied().filter(fits).map(Some);
        let mixes = [None].into_iter().chain(packed);
        let mixes = mixes.map(move |format| Case::MixExperts {
            tokens: 2,
            sizes: ExpertSizes {
                hidden: whole(hidden, format),
                width: whole(self.width, format),
                experts: 2,
                top: self.routing.top,
                format,
                bias: self.bias,
                clamped: self.clamped,
            },
        });
        [choice].into_iter().chain(mixes)
    }
}
