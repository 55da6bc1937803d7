//! Checks that a row has the same bits whatever else is in the batch: all rows of a case are
//! computed together, and then alone, in other batches, in other orders and, if they belong to
//! sequences, in other chunks.

mod rows;
mod sequences;

use burn::tensor::ops::FloatTensor;

use super::prepare::{float, norm_dtype, packed};
use super::{Case, NormWeight, Precision, Random, poison};
use crate::{BlockFormat, Kernels};

/// A value that depends on the other rows of its batch.
#[derive(Debug, Clone, thiserror::Error)]
#[error(
    "{case:?} in {precision:?}: {what}[{row}, {column}] is {apart:e} in a batch of {rows} rows and \
     {together:e} in one of all"
)]
pub struct Differs {
    pub case: Case,
    pub precision: Precision,
    pub what: &'static str,
    pub row: usize,
    pub column: usize,
    /// Rows of the batch in which the value differs from its value among all rows.
    pub rows: usize,
    pub apart: f32,
    pub together: f32,
}

/// The outputs with their names, each `[rows, width]`, for the requested rows in their order.
type Rows = Vec<(&'static str, Vec<f32>)>;
/// Computes the rows with the given indices.
type Compute<'a> = Box<dyn FnMut(&[usize], &mut Random) -> Rows + 'a>;

/// Computes the rows of `case` together and in several other batches.
///
/// # Errors
/// The first value whose bits differ.
pub fn same_bits<B: Kernels>(
    case: &Case,
    precision: Precision,
    random: &mut Random,
    device: &B::Device,
) -> Result<(), Box<Differs>> {
    let make = Maker::<B> { precision, device };
    let (count, mut compute) = make.rows(case, random);
    let all: Vec<usize> = (0..count).collect();
    let together = compute(&all, random);
    for batch in batches(count, random) {
        for (_, rows) in &together {
            poison::<B>(
                rows.len() / count * batch.len(),
                precision.activations,
                device,
            );
        }
        for ((what, apart), (_, together)) in compute(&batch, random).iter().zip(&together) {
            let width = together.len() / count;
            for (apart, row) in apart.chunks_exact(width).zip(&batch) {
                let together = &together[row * width..][..width];
                let differs =
                    |column: &usize| apart[*column].to_bits() != together[*column].to_bits();
                if let Some(column) = (0..width).find(differs) {
                    return Err(Box::new(Differs {
                        case: case.clone(),
                        precision,
                        what,
                        row: *row,
                        column,
                        rows: batch.len(),
                        apart: apart[column],
                        together: together[column],
                    }));
                }
            }
        }
    }
    Ok(())
}

/// One row alone, a run of neighbouring rows, half of the rows in random order, and all rows in
/// random order.
fn batches(count: usize, random: &mut Random) -> Vec<Vec<usize>> {
    let mut shuffled = |count: usize, of: usize| -> Vec<usize> {
        let rows = random.distinct(count, of);
        rows.into_iter().map(|row| row as usize).collect()
    };
    let all = shuffled(count, count);
    let one = all[..1].to_vec();
    let some = all[..count.div_ceil(2)].to_vec();
    let (first, last) = (all[0].min(all[count - 1]), all[0].max(all[count - 1]));
    vec![one, (first..=last).collect(), some, all]
}

struct Maker<'a, B: Kernels> {
    precision: Precision,
    device: &'a B::Device,
}

impl<'a, B: Kernels> Maker<'a, B> {
    fn stored(&self, values: &[f32], shape: &[usize]) -> FloatTensor<B> {
        float::<B>(values, shape, self.precision.stored, self.device)
    }

    /// A random matrix of weights, in blocks of integers if a `format` is given.
    fn matrix(
        &self,
        format: Option<BlockFormat>,
        rows: usize,
        columns: usize,
        random: &mut Random,
    ) -> FloatTensor<B> {
        match format {
            None => self.stored(&random.normal(rows * columns), &[rows, columns]),
            Some(format) => {
                let activations = self.precision.activations;
                packed::<B>(format, [rows, columns], activations, random, self.device).1
            }
        }
    }

    fn activations(&self, values: &[f32], shape: &[usize]) -> FloatTensor<B> {
        float::<B>(values, shape, self.precision.activations, self.device)
    }

    /// Random weights of a norm.
    fn norm(&self, weight: NormWeight, size: usize, random: &mut Random) -> FloatTensor<B> {
        let dtype = norm_dtype(weight, self.precision);
        float::<B>(&random.normal(size), &[size], dtype, self.device)
    }

    /// The `rows` of `values` `[rows, width]`, as a tensor.
    fn pick(&self, values: &[f32], width: usize, rows: &[usize]) -> FloatTensor<B> {
        let picked: Vec<f32> = rows
            .iter()
            .flat_map(|row| &values[row * width..][..width])
            .copied()
            .collect();
        self.activations(&picked, &[rows.len(), width])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_batch_has_existing_rows_and_each_at_most_once() {
        let mut random = Random::seeded(3);
        for count in [1, 2, 7, 40] {
            for batch in batches(count, &mut random) {
                let mut seen = batch.clone();
                seen.sort_unstable();
                seen.dedup();
                assert_eq!(seen.len(), batch.len());
                assert!(!seen.is_empty() && seen.iter().all(|row| *row < count));
            }
        }
    }
}
