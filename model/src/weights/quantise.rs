//! Weights rounded to GGML's blocks when they are loaded.
//!
//! The arithmetic is that of ggml's `quantize_row_*_ref` (`ggml/src/ggml-quants.c`) in its order,
//! so that blocks have the bits that llama.cpp's quantiser gives them.

use std::fmt;

use half::f16;
use hearth_shaders::{BLOCK, BlockFormat};

/// How weights are rounded when they are loaded (`--quantization`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantization {
    /// 8 bits and an f16 scale for each 32.
    Int8,
    /// 4 bits and an f16 scale for each 32. Token embedding and output projection are rounded as
    /// with [`Quantization::Int8`], because errors in them do the most harm.
    Int4,
}

impl Quantization {
    /// The blocks of the matrix `name`.
    pub(crate) fn format(self, name: &str) -> BlockFormat {
        let outer = ["embed_tokens.weight", "lm_head.weight"]
            .iter()
            .any(|outer| name.ends_with(outer));
        match self {
            Quantization::Int4 if !outer => BlockFormat::Q4_0,
            _ => BlockFormat::Q8_0,
        }
    }
}

impl fmt::Display for Quantization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Quantization::Int8 => "int8",
            Quantization::Int4 => "int4",
        })
    }
}

/// The blocks of a row; the last one is filled up with zeros. `None` when a value is not finite or
/// too large for a scale.
pub(crate) fn row(format: BlockFormat, values: &[f32]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(values.len().div_ceil(BLOCK) * format.bytes());
    let (whole, rest) = values.as_chunks::<BLOCK>();
    let mut last = [0.0; BLOCK];
    last[..rest.len()].copy_from_slice(rest);
    let blocks = whole.iter().chain((!rest.is_empty()).then_some(&last));
    for block in blocks {
        let scale = match format {
            BlockFormat::Q8_0 => q8_0(block, &mut bytes),
            BlockFormat::Q4_0 => q4_0(block, &mut bytes),
            other => unreachable!("weights are not rounded to {other:?}"),
        };
        // An infinite value makes the scale infinite, but NaN does not show in it.
        if !scale.is_finite() || block.iter().any(|value| !value.is_finite()) {
            return None;
        }
    }
    Some(bytes)
}

/// Appends a block and returns its scale.
fn q8_0(block: &[f32; BLOCK], bytes: &mut Vec<u8>) -> f16 {
    let largest = block
        .iter()
        .fold(0.0f32, |most, value| most.max(value.abs()));
    let scale = largest / 127.0;
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let stored = f16::from_f32(scale);
    bytes.extend_from_slice(&stored.to_le_bytes());
    bytes.extend(block.iter().map(|value| {
        // Rounds to the nearest, halves away from zero. `f32::round` would be a call per value.
        let value = value * inverse;
        let whole = value as i32;
        let rest = value - whole as f32;
        (whole + i32::from(rest >= 0.5) - i32::from(rest <= -0.5)) as u8
    }));
    stored
}

/// Appends a block and returns its scale.
fn q4_0(block: &[f32; BLOCK], bytes: &mut Vec<u8>) -> f16 {
    // The first value of the largest magnitude, with its sign, becomes -8.
    let mut largest = 0.0f32;
    for value in block {
        if value.abs() > largest.abs() {
            largest = *value;
        }
    }
    let scale = largest / -8.0;
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let stored = f16::from_f32(scale);
    bytes.extend_from_slice(&stored.to_le_bytes());
    let quant = |value: f32| ((value * inverse + 8.5) as i8).min(15) as u8;
    let (low, high) = block.split_at(BLOCK / 2);
    let pairs = low.iter().zip(high);
    bytes.extend(pairs.map(|(low, high)| quant(*low) | quant(*high) << 4));
    stored
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values() -> Vec<f32> {
        (0..320u32)
            .map(|i| ((i.wrapping_mul(2_654_435_761) >> 8) as f32 / 8_388_608.0 - 1.0) * 0.1)
            .collect()
    }

    fn decoded(format: BlockFormat, bytes: &[u8], count: usize) -> Vec<f32> {
        let mut out = vec![0.0; count];
        format.decode(bytes, &mut out);
        out
    }

    #[test]
    fn values_come_back_within_half_a_step() {
        let values = values();
        for (format, steps) in [(BlockFormat::Q8_0, 127.0), (BlockFormat::Q4_0, 8.0)] {
            let bytes = row(format, &values).unwrap();
            let back = decoded(format, &bytes, values.len());
            for (block, back) in values.chunks(BLOCK).zip(back.chunks(BLOCK)) {
                let largest = block.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                for (value, back) in block.iter().zip(back) {
                    // The largest value of the other sign becomes 7, not 8.
                    let bound = if format == BlockFormat::Q4_0 {
                        1.01
                    } else {
                        0.51
                    };
                    let error = (value - back).abs();
                    assert!(error <= bound * largest / steps, "{value} became {back}");
                }
            }
        }
    }

    #[test]
    fn blocks_are_those_of_the_gguf_package() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/goldens/gguf/rounded.safetensors"
        );
        let file = std::fs::read(path).unwrap();
        let golden = safetensors::SafeTensors::deserialize(&file).unwrap();
        let words = golden.tensor("values").unwrap();
        let words = words.data().as_chunks::<4>().0.iter();
        let values: Vec<f32> = words.map(|word| f32::from_le_bytes(*word)).collect();
        for (name, format) in [("Q8_0", BlockFormat::Q8_0), ("Q4_0", BlockFormat::Q4_0)] {
            let rows: Vec<u8> = values
                .chunks(320)
                .flat_map(|values| row(format, values).unwrap())
                .collect();
            assert_eq!(rows, golden.tensor(name).unwrap().data(), "{name}");
        }
    }

    #[test]
    fn a_block_that_is_not_full_is_filled_with_zeros() {
        for format in [BlockFormat::Q8_0, BlockFormat::Q4_0] {
            let bytes = row(format, &values()[..40]).unwrap();
            assert_eq!(bytes.len(), 2 * format.bytes());
            assert_eq!(decoded(format, &bytes, 64)[40..], [0.0; 24]);
        }
    }

    #[test]
    fn values_without_a_scale_are_refused() {
        for format in [BlockFormat::Q8_0, BlockFormat::Q4_0] {
            for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30] {
                let mut values = values();
                values[77] = value;
                assert_eq!(row(format, &values), None, "{value}");
            }
        }
    }

    #[test]
    fn four_bits_keep_the_outer_matrices_at_eight() {
        let format = |name| Quantization::Int4.format(name);
        assert_eq!(format("lm_head.weight"), BlockFormat::Q8_0);
        assert_eq!(format("model.embed_tokens.weight"), BlockFormat::Q8_0);
        assert_eq!(
            format("model.layers.0.mlp.up_proj.weight"),
            BlockFormat::Q4_0
        );
    }
}
