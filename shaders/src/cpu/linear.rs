//! `y = x W^T + b` with `W` in the `[out, in]` layout of Hugging Face checkpoints.
//!
//! Both matrices are contiguous along the summed dimension, so the inner loop is a block of dot
//! products held in registers. Tasks share out the rows of `W`: with a single token, each thread
//! streams its part of the weights once, and decoding is bound by nothing else.

mod many;
mod panels;
#[cfg(test)]
mod tests;

use std::ops::Range;

use rayon::prelude::*;

use super::aligned::Aligned;
use super::output::{Addend, Output, with_addend};
use super::simd::{Level, Simd, Stored, Task};
use panels::{ROWS, pack, place, tokens};

/// From this many tokens on, it pays to widen a block of weights once.
const WIDEN_FROM_TOKENS: usize = 48;
/// Rows of weights whose chunks are read in turn: a multiple of [`ROWS`], and of the two rows that a
/// single token takes.
const TILE_ROWS: usize = 12;
/// How many bytes ahead a row of weights is prefetched if there is one group of tokens: a page, because
/// hardware prefetchers stay within the page that is being read.
const FETCH_AHEAD: usize = 4096;
/// Bytes of a cache line.
const CACHE_LINE: usize = 64;
/// Bytes of activations that should stay in the second-level cache.
const NEAR_BYTES: usize = 512 << 10;
/// The most rows of `W` in a task: whole tiles, and whole vectors of an addend.
const MAX_ROWS_PER_TASK: usize = 48;
/// Rows of a task with an addend are a multiple of this.
const ADDEND_ROWS: usize = 16;

/// A product of some tokens with a matrix. All of `y` `[tokens, output]` is written.
pub struct Job<'a, E> {
    /// `[tokens, input]`
    pub x: &'a [f32],
    /// `[output, input]`
    pub weight: &'a [E],
    /// `[output]`
    pub bias: Option<&'a [f32]>,
    /// The numbers that are added to the product, such as the changes of adapters.
    pub addend: Option<&'a dyn Addend>,
    pub y: Output,
}

/// Computes all `jobs`, whose matrices have `input` columns. The threads share the rows of all
/// matrices.
pub fn linear<E: Stored>(jobs: &[Job<'_, E>], input: usize) {
    on_vectors(Level::best(), jobs, input);
}

/// [`linear`] with the given vectors, which the CPU must have.
fn on_vectors<E: Stored>(level: Level, jobs: &[Job<'_, E>], input: usize) {
    let mut all = 0;
    let copies = jobs.iter().map(|job| {
        let (tokens, output) = (job.x.len() / input, job.weight.len() / input);
        let shape = (job.y.tokens, job.y.width);
        assert_eq!(shape, (tokens, output), "linear: shape of y");
        all += output;
        // A single token is its own panel unless its elements alternate.
        let alternates = E::alternates(level);
        match tokens > 1 || alternates {
            true => Some(pack(level, job.x, input, alternates)),
            false => None,
        }
    });
    let copies: Vec<Option<Aligned<f32>>> = copies.collect();
    let share = all.div_ceil(4 * rayon::current_num_threads());
    let whole = match jobs.iter().any(|job| job.addend.is_some()) {
        true => ADDEND_ROWS,
        false => TILE_ROWS,
    };
    let rows = share.next_multiple_of(whole).min(MAX_ROWS_PER_TASK);
    let of_job = |(index, job): (usize, &Job<'_, E>)| {
        let starts = (0..job.y.width).step_by(rows);
        starts.map(move |from| (index, from))
    };
    let tasks: Vec<(usize, usize)> = jobs.iter().enumerate().flat_map(of_job).collect();
    let of_task = |scratch: &mut many::Scratch, (index, from): (usize, usize)| {
        let Job {
            x,
            weight,
            bias,
            addend,
            y,
        } = jobs[index];
        let to = (from + rows).min(y.width);
        let block = Block {
            x: copies[index].as_deref().unwrap_or(x),
            weights: &weight[from * input..to * input],
            bias,
            y,
            input,
            from,
            rows: to - from,
        };
        // SAFETY: the caller passes a level that this CPU has. These columns are this task's.
        unsafe {
            with_addend(addend, y, from..to, || {
                match y.tokens >= WIDEN_FROM_TOKENS {
                    true => level.run(many::Widened { block, scratch }),
                    false => level.run(block),
                }
            });
        };
    };
    let tasks = tasks.into_par_iter();
    tasks.for_each_init(many::Scratch::default, of_task);
}

/// The product of all tokens with some rows of the weights. No other task may access the columns
/// `from..from + rows` of `y`.
struct Block<'a, E> {
    /// `[groups, steps, tokens of a group, lanes]`, as [`pack`] orders them. A single token whose
    /// elements do not alternate is `[input]`, without padding.
    x: &'a [f32],
    /// `[rows, input]`
    weights: &'a [E],
    bias: Option<&'a [f32]>,
    y: Output,
    input: usize,
    /// The column of `y` of the first row.
    from: usize,
    rows: usize,
}

/// Elements of a row that are read before those of the next row, for so many tokens: enough for the
/// hardware's prefetcher to follow and to make up for the loads and stores of sums, and so few that
/// the CPU begins the next row before the sums of this one are finished, and that the activations
/// stay in the first-level cache.
const fn chunk(tokens: usize) -> usize {
    match tokens {
        0..4 => 128,
        _ => 64 * tokens,
    }
}

impl<E: Stored> Task for Block<'_, E> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller guarantees the features of `S`.
        unsafe {
            match (self.y.tokens, S::LANES) {
                (1, _) => self.groups::<S, 1>(),
                (_, 16) => self.groups::<S, { tokens(16) }>(),
                _ => self.groups::<S, { tokens(8) }>(),
            }
        }
    }
}

