//! Cases of matrix multiplications and embedding look-ups.

use super::{Expected, Maker, Output, Prepared, Work, reference};
use crate::indices;
use crate::{Activation, BlockFormat, Kernels, Summation};

pub(super) fn linear<B: Kernels>(
    mut make: Maker<B>,
    format: Option<BlockFormat>,
    [tokens, input, output]: [usize; 3],
    with_bias: bool,
    gated: Option<Activation>,
    summation: Summation,
) -> Prepared<B> {
    let rows = if gated.is_some() { 2 * output } else { output };
    let (x, x_on) = make.activations(&[tokens, input]);
    let (w, w_on) = make.matrix(format, rows, input);
    let (bias, bias_on) = make.activations(&[rows]);
    let bias = with_bias.then_some(bias);
    let bias_on = with_bias.then_some(bias_on);
    let (_, activation) = make.precision.sizes();
    let bytes = make.matrix_bytes(format, rows, input);
    Prepared {
        launch: Box::new(move || {
            let (x, bias) = (x_on.clone(), bias_on.clone());
            vec![Output::Float(match gated {
                Some(activation) => B::project_gated(x, w_on.clone(), bias, activation, summation),
                None => B::project(x, w_on.clone(), bias, summation),
            })]
        }),
        want: Box::new(move || {
            let y = reference::linear(&x, &w, bias.as_deref(), input);
            let expected = match gated {
                Some(activation) => Expected::Composed {
                    values: reference::gate(&y, output, activation),
                    sizes: reference::gate_sizes(&y, output, activation),
                },
                None => Expected::Values(y),
            };
            vec![("y", expected)]
        }),
        work: Work {
            bytes: bytes + (tokens * (input + output)) as u64 * activation,
            flops: 2 * (tokens * input * rows) as u64,
        },
    }
}

pub(super) fn embed<B: Kernels>(
    mut make: Maker<B>,
    format: Option<BlockFormat>,
    [tokens, vocab, hidden]: [usize; 3],
) -> Prepared<B> {
    let (table, table_on) = make.matrix(format, vocab, hidden);
    let ids: Vec<u32> = (0..tokens)
        .map(|_| make.random.below(vocab) as u32)
        .collect();
    let ids_on = indices::<B>(&ids, make.device);
    let (_, activation) = make.precision.sizes();
    let bytes = make.matrix_bytes(format, tokens, hidden);
    Prepared {
        launch: Box::new(move || vec![Output::Float(B::embed(table_on.clone(), ids_on.clone()))]),
        want: Box::new(move || {
            let rows = ids
                .iter()
                .flat_map(|id| &table[*id as usize * hidden..][..hidden]);
            vec![(
                "rows",
                Expected::Values(rows.map(|x| f64::from(*x)).collect()),
            )]
        }),
        work: Work {
            bytes: bytes + (tokens * hidden) as u64 * activation,
            flops: 0,
        },
    }
}
