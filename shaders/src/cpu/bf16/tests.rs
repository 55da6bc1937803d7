//! Tests products with bf16 against f64, with all instructions that this CPU has for them.

use std::borrow::Cow;

use cubecl::bytes::Bytes;
use half::bf16;

use super::{amx, dots};
use crate::cpu::blocks::{BlockFormat, BlockMatrix, Job, View};
use crate::cpu::noise::noise;
use crate::cpu::output::Output;
use crate::cpu::simd::Stored;

type Linear = fn(&[Job<'_>]);

/// The ways to multiply that this CPU has.
fn ways() -> Vec<Linear> {
    let on_tiles: Linear = |jobs| jobs.iter().for_each(amx::floats::linear);
    let all = [
        (amx::available(), on_tiles),
        (dots::available(), dots::linear),
    ];
    let ways: Vec<Linear> = all
        .into_iter()
        .filter_map(|(available, way)| available.then_some(way))
        .collect();
    if ways.is_empty() {
        eprintln!("skipped: this CPU does not multiply bf16");
    }
    ways
}

/// The product of `x` with a packed matrix.
fn product(way: Linear, x: &[f32], matrix: &[u8], bias: Option<&[f32]>) -> Vec<f32> {
    let view = View::of(matrix);
    let mut y = vec![f32::NAN; x.len() / view.columns * view.rows];
    let job = Job {
        x,
        parts: vec![view],
        bias,
        addend: None,
        y: Output::of(&mut y, view.rows),
    };
    way(&[job]);
    y
}

fn rounded(values: &[f32]) -> Vec<bf16> {
    values.iter().map(|value| bf16::from_f32(*value)).collect()
}

fn packed(weight: &[bf16], columns: usize) -> Bytes {
    let rows = weight.len() / columns;
    let mut matrix = BlockMatrix::zeros(&[(BlockFormat::Bf16, rows)], columns);
    let row = |row: usize| {
        let values = weight[row * columns..][..columns].iter();
        let bytes = values.flat_map(|value| value.to_le_bytes());
        Some(Cow::Owned(bytes.collect()))
    };
    assert_eq!(matrix.set_rows(0..rows, row), Ok(()));
    matrix.into_bytes()
}

const SHAPES: [(usize, usize, usize); 15] = [
    (0, 33, 64),
    (1, 130, 64),
    (5, 200, 64),
    (1, 16, 32),
    (1, 64, 576),
    (2, 5, 1),
    (3, 100, 64),
    (7, 33, 95),
    (16, 1, 96),
    (17, 576, 128),
    (31, 70, 33),
    (33, 33, 1536),
    (64, 960, 576),
    (8, 160, 1400),
    (130, 48, 32),
];

#[test]
fn products_are_those_of_rounded_activations() {
    for way in ways() {
        for (seed, (tokens, output, input)) in (0..).zip(SHAPES) {
            let x = noise(tokens * input, seed);
            let weight = rounded(&noise(output * input, seed + 100));
            let bias = noise(output, seed + 200);
            let y = product(way, &x, &packed(&weight, input), Some(&bias));
            let exact = rounded(&x);
            for (token, y) in y.chunks_exact(output).enumerate() {
                for (row, y) in y.iter().enumerate() {
                    let terms = (0..input).map(|k| {
                        exact[token * input + k].to_f64() * weight[row * input + k].to_f64()
                    });
                    let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), term| {
                        (sum + term, size + term.abs())
                    });
                    let error = (f64::from(*y) - sum - f64::from(bias[row])).abs();
                    assert!(
                        error <= 1e-5 * (size + 1.0),
                        "{tokens} x {output} x {input} at {token}, {row}: {y} is off by {error}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_token_has_the_same_bits_alone_and_among_others() {
    for way in ways() {
        for (seed, (tokens, output, input)) in (0..).zip(SHAPES) {
            let x = noise(tokens * input, seed);
            let bias = noise(output, seed + 200);
            let weight = packed(&rounded(&noise(output * input, seed + 100)), input);
            let together = product(way, &x, &weight, Some(&bias));
            for (x, together) in x.chunks_exact(input).zip(together.chunks_exact(output)) {
                let alone = product(way, x, &weight, Some(&bias));
                assert_eq!(alone, together, "{tokens} x {output} x {input}");
            }
        }
    }
}

#[test]
fn several_products_at_once_have_the_bits_of_each() {
    for way in ways() {
        let made = (0..).zip(SHAPES).map(|(seed, (tokens, output, input))| {
            let weight = rounded(&noise(output * input, seed + 100));
            (noise(tokens * input, seed), packed(&weight, input))
        });
        let made: Vec<(Vec<f32>, Bytes)> = made.collect();
        let each: Vec<Vec<f32>> = made
            .iter()
            .map(|(x, matrix)| product(way, x, matrix, None))
            .collect();
        let mut all: Vec<Vec<f32>> = each.iter().map(|y| vec![f32::NAN; y.len()]).collect();
        let jobs = made.iter().zip(&mut all).map(|((x, matrix), y)| {
            let view = View::of(matrix);
            Job {
                x,
                parts: vec![view],
                bias: None,
                addend: None,
                y: Output::of(y, view.rows),
            }
        });
        way(&jobs.collect::<Vec<_>>());
        assert_eq!(all, each);
    }
}

#[test]
fn values_that_are_not_finite_stay_so() {
    for way in ways() {
        let mut x = vec![0.0; 2 * 32];
        (x[3], x[32 + 5]) = (f32::NAN, f32::INFINITY);
        let weight = packed(&vec![bf16::ONE; 16 * 32], 32);
        let y = product(way, &x, &weight, None);
        assert!(y[..16].iter().all(|y| y.is_nan()), "{y:?}");
        assert!(y[16..].iter().all(|y| *y == f32::INFINITY), "{y:?}");
    }
}

#[test]
fn rounding_agrees_with_the_half_crate() {
    for high in 0..=u16::MAX {
        for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
            let x = f32::from_bits(u32::from(high) << 16 | low);
            let (got, want) = (bf16::narrow(x), bf16::from_f32(x));
            assert_eq!(got.to_bits(), want.to_bits(), "{x}");
        }
    }
}

#[test]
fn a_packed_row_has_its_values() {
    let weight = rounded(&noise(35 * 95, 7));
    let matrix = packed(&weight, 95);
    let mut out = vec![f32::NAN; 95];
    for (row, values) in weight.chunks_exact(95).enumerate() {
        View::of(&matrix).row(row, &mut out);
        assert!(
            values
                .iter()
                .zip(&out)
                .all(|(want, got)| want.to_f32() == *got)
        );
    }
}
