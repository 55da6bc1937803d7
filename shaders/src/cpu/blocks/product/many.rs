//! More tokens than a tile has: some columns of a group of rows are unpacked to a buffer in the
//! first-level cache, and then multiplied by one tile after another.

use std::mem::MaybeUninit;
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

/// Memory for the totals of the rows of a task's groups, for each token of a block of tokens.
#[repr(C, align(64))]
struct Totals([MaybeUninit<[f32; ROWS]>; TASK_GROUPS * TOKEN_BLOCK]);

/// Weights that are prefetched while others are multiplied.
struct Ahead {
    next: *const u8,
    /// Lines that are left.
    lines: usize,
    /// Lines that are prefetched with each block of a tile.
    each: usize,
}

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
        let mut totals = Totals::uninit();
        for first in (0..self.x.tokens).step_by(token_block) {
            let count = token_block.min(self.x.tokens - first);
            // Totals of one group lie next to those of another, however few tokens there are: they take
            // little of the nearest cache.
            let totals = totals.zeroed(self.groups.len() * count);
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
                        // Each block of each tile prefetches its share: the memory is read evenly.
                        let lines = bytes::<FORMAT>(some.len()).div_ceil(LINE);
                        let shares = count.div_ceil(side) * some.len();
                        let mut ahead = Ahead {
                            next,
                            lines,
                            each: lines.div_ceil(shares),
                        };
                        let ahead = &mut ahead;
                        let totals = &mut totals[index * count..][..count];
                        for token in (0..count).step_by(side) {
                            let here = &mut totals[token..count.min(token + side)];
                            let place = Place::new(self.x, first + token, block);
                            let blocks = &unpacked.blocks[..some.len()];
                            add_any::<L, FORMAT>(here, place, blocks, ahead);
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

impl Totals {
    #[inline(always)]
    fn uninit() -> Self {
        Self([MaybeUninit::uninit(); TASK_GROUPS * TOKEN_BLOCK])
    }

    /// So many totals, which are zero.
    #[inline(always)]
    fn zeroed(&mut self, count: usize) -> &mut [[f32; ROWS]] {
        let totals = &mut self.0[..count];
        totals.fill(MaybeUninit::new([0.0; ROWS]));
        let totals: *mut [MaybeUninit<[f32; ROWS]>] = totals;
        // SAFETY: all of them have just been written.
        unsafe { &mut *(totals as *mut [[f32; ROWS]]) }
    }
}

impl Ahead {
    /// Prefetches the share of one block of a tile.
    ///
    /// # Safety
    /// The CPU must have `L`'s features.
    #[inline(always)]
    unsafe fn fetch<L: Lanes>(&mut self) {
        let lines = self.each.min(self.lines);
        self.lines -= lines;
        for _ in 0..lines {
            // SAFETY: the caller guarantees the features of `L`.
            unsafe { L::prefetch(self.next) };
            self.next = self.next.wrapping_add(LINE);
        }
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

/// Adds the products of some blocks to the `totals` of a tile, one for each of its tokens. `place` is the
/// first of the blocks. Prefetches the tile's share of the weights `ahead`.
///
/// # Safety
/// The CPU must have `L`'s features, and the tile must have the tokens.
#[inline(always)]
unsafe fn add_any<L: Lanes, const FORMAT: usize>(
    totals: &mut [[f32; ROWS]],
    place: Place<'_>,
    blocks: &[Block],
    ahead: &mut Ahead,
) {
    // SAFETY: the caller's guarantees. The conditions are constant, so that nothing else is compiled.
    unsafe {
        match totals.len() {
            1 => add::<L, FORMAT, 1>(totals, place, blocks, ahead),
            2 => add::<L, FORMAT, 2>(totals, place, blocks, ahead),
            3 if L::TOKENS > 2 => add::<L, FORMAT, 3>(totals, place, blocks, ahead),
            4 if L::TOKENS > 2 => add::<L, FORMAT, 4>(totals, place, blocks, ahead),
            5 if L::TOKENS > 4 => add::<L, FORMAT, 5>(totals, place, blocks, ahead),
            6 if L::TOKENS > 4 => add::<L, FORMAT, 6>(totals, place, blocks, ahead),
            7 if L::TOKENS > 6 => add::<L, FORMAT, 7>(totals, place, blocks, ahead),
            8 if L::TOKENS > 6 => add::<L, FORMAT, 8>(totals, place, blocks, ahead),
            tokens => unreachable!("a tile of {tokens} tokens"),
        }
    }
}

/// [`add_any`] for a number of tokens that is constant.
///
/// # Safety
/// The CPU must have `L`'s features. `totals` must have `TOKENS` tokens, and the tile as many.
#[inline(always)]
unsafe fn add<L: Lanes, const FORMAT: usize, const TOKENS: usize>(
    totals: &mut [[f32; ROWS]],
    place: Place<'_>,
    blocks: &[Block],
    ahead: &mut Ahead,
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
            ahead.fetch::<L>();
            let place = place.after(index);
            place.add::<L, FORMAT, TOKENS>(&mut sums, parts, &factors);
        }
        for (t, sums) in sums.into_iter().enumerate() {
            L::store_floats(sums, totals.add(t).cast());
        }
    }
}
