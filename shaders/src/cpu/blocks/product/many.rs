//! More tokens than a tile has: some columns of a group of rows are unpacked to a buffer in the
//! first-level cache, and then multiplied by one tile after another.

use std::ops::Range;

use super::Product;
use super::tile::{Factors, Place, VECTORS, elements, vectors};
use crate::cpu::blocks::lanes::{Lanes, Lines};
use crate::cpu::blocks::{BLOCK, LINE, ROWS, TASK_GROUPS, units};

/// Tokens that are multiplied with a task's groups before the next ones: their activations of [`BLOCKS`]
/// blocks and their totals stay in the second-level cache. It has whole tiles of 2, 3, 4, 6 and 8.
const TOKEN_BLOCK: usize = 192;
/// The most blocks of 32 columns that are unpacked together.
const BLOCKS: usize = 8;

/// Some columns of a group.
#[repr(C, align(64))]
struct Unpacked {
    blocks: [Block; BLOCKS],
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Block {
    /// [`elements`]
    lines: [[u8; LINE]; VECTORS],
    /// [`Factors`]
    scales: [[f32; ROWS]; 2],
    minimums: [[f32; ROWS]; 2],
}

/// The totals of the rows of a task's groups, for each token of a block of tokens.
#[repr(C, align(64))]
struct Totals([[[f32; ROWS]; TOKEN_BLOCK]; TASK_GROUPS]);

impl Product<'_> {
    /// Computes all groups for any number of tokens. The activations of a few columns are multiplied with
    /// all groups, so that those of all columns are read from a far cache once for a task, and not for
    /// each group.
    ///
    /// # Safety
    /// The CPU must have `L`'s features.
    #[inline(always)]
    pub unsafe fn many<L: Lanes, const FORMAT: usize>(&self) {
        let (width, side) = (self.x.width / BLOCK, self.x.side);
        let token_block = TOKEN_BLOCK / side * side;
        let mut unpacked = Unpacked::zeroed();
        let mut totals = Totals([[[0.0; ROWS]; TOKEN_BLOCK]; TASK_GROUPS]);
        for first in (0..self.x.tokens).step_by(token_block) {
            let count = token_block.min(self.x.tokens - first);
            for totals in &mut totals.0[..self.groups.len()] {
                totals[..count].fill([0.0; ROWS]);
            }
            for block in (0..width).step_by(BLOCKS) {
                let some = block..(block + BLOCKS).min(width);
                for (index, group) in self.groups.clone().enumerate() {
                    // SAFETY: the caller guarantees the features of `L`. The group has the columns of
                    // `x`: where a unit has 256 columns, it divides those of the matrix.
                    unsafe {
                        let weights = self.weight.group(group).as_ptr();
                        for (at, block) in some.clone().enumerate() {
                            unpacked.blocks[at].read::<L, FORMAT>(weights, block);
                        }
                        let next = self.next::<FORMAT>(group, &some);
                        let mut lines = (0..bytes::<FORMAT>(some.len())).step_by(LINE);
                        // Each tile prefetches its share, so that they are read while others are
                        // multiplied.
                        let share = lines.len().div_ceil(count.div_ceil(side));
                        for token in (0..count).step_by(side) {
                            for at in lines.by_ref().take(share) {
                                L::prefetch(next.wrapping_add(at));
                            }
                            let here = &mut totals.0[index][token..count.min(token + side)];
                            let place = Place::new(self.x, first + token, block);
                            let blocks = &unpacked.blocks[..some.len()];
                            // The conditions are constant, so that nothing else is compiled.
                            match here.len() {
                                1 => add::<L, FORMAT, 1>(here, place, blocks),
                                2 => add::<L, FORMAT, 2>(here, place, blocks),
                                3 if L::TOKENS > 2 => add::<L, FORMAT, 3>(here, place, blocks),
                                4 if L::TOKENS > 2 => add::<L, FORMAT, 4>(here, place, blocks),
                                5 if L::TOKENS > 4 => add::<L, FORMAT, 5>(here, place, blocks),
                                6 if L::TOKENS > 4 => add::<L, FORMAT, 6>(here, place, blocks),
                                7 if L::TOKENS > 6 => add::<L, FORMAT, 7>(here, place, blocks),
                                8 if L::TOKENS > 6 => add::<L, FORMAT, 8>(here, place, blocks),
                                tokens => unreachable!("a tile of {tokens} tokens"),
                            }
                            // Elements of `y` are far from each other. They are stored while other tiles
                            // are multiplied, so that nothing waits for the memory.
                            if some.end == width {
                                for (t, totals) in here.iter().enumerate() {
                                    self.store::<L>(first + token + t, group, totals);
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    /// The weights that are unpacked after the blocks `some` of `group`: the same blocks of the next group,
    /// or the next blocks of the first one.
    #[inline(always)]
    fn next<const FORMAT: usize>(&self, group: usize, some: &Range<usize>) -> *const u8 {
        let (group, block) = match group + 1 == self.groups.end {
            true => (self.groups.start, some.end),
            false => (group + 1, some.start),
        };
        let group = self.weight.group(group).as_ptr();
        group.wrapping_add(bytes::<FORMAT>(block))
    }
}

impl Unpacked {
    fn zeroed() -> Self {
        let block = Block {
            lines: [[0; LINE]; VECTORS],
            scales: [[0.0; ROWS]; 2],
            minimums: [[0.0; ROWS]; 2],
        };
        Self {
            blocks: [block; BLOCKS],
        }
    }
}

impl Block {
    /// Unpacks the block `block` of the group at `weights`.
    ///
    /// # Safety
    /// The CPU must have `L`'s features, and the group must have the block.
    #[inline(always)]
    unsafe fn read<L: Lanes, const FORMAT: usize>(&mut self, weights: *const u8, block: usize) {
        let layout = const { units::layout::<FORMAT>() };
        let per_unit = layout.unit() / BLOCK;
        let (unit, within) = (block / per_unit, block % per_unit);
        // SAFETY: the caller guarantees the features of `L` and the block.
        unsafe {
            let unit = weights.add(unit * layout.unit_bytes());
            let lines = unit.add(layout.scale_bytes() + within * layout.block_bytes());
            let elements = elements::<L, FORMAT>(lines);
            let lines = self.lines.iter_mut().zip(elements);
            let count = BLOCK / layout.part * vectors::<L, FORMAT>();
            for (line, elements) in lines.take(count) {
                L::store_bytes(elements, line.as_mut_ptr());
            }
            let factors = Factors::<L>::read::<FORMAT>(unit, within);
            for part in 0..BLOCK / layout.part {
                L::store_floats(factors.scales[part], self.scales[part].as_mut_ptr());
                if layout.scales.minimums() {
                    L::store_floats(factors.minimums[part], self.minimums[part].as_mut_ptr());
                }
            }
        }
    }
}

/// The bytes of `blocks` blocks of a group, each with its share of the scales of its unit.
#[inline(always)]
const fn bytes<const FORMAT: usize>(blocks: usize) -> usize {
    let layout = const { units::layout::<FORMAT>() };
    blocks * layout.unit_bytes() / (layout.unit() / BLOCK)
}

/// Adds the products of some blocks to the `totals` of a tile. `place` is the first of the blocks.
///
/// # Safety
/// The CPU must have `L`'s features. `totals` must have `TOKENS` tokens, and the tile as many.
#[inline(always)]
unsafe fn add<L: Lanes, const FORMAT: usize, const TOKENS: usize>(
    totals: &mut [[f32; ROWS]],
    place: Place<'_>,
    blocks: &[Block],
) {
    let layout = const { units::layout::<FORMAT>() };
    let each = L::length(vectors::<L, FORMAT>());
    // SAFETY: the caller guarantees the features of `L` and the tokens of `totals` and of the tile.
    unsafe {
        let totals = totals.as_mut_ptr();
        let mut sums = [L::zero(); TOKENS];
        for (t, sums) in sums.iter_mut().enumerate() {
            *sums = L::floats(totals.add(t).cast());
        }
        for (index, block) in blocks.iter().enumerate() {
            // A block of one part repeats it.
            let last = (BLOCK / layout.part - 1) * each;
            let parts = [
                Lines(&block.lines[..each]),
                Lines(&block.lines[last..][..each]),
            ];
            let ([a, b], [c, d]) = (&block.scales, &block.minimums);
            let factors = Factors::<L> {
                scales: [L::floats(a.as_ptr()), L::floats(b.as_ptr())],
                minimums: [L::floats(c.as_ptr()), L::floats(d.as_ptr())],
            };
            let place = place.after(index);
            place.add::<L, FORMAT, TOKENS>(&mut sums, parts, &factors);
        }
        for (t, sums) in sums.into_iter().enumerate() {
            L::store_floats(sums, totals.add(t).cast());
        }
    }
}
