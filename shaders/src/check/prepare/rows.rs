//! Cases of kernels that compute each row by itself.

use burn::tensor::TensorData;

use super::{EPS, Expected, Maker, Output, Prepared, Work, exact, reference};
use crate::Kernels;

pub(super) fn rms_norm<B: Kernels>(
    mut make: Maker<B>,
    [tokens, hidden]: [usize; 2],
) -> Prepared<B> {
    let (x, x_on) = make.activations(&[tokens, hidden]);
    let (weight, weight_on) = make.activations(&[hidden]);
    let (_, activation) = make.precision.sizes();
    Prepared {
        launch: Box::new(move || {
            let normed = B::rms_norm(x_on.clone(), weight_on.clone(), EPS);
            vec![Output::Float(normed)]
        }),
        want: Box::new(move || {
            let normed = reference::rms_norm(&x, &weight, f64::from(EPS));
            vec![("normed", Expected::Values(normed))]
        }),
        work: Work {
            bytes: 2 * (tokens * hidden) as u64 * activation,
            flops: 0,
        },
    }
}

pub(super) fn add_rms_norm<B: Kernels>(
    mut make: Maker<B>,
    [tokens, hidden]: [usize; 2],
) -> Prepared<B> {
    let (x, x_on) = make.activations(&[tokens, hidden]);
    let (delta, delta_on) = make.activations(&[tokens, hidden]);
    let (weight, weight_on) = make.activations(&[hidden]);
    let dtype = make.precision.activations;
    let (_, activation) = make.precision.sizes();
    Prepared {
        launch: Box::new(move || {
            let (sum, normed) =
                B::add_rms_norm(x_on.clone(), delta_on.clone(), weight_on.clone(), EPS);
            vec![Output::Float(sum), Output::Float(normed)]
        }),
        want: Box::new(move || {
            // The norm uses the sum as it is stored.
            let sum: Vec<f32> = x.iter().zip(&delta).map(|(x, delta)| x + delta).collect();
            let count = sum.len();
            let sum: Vec<f32> = TensorData::new(sum, [count])
                .convert_dtype(dtype)
                .convert::<f32>()
                .into_vec()
                .expect("converted to f32");
            let normed = reference::rms_norm(&sum, &weight, f64::from(EPS));
            vec![
                ("sum", Expected::Values(exact(&sum))),
                ("normed", Expected::Values(normed)),
            ]
        }),
        work: Work {
            bytes: 4 * (tokens * hidden) as u64 * activation,
            flops: 0,
        },
    }
}

pub(super) fn silu_mul<B: Kernels>(mut make: Maker<B>, [tokens, inner]: [usize; 2]) -> Prepared<B> {
    let (gate_up, gate_up_on) = make.activations(&[tokens, 2 * inner]);
    let (_, activation) = make.precision.sizes();
    Prepared {
        launch: Box::new(move || vec![Output::Float(B::silu_mul(gate_up_on.clone()))]),
        want: Box::new(move || {
            let gated = reference::silu_mul(&exact(&gate_up), inner);
            vec![("gated", Expected::Values(gated))]
        }),
        work: Work {
            bytes: 3 * (tokens * inner) as u64 * activation,
            flops: 0,
        },
    }
}
