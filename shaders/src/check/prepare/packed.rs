//! Products with matrices in blocks of integers, and rows of such tables.

use half::f16;

use super::{Maker, Output, Prepared, Wanted, Work, reference};
use crate::check::Random;
use crate::ragged::indices;
use crate::{BLOCK, BlockFormat, BlockMatrix, Kernels, Summation};

pub(super) fn linear<B: Kernels>(
    mut make: Maker<B>,
    format: BlockFormat,
    [tokens, input, output]: [usize; 3],
    with_bias: bool,
    summation: Summation,
) -> Prepared<B> {
    let (x, x_on) = make.activations(&[tokens, input]);
    let (w, matrix) = blocks(format, output, input, make.random);
    let w_on = B::packed(matrix, make.precision.activations, make.device);
    let (bias, bias_on) = make.activations(&[output]);
    let bias = with_bias.then_some(bias);
    let bias_on = with_bias.then_some(bias_on);
    let (_, activation) = make.precision.sizes();
    Prepared {
        launch: Box::new(move || {
            let (x, bias) = (x_on.clone(), bias_on.clone());
            let y = B::project(x, w_on.clone(), bias, summation);
            vec![Output::Float(y)]
        }),
        want: Box::new(move || {
            let y = reference::linear(&x, &w, bias.as_deref(), input);
            vec![("y", Wanted::Values(y))]
        }),
        work: Work {
            bytes: B::packed_bytes(format, output, input) as u64
                + (tokens * (input + output)) as u64 * activation,
            flops: 2 * (tokens * input * output) as u64,
        },
    }
}

pub(super) fn embed<B: Kernels>(
    make: Maker<B>,
    format: BlockFormat,
    [tokens, vocab, hidden]: [usize; 3],
) -> Prepared<B> {
    let (table, matrix) = blocks(format, vocab, hidden, make.random);
    let table_on = B::packed(matrix, make.precision.activations, make.device);
    let ids: Vec<u32> = (0..tokens)
        .map(|_| make.random.below(vocab) as u32)
        .collect();
    let ids_on = indices::<B>(&ids, make.device);
    let (_, activation) = make.precision.sizes();
    Prepared {
        launch: Box::new(move || vec![Output::Float(B::embed(table_on.clone(), ids_on.clone()))]),
        want: Box::new(move || {
            let rows = ids
                .iter()
                .flat_map(|id| &table[*id as usize * hidden..][..hidden]);
            let rows = rows.map(|x| f64::from(*x)).collect();
            vec![("rows", Wanted::Values(rows))]
        }),
        work: Work {
            bytes: B::packed_bytes(format, tokens, hidden) as u64
                + (tokens * hidden) as u64 * activation,
            flops: 0,
        },
    }
}

/// Random blocks of integers, and their values, `[rows, columns]`.
pub fn blocks(
    format: BlockFormat,
    rows: usize,
    columns: usize,
    random: &mut Random,
) -> (Vec<f32>, BlockMatrix) {
    let mut matrix = BlockMatrix::zeros(format, rows, columns);
    let mut values = Vec::with_capacity(rows * columns);
    for row in 0..rows {
        let (mut bytes, mut row_values) = (Vec::new(), Vec::new());
        for _ in 0..columns.div_ceil(BLOCK) {
            // Now and then one that f16 has only as a subnormal.
            let step = match (format, random.one_in(8)) {
                (_, true) => 3e-6,
                (BlockFormat::Q8_0, _) => 0.01,
                _ => 0.15,
            };
            let scale = f16::from_f32(step * random.normal(1)[0]);
            bytes.extend_from_slice(&scale.to_le_bytes());
            let elements: Vec<u8> = (0..format.bytes() - size_of::<f16>())
                .map(|_| random.bits() as u8)
                .collect();
            let scale = scale.to_f32();
            match format {
                BlockFormat::Q8_0 => {
                    let bytes = elements.iter();
                    row_values.extend(bytes.map(|byte| f32::from(*byte as i8) * scale));
                }
                BlockFormat::Q4_0 => {
                    let value = |four: u8| (f32::from(four) - 8.0) * scale;
                    row_values.extend(elements.iter().map(|byte| value(byte & 0xf)));
                    row_values.extend(elements.iter().map(|byte| value(byte >> 4)));
                }
                BlockFormat::Bf16 => unreachable!("no integers"),
            }
            bytes.extend(elements);
        }
        matrix.set_row(row, &bytes);
        values.extend_from_slice(&row_values[..columns]);
    }
    (values, matrix)
}
