//! Norms and activations, one row per token.

use rayon::prelude::*;

use super::simd::{exp, vectorised};

/// Below this many elements a second thread costs more than it saves.
const PARALLEL_FROM: usize = 1 << 15;

/// RMSNorm of the rows of `x`, as wide as `weight`.
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let mut out = vec![0.0; x.len()];
    by_rows(x, &mut out, weight.len(), weight.len(), |x, out| {
        norm_row(x, weight, eps, out)
    });
    out
}

#[inline(always)]
fn norm_row(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let scale = inverse_rms(x, eps);
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = x * scale * weight;
    }
}

/// `1 / sqrt(mean(x^2) + eps)`
#[inline(always)]
pub fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    // Sixteen partial sums: the compiler may not reorder one.
    let mut sums = [0.0f32; 16];
    let chunks = x.chunks_exact(16);
    let tail: f32 = chunks.remainder().iter().map(|x| x * x).sum();
    for chunk in chunks {
        sums.iter_mut()
            .zip(chunk)
            .for_each(|(sum, x)| *sum += x * x);
    }
    let mean = (sums.iter().sum::<f32>() + tail) / x.len() as f32;
    1.0 / (mean + eps).sqrt()
}

/// `silu(gate) * up` of rows `[gate, up]`, each `inner` wide.
pub fn silu_mul(gate_up: &[f32], inner: usize) -> Vec<f32> {
    let mut out = vec![0.0; gate_up.len() / 2];
    by_rows(gate_up, &mut out, 2 * inner, inner, |row, out| {
        let (gate, up) = row.split_at(inner);
        for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
            *out = gate / (1.0 + exp(-gate)) * up;
        }
    });
    out
}

fn by_rows(
    from: &[f32],
    to: &mut [f32],
    from_width: usize,
    to_width: usize,
    row: impl Fn(&[f32], &mut [f32]) + Sync,
) {
    if from.len() < PARALLEL_FROM {
        let rows = from
            .chunks_exact(from_width)
            .zip(to.chunks_exact_mut(to_width));
        rows.for_each(|(from, to)| vectorised(|| row(from, to)));
    } else {
        let rows = from
            .par_chunks_exact(from_width)
            .zip(to.par_chunks_exact_mut(to_width));
        rows.for_each(|(from, to)| vectorised(|| row(from, to)));
    }
}
