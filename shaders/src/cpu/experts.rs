//! Mixture of experts on the CPU.
//!
//! The pairs of a row and one of its experts are put in the order of the experts, so that an
//! expert's matrices are read once for all of its rows, and those of other experts are not read.
//! The threads share the rows of all matrices. Each product is summed as in a plain linear layer
//! and the outputs of a row's experts are added in the order of their logits, so that a row has the
//! same bits in any batch.

#[cfg(test)]
mod tests;

use std::ops::Range;

use rayon::prelude::*;

use super::elementwise::{self, PARALLEL_FROM};
use super::simd::{Simd, Task, dispatch, exp};
use crate::{Activation, ExpertActivation, ExpertWeights, Routing};

/// The ids and the weights of the experts of each row of `logits` `[rows, experts]`: `[rows, top]`
/// each.
///
/// # Panics
/// There are fewer experts than a row is to have.
pub fn choose(logits: &[f32], experts: usize, routing: Routing) -> (Vec<i32>, Vec<f32>) {
    assert!(
        routing.top <= experts,
        "choose_experts: {} of {experts} experts",
        routing.top
    );
    let count = logits.len() / experts * routing.top;
    let (mut ids, mut weights) = (vec![0; count], vec![0.0; count]);
    let of_row = |((logits, ids), weights): ((&[f32], &mut [i32]), &mut [f32])| {
        choose_for_row(logits, routing.weights, ids, weights);
    };
    if logits.len() * routing.top < PARALLEL_FROM {
        let rows = logits.chunks_exact(experts);
        let rows = rows.zip(ids.chunks_exact_mut(routing.top));
        rows.zip(weights.chunks_exact_mut(routing.top))
            .for_each(of_row);
    } else {
        let rows = logits.par_chunks_exact(experts);
        let rows = rows.zip(ids.par_chunks_exact_mut(routing.top));
        rows.zip(weights.par_chunks_exact_mut(routing.top))
            .for_each(of_row);
    }
    (ids, weights)
}

fn choose_for_row(logits: &[f32], kind: ExpertWeights, ids: &mut [i32], weights: &mut [f32]) {
    let finite = logits.iter().copied().map(finite);
    let mut left: Vec<f32> = finite.clone().collect();
    for (id, weight) in ids.iter_mut().zip(&mut *weights) {
        let mut best = 0;
        for (candidate, logit) in left.iter().enumerate() {
            if *logit > left[best] {
                best = candidate;
            }
        }
        (*id, *weight) = (best as i32, left[best]);
        // Every logit that is left is larger.
        left[best] = f32::NEG_INFINITY;
    }
    let largest = weights[0];
    let total: f32 = match kind {
        ExpertWeights::OfAll => finite.map(|logit| (logit - largest).exp()).sum(),
        ExpertWeights::OfChosen => weights.iter().map(|logit| (logit - largest).exp()).sum(),
    };
    for weight in weights {
        *weight = (*weight - largest).exp() / total;
    }
}

/// The number itself if it is finite; otherwise the largest finite number of its sign, and for NaN
/// the smallest.
fn finite(logit: f32) -> f32 {
    match logit.is_nan() {
        true => f32::MIN,
        false => logit.clamp(f32::MIN, f32::MAX),
    }
}

/// The pairs of a row and one of its experts, by expert.
pub struct Pairs {
    /// The experts that have rows, and their pairs.
    pub groups: Vec<(usize, Range<usize>)>,
    /// The row of each pair.
    rows: Vec<u32>,
    /// `[rows, top]`: the pair of each row and rank.
    places: Vec<u32>,
    top: usize,
}

impl Pairs {
    /// `ids` is `[rows, top]`.
    ///
    /// # Panics
    /// An id is not below `experts`.
    pub fn of(ids: &[i32], top: usize, experts: usize) -> Self {
        let mut next = vec![0; experts];
        for id in ids {
            next[*id as usize] += 1;
        }
        let mut groups = Vec::new();
        let mut from = 0;
        for (expert, next) in next.iter_mut().enumerate() {
            let to = from + *next;
            if to > from {
                groups.push((expert, from..to));
            }
            (*next, from) = (from, to);
        }
        let (mut rows, mut places) = (vec![0; ids.len()], vec![0; ids.len()]);
        for (index, (id, place)) in ids.iter().zip(&mut places).enumerate() {
            let next = &mut next[*id as usize];
            rows[*next] = (index / top) as u32;
            *place = *next as u32;
            *next += 1;
        }
        Self {
            groups,
            rows,
            places,
            top,
        }
    }

