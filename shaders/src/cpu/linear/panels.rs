//! Activations in the order in which products read them.

use rayon::prelude::*;

use crate::cpu::aligned::Aligned;
use crate::cpu::simd::Level;

/// Rows of weights that are multiplied side by side.
pub const ROWS: usize = 3;

/// Tokens that are multiplied with [`ROWS`] rows at once. The sums, a vector of each row and one of a
/// token then take nearly all registers, of which there are 16, and 32 with the longer vectors: this
/// many products are as fast as the loads of their operands.
pub const fn tokens(lanes: usize) -> usize {
    match lanes {
        16 => 8,
        _ => 4,
    }
}

/// Copies `x` `[tokens, width]` to panels: `[groups, steps, tokens of a group, lanes]`, where a step
/// has a vector of each token. The rows of `x` themselves often begin at the same few places of the
/// first-level cache, which has not enough room there for all of them. A single token is a group of
/// its own.
///
/// With `alternate`, elements are in the order of [`Stored::load_half`] as far as there are whole
/// pairs of vectors.
///
/// The padding is zero: the rest of a row's last vector, and the places of the tokens that the last
/// group lacks.
///
/// [`Stored::load_half`]: crate::cpu::simd::Stored::load_half
pub fn pack(level: Level, x: &[f32], width: usize, alternate: bool) -> Aligned<f32> {
    match level.lanes() {
        16 => pack_vectors::<16>(x, width, alternate),
        _ => pack_vectors::<8>(x, width, alternate),
    }
}

fn pack_vectors<const LANES: usize>(x: &[f32], width: usize, alternate: bool) -> Aligned<f32> {
    let count = match x.len() / width {
        1 => 1,
        _ => const { tokens(LANES) },
    };
    let panel = count * width.next_multiple_of(LANES);
    let mut packed = Aligned::zeroed((x.len() / width).div_ceil(count) * panel);
    let panels = packed.par_chunks_exact_mut(panel);
    panels.zip(x.par_chunks(count * width)).for_each(|(to, x)| {
        let (to, _) = to.as_chunks_mut::<LANES>();
        for (t, row) in x.chunks_exact(width).enumerate() {
            let mut places = to[t..].iter_mut().step_by(count);
            let pairs = match alternate {
                true => row.len() / (2 * LANES),
                false => 0,
            };
            let (pairs, rest) = row.split_at(pairs * 2 * LANES);
            for pair in pairs.chunks_exact(2 * LANES) {
                let (Some(first), Some(second)) = (places.next(), places.next()) else {
                    unreachable!("a panel has room for each vector of a row");
                };
                let (pair, _) = pair.as_chunks::<2>();
                for ((pair, first), second) in pair.iter().zip(first).zip(second) {
                    [*first, *second] = *pair;
                }
            }
            let (vectors, rest) = rest.as_chunks::<LANES>();
            for (vector, place) in vectors.iter().zip(places.by_ref()) {
                *place = *vector;
            }
            if let Some(place) = places.next() {
                place[..rest.len()].copy_from_slice(rest);
            }
        }
    });
    packed
}

/// The index of element `k` of token `t` in a panel `[steps, tokens, lanes]`. The element must lie
/// beyond the whole pairs of vectors, whose elements may alternate.
#[inline(always)]
pub const fn place(tokens: usize, lanes: usize, t: usize, k: usize) -> usize {
    (k / lanes * tokens + t) * lanes + k % lanes
}
