//! Changes that are relative to the base model's numbers: directions and lengths of rows (DoRA, Liu
//! et al., arXiv 2402.09353), and biases that replace those of the base model.

use hearth_forward::{AdaptedMatrix, LowRank};
use rayon::prelude::*;

use super::base::Base;
use super::error::LoraError;
use crate::weights::TensorView;

/// Tokens of an embedding that are computed together.
const TOKENS: usize = 1024;

/// The numbers of a module that are relative to the base model.
pub struct Relative {
    /// `[out]`: the lengths that the rows of the changed matrix are to have.
    pub magnitude: Option<Vec<f32>>,
    /// `[out]`: the bias in place of the base model's.
    pub bias: Option<Vec<f32>>,
}

impl Relative {
    /// Turns the magnitudes and the bias into factors and a bias of the base model's output, or of that of
    /// `table`, which takes its place.
    pub fn apply(
        self,
        change: &mut LowRank,
        base: &Base<'_>,
        table: Option<&TensorView<'_>>,
    ) -> Result<(), LoraError> {
        let Self { magnitude, bias } = self;
        if magnitude.is_none() && bias.is_none() {
            return Ok(());
        }
        let before = base.bias(change.matrix)?;
        if let Some(magnitude) = magnitude {
            let lengths = match table {
                Some(table) => lengths(change, table),
                None => lengths(change, &base.matrix(change.matrix)?),
            };
            if let Some(row) = lengths.iter().position(|length| *length == 0.0) {
                let reason = format!("row {row} of {:?} has length 0", change.matrix);
                return Err(LoraError::Base(reason));
            }
            let factors = magnitude.iter().zip(&lengths);
            change.scale = factors
                .map(|(magnitude, length)| (f64::from(*magnitude) / length) as f32)
                .collect();
            for row in change.b.chunks_exact_mut(change.scale.len()) {
                let pairs = row.iter_mut().zip(&change.scale);
                pairs.for_each(|(value, factor)| *value *= factor);
            }
        }
        // The base model's bias is in the output that is multiplied; this corrects it.
        let Some(before) = before else {
            return Ok(());
        };
        let after = bias.as_ref().unwrap_or(&before);
        let difference = before.iter().zip(after).enumerate();
        let difference = difference.map(|(index, (before, after))| {
            let factor = change.scale.get(index).copied().unwrap_or(1.0);
            after - factor * before
        });
        let difference: Vec<f32> = difference.collect();
        match change.bias.is_empty() {
            true => change.bias = difference,
            false => {
                let pairs = change.bias.iter_mut().zip(&difference);
                pairs.for_each(|(sum, other)| *sum += other);
            }
        }
        Ok(())
    }
}

/// The lengths `[out]` of the vectors of weights of each output, with the change in them. `base` is
/// as [`Base::matrix`] returns it; a row of it at a time is in f32.
fn lengths(change: &LowRank, base: &TensorView<'_>) -> Vec<f64> {
    let rank = change.rank;
    let output = change.b.len() / rank;
    let squares = match change.matrix {
        AdaptedMatrix::Embedding => {
            let factors = change.a.par_chunks(TOKENS * rank).enumerate();
            let parts: Vec<Vec<f64>> = factors
                .map(|(part, factors)| {
                    let mut squares = vec![0.0; output];
                    let mut row = vec![0.0; output];
                    for (index, factors) in factors.chunks_exact(rank).enumerate() {
                        base.row(part * TOKENS + index, &mut row);
                        for (factor, b) in factors.iter().zip(change.b.chunks_exact(output)) {
                            add_times(&mut row, *factor, b);
                        }
                        let pairs = squares.iter_mut().zip(&row);
                        pairs.for_each(|(sum, value)| *sum += f64::from(*value).powi(2));
                    }
                    squares
                })
                .collect();
            parts.into_iter().fold(vec![0.0; output], |mut sums, part| {
                let pairs = sums.iter_mut().zip(part);
                pairs.for_each(|(sum, part)| *sum += part);
                sums
            })
        }
        _ => {
            let input = change.a.len() / rank;
            let rows = (0..output).into_par_iter();
            rows.map(|index| {
                let mut row = vec![0.0; input];
                base.row(index, &mut row);
                for (j, a) in change.a.chunks_exact(input).enumerate() {
                    add_times(&mut row, change.b[j * output + index], a);
                }
                row.iter()
                    .map(|value| f64::from(*value).powi(2))
                    .sum::<f64>()
            })
            .collect::<Vec<f64>>()
        }
    };
    squares.into_iter().map(f64::sqrt).collect()
}

fn add_times(to: &mut [f32], factor: f32, values: &[f32]) {
    let pairs = to.iter_mut().zip(values);
    pairs.for_each(|(to, value)| *to += factor * value);
}