    pub fn count(&self) -> usize {
        self.rows.len()
    }

    /// The row of `x` `[rows, width]` of each pair: `[pairs, width]`.
    pub fn gather(&self, x: &[f32], width: usize) -> Vec<f32> {
        let row = |row: &u32| &x[*row as usize * width..][..width];
        if self.count() * width < PARALLEL_FROM {
            return self.rows.iter().flat_map(row).copied().collect();
        }
        let mut all = vec![0.0; self.count() * width];
        let rows = all.par_chunks_exact_mut(width).zip(&self.rows);
        rows.for_each(|(to, from)| to.copy_from_slice(row(from)));
        all
    }

    /// The sums over the pairs of each row of `y` `[pairs, width]`, times the `weights` `[rows,
    /// top]`: `[rows, width]`.
    pub fn mix(&self, y: &[f32], weights: &[f32], width: usize) -> Vec<f32> {
        let mut mixed = vec![0.0; self.count() / self.top * width];
        let of_row = |((out, places), weights): ((&mut [f32], &[u32]), &[f32])| {
            for (place, weight) in places.iter().zip(weights) {
                let y = &y[*place as usize * width..][..width];
                dispatch(AddTimes {
                    out: &mut *out,
                    y,
                    weight: *weight,
                });
            }
        };
        let top = self.top;
        if y.len() < PARALLEL_FROM {
            let rows = mixed.chunks_exact_mut(width);
            let rows = rows.zip(self.places.chunks_exact(top));
            rows.zip(weights.chunks_exact(top)).for_each(of_row);
        } else {
            let rows = mixed.par_chunks_exact_mut(width);
            let rows = rows.zip(self.places.par_chunks_exact(top));
            rows.zip(weights.par_chunks_exact(top)).for_each(of_row);
        }
        mixed
    }
}

struct AddTimes<'a> {
    out: &'a mut [f32],
    y: &'a [f32],
    weight: f32,
}

impl Task for AddTimes<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for (out, y) in self.out.iter_mut().zip(self.y) {
            *out += self.weight * y;
        }
    }
}

/// The activation of rows `[gate, up]`, each `width` wide: `[pairs, 2 * width]` gives
/// `[pairs, width]`.
pub fn activate(gate_up: &[f32], width: usize, activation: ExpertActivation) -> Vec<f32> {
    let Some((alpha, limit)) = activation.clamp() else {
        return elementwise::gate(gate_up, width, Activation::Silu);
    };
    let mut out = vec![0.0; gate_up.len() / 2];
    let of_row = |(out, row): (&mut [f32], &[f32])| {
        let (gate, up) = row.split_at(width);
        dispatch(Clamped {
            gate,
            up,
            alpha,
            limit,
            out,
        });
    };
    if gate_up.len() < PARALLEL_FROM {
        let rows = out.chunks_exact_mut(width);
        rows.zip(gate_up.chunks_exact(2 * width)).for_each(of_row);
    } else {
        let rows = out.par_chunks_exact_mut(width);
        rows.zip(gate_up.par_chunks_exact(2 * width))
            .for_each(of_row);
    }
    out
}

struct Clamped<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    alpha: f32,
    limit: f32,
    out: &'a mut [f32],
}

impl Task for Clamped<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (alpha, limit) = (self.alpha, self.limit);
        for ((out, gate), up) in self.out.iter_mut().zip(self.gate).zip(self.up) {
            // Unlike `min` of f32, the comparison keeps NaN, as `clamp` does.
            let gate = if *gate > limit { limit } else { *gate };
            let up = up.clamp(-limit, limit);
            *out = gate / (1.0 + exp::<S>(-alpha * gate)) * (up + 1.0);
        }
    }
}
