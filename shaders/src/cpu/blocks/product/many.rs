//! More tokens than a tile has: some columns of a group of rows, or of two groups, are unpacked to a
//! buffer in the first-level cache, and then multiplied by one tile after another.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::Product;
use super::tile::{Factors, Place, VECTORS, elements, vectors};
use crate::cpu::blocks::lanes::{Lanes, Lines};
use crate::cpu::blocks::{BLOCK, LINE, ROWS, TASK_GROUPS, units};

/// Tokens that are multiplied with a task's groups before the next ones: their activations of [`BLOCKS`]
/// blocks and their totals stay in the second-level cache. It has whole tiles of 2, 3, 4 and 6.
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

/// Weights of each group that are prefetched while others are multiplied.
struct Ahead<const GROUPS: usize> {
    next: [*const u8; GROUPS],
    /// Lines of a group that are left.
    lines: usize,
    /// Lines of a group that are prefetched with each block of a tile.
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
        const { assert!(L::GROUPS <= 2 && L::TOKENS <= 6) };
        let (width, side) = (self.x.width / BLOCK, self.x.side);
        let token_block = TOKEN_BLOCK / side * side;
        let mut unpacked = Unpacked::zeroed();
        let mut second = (L::GROUPS == 2).then(Unpacked::zeroed);
        let mut totals = Totals::uninit();
        for first in (0..self.x.tokens).step_by(token_block) {
            let tokens = first..self.x.tokens.min(first + token_block);
            // Totals of one group lie next to those of another, however few tokens there are: they take
            // little of the nearest cache.
            let totals = totals.zeroed(self.groups.len() * tokens.len());
            for block in (0..width).step_by(BLOCKS) {
                let some = block..(block + BLOCKS).min(width);
                for group in self.groups.clone().step_by(L::GROUPS) {
                    let totals = &mut totals[(group - self.groups.start) * tokens.len()..];
                    let some = some.clone();
                    // SAFETY: the caller guarantees the features of `L`, and the groups are this task's.
                    unsafe {
                        match &mut second {
                            Some(second) if group + 1 < self.groups.end => {
                                let unpacked = [&mut unpacked, second];
                                self.together::<L, FORMAT, 2>(
                                    group, &tokens, some, unpacked, totals,
                                );
                            }
                            _ => {
                                let unpacked = [&mut unpacked];
                                self.together::<L, FORMAT, 1>(
                                    group, &tokens, some, unpacked, totals,
                                );
                            }
                        }
                    }
                }
            }
        }
    }

    /// Adds the products of the blocks `some` to the `totals` of `GROUPS` groups from `group` on, those of
    /// one group after those of the other, each of which has one for each of `tokens`. The totals of the last
    /// blocks are stored.
    ///
    /// # Safety
    /// The CPU must have `L`'s features, and the groups must be this task's.
    #[inline(always)]
    unsafe fn together<L: Lanes, const FORMAT: usize, const GROUPS: usize>(
        &self,
        group: usize,
        tokens: &Range<usize>,
        some: Range<usize>,
        unpacked: [&mut Unpacked; GROUPS],
        totals: &mut [[f32; ROWS]],
    ) {
        let (width, side) = (self.x.width / BLOCK, self.x.side);
        let mut groups = [&[] as &[Block]; GROUPS];
        for (g, (unpacked, blocks)) in unpacked.into_iter().zip(&mut groups).enumerate() {
            let weights = self.weight.group(group + g).as_ptr();
            for (at, block) in some.clone().enumerate() {
                // SAFETY: the caller guarantees the features of `L`. The group has the columns of `x`: where a
                // unit has 256 columns, it divides those of the matrix.
                unsafe { unpacked.blocks[at].read::<L, FORMAT>(weights, block) };
            }
            *blocks = &unpacked.blocks[..some.len()];
        }
        // Each block of each tile prefetches its share: the memory is read evenly.
        let lines = bytes::<FORMAT>(some.len()).div_ceil(LINE);
        let shares = tokens.len().div_ceil(side) * some.len();
        let mut ahead = Ahead {
            next: self.next::<FORMAT, GROUPS>(group, &some),
            lines,
            each: lines.div_ceil(shares),
        };
        for token in tokens.clone().step_by(side) {
            let count = side.min(tokens.end - token);
            let place = Place::new(self.x, token, some.start);
            let tile = Tile {
                totals: &mut totals[token - tokens.start..],
                apart: tokens.len(),
                place,
                groups,
            };
            // SAFETY: the caller guarantees the features of `L`. The tile has the tokens. The elements of `y`
            // are this task's.
            unsafe {
                tile.add_any::<L, FORMAT>(count, &mut ahead);
                // Elements of `y` are far from each other. They are stored while other tiles
                // are multiplied, so that nothing waits for the memory.
                if some.end == width {
                    for g in 0..GROUPS {
                        let at = token - tokens.start + g * tokens.len();
                        for (t, totals) in totals[at..][..count].iter().enumerate() {
                            self.store::<L>(token + t, group + g, totals);
                        }
                    }
                }
            }
        }
    }

    /// Weights that are unpacked after the blocks `some` of `GROUPS` groups from `group` on: the same blocks of
    /// as many next groups, or the next blocks of the first ones. Where there is one group less, it is
    /// named twice.
    #[inline(always)]
    fn next<const FORMAT: usize, const GROUPS: usize>(
        &self,
        group: usize,
        some: &Range<usize>,
    ) -> [*const u8; GROUPS] {
        let (first, block) = match group + GROUPS < self.groups.end {
            true => (group + GROUPS, some.start),
            false => (self.groups.start, some.end),
        };
        let mut next = [std::ptr::null(); GROUPS];
        for (g, next) in next.iter_mut().enumerate() {
            let group = (first + g).min(self.groups.end - 1);
            let group = self.weight.group(group).as_ptr();
            *next = group.wrapping_add(bytes::<FORMAT>(block));
        }
        next
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

impl<const GROUPS: usize> Ahead<GROUPS> {
    /// Prefetches the share of one block of a tile.
    ///
    /// # Safety
    /// The CPU must have `L`'s features.
    #[inline(always)]
    unsafe fn fetch<L: Lanes>(&mut self) {
        let lines = self.each.min(self.lines);
        self.lines -= lines;
        for _ in 0..lines {
            for next in &mut self.next {
                // SAFETY: the caller guarantees the features of `L`.
                unsafe { L::prefetch(*next) };
                *next = next.wrapping_add(LINE);
            }
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

/// Some blocks of each group, and some tokens.
struct Tile<'a, 'b, const GROUPS: usize> {
    /// The totals of the tokens and the first group.
    totals: &'b mut [[f32; ROWS]],
    /// How far from them those of the next group are.
    apart: usize,
    /// The first of the blocks.
    place: Place<'a>,
    groups: [&'b [Block]; GROUPS],
}

impl<const GROUPS: usize> Tile<'_, '_, GROUPS> {
    /// Adds the products to the totals of `tokens` tokens. Prefetches the tile's share of the weights `ahead`.
    ///
    /// # Safety
    /// The CPU must have `L`'s features, and the activations must have the blocks for the tokens. All groups
    /// must have the same number of blocks, and `totals` must have those of the tokens of each group.
    #[inline(always)]
    unsafe fn add_any<L: Lanes, const FORMAT: usize>(
        self,
        tokens: usize,
        ahead: &mut Ahead<GROUPS>,
    ) {
        // SAFETY: the caller's guarantees. The conditions are constant, so that nothing else is compiled.
        unsafe {
            match tokens {
                1 => self.add::<L, FORMAT, 1>(ahead),
                2 => self.add::<L, FORMAT, 2>(ahead),
                3 if L::TOKENS > 2 => self.add::<L, FORMAT, 3>(ahead),
                4 if L::TOKENS > 2 => self.add::<L, FORMAT, 4>(ahead),
                5 if L::TOKENS > 4 => self.add::<L, FORMAT, 5>(ahead),
                6 if L::TOKENS > 4 => self.add::<L, FORMAT, 6>(ahead),
                tokens => unreachable!("a tile of {tokens} tokens"),
            }
        }
    }

    /// [`Tile::add_any`] for a number of tokens that is constant.
    ///
    /// # Safety
    /// As for [`Tile::add_any`].
    #[inline(always)]
    unsafe fn add<L: Lanes, const FORMAT: usize, const TOKENS: usize>(
        self,
        ahead: &mut Ahead<GROUPS>,
    ) {
        let layout = const { units::layout::<FORMAT>() };
        let each = L::length(vectors::<L, FORMAT>());
        // SAFETY: the caller guarantees the features of `L` and the tokens of the tile, and so of `totals`
        // for each group.
        unsafe {
            let kept = self.totals.as_mut_ptr();
            let mut totals = [[L::zero(); TOKENS]; GROUPS];
            for (g, totals) in totals.iter_mut().enumerate() {
                for (t, totals) in totals.iter_mut().enumerate() {
                    *totals = L::floats(kept.add(g * self.apart + t).cast());
                }
            }
            for index in 0..self.groups[0].len() {
                // A block of one part repeats it.
                let last = (BLOCK / layout.part - 1) * each;
                let mut parts = [[Lines(&[]); GROUPS]; 2];
                let mut factors = [Factors::<L>::zero(); GROUPS];
                for (g, blocks) in self.groups.into_iter().enumerate() {
                    let block = blocks.get_unchecked(index);
                    parts[0][g] = Lines(&block.lines[..each]);
                    parts[1][g] = Lines(&block.lines[last..][..each]);
                    let ([a, b], [c, d]) = (&block.scales, &block.minimums);
                    factors[g] = Factors {
                        scales: [L::floats(a.as_ptr()), L::floats(b.as_ptr())],
                        minimums: [L::floats(c.as_ptr()), L::floats(d.as_ptr())],
                    };
                }
                ahead.fetch::<L>();
                let place = self.place.after(index);
                place.add::<L, FORMAT, TOKENS, GROUPS>(&mut totals, parts, &factors);
            }
            for (g, totals) in totals.into_iter().enumerate() {
                for (t, totals) in totals.into_iter().enumerate() {
                    L::store_floats(totals, kept.add(g * self.apart + t).cast());
                }
            }
        }
    }
}
