//! Mixture of experts.

use super::linear;
use crate::{ExpertActivation, ExpertWeights, Routing};

/// The ids and the weights of the experts of each row, `[rows, top]`.
pub fn choose_experts(logits: &[f32], experts: usize, routing: Routing) -> (Vec<i32>, Vec<f64>) {
    let (mut ids, mut weights) = (vec![], vec![]);
    for row in logits.chunks(experts) {
        let mut order: Vec<usize> = (0..experts).collect();
        // The sort is stable, so that equal logits stay in the order of their ids.
        order.sort_by(|a, b| row[*b].total_cmp(&row[*a]));
        let chosen = &order[..routing.top];
        let share = |id: &usize| f64::from(row[*id]).exp();
        let total: f64 = match routing.weights {
            ExpertWeights::OfAll => order.iter().map(share).sum(),
            ExpertWeights::OfChosen => chosen.iter().map(share).sum(),
        };
        ids.extend(chosen.iter().map(|id| *id as i32));
        weights.extend(chosen.iter().map(|id| share(id) / total));
    }
    (ids, weights)
}

/// The values of [`Experts`](crate::Experts).
pub struct ExpertValues<'a> {
    pub gate_up: &'a [f32],
    pub gate_up_bias: Option<&'a [f32]>,
    pub down: &'a [f32],
    pub down_bias: Option<&'a [f32]>,
    pub hidden: usize,
    pub width: usize,
    pub activation: ExpertActivation,
}

/// The mixed rows, and the size of each element: the root of the sum of the squares of all its
/// terms, those of every expert included. `ids` and `weights` are `[rows, top]`.
pub fn mix_experts(
    x: &[f32],
    ids: &[i32],
    weights: &[f32],
    values: &ExpertValues<'_>,
) -> (Vec<f64>, Vec<f64>) {
    let (hidden, width) = (values.hidden, values.width);
    let top = ids.len() / (x.len() / hidden);
    let (mut out, mut squares) = (vec![0.0; x.len()], vec![0.0; x.len()]);
    let results = out.chunks_mut(hidden).zip(squares.chunks_mut(hidden));
    let rows = x.chunks(hidden).zip(results);
    for ((x, (out, squares)), (ids, weights)) in rows.zip(ids.chunks(top).zip(weights.chunks(top)))
    {
        for (id, weight) in ids.iter().zip(weights) {
            let id = *id as usize;
            let gate_up = &values.gate_up[id * 2 * width * hidden..][..2 * width * hidden];
            let bias = values.gate_up_bias.map(|bias| &bias[id * 2 * width..]);
            let both = linear(x, gate_up, bias, hidden);
            let (gates, ups) = both.split_at(width);
            let gated = gates
                .iter()
                .zip(ups)
                .map(|(gate, up)| match values.activation {
                    ExpertActivation::Silu => gate / (1.0 + (-gate).exp()) * up,
                    ExpertActivation::Clamped { alpha, limit } => {
                        let (alpha, limit) = (f64::from(alpha), f64::from(limit));
                        let (gate, up) = (gate.min(limit), up.clamp(-limit, limit));
                        gate / (1.0 + (-alpha * gate).exp()) * (up + 1.0)
                    }
                });
            let gated: Vec<f64> = gated.collect();
            for (row, (out, squares)) in out.iter_mut().zip(&mut *squares).enumerate() {
                let down = &values.down[(id * hidden + row) * width..][..width];
                let bias = values.down_bias.map_or(0.0, |bias| bias[id * hidden + row]);
                let products = gated.iter().zip(down).map(|(g, d)| g * f64::from(*d));
                for term in products.chain([f64::from(bias)]) {
                    let term = f64::from(*weight) * term;
                    *out += term;
                    *squares += term * term;
                }
            }
        }
    }
    (out, squares.into_iter().map(f64::sqrt).collect())
}
