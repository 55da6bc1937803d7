//! Tests products with blocks against f64, on fresh random bytes, with every instruction set.

use half::f16;

use super::lanes::ByteLevel;
use super::product::linear_on;
use super::*;
use crate::cpu::output::Output;

const FORMATS: [BlockFormat; 2] = [BlockFormat::Q8_0, BlockFormat::Q4_0];

/// The generator SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in -1..1.
    fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.float()).collect()
    }

    /// The blocks of a row: random bytes, with scales around 0.01.
    fn blocks(&mut self, format: BlockFormat, columns: usize) -> Vec<u8> {
        let count = columns.div_ceil(BLOCK);
        let mut bytes: Vec<u8> = (0..count * format.bytes())
            .map(|_| self.next() as u8)
            .collect();
        for block in bytes.chunks_exact_mut(format.bytes()) {
            block[..2].copy_from_slice(&f16::from_f32(self.float() * 0.02).to_le_bytes());
        }
        bytes
    }
}

/// The value of an element, from the definition of the format in GGUF files.
fn element(format: BlockFormat, blocks: &[u8], column: usize) -> f64 {
    let block = &blocks[column / BLOCK * format.bytes()..];
    let scale = f16::from_le_bytes([block[0], block[1]]).to_f64();
    let i = column % BLOCK;
    let quant = match format {
        BlockFormat::Q8_0 => i32::from(block[2 + i] as i8),
        BlockFormat::Q4_0 => i32::from(block[2 + i % 16] >> (i / 16 * 4) & 0xf) - 8,
        BlockFormat::Bf16 => unreachable!("no quants"),
    };
    f64::from(quant) * scale
}

fn packed(format: BlockFormat, rows: &[Vec<u8>], columns: usize) -> Bytes {
    let mut matrix = BlockMatrix::zeros(format, rows.len(), columns);
    for (row, blocks) in rows.iter().enumerate() {
        matrix.set_row(row, blocks);
    }
    matrix.into_bytes()
}

fn run(level: ByteLevel, x: &[f32], weight: &[u8], bias: Option<&[f32]>) -> Vec<f32> {
    let weight = View::of(weight);
    let mut y = vec![f32::NAN; x.len() / weight.columns * weight.rows];
    let to = Output::of(&mut y, weight.rows);
    linear_on(level, x, weight, bias, to);
    y
}

/// `(tokens, rows, columns)`: incomplete tiles, blocks and units.
const SHAPES: [(usize, usize, usize); 12] = [
    (1, 1, 1),
    (1, 16, 32),
    (2, 17, 33),
    (3, 40, 64),
    (5, 15, 95),
    (7, 70, 576),
    (8, 16, 128),
    (9, 33, 200),
    (16, 5, 1536),
    (31, 48, 96),
    (65, 20, 160),
    (130, 130, 32),
];

#[test]
fn a_packed_row_has_the_values_of_its_blocks() {
    let mut random = Random(1);
    for format in FORMATS {
        for (_, rows, columns) in SHAPES {
            let rows: Vec<_> = (0..rows).map(|_| random.blocks(format, columns)).collect();
            let matrix = packed(format, &rows, columns);
            let mut out = vec![f32::NAN; columns];
            for (row, blocks) in rows.iter().enumerate() {
                View::of(&matrix).row(row, &mut out);
                for (column, got) in out.iter().enumerate() {
                    assert_eq!(f64::from(*got), element(format, blocks, column));
                }
            }
        }
    }
}

#[test]
fn rounded_activations_are_off_by_at_most_half_a_step() {
    let mut random = Random(2);
    let columns = 100;
    let mut x = random.floats(3 * columns);
    x[columns..2 * columns].iter_mut().for_each(|x| *x *= 1e-20);
    x[2 * columns..].fill(0.0);
    let rounded = Activations::round(&x, columns, 1);
    assert_eq!(rounded.width, 128);
    for token in 0..3 {
        for i in 0..columns {
            let block = token * 4 + i / BLOCK;
            let scale = rounded.scales[block];
            let value = f32::from(rounded.values[token * 128 + i]) * scale;
            let error = (value - x[token * columns + i]).abs();
            assert!(
                error <= 0.5001 * scale,
                "{value} for {}",
                x[token * columns + i]
            );
        }
        for block in 0..4 {
            let values = &rounded.values[token * 128 + block * BLOCK..][..BLOCK];
            let sum: i32 = values.iter().map(|value| i32::from(*value)).sum();
            assert_eq!(sum, rounded.sums[token * 4 + block]);
        }
    }
}

