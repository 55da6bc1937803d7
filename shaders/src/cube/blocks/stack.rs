//! The parts of a stacked matrix, as a number that a tensor's type has room for.
//!
//! A tensor of a quantised type has a shape and a scheme, and neither can say that its first rows
//! are in one format and the rest in another. So each different list of parts gets a number, which
//! the scheme carries as the size of its blocks. A model has a handful of such lists.

use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::DType;
use burn::tensor::quantization::{
    BlockSize, QuantLevel, QuantParam, QuantScheme, QuantStore, QuantValue,
};

use crate::BlockFormat;

/// The format and the rows of each part of a matrix, one below another.
pub type Parts = Arc<[(BlockFormat, usize)]>;

static KNOWN: Mutex<Vec<Parts>> = Mutex::new(Vec::new());

/// A size of a block must not be zero, so a digit of the number is at least one.
const DIGITS: usize = 255;

/// The type of a tensor that consists of `parts`. The type of its scales stands for the type of the
/// activations.
///
/// # Panics
/// GPU kernels do not take `activations`.
pub fn dtype(parts: &[(BlockFormat, usize)], activations: DType) -> DType {
    let param = match activations {
        DType::F32 => QuantParam::F32,
        DType::F16 => QuantParam::F16,
        DType::BF16 => QuantParam::BF16,
        other => panic!("GPU kernels take f32, f16 and bf16, not {other:?}"),
    };
    let number = number(parts);
    let digits = [
        number % DIGITS,
        number / DIGITS % DIGITS,
        number / DIGITS / DIGITS,
    ];
    assert!(digits[2] < DIGITS, "too many different stacks of matrices");
    let scheme = QuantScheme::default()
        .with_value(QuantValue::Q8F)
        .with_param(param)
        .with_level(QuantLevel::Block(BlockSize::new(
            digits.map(|digit| digit as u8 + 1),
        )))
        .with_store(QuantStore::PackedU32(0));
    DType::QFloat(scheme)
}

/// The parts and the type of the activations of a tensor; `None` if it is one of floats.
pub fn parts(dtype: DType) -> Option<(Parts, DType)> {
    let DType::QFloat(scheme) = dtype else {
        return None;
    };
    let activations = match scheme.param {
        QuantParam::F32 => DType::F32,
        QuantParam::F16 => DType::F16,
        QuantParam::BF16 => DType::BF16,
        other => panic!("GPU kernels have no activations in {other:?}"),
    };
    let QuantLevel::Block(size) = scheme.level else {
        panic!("a packed matrix without a number");
    };
    let digits = size.as_slice().iter().rev();
    let number = digits.fold(0, |number, digit| number * DIGITS + usize::from(*digit) - 1);
    let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    Some((known[number].clone(), activations))
}

fn number(parts: &[(BlockFormat, usize)]) -> usize {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let found = known.iter().position(|known| **known == *parts);
    found.unwrap_or_else(|| {
        known.push(parts.into());
        known.len() - 1
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_tells_the_parts_it_was_made_of() {
        let lists: Vec<Vec<_>> = (1..600)
            .map(|rows| vec![(BlockFormat::Q4_K, rows), (BlockFormat::Q6_K, 3)])
            .collect();
        let types: Vec<_> = lists.iter().map(|list| dtype(list, DType::F16)).collect();
        for (list, made) in lists.iter().zip(types) {
            let (parts, activations) = parts(made).expect("a quantised type");
            assert_eq!((&*parts, activations), (list.as_slice(), DType::F16));
            assert_eq!(dtype(list, DType::F16), made);
        }
        assert!(parts(DType::F32).is_none());
    }
}
