//! `y = x W^T + b` with `W` in GGML's blocks.

use std::ops::Range;

use rayon::prelude::*;

use super::activations::Activations;
use super::format::BlockFormat;
use super::lanes::{ByteLevel, Lanes, LanesTask};
use super::units::{self, with_format};
use super::{BLOCK, Job, LINE, ROWS, View, tasks};
#[cfg(target_arch = "x86_64")]
use crate::cpu::amx;
use crate::cpu::output::{Output, with_addend};

/// Tokens that a matrix tile has, where the CPU has tiles.
#[cfg(target_arch = "x86_64")]
const TILE: usize = amx::SIDE;
#[cfg(not(target_arch = "x86_64"))]
const TILE: usize = 1;
/// Tokens whose activations should stay in the second-level cache.
const TOKEN_BLOCK: usize = 64;
/// How far ahead weights are prefetched, in bytes. With several tokens, the hardware prefetcher is
/// not far enough ahead.
const FETCH_AHEAD: usize = 2048;

/// Computes all `jobs`. The threads share the rows of all matrices.
pub fn linear(jobs: &[Job<'_>]) {
    linear_on(ByteLevel::best(), jobs);
}

/// [`linear`] with the given instructions, which the CPU must have.
pub(super) fn linear_on(level: ByteLevel, jobs: &[Job<'_>]) {
    #[cfg(target_arch = "x86_64")]
    let on_tiles =
        |job: &Job<'_>| level == ByteLevel::Amx && job.y.tokens >= amx::bytes::MIN_TOKENS;
    #[cfg(not(target_arch = "x86_64"))]
    let on_tiles = |_: &Job<'_>| false;
    let rounded = |job: &Job<'_>| {
        let columns = job.parts.first().map_or(1, |part| part.columns);
        let rows = job.parts.iter().map(|part| part.rows).sum::<usize>();
        let shape = (job.y.tokens, job.y.width);
        assert_eq!(shape, (job.x.len() / columns, rows), "linear: shape of y");
        if let Some(bias) = job.bias {
            assert_eq!(bias.len(), rows, "linear: length of bias");
        }
        Activations::round(job.x, columns, if on_tiles(job) { TILE } else { 1 })
    };
    let rounded: Vec<Activations> = jobs.par_iter().map(rounded).collect();
    #[cfg(target_arch = "x86_64")]
    for (job, x) in jobs.iter().zip(&rounded).filter(|(job, _)| on_tiles(job)) {
        amx::bytes::linear(x, &job.parts, job.bias, job.addend, job.y);
    }
    let mut parts = Vec::new();
    for (index, job) in jobs.iter().enumerate().filter(|(_, job)| !on_tiles(job)) {
        parts.extend(job.parts.iter().map(|part| (index, *part)));
    }
    tasks(&parts)
        .into_par_iter()
        .for_each(|(index, weight, groups)| {
            let columns = weight.outputs(groups.clone());
            let product = Product {
                x: &rounded[index],
                weight,
                bias: jobs[index].bias,
                y: jobs[index].y,
                groups,
            };
            // Each format is a task of its own, so that it becomes a function of its own.
            // SAFETY: the caller passes a level that this CPU has. The columns are those of the
            // groups, which are this task's.
            unsafe {
                with_addend(jobs[index].addend, jobs[index].y, columns, || {
                    with_format!(weight.format, FORMAT => level.run(Of::<FORMAT>(product)));
                });
            }
        });
}

/// A product with the format that has the number `FORMAT`.
struct Of<'a, const FORMAT: usize>(Product<'a>);

impl<const FORMAT: usize> LanesTask for Of<'_, FORMAT> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        // SAFETY: the caller guarantees the features of `L`.
        unsafe { self.0.groups::<L, FORMAT>() };
    }
}

/// The product of all tokens with some groups of the rows of a part.
struct Product<'a> {
    x: &'a Activations,
    weight: View<'a>,
    bias: Option<&'a [f32]>,
    y: Output,
    groups: Range<usize>,
}