#[test]
fn every_level_computes_the_products_within_the_rounding_of_activations() {
    let mut random = Random(3);
    for format in FORMATS {
        for (tokens, rows, columns) in SHAPES {
            let x = random.floats(tokens * columns);
            let bias = random.floats(rows);
            let blocks: Vec<_> = (0..rows).map(|_| random.blocks(format, columns)).collect();
            let matrix = packed(format, &blocks, columns);
            let mut first: Option<Vec<f32>> = None;
            for level in ByteLevel::list() {
                let y = run(level, &x, &matrix, Some(&bias));
                for (token, y) in y.chunks_exact(rows).enumerate() {
                    let x = &x[token * columns..][..columns];
                    for (row, y) in y.iter().enumerate() {
                        let (mut sum, mut bound) = (f64::from(bias[row]), 0.0);
                        for (block, x) in x.chunks(BLOCK).enumerate() {
                            let largest = x.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                            let step = f64::from(largest) / 127.0;
                            for (i, x) in x.iter().enumerate() {
                                let w = element(format, &blocks[row], block * BLOCK + i);
                                sum += f64::from(*x) * w;
                                bound += 0.5001 * step * w.abs() + 1e-6 * (f64::from(*x) * w).abs();
                            }
                        }
                        let error = (f64::from(*y) - sum).abs();
                        assert!(
                            error <= bound + 1e-6,
                            "{format:?} {level:?}: {tokens} x {rows} x {columns} at {token}, {row}: \
                             {y} is off by {error}, not at most {bound}"
                        );
                    }
                }
                let first = first.get_or_insert_with(|| y.clone());
                assert_eq!(*first, y, "{format:?}: {level:?} has other bits");
            }
        }
    }
}

#[test]
fn a_token_has_the_same_bits_alone_and_among_others() {
    let mut random = Random(4);
    for format in FORMATS {
        for (tokens, rows, columns) in SHAPES {
            let x = random.floats(tokens * columns);
            let blocks: Vec<_> = (0..rows).map(|_| random.blocks(format, columns)).collect();
            let matrix = packed(format, &blocks, columns);
            for level in ByteLevel::list() {
                let together = run(level, &x, &matrix, None);
                for (x, together) in x.chunks_exact(columns).zip(together.chunks_exact(rows)) {
                    assert_eq!(
                        run(level, x, &matrix, None),
                        together,
                        "{format:?} {level:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn the_largest_bytes_do_not_overflow() {
    for (format, quant, value) in [
        (BlockFormat::Q8_0, 0x80, -128.0),
        (BlockFormat::Q8_0, 0x7f, 127.0),
        (BlockFormat::Q4_0, 0x00, -8.0),
        (BlockFormat::Q4_0, 0xff, 7.0),
    ] {
        let columns = 8192;
        let mut row = vec![quant; columns / BLOCK * format.bytes()];
        for block in row.chunks_exact_mut(format.bytes()) {
            block[..2].copy_from_slice(&f16::ONE.to_le_bytes());
        }
        let matrix = packed(format, &[row], columns);
        for level in ByteLevel::list() {
            for x in [1.0, -1.0] {
                let y = run(level, &vec![x; columns], &matrix, None)[0];
                let exact = x * value * columns as f32;
                assert!(
                    (y - exact).abs() <= 1e-5 * exact.abs(),
                    "{level:?}: {y}, not {exact}"
                );
            }
        }
    }
}

#[test]
fn activations_that_are_not_finite_affect_their_own_token_only() {
    let mut random = Random(5);
    for format in FORMATS {
        let columns = 70;
        let blocks: Vec<_> = (0..3).map(|_| random.blocks(format, columns)).collect();
        let matrix = packed(format, &blocks, columns);
        let mut x = random.floats(3 * columns);
        (x[5], x[columns + 69]) = (f32::NAN, f32::NEG_INFINITY);
        for level in ByteLevel::list() {
            let y = run(level, &x, &matrix, None);
            assert!(y[..6].iter().all(|y| y.is_nan()), "{level:?}: {y:?}");
            assert!(y[6..].iter().all(|y| y.is_finite()), "{level:?}: {y:?}");
        }
    }
}

#[test]
fn a_scale_that_is_not_finite_affects_its_own_row_only() {
    let mut random = Random(6);
    for format in FORMATS {
        let mut blocks: Vec<_> = (0..3).map(|_| random.blocks(format, 64)).collect();
        blocks[1][..2].copy_from_slice(&f16::NAN.to_le_bytes());
        let matrix = packed(format, &blocks, 64);
        let x = random.floats(64);
        for level in ByteLevel::list() {
            let y = run(level, &x, &matrix, None);
            assert_eq!(
                y.iter().map(|y| y.is_nan()).collect::<Vec<_>>(),
                [false, true, false]
            );
        }
    }
}

#[test]
fn tasks_have_equal_shares_of_the_groups() {
    for (groups, threads, per_task) in [(192, 2, 8), (36, 2, 6), (60, 2, 8), (1, 2, 1), (40, 3, 7)]
    {
        assert_eq!(
            groups_per_task(groups, threads),
            per_task,
            "{groups} over {threads}"
        );
    }
}
