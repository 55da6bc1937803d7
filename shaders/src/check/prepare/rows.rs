//! Cases of kernels that compute each row by itself.

use burn::tensor::TensorData;

use super::{
    CAP, EPS, Expected, LOGIT_SCALE, Maker, NormWeight, Output, Prepared, RESIDUAL_SCALE, Work,
    exact, reference,
};
use crate::{Activation, HeadLayout, Kernels, QkNorm};

pub(super) fn rms_norm<B: Kernels>(
    mut make: Maker<B>,
    [tokens, hidden]: [usize; 2],
    weight: NormWeight,
) -> Prepared<B> {
    let (x, x_on) = make.activations(&[tokens, hidden]);
    let (weight, weight_on) = make.norm(weight, hidden);
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
    weight: NormWeight,
) -> Prepared<B> {
    let (x, x_on) = make.activations(&[tokens, hidden]);
    let (delta, delta_on) = make.activations(&[tokens, hidden]);
    let (weight, weight_on) = make.norm(weight, hidden);
    let dtype = make.precision.activations;
    let (_, activation) = make.precision.sizes();
    Prepared {
        launch: Box::new(move || {
            let (x, delta, weight) = (x_on.clone(), delta_on.clone(), weight_on.clone());
            let (sum, normed) = B::add_rms_norm(x, delta, RESIDUAL_SCALE, weight, EPS);
            vec![Output::Float(sum), Output::Float(normed)]
        }),
        want: Box::new(move || {
            // The norm uses the sum as it is stored.
            let pairs = x.iter().zip(&delta);
            let sum: Vec<f32> = pairs.map(|(x, delta)| x + RESIDUAL_SCALE * delta).collect();
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

pub(super) fn norm_projections<B: Kernels>(
    mut make: Maker<B>,
    tokens: usize,
    layout: HeadLayout,
    weight: NormWeight,
) -> Prepared<B> {
    let (queries, keys) = (
        layout.heads * layout.head_dim,
        layout.kv_heads * layout.head_dim,
    );
    let dtype = make.precision.activations;
    let qkv = make.random.normal_as(dtype, tokens * layout.qkv_width());
    let (q, q_on) = make.norm(weight, queries);
    let (k, k_on) = make.norm(weight, keys);
    let norm = QkNorm::<B> {
        q: q_on,
        k: k_on,
        eps: EPS,
    };
    let device = make.device.clone();
    let (_, activation) = make.precision.sizes();
    Prepared {
        launch: Box::new({
            let qkv = qkv.clone();
            move || {
                // The kernel may write in place, so each call gets a tensor of its own.
                let shape = [tokens, layout.qkv_width()];
                let qkv = super::float::<B>(&qkv, &shape, dtype, &device);
                vec![Output::Float(B::norm_projections(qkv, layout, &norm))]
            }
        }),
        want: Box::new(move || {
            let normed = reference::norm_projections(&qkv, layout, [&q, &k], f64::from(EPS));
            vec![("qkv", Expected::Values(normed))]
        }),
        work: Work {
            bytes: 2 * (tokens * (queries + keys)) as u64 * activation,
            flops: 0,
        },
    }
}

pub(super) fn gate<B: Kernels>(
    mut make: Maker<B>,
    [tokens, inner]: [usize; 2],
    activation: Activation,
) -> Prepared<B> {
    let (gate_up, gate_up_on) = make.activations(&[tokens, 2 * inner]);
    let (_, element) = make.precision.sizes();
    Prepared {
        launch: Box::new(move || vec![Output::Float(B::gate(gate_up_on.clone(), activation))]),
        want: Box::new(move || {
            let gated = reference::gate(&exact(&gate_up), inner, activation);
            vec![("gated", Expected::Values(gated))]
        }),
        work: Work {
            bytes: 3 * (tokens * inner) as u64 * element,
            flops: 0,
        },
    }
}

pub(super) fn scale_and_cap<B: Kernels>(
    mut make: Maker<B>,
    [rows, vocab]: [usize; 2],
    capped: bool,
) -> Prepared<B> {
    let cap = capped.then_some(CAP);
    let (x, x_on) = make.activations(&[rows, vocab]);
    let (_, activation) = make.precision.sizes();
    Prepared {
        launch: Box::new(move || {
            let scaled = B::scale_and_cap(x_on.clone(), LOGIT_SCALE, cap);
            vec![Output::Float(scaled)]
        }),
        want: Box::new(move || {
            let scaled = x.iter().map(|x| f64::from(*x) * f64::from(LOGIT_SCALE));
            let bounded = scaled.map(|x| reference::bounded(x, cap));
            vec![("scaled", Expected::Values(bounded.collect()))]
        }),
        work: Work {
            bytes: 2 * (rows * vocab) as u64 * activation,
            flops: 0,
        },
    }
}
