//! Tests products with bf16 on the tiles against f64. Those with blocks are tested with the blocks.

use std::borrow::Cow;

use cubecl::bytes::Bytes;
use half::bf16;

use super::available;
use super::floats::linear;
use crate::cpu::blocks::{BlockFormat, BlockMatrix, View};
use crate::cpu::output::Output;
use crate::cpu::simd::Stored;

/// Pseudo-random values in -1..1.
fn noise(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
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

const SHAPES: [(usize, usize, usize); 11] = [
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
    (130, 48, 32),
];

#[test]
fn tiles_compute_the_products_of_rounded_activations() {
    if !available() {
        return eprintln!("skipped: this CPU has no matrix tiles");
    }
    for (seed, (tokens, output, input)) in (0..).zip(SHAPES) {
        let x = noise(tokens * input, seed);
        let weight = rounded(&noise(output * input, seed + 100));
        let bias = noise(output, seed + 200);
        let mut y = vec![f32::NAN; tokens * output];
        let to = Output::of(&mut y, output);
        linear(&x, View::of(&packed(&weight, input)), Some(&bias), None, to);
        let exact = rounded(&x);
        for (token, y) in y.chunks_exact(output).enumerate() {
            for (row, y) in y.iter().enumerate() {
                let terms = (0..input)
                    .map(|k| exact[token * input + k].to_f64() * weight[row * input + k].to_f64());
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

#[test]
fn a_token_has_the_same_bits_alone_and_among_others() {
    if !available() {
        return eprintln!("skipped: this CPU has no matrix tiles");
    }
    for (seed, (tokens, output, input)) in (0..).zip(SHAPES) {
        let x = noise(tokens * input, seed);
        let weight = packed(&rounded(&noise(output * input, seed + 100)), input);
        let mut together = vec![f32::NAN; tokens * output];
        let view = View::of(&weight);
        linear(&x, view, None, None, Output::of(&mut together, view.rows));
        for (x, together) in x.chunks_exact(input).zip(together.chunks_exact(output)) {
            let mut alone = vec![f32::NAN; output];
            linear(x, view, None, None, Output::of(&mut alone, view.rows));
            assert_eq!(alone, together, "{tokens} x {output} x {input}");
        }
    }
}

#[test]
fn values_that_are_not_finite_stay_so() {
    if !available() {
        return eprintln!("skipped: this CPU has no matrix tiles");
    }
    let mut x = vec![0.0; 2 * 32];
    (x[3], x[32 + 5]) = (f32::NAN, f32::INFINITY);
    let weight = packed(&vec![bf16::ONE; 16 * 32], 32);
    let mut y = vec![0.0; 2 * 16];
    let view = View::of(&weight);
    linear(&x, view, None, None, Output::of(&mut y, view.rows));
    assert!(y[..16].iter().all(|y| y.is_nan()), "{y:?}");
    assert!(y[16..].iter().all(|y| *y == f32::INFINITY), "{y:?}");
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
