//! Matrices in blocks of integers.

use std::borrow::Cow;

use half::f16;

use crate::check::Random;
use crate::{BLOCK, BlockFormat, BlockMatrix};

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
        let (mut bytes, mut row_values) = (Vec::new(), Vec::new());
        for _ in 0..columns.div_ceil(BLOCK) {
            // Some scales are so small that f16 represents them as subnormals.
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
                other => unreachable!("GPUs have no matrices in {other:?}"),
            }
            bytes.extend(elements);
        }
        blocks.push(bytes);
        values.extend_from_slice(&row_values[..columns]);
    }
    let set = matrix.set_rows(0..rows, |row| Some(Cow::Borrowed(&*blocks[row])));
    assert_eq!(set, Ok(()), "every row is there");
    (values, matrix)
}