impl<E: Stored> Block<'_, E> {
    /// Computes the block for one group of `TOKENS` tokens after another.
    ///
    /// # Safety
    /// The CPU must have `S`'s features, and the activations must be in panels of such groups.
    #[inline(always)]
    unsafe fn groups<S: Simd, const TOKENS: usize>(&self) {
        let near = self.near::<S, TOKENS>();
        let tokens = self.y.tokens;
        for block in (0..tokens).step_by(near) {
            for row in (0..self.rows).step_by(TILE_ROWS) {
                let tile = row..(row + TILE_ROWS).min(self.rows);
                for token in (block..(block + near).min(tokens)).step_by(TOKENS) {
                    // SAFETY: the caller's guarantees; the tile and the tokens exist, and a group
                    // begins at the token.
                    unsafe {
                        match (TOKENS, (tokens - token).min(TOKENS)) {
                            // Where a step is short, two rows side by side make up for the latency
                            // of additions.
                            (1, _) if S::LANES == 16 => self.tile::<S, 1, 1, 1>(token, &tile),
                            (1, _) => self.tile::<S, 1, 1, 2>(token, &tile),
                            (_, 1) => self.tile::<S, TOKENS, 1, ROWS>(token, &tile),
                            (_, 2) => self.tile::<S, TOKENS, 2, ROWS>(token, &tile),
                            (_, 3) => self.tile::<S, TOKENS, 3, ROWS>(token, &tile),
                            (8, 4) => self.tile::<S, TOKENS, 4, ROWS>(token, &tile),
                            (8, 5) => self.tile::<S, TOKENS, 5, ROWS>(token, &tile),
                            (8, 6) => self.tile::<S, TOKENS, 6, ROWS>(token, &tile),
                            (8, 7) => self.tile::<S, TOKENS, 7, ROWS>(token, &tile),
                            _ => self.tile::<S, TOKENS, TOKENS, ROWS>(token, &tile),
                        }
                    }
                }
            }
        }
    }

    /// The tokens that are multiplied with a tile before the next ones, in whole groups.
    #[inline(always)]
    fn near<S: Simd, const TOKENS: usize>(&self) -> usize {
        let panel = size_of::<f32>() * TOKENS * self.input.next_multiple_of(S::LANES);
        (NEAR_BYTES / panel).max(1) * TOKENS
    }

    /// Computes the rows `tile` for the first `COUNT` tokens of the group from `token` on, `SIDE`
    /// rows at a time.
    ///
    /// # Safety
    /// As for [`groups`](Self::groups). The rows and the tokens must exist.
    #[inline(always)]
    unsafe fn tile<S: Simd, const TOKENS: usize, const COUNT: usize, const SIDE: usize>(
        &self,
        token: usize,
        tile: &Range<usize>,
    ) {
        let whole = tile.start + tile.len() / SIDE * SIDE;
        // SAFETY: the caller's guarantees; both ranges lie within the tile.
        unsafe {
            self.rows_of::<S, TOKENS, COUNT, SIDE>(token, tile, tile.start..whole);
            if whole < tile.end {
                self.rows_of::<S, TOKENS, COUNT, 1>(token, tile, whole..tile.end);
            }
        }
    }

    /// [`tile`](Self::tile) for the rows `within` the tile, a multiple of `SIDE`.
    ///
    /// A chunk of each row is read in turn. If rows were read side by side over their whole length,
    /// the first-level cache would have too few places for them where they are a power of two bytes
    /// long, and one row after another would wait for its own additions.
    ///
    /// # Safety
    /// As for [`tile`](Self::tile).
    #[inline(always)]
    unsafe fn rows_of<S: Simd, const TOKENS: usize, const COUNT: usize, const SIDE: usize>(
        &self,
        token: usize,
        tile: &Range<usize>,
        within: Range<usize>,
    ) {
        let width = self.input;
        let chunk = const { chunk(COUNT) };
        let pair = 2 * S::LANES;
        let whole = width / pair * pair;
        let x = match TOKENS {
            1 => &self.x[..width],
            _ => {
                let padded = width.next_multiple_of(S::LANES);
                &self.x[token * padded..][..TOKENS * padded]
            }
        };
        let weights = &self.weights[within.start * width..within.end * width];
        let groups = within.len() / SIDE;
        // One group after another reads the same rows. Each prefetches a share of the next ones, so that the
        // memory is read all the time, and not while only the first group is multiplied.
        let near = self.near::<S, TOKENS>();
        let shares = near.min(self.y.tokens).div_ceil(TOKENS);
        let share = token % near / TOKENS;
        // SAFETY: the caller guarantees the features of `S`. `x` has `TOKENS` rows of at least
        // `whole` elements, and `weights` has `groups * SIDE` rows of `width` elements (the slices
        // above check it); chunks are whole pairs of vectors, so that `k + pair` is at most `whole`.
        unsafe {
            let mut sums = [[[S::zero(); SIDE]; COUNT]; TILE_ROWS];
            for from in (0..whole).step_by(chunk) {
                let to = (from + chunk).min(whole);
                // Where less than a page of a row is left, what comes next is in the same row of the
                // next tile.
                let page = FETCH_AHEAD / size_of::<E>();
                let ahead = match (shares, from + page < width) {
                    (1, true) => page,
                    (1, false) => page + (tile.len() - 1) * width,
                    _ => tile.len() * width,
                };
                // The compiler would try to keep the sums of all groups in registers, and move some
                // of them to memory in every step of the innermost loop.
                let kept = std::hint::black_box(&mut sums);
                for (group, kept) in kept[..groups].iter_mut().enumerate() {
                    let weights = weights.as_ptr().add(group * SIDE * width);
                    let mut sums = *kept;
                    let fetch = group % shares == share;
                    for k in (from..to).step_by(pair) {
                        if fetch && (k * size_of::<E>()).is_multiple_of(CACHE_LINE) {
                            let lines = (pair * size_of::<E>()).div_ceil(CACHE_LINE);
                            for line in 0..lines {
                                let at = k + line * CACHE_LINE / size_of::<E>() + ahead;
                                for side in 0..SIDE {
                                    S::prefetch_far(weights.wrapping_add(side * width + at));
                                }
                            }
                        }
                        for half in 0..2 {
                            let mut w = [S::zero(); SIDE];
                            for (side, w) in w.iter_mut().enumerate() {
                                *w = E::load_half(weights.add(side * width + k), half);
                            }
                            let x = x.as_ptr().add((k + half * S::LANES) * TOKENS);
                            for (t, sums) in sums.iter_mut().enumerate() {
                                let x = S::load_f32(x.add(t * S::LANES));
                                for (sum, w) in sums.iter_mut().zip(w) {
                                    *sum = sum.add_mul(x, w);
                                }
                            }
                        }
                    }
                    *kept = sums;
                }
            }
            for (group, sums) in sums[..groups].iter().enumerate() {
                for (t, sums) in sums.iter().enumerate() {
                    for (side, sum) in sums.iter().enumerate() {
                        let row = group * SIDE + side;
                        let mut value = sum.sum();
                        for k in whole..width {
                            let x = x[place(TOKENS, S::LANES, t, k)];
                            value += x * weights[row * width + k].widen();
                        }
                        self.write(token + t, within.start + row, value);
                    }
                }
            }
        }
    }

    /// Writes an element of `y`, with the bias added. `row` counts from the first of the block.
    ///
    /// # Safety
    /// The element must lie within `y` and be this task's.
    #[inline(always)]
    unsafe fn write(&self, token: usize, row: usize, mut value: f32) {
        let column = self.from + row;
        if let Some(bias) = self.bias {
            value += bias[column];
        }
        // SAFETY: the caller guarantees the element.
        unsafe { self.y.at(token, column).write(value) };
    }
}
