//! Tests products with blocks against f64, on fresh random bytes, with every instruction set.

use std::sync::LazyLock;

use half::f16;
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::lanes::ByteLevel;
use super::product::linear_on;
use super::*;
use crate::cpu::output::Output;

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
        let count = columns.div_ceil(format.elements());
        let mut bytes: Vec<u8> = (0..count * format.bytes())
            .map(|_| self.next() as u8)
            .collect();
        for block in bytes.chunks_exact_mut(format.bytes()) {
            for at in halves(format) {
                let half = f16::from_f32(self.float() * 0.02);
                block[*at..][..2].copy_from_slice(&half.to_le_bytes());
            }
            if format == BlockFormat::MXFP4 {
                block[0] = 110 + block[0] % 16;
            }
        }
        bytes
    }
}

/// Where the f16 lie in a block: the scale, and then the minimum.
fn halves(format: BlockFormat) -> &'static [usize] {
    match format {
        BlockFormat::Q4_0 | BlockFormat::Q5_0 | BlockFormat::Q8_0 => &[0],
        BlockFormat::IQ4_NL | BlockFormat::IQ4_XS => &[0],
        BlockFormat::Q2_K => &[80, 82],
        BlockFormat::Q3_K => &[108],
        BlockFormat::MXFP4 => &[],
        BlockFormat::Q4_1 | BlockFormat::Q5_1 | BlockFormat::Q4_K | BlockFormat::Q5_K => &[0, 2],
        BlockFormat::Q6_K => &[208],
        BlockFormat::Bf16 => &[],
    }
}

/// The values of a row, which the goldens of GGUF files prove right.
fn values(format: BlockFormat, blocks: &[u8], columns: usize) -> Vec<f32> {
    let mut values = vec![0.0; columns.next_multiple_of(format.elements())];
    format.decode(blocks, &mut values);
    values.truncate(columns);
    values
}

fn packed(format: BlockFormat, rows: &[Vec<u8>], columns: usize) -> Bytes {
    let mut matrix = BlockMatrix::zeros(&[(format, rows.len())], columns);
    let set = matrix.set_rows(0..rows.len(), |row| Some(Cow::Borrowed(&*rows[row])));
    assert_eq!(set, Ok(()));
    matrix.into_bytes()
}

/// Two threads, so that tasks have several groups on every machine.
static POOL: LazyLock<ThreadPool> = LazyLock::new(|| {
    let pool = ThreadPoolBuilder::new().num_threads(2).build();
    pool.expect("two threads")
});

fn run(level: ByteLevel, x: &[f32], weight: &[u8], bias: Option<&[f32]>) -> Vec<f32> {
    let [rows, columns] = shape(weight);
    let parts: Vec<View> = View::parts(weight).collect();
    let mut y = vec![f32::NAN; x.len() / columns * rows];
    let job = Job {
        x,
        parts,
        bias,
        addend: None,
        y: Output::of(&mut y, rows),
    };
    POOL.install(|| linear_on(level, &[job]));
    y
}

/// [`SHAPES`] with columns in whole blocks of a format.
fn shapes(format: BlockFormat) -> impl Iterator<Item = (usize, usize, usize)> {
    let whole = if format.elements() > BLOCK { 256 } else { 1 };
    SHAPES
        .map(|(tokens, rows, columns)| (tokens, rows, columns.next_multiple_of(whole)))
        .into_iter()
}

/// `(tokens, rows, columns)`: incomplete tiles, blocks and units, and each number of tokens that the
/// last group of a level can have.
const SHAPES: [(usize, usize, usize); 19] = [
    (1, 1, 1),
    (1, 16, 32),
    (2, 17, 33),
    (3, 40, 64),
    (4, 18, 96),
    (5, 15, 95),
    (6, 33, 300),
    (7, 70, 576),
    (8, 16, 128),
    (9, 33, 200),
    (11, 17, 64),
    (12, 16, 32),
    (13, 20, 300),
    (14, 40, 96),
    (16, 5, 1536),
    (26, 60, 64),
    (31, 48, 96),
    (65, 20, 160),
    (130, 130, 32),
];

