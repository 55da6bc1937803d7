//! Sums of several adapters, each with a factor of its own.

use std::borrow::Borrow;

use hearth_forward::{Adapter, LowRank};

use super::adapter;
use super::error::LoraError;

/// The adapter that adds up `parts`, each times its factor: its ranks are the sums of theirs, because
/// factors one below another add up.
///
/// # Errors
/// There is nothing to add up, the sum of the ranks is above `most_rank`, or an adapter with whole tables
/// would be scaled or added to another one.
pub fn combined<A: Borrow<Adapter>>(
    parts: &[(A, f32)],
    most_rank: usize,
) -> Result<Adapter, LoraError> {
    let applied = parts.iter().filter(|(_, scale)| *scale != 0.0);
    let applied: Vec<(&Adapter, f32)> = applied
        .map(|(part, scale)| (part.borrow(), *scale))
        .collect();
    if applied.iter().any(|(part, _)| part.has_tables()) {
        return match applied[..] {
            [(alone, 1.0)] => Ok(alone.clone()),
            _ => Err(LoraError::TablesInSum),
        };
    }
    let mut sums: Vec<LowRank> = Vec::new();
    for (part, scale) in applied {
        for change in &part.changes {
            let mut change = change.clone();
            let scaled = change.b.iter_mut().chain(&mut change.bias);
            scaled.for_each(|value| *value *= scale);
            let factors = change.scale.iter_mut();
            // Written so that a scale of 1 changes no bit.
            factors.for_each(|factor| *factor += (scale - 1.0) * (*factor - 1.0));
            match sums.iter_mut().find(|sum| sum.matrix == change.matrix) {
                Some(sum) => add(sum, change),
                None => sums.push(change),
            }
        }
    }
    let adapter = adapter(sums, Vec::new())?;
    match adapter.rank() {
        rank if rank > most_rank => Err(LoraError::Rank {
            given: rank,
            most: most_rank,
        }),
        _ => Ok(adapter),
    }
}

fn add(sum: &mut LowRank, other: LowRank) {
    use hearth_forward::AdaptedMatrix::Embedding;
    if sum.matrix == Embedding {
        // The rows of single tokens become longer.
        let rows = sum.a.chunks_exact(sum.rank);
        let both = rows.zip(other.a.chunks_exact(other.rank));
        sum.a = both.flat_map(|(a, b)| [a, b].concat()).collect();
    } else {
        sum.a.extend_from_slice(&other.a);
    }
    sum.b.extend_from_slice(&other.b);
    sum.rank += other.rank;
    add_up(&mut sum.bias, other.bias, 0.0);
    add_up(&mut sum.scale, other.scale, 1.0);
}

/// Adds up two vectors by how much they differ from `nothing`, which an empty one stands for.
fn add_up(sum: &mut Vec<f32>, other: Vec<f32>, nothing: f32) {
    match (sum.is_empty(), other.is_empty()) {
        (_, true) => {}
        (true, false) => *sum = other,
        (false, false) => {
            let pairs = sum.iter_mut().zip(&other);
            pairs.for_each(|(sum, other)| *sum += other - nothing);
        }
    }
}
