//! Matrices in blocks of integers.

use std::borrow::Cow;

use half::f16;

use crate::check::Random;
use crate::{BlockFormat, BlockMatrix};

/// A random matrix `[rows, columns]` in blocks of integers, and its values.
pub(super) fn blocks(
    format: BlockFormat,
    rows: usize,
    columns: usize,
    random: &mut Random,
) -> (Vec<f32>, BlockMatrix) {
    let mut matrix = BlockMatrix::zeros(&[(format, rows)], columns);
    let mut values = Vec::with_capacity(rows * columns);
    let mut blocks = Vec::with_capacity(rows);
    for _ in 0..rows {
        let bytes = random_blocks(format, columns.div_ceil(format.elements()), random);
        let mut row = vec![0.0; bytes.len() / format.bytes() * format.elements()];
        format.decode(&bytes, &mut row);
        values.extend_from_slice(&row[..columns]);
        blocks.push(bytes);
    }
    let set = matrix.set_rows(0..rows, |row| Some(Cow::Borrowed(&*blocks[row])));
    assert_eq!(set, Ok(()), "every row is there");
    (values, matrix)
}

/// So many blocks of a file.
pub fn random_blocks(format: BlockFormat, count: usize, random: &mut Random) -> Vec<u8> {
    (0..count).flat_map(|_| block(format, random)).collect()
}

/// A block of a file with random elements, whose values are about as large as activations.
fn block(format: BlockFormat, random: &mut Random) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..format.bytes()).map(|_| random.bits() as u8).collect();
    // The place of the f16 of the scale, and the largest number that it is multiplied with; the
    // place of the minimum, and its share of the scale for which the values are zero in the mean.
    let (at, largest, least) = match format {
        BlockFormat::Q4_0 => (0, 8.0, None),
        BlockFormat::Q5_0 => (0, 16.0, None),
        BlockFormat::Q8_0 | BlockFormat::IQ4_NL => (0, 128.0, None),
        BlockFormat::Q4_1 => (0, 8.0, Some((2, -7.5))),
        BlockFormat::Q5_1 => (0, 16.0, Some((2, -15.5))),
        BlockFormat::Q2_K => (80, 22.5, Some((82, 1.5))),
        BlockFormat::Q3_K => (108, 128.0, None),
        BlockFormat::Q4_K => (0, 504.0, Some((2, 7.5))),
        BlockFormat::Q5_K => (0, 1008.0, Some((2, 15.5))),
        BlockFormat::Q6_K => (208, 4096.0, None),
        BlockFormat::IQ4_XS => (0, 4064.0, None),
        BlockFormat::MXFP4 => {
            // A power of two from 2^-8 to 2^-1.
            bytes[0] = 119 + random.below(8) as u8;
            return bytes;
        }
        BlockFormat::Bf16 => unreachable!("bf16 is not in blocks of integers"),
    };
    // Some scales are so small that f16 represents them as subnormals.
    let step = match random.one_in(8) {
        true => 3e-6,
        false => 1.2 / largest,
    };
    let scale = step * random.normal(1)[0];
    let halves = least.map(|(at, share)| (at, share * scale));
    for (at, value) in [Some((at, scale)), halves].into_iter().flatten() {
        bytes[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
    }
    bytes
}
