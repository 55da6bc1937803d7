//! Tests multiplications with matrices of floats against f64, with all kinds of vectors.

use half::{bf16, f16};

use super::*;
use crate::cpu::noise::noise;

/// `(tokens, output)`: incomplete tiles and groups of all kinds, and in the last ones more tokens
/// than stay in a cache, so many that weights are widened once.
const SIZES: [(usize, usize); 9] = [
    (1, 1),
    (1, 70),
    (2, 24),
    (3, 33),
    (4, 16),
    (9, 17),
    (31, 5),
    (90, 52),
    (131, 4),
];

/// Checks that multiplications with weights of type `E` agree with f64 for all kinds of vectors,
/// and that each token has the same bits when it is computed alone.
fn check<E: Stored>() {
    for (seed, (tokens, output)) in (0..).zip(SIZES) {
        for input in [1, 7, 16, 33, 48, 63, 576, 1100, 2300] {
            let x = noise(tokens * input, seed);
            let weight = noise(output * input, seed + 100).into_iter();
            let weight: Vec<E> = weight.map(E::narrow).collect();
            let bias = noise(output, seed + 200);
            for level in Level::list() {
                let run = |x: &[f32]| {
                    let mut y = vec![f32::NAN; x.len() / input * output];
                    let to = Output::of(&mut y, output);
                    let job = Job {
                        x,
                        weight: &weight[..],
                        bias: Some(&bias),
                        addend: None,
                        y: to,
                    };
                    on_vectors(level, &[job], input);
                    y
                };
                let y = run(&x);
                for (token, y) in y.chunks_exact(output).enumerate() {
                    let x = &x[token * input..][..input];
                    assert_eq!(run(x), y, "{level:?}: {tokens} x {output} x {input} alone");
                    for (row, y) in y.iter().enumerate() {
                        let (mut sum, mut size) = (f64::from(bias[row]), 1.0);
                        for (x, w) in x.iter().zip(&weight[row * input..]) {
                            let term = f64::from(*x) * f64::from(w.widen());
                            (sum, size) = (sum + term, size + term.abs());
                        }
                        let error = (f64::from(*y) - sum).abs();
                        assert!(
                            error <= 1e-6 * size,
                            "{level:?}: {tokens} x {output} x {input} at {token}, {row}: \
                             {y} is off by {error}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn every_kind_of_vectors_gives_the_products_of_f32() {
    check::<f32>();
}

#[test]
fn every_kind_of_vectors_gives_the_products_of_bf16() {
    check::<bf16>();
}

#[test]
fn every_kind_of_vectors_gives_the_products_of_f16() {
    check::<f16>();
}

#[test]
fn values_that_are_not_finite_stay_so_with_every_kind_of_vectors() {
    let mut x = vec![0.5; 2 * 40];
    (x[3], x[40 + 5]) = (f32::NAN, f32::INFINITY);
    for level in Level::list() {
        let mut y = vec![0.0; 2 * 3];
        let to = Output::of(&mut y, 3);
        let job = Job {
            x: &x,
            weight: &[1.0f32; 3 * 40],
            bias: None,
            addend: None,
            y: to,
        };
        on_vectors(level, &[job], 40);
        assert!(y[..3].iter().all(|y| y.is_nan()), "{level:?}: {y:?}");
        assert!(
            y[3..].iter().all(|y| *y == f32::INFINITY),
            "{level:?}: {y:?}"
        );
    }
}
