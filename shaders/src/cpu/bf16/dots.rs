//! The dot products of AVX-512 (AMD since Zen 4, Intel's Cooper Lake).
//!
//! One instruction adds to 16 sums, one for each row of a group, the products of two activations of
//! a token with two weights of every row. These instructions take numbers below the smallest normal
//! one as zero.

use std::arch::x86_64::*;
use std::mem::transmute;
use std::ops::Range;

use half::bf16;
use rayon::prelude::*;

use super::{DEPTH, check, round};
use crate::cpu::blocks::{GROUP_ROWS, Job, LINE, View, tasks};
use crate::cpu::limit::{Limit, allows};
use crate::cpu::output::{Output, with_addend};

/// Tokens and groups of rows that are multiplied together: their 24 sums and the operands fit into
/// the 32 registers.
const TOKENS: usize = 6;
const GROUPS: usize = 4;
/// Elements of the summed dimension in a line of weights.
const PAIR: usize = 2;
/// The lines of a group in a pass over many tokens. Those of [`GROUPS`] groups, 64 KiB, stay in the
/// second-level cache; shorter passes, from the first level, were slower, because each of them reads
/// and writes the sums.
const PASS: usize = 256;
/// How far ahead weights are prefetched, in bytes of a group.
const FETCH_AHEAD: usize = 2048;

/// True if this CPU has the instructions and the limit allows them.
pub fn available() -> bool {
    allows(Limit::Avx512Bf16)
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512bf16")
}