#[test]
fn a_packed_row_has_the_values_of_its_blocks() {
    let mut random = Random(1);
    for format in BlockFormat::integers() {
        for (_, rows, columns) in shapes(format) {
            let rows: Vec<_> = (0..rows).map(|_| random.blocks(format, columns)).collect();
            let matrix = packed(format, &rows, columns);
            let mut out = vec![f32::NAN; columns];
            for (row, blocks) in rows.iter().enumerate() {
                View::of(&matrix).row(row, &mut out);
                let want = values(format, blocks, columns);
                for (got, want) in out.iter().zip(want) {
                    assert_eq!(got.to_bits(), want.to_bits(), "{format:?}");
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
            let (low, high) = values.split_at(BLOCK / 2);
            let sum = |half: &[i8]| half.iter().map(|value| i32::from(*value)).sum::<i32>();
            let [first, second] = [sum(low), sum(high)];
            let negated = [-first, -second, -first - second, 0];
            assert_eq!(rounded.negated[token * 4 + block], negated);
            let pairs = rounded.pairs[token * 4 + block];
            assert_eq!(pairs.map(|[a, b]| i32::from(a + b)), [first, second]);
            for (half, pairs) in [low, high].into_iter().zip(pairs) {
                let first = half
                    .as_chunks::<4>()
                    .0
                    .iter()
                    .map(|[a, b, ..]| i16::from(*a) + i16::from(*b));
                assert_eq!(first.sum::<i16>(), pairs[0]);
            }
        }
    }
}

#[test]
fn every_level_computes_the_products_within_the_rounding_of_activations() {
    let mut random = Random(3);
    for format in BlockFormat::integers() {
        for (tokens, rows, columns) in shapes(format) {
            let x = random.floats(tokens * columns);
            let bias = random.floats(rows);
            let blocks: Vec<_> = (0..rows).map(|_| random.blocks(format, columns)).collect();
            let matrix = packed(format, &blocks, columns);
            let rows_of = blocks.iter().map(|blocks| values(format, blocks, columns));
            let values: Vec<Vec<f32>> = rows_of.collect();
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
                                let w = f64::from(values[row][block * BLOCK + i]);
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
    for format in BlockFormat::integers() {
        for (tokens, rows, columns) in shapes(format) {
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
fn the_largest_elements_do_not_overflow() {
    for format in BlockFormat::integers() {
        let columns = 8192;
        for byte in [0x00, 0x7f, 0x80, 0xff] {
            let mut row = vec![byte; columns / format.elements() * format.bytes()];
            for block in row.chunks_exact_mut(format.bytes()) {
                for at in halves(format) {
                    block[*at..][..2].copy_from_slice(&f16::ONE.to_le_bytes());
                }
                if format == BlockFormat::MXFP4 {
                    block[0] = 128;
                }
            }
            let values = values(format, &row, columns);
            let exact: f64 = values.iter().map(|value| f64::from(*value)).sum();
            let size: f64 = values.iter().map(|value| f64::from(value.abs())).sum();
            let matrix = packed(format, &[row], columns);
            for level in ByteLevel::list() {
                for x in [1.0, -1.0] {
                    let y = run(level, &vec![x; columns], &matrix, None)[0];
                    let exact = exact * f64::from(x);
                    assert!(
                        (f64::from(y) - exact).abs() <= 1e-5 * size,
                        "{format:?} {level:?}: {y}, not {exact}"
                    );
                }
            }
        }
    }
}

#[test]
fn parts_in_several_formats_give_the_bits_of_each_alone() {
    use BlockFormat::{Q4_K, Q5_1, Q6_K, Q8_0};
    let mut random = Random(7);
    let columns = 512;
    for formats in [[Q4_K, Q4_K, Q6_K], [Q8_0, Q5_1, Q4_K], [Q6_K; 3]] {
        let rows = [33, 16, 7];
        let blocks = formats.map(|format| {
            let rows = (0..33).map(|_| random.blocks(format, columns));
            rows.collect::<Vec<_>>()
        });
        let parts: Vec<_> = formats.into_iter().zip(rows).collect();
        let mut matrix = BlockMatrix::zeros(&parts, columns);
        let mut first = 0;
        for (blocks, rows) in blocks.iter().zip(rows) {
            let set = matrix.set_rows(first..first + rows, |row| {
                Some(Cow::Borrowed(&*blocks[row]))
            });
            assert_eq!(set, Ok(()));
            first += rows;
        }
        let matrix = matrix.into_bytes();
        let merged: Vec<_> = View::parts(&matrix).map(|view| view.format).collect();
        assert!(merged.is_sorted_by(|a, b| a != b), "{merged:?}");
        assert_eq!(shape(&matrix), [first, columns]);
        for tokens in [1, 40] {
            let (x, bias) = (random.floats(tokens * columns), random.floats(first));
            for level in ByteLevel::list() {
                let together = run(level, &x, &matrix, Some(&bias));
                let mut before = 0;
                for ((format, rows), blocks) in parts.iter().zip(&blocks) {
                    let alone = packed(*format, &blocks[..*rows], columns);
                    let bias = &bias[before..before + rows];
                    let alone = run(level, &x, &alone, Some(bias));
                    let alone = alone.chunks_exact(*rows);
                    for (alone, together) in alone.zip(together.chunks_exact(first)) {
                        assert_eq!(alone, &together[before..before + rows], "{level:?}");
                    }
                    before += rows;
                }
            }
        }
    }
}

#[test]
fn a_row_that_cannot_be_made_is_named() {
    let mut matrix = BlockMatrix::zeros(&[(BlockFormat::Q8_0, 40)], 32);
    let row = |row| (row != 21).then(|| Cow::Owned(vec![0; 34]));
    assert_eq!(matrix.set_rows(5..37, row), Err(21));
}

#[test]
fn activations_that_are_not_finite_affect_their_own_token_only() {
    let mut random = Random(5);
    for format in BlockFormat::integers() {
        let columns = 70usize.next_multiple_of(format.elements());
        let blocks: Vec<_> = (0..3).map(|_| random.blocks(format, columns)).collect();
        let matrix = packed(format, &blocks, columns);
        let mut x = random.floats(3 * columns);
        (x[5], x[2 * columns - 1]) = (f32::NAN, f32::NEG_INFINITY);
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
    // A power of two is always finite.
    for format in BlockFormat::integers().filter(|format| !halves(*format).is_empty()) {
        let columns = 64.max(format.elements());
        let mut blocks: Vec<_> = (0..3).map(|_| random.blocks(format, columns)).collect();
        blocks[1][halves(format)[0]..][..2].copy_from_slice(&f16::NAN.to_le_bytes());
        let matrix = packed(format, &blocks, columns);
        let x = random.floats(columns);
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
