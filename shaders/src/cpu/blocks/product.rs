//! `y = x W^T + b` with `W` in GGML's blocks.
//!
//! A tile is 16 rows, or 32, by as many tokens as have room in the registers. One tile is multiplied from
//! the packed weights ([`few`]); for more tokens the weights are unpacked first ([`many`]).

mod few;
mod many;
mod tile;

use std::ops::Range;

use rayon::prelude::*;

use super::activations::Activations;
use super::format::BlockFormat;
use super::lanes::{ByteLevel, Lanes, LanesTask};
use super::units::with_format;
use super::{Job, ROWS, View, tasks};
#[cfg(target_arch = "x86_64")]
use crate::cpu::amx;
use crate::cpu::output::{Output, with_addend};

/// Tokens that a matrix tile has, where the CPU has tiles.
#[cfg(target_arch = "x86_64")]
const TILE: usize = amx::SIDE;
#[cfg(not(target_arch = "x86_64"))]
const TILE: usize = 1;

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
        let side = match on_tiles(job) {
            true => TILE,
            false => level.side(job.y.tokens),
        };
        Activations::round(job.x, columns, side)
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
    /// Computes all tiles.
    ///
    /// # Safety
    /// The CPU must have `L`'s features.
    #[inline(always)]
    unsafe fn groups<L: Lanes, const FORMAT: usize>(&self) {
        // SAFETY: the caller guarantees the features of `L`. The conditions on `L` are
        // constant, so that nothing else is compiled.
        unsafe {
            match self.x.tokens {
                1 => self.few::<L, FORMAT, 1>(),
                2 => self.few::<L, FORMAT, 2>(),
                3 if L::FEW_TOKENS > 2 => self.few::<L, FORMAT, 3>(),
                4 if L::FEW_TOKENS > 2 => self.few::<L, FORMAT, 4>(),
                5 if L::FEW_TOKENS > 4 => self.few::<L, FORMAT, 5>(),
                6 if L::FEW_TOKENS > 4 => self.few::<L, FORMAT, 6>(),
                7 if L::FEW_TOKENS > 6 => self.few::<L, FORMAT, 7>(),
                8 if L::FEW_TOKENS > 6 => self.few::<L, FORMAT, 8>(),
                _ => self.many::<L, FORMAT>(),
            }
        }
    }

    /// Adds the bias and writes the elements of a token.
    ///
    /// # Safety
    /// The CPU must have `L`'s features, the token must exist, and the group must be one of this task's.
    #[inline(always)]
    unsafe fn store<L: Lanes>(&self, token: usize, group: usize, totals: &[f32; ROWS]) {
        let row = group * ROWS;
        let count = (self.weight.rows - row).min(ROWS);
        let first = self.weight.first + row;
        let bias = self.bias.map(|bias| &bias[first..first + count]);
        // SAFETY: `count` rows of the group exist, and so many elements of the bias; the caller guarantees
        // the features of `L`, and that the elements of `y` are this task's.
        unsafe {
            let to = self.y.at(token, first);
            if count == ROWS {
                let bias = match bias {
                    Some(bias) => L::floats(bias.as_ptr()),
                    None => L::zero(),
                };
                L::store_floats(L::add_times(bias, L::floats(totals.as_ptr()), 1.0), to);
                return;
            }
            for (lane, total) in totals.iter().enumerate().take(count) {
                to.add(lane)
                    .write(total + bias.map_or(0.0, |bias| bias[lane]));
            }
        }
    }
}