/// Computes all `jobs`, whose matrices are in bf16. The threads share the rows of all matrices. The
/// instructions have to be [`available`].
pub fn linear(jobs: &[Job<'_>]) {
    assert!(
        available(),
        "linear: dot products of bf16 are not available"
    );
    let rounded = jobs.iter().map(|job| {
        check(job);
        let weight = job.parts[0];
        round(job.x, weight.columns, width(weight) / DEPTH, 1)
    });
    let rounded: Vec<_> = rounded.collect();
    let parts = jobs.iter().map(|job| job.parts[0]).enumerate();
    let parts: Vec<(usize, View<'_>)> = parts.collect();
    let tasks = tasks(&parts).into_par_iter();
    tasks.for_each(|(index, weight, groups)| {
        let job = &jobs[index];
        let columns = weight.outputs(groups.clone());
        let product = Product {
            x: &rounded[index],
            weight,
            bias: job.bias,
            y: job.y,
        };
        // SAFETY: the instructions are available, and `check` has checked the shapes. The columns are
        // those of the groups, which are this task's.
        unsafe { with_addend(job.addend, job.y, columns, || product.groups(groups)) };
    });
}

/// The columns of a matrix with those that fill the last unit.
fn width(weight: View<'_>) -> usize {
    weight.group_bytes() / LINE * PAIR
}

/// The product of all tokens with a matrix.
struct Product<'a> {
    /// `[tokens, width]`
    x: &'a [bf16],
    weight: View<'a>,
    bias: Option<&'a [f32]>,
    y: Output,
}

impl Product<'_> {
    /// Computes the rows of `groups`.
    ///
    /// # Safety
    /// The CPU must have the features, the groups must exist, and `y` and the bias must have their
    /// rows, which must be this task's.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    unsafe fn groups(&self, groups: Range<usize>) {
        let mut group = groups.start;
        while group < groups.end {
            // SAFETY: the caller's guarantees; as many groups from `group` on exist.
            group += unsafe {
                match groups.end - group {
                    GROUPS.. => self.tokens::<GROUPS>(group),
                    2.. => self.tokens::<2>(group),
                    _ => self.tokens::<1>(group),
                }
            };
        }
    }

    /// Computes the rows of `SIDE` groups from `group` on, and returns `SIDE`.
    ///
    /// Where there are several tiles of tokens, each pass multiplies all tokens with as many columns
    /// as stay in the nearest cache. The sums are in `y` between passes, so the bits are those of a
    /// single pass.
    ///
    /// # Safety
    /// As for [`groups`](Self::groups).
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    unsafe fn tokens<const SIDE: usize>(&self, group: usize) -> usize {
        let lines = self.weight.group_bytes() / LINE;
        let tokens = self.y.tokens;
        let pass = if tokens > TOKENS { PASS } else { lines };
        for from in (0..lines).step_by(pass) {
            let pass = from..(from + pass).min(lines);
            let mut token = 0;
            while token < tokens {
                // Tiles of about the same number of tokens.
                let left = tokens - token;
                let here = left.div_ceil(left.div_ceil(TOKENS));
                // SAFETY: the caller's guarantees; `here` tokens from `token` on exist.
                unsafe {
                    match here {
                        1 => self.tile::<1, SIDE>(token, group, pass.clone()),
                        2 => self.tile::<2, SIDE>(token, group, pass.clone()),
                        3 => self.tile::<3, SIDE>(token, group, pass.clone()),
                        4 => self.tile::<4, SIDE>(token, group, pass.clone()),
                        5 => self.tile::<5, SIDE>(token, group, pass.clone()),
                        _ => self.tile::<TOKENS, SIDE>(token, group, pass.clone()),
                    }
                }
                token += here;
            }
        }
        SIDE
    }

    /// Adds the products of `COUNT` tokens with the lines `pass` of `SIDE` groups. The first pass
    /// begins the sums, and the last one adds the bias.
    ///
    /// # Safety
    /// As for [`groups`](Self::groups), and the tokens and the lines must exist.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    unsafe fn tile<const COUNT: usize, const SIDE: usize>(
        &self,
        token: usize,
        group: usize,
        pass: Range<usize>,
    ) {
        let (bytes, width) = (self.weight.group_bytes(), width(self.weight));
        let weights = &self.weight.units[group * bytes..][..SIDE * bytes];
        let x = &self.x[token * width..][..COUNT * width];
        let last = pass.end * LINE == bytes;
        let rows: [Rows; SIDE] = std::array::from_fn(|side| Rows::of(self.weight, group + side));
        // SAFETY: the caller guarantees the features and the elements of `y` and the bias. The slices
        // above check that `weights` has `SIDE` groups of `bytes` and `x` has `COUNT` tokens of
        // `width` elements; a line exists in every group, and its pair in every token. Vectors need
        // no alignment, and masked loads and stores touch only the rows of the mask.
        unsafe {
            let mut sums = [[_mm512_setzero_ps(); SIDE]; COUNT];
            if pass.start > 0 {
                for (t, sums) in sums.iter_mut().enumerate() {
                    for (sum, rows) in sums.iter_mut().zip(rows) {
                        *sum = _mm512_maskz_loadu_ps(rows.mask, self.y.at(token + t, rows.column));
                    }
                }
            }
            for line in pass {
                let at = weights.as_ptr().add(line * LINE);
                let pair = x.as_ptr().add(line * PAIR);
                let mut w = [_mm512_setzero_si512(); SIDE];
                for (side, w) in w.iter_mut().enumerate() {
                    let at = at.add(side * bytes);
                    *w = _mm512_loadu_si512(at.cast());
                    // The other tokens find the weights in a cache.
                    if token == 0 {
                        _mm_prefetch::<_MM_HINT_T1>(at.wrapping_add(FETCH_AHEAD).cast());
                    }
                }
                for (t, sums) in sums.iter_mut().enumerate() {
                    let pair = pair.add(t * width).cast::<i32>().read_unaligned();
                    let pair = transmute::<__m512i, __m512bh>(_mm512_set1_epi32(pair));
                    for (sum, w) in sums.iter_mut().zip(w) {
                        *sum = _mm512_dpbf16_ps(*sum, pair, transmute::<__m512i, __m512bh>(w));
                    }
                }
            }
            for (t, sums) in sums.iter().enumerate() {
                for (sum, rows) in sums.iter().zip(rows) {
                    let mut sum = *sum;
                    if let (true, Some(bias)) = (last, self.bias) {
                        let bias = bias.as_ptr().add(rows.column);
                        sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(rows.mask, bias));
                    }
                    _mm512_mask_storeu_ps(self.y.at(token + t, rows.column), rows.mask, sum);
                }
            }
        }
    }
}

/// Where the rows of a group are in `y`.
#[derive(Clone, Copy)]
struct Rows {
    column: usize,
    /// A bit for each row that exists.
    mask: __mmask16,
}

impl Rows {
    fn of(weight: View<'_>, group: usize) -> Self {
        let column = group * GROUP_ROWS;
        let count = (weight.rows - column).min(GROUP_ROWS);
        Self {
            column,
            mask: __mmask16::MAX >> (GROUP_ROWS - count),
        }
    }
}