impl Product<'_> {
    /// Computes all tiles: blocks of tokens by groups of rows.
    ///
    /// # Safety
    /// The CPU must have `L`'s features.
    #[inline(always)]
    unsafe fn groups<L: Lanes, const FORMAT: usize>(&self) {
        for block in (0..self.x.tokens).step_by(TOKEN_BLOCK) {
            let end = (block + TOKEN_BLOCK).min(self.x.tokens);
            for group in self.groups.clone() {
                let mut token = block;
                while token < end {
                    let here = (end - token).min(L::TOKENS);
                    // SAFETY: the caller guarantees the features of `L`; `here` tokens from `token`
                    // on exist.
                    unsafe {
                        match here {
                            1 => self.tile::<L, FORMAT, 1>(group, token),
                            // The conditions are constant, so that nothing else is compiled.
                            _ if L::TOKENS == 2 => self.tile::<L, FORMAT, 2>(group, token),
                            2 => self.tile::<L, FORMAT, 2>(group, token),
                            3 => self.tile::<L, FORMAT, 3>(group, token),
                            _ if L::TOKENS == 4 => self.tile::<L, FORMAT, 4>(group, token),
                            4 => self.tile::<L, FORMAT, 4>(group, token),
                            5 => self.tile::<L, FORMAT, 5>(group, token),
                            6 => self.tile::<L, FORMAT, 6>(group, token),
                            7 => self.tile::<L, FORMAT, 7>(group, token),
                            _ => self.tile::<L, FORMAT, 8>(group, token),
                        }
                    }
                    token += here;
                }
            }
        }
    }

    /// Computes `TOKENS` tokens by the rows of a group.
    ///
    /// # Safety
    /// The CPU must have `L`'s features. The tokens must exist, and the group must be one of this
    /// task's.
    #[inline(always)]
    unsafe fn tile<L: Lanes, const FORMAT: usize, const TOKENS: usize>(
        &self,
        group: usize,
        token: usize,
    ) {
        let layout = const { units::layout::<FORMAT>() };
        // The first pass over the weights brings them into a cache for the others.
        let fetch = token == 0;
        let (width, blocks) = (self.x.width, self.x.width / BLOCK);
        let tokens = token..token + TOKENS;
        let values = &self.x.values[tokens.start * width..tokens.end * width];
        let scales = &self.x.scales[tokens.start * blocks..tokens.end * blocks];
        let sums = &self.x.sums[tokens.start * blocks..tokens.end * blocks];
        let scaled_sums = &self.x.scaled_sums[tokens.start * blocks..tokens.end * blocks];
        let weights = self.weight.group(group);
        let prefetch = |from: *const u8, bytes: usize| {
            for at in (0..if fetch { bytes } else { 0 }).step_by(LINE) {
                // SAFETY: the caller guarantees the features of `L`.
                unsafe { L::prefetch(from.wrapping_add(FETCH_AHEAD + at)) };
            }
        };
        // SAFETY: the caller guarantees the features of `L`. The slices above have `width` columns
        // for every token of the tile, and the group has as many: where a unit has 256 columns,
        // it divides those of the matrix. The tile's elements of `y` are this task's.
        unsafe {
            let mut totals = [L::zero(); TOKENS];
            for unit in 0..width / layout.unit() {
                let at = weights.as_ptr().add(unit * layout.unit_bytes());
                prefetch(at, layout.scale_bytes());
                let lines = at.add(layout.scale_bytes());
                for within in 0..layout.unit() / BLOCK {
                    let block = unit * (layout.unit() / BLOCK) + within;
                    let lines = lines.add(within * layout.block_bytes());
                    prefetch(lines, layout.block_bytes());
                    let elements = units::elements::<L, FORMAT>(lines);
                    for part in 0..BLOCK / layout.part {
                        let here = within * (BLOCK / layout.part) + part;
                        let sum = |t: usize| {
                            let sums = *sums.get_unchecked(t * blocks + block);
                            Activations::sum(sums, layout.part, part)
                        };
                        // Subtract what the offset of the elements adds to the products.
                        let taken_off = i32::from(L::taken_off(layout.largest()));
                        let left = i32::from(layout.offset) - taken_off;
                        let mut dots = [L::splat(0); TOKENS];
                        for (t, dot) in dots.iter_mut().enumerate() {
                            *dot = L::splat(-left * sum(t));
                        }
                        let fours = layout.part / 4;
                        let elements = &elements[part * fours..][..fours];
                        let first = block * BLOCK + part * layout.part;
                        let x = std::array::from_fn(|t| values.as_ptr().add(t * width + first));
                        L::add_dots(&mut dots, elements, layout.largest(), x);
                        let row_scales = units::scales::<L, FORMAT>(at, here);
                        for (t, total) in totals.iter_mut().enumerate() {
                            let x_scale = *scales.get_unchecked(t * blocks + block);
                            *total = L::add_scaled(*total, dots[t], row_scales, x_scale);
                        }
                        if layout.scales.minimums() {
                            let row_minimums = units::minimums::<L, FORMAT>(at, here);
                            for (t, total) in totals.iter_mut().enumerate() {
                                let sums = *scaled_sums.get_unchecked(t * blocks + block);
                                let x = Activations::scaled_sum(sums, layout.part, part);
                                *total = L::add_times(*total, row_minimums, x);
                            }
                        }
                    }
                }
            }
            for (t, total) in totals.into_iter().enumerate() {
                self.store(token + t, group, L::to_array(total));
            }
        }
    }

    /// Adds the bias and writes the elements of a token.
    ///
    /// # Safety
    /// The token must exist, and the group must be one of this task's.
    #[inline(always)]
    unsafe fn store(&self, token: usize, group: usize, totals: [f32; ROWS]) {
        let row = group * ROWS;
        let count = (self.weight.rows - row).min(ROWS);
        let first = self.weight.first + row;
        let bias = self.bias.map(|bias| &bias[first..first + count]);
        for (lane, total) in totals.into_iter().enumerate().take(count) {
            let value = total + bias.map_or(0.0, |bias| bias[lane]);
            // SAFETY: `count` rows of the group exist, and the caller guarantees that their
            // elements are this task's.
            unsafe { self.y.at(token, first + lane).write(value) };
        }
    }
}
