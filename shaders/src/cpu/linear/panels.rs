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
/// first-level cache, which has not enough room there for all of them.
///
/// The padding is zero: the rest of a row's last vector, and the places of the tokens that the last
/// group lacks.
pub fn pack(level: Level, x: &[f32], width: usize) -> Aligned<f32> {
    match level.lanes() {
        16 => pack_vectors::<16>(x, width),
        _ => pack_vectors::<8>(x, width),
    }
}

fn pack_vectors<const LANES: usize>(x: &[f32], width: usize) -> Aligned<f32> {
    let count = const { tokens(LANES) };
    let panel = count * width.next_multiple_of(LANES);
    let mut packed = Aligned::zeroed((x.len() / width).div_ceil(count) * panel);
    let panels = packed.par_chunks_exact_mut(panel);
    panels.zip(x.par_chunks(count * width)).for_each(|(to, x)| {
        let (to, _) = to.as_chunks_mut::<LANES>();
        for (t, row) in x.chunks_exact(width).enumerate() {
            let mut places = to[t..].iter_mut().step_by(count);
            let (vectors, rest) = row.as_chunks::<LANES>();
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
