//! Finds the packed matrices of a checkpoint by the names of their tensors.

use std::collections::HashMap;
use std::sync::OnceLock;

use super::PackedMatrix;
use super::layout::{Scale, Values, Zeros};
use crate::quantization::{Compressed, Scales, Scheme};
use crate::weights::error::WeightError;
use crate::weights::format::Format;
use crate::weights::stored::StoredTensor;

/// The matrices of `entries` that are stored as `scheme` says, by the names that they would have if they
/// were not packed.
///
/// # Errors
/// A tensor is missing, or has a shape or type that does not fit the others.
pub(crate) fn find(
    scheme: Scheme,
    entries: &HashMap<String, StoredTensor>,
) -> Result<HashMap<String, PackedMatrix>, WeightError> {
    let (suffix, kind) = match scheme {
        Scheme::Gptq { .. } | Scheme::Awq { .. } => ("qweight", "I32"),
        Scheme::Fp8 { .. } => ("weight", "F8_E4M3"),
        Scheme::Compressed { kind, .. } => match kind {
            Compressed::Packed { .. } => ("weight_packed", "I32"),
            Compressed::Int8 => ("weight", "I8"),
            Compressed::Float8 => ("weight", "F8_E4M3"),
        },
    };
    let mut found = HashMap::new();
    for name in entries.keys() {
        let module = name.strip_suffix(suffix);
        let Some(module) = module.filter(|module| module.ends_with('.')) else {
            continue;
        };
        // Modules that are left out of the quantization have an ordinary `weight`.
        if suffix == "weight" && !is(&entries[name], kind) {
            continue;
        }
        let module = Module {
            name: module,
            entries,
        };
        let matrix = module.matrix(scheme, suffix, kind)?;
        found.insert(format!("{}weight", module.name), matrix);
    }
    Ok(found)
}

fn is(tensor: &StoredTensor, kind: &str) -> bool {
    matches!(&tensor.format, Format::Other(name) if name == kind)
}

/// The tensors of one matrix.
#[derive(Clone, Copy)]
struct Module<'a> {
    /// Its name, with the last dot.
    name: &'a str,
    entries: &'a HashMap<String, StoredTensor>,
}

impl Module<'_> {
    fn matrix(self, scheme: Scheme, suffix: &str, kind: &str) -> Result<PackedMatrix, WeightError> {
        let stored = self.of_kind(suffix, kind)?;
        let [first, second] = match stored.shape.as_slice() {
            &[first, second] if first > 0 && second > 0 => [first, second],
            shape => {
                return Err(self.bad(
                    suffix,
                    format!("has the shape {shape:?}, not that of a matrix"),
                ));
            }
        };
        let per = |bits: u32| (32 / bits) as usize;
        let wide = |count: usize, by: usize| {
            let wide = count.checked_mul(by);
            wide.ok_or_else(|| {
                self.bad(
                    suffix,
                    format!("has the shape {:?}, which is too large", stored.shape),
                )
            })
        };
        let (rows, columns, values, scales) = match scheme {
            Scheme::Gptq { bits, scales, .. } => (
                second,
                wide(first, per(bits))?,
                Values::Gptq { bits },
                scales,
            ),
            Scheme::Awq { scales } => (wide(second, 8)?, first, Values::Awq, scales),
            Scheme::Fp8 { scales } => (first, second, Values::Float8, scales),
            Scheme::Compressed { kind, scales } => match kind {
                Compressed::Packed { bits } => {
                    let columns = wide(second, per(bits))?;
                    (first, columns, Values::Words { bits }, scales)
                }
                Compressed::Int8 => (first, second, Values::Int8, scales),
                Compressed::Float8 => (first, second, Values::Float8, scales),
            },
        };
        let shape = [rows, columns];
        // A group is at most a row, whatever the configuration says.
        let scales = match scales {
            Scales::Group(size) if size >= columns => Scales::Channel,
            scales => scales,
        };
        let (scale, scale_tensor) = self.scale(scheme, scales, shape)?;
        let zeros = self.zeros(scheme, shape, scale.groups)?;
        let order_suffix = match scheme {
            Scheme::Gptq { .. } => Some("g_idx"),
            Scheme::Compressed { .. } => Some("weight_g_idx"),
            Scheme::Awq { .. } | Scheme::Fp8 { .. } => None,
        };
        let order = match order_suffix {
            Some(suffix) => self.sized(suffix, "I32", Some(columns))?,
            None => None,
        };
        Ok(PackedMatrix {
            rows,
            columns,
            values: (values, stored.clone()),
            scale: (scale, scale_tensor.clone()),
            zeros: zeros.map(|(zeros, tensor)| (zeros, tensor.clone())),
            order: order.cloned(),
            format: OnceLock::new(),
        })
    }

    /// Where the scales are, and their tensor.
    fn scale(
        &self,
        scheme: Scheme,
        scales: Scales,
        [rows, columns]: [usize; 2],
    ) -> Result<(Scale, &StoredTensor), WeightError> {
        let transposed = matches!(scheme, Scheme::Gptq { .. } | Scheme::Awq { .. });
        let suffix = match scheme {
            _ if transposed => "scales",
            // Both names occur, with blocks and without, and both are factors.
            Scheme::Fp8 { .. } if self.optional("weight_scale").is_none() => "weight_scale_inv",
            _ => "weight_scale",
        };
        let tensor = self.required(suffix)?;
        if !matches!(tensor.format, Format::Float(_)) {
            let problem = format!("is {}, and neither f32, f16 nor bf16", tensor.format);
            return Err(self.bad(suffix, problem));
        }
        let given = count(tensor);
        // Only the shape shows whether a file has one scale for the matrix or one for each row.
        let scales = match scales {
            Scales::Tensor if given == Some(rows) && rows > 1 => Scales::Channel,
            scales => scales,
        };
        let ([rows_per, columns_per], grouped_rows) = match scales {
            Scales::Group(size) => ([1, size], rows),
            Scales::Channel => ([1, columns], rows),
            Scales::Tensor => ([rows, columns], 1),
            Scales::Block([high, wide]) => ([high, wide], rows.div_ceil(high)),
        };
        let groups = columns.div_ceil(columns_per);
        let (row_stride, group_stride) = match transposed {
            true => (1, rows),
            false => (groups, 1),
        };
        if given != grouped_rows.checked_mul(groups) {
            let problem = format!(
                "has the shape {:?}: {grouped_rows} x {groups} scales of a matrix [{rows}, {columns}] \
                 are expected",
                tensor.shape
            );
            return Err(self.bad(suffix, problem));
        }
        let scale = Scale {
            rows_per,
            row_stride,
            columns_per,
            group_stride,
            groups,
        };
        Ok((scale, tensor))
    }

    fn zeros(
        &self,
        scheme: Scheme,
        [rows, _]: [usize; 2],
        groups: usize,
    ) -> Result<Option<(Zeros, &StoredTensor)>, WeightError> {
        let (suffix, zeros, kind, per) = match scheme {
            Scheme::Gptq {
                bits, zero_offset, ..
            } => {
                let zeros = Zeros::Gptq {
                    bits,
                    offset: zero_offset,
                };
                ("qzeros", zeros, "I32", (32 / bits) as usize)
            }
            Scheme::Awq { .. } => ("qzeros", Zeros::Awq, "I32", 8),
            Scheme::Fp8 { .. } => return Ok(None),
            Scheme::Compressed { kind, .. } => match kind {
                Compressed::Packed { bits } => {
                    let per = (32 / bits) as usize;
                    ("weight_zero_point", Zeros::Words { bits }, "I32", per)
                }
                Compressed::Int8 => ("weight_zero_point", Zeros::Int8, "I8", 1),
                Compressed::Float8 => return Ok(None),
            },
        };
        if !matches!(scheme, Scheme::Compressed { .. }) {
            self.required(suffix)?;
            if !rows.is_multiple_of(per) {
                let problem = format!("has {per} rows in a word, and the matrix has {rows}");
                return Err(self.bad(suffix, problem));
            }
        }
        let words = rows.div_ceil(per).checked_mul(groups);
        let tensor = self.sized(suffix, kind, words)?;
        Ok(tensor.map(|tensor| (zeros, tensor)))
    }

    /// A tensor of the type `kind` with so many elements, if the module has it.
    fn sized(
        &self,
        suffix: &str,
        kind: &str,
        elements: Option<usize>,
    ) -> Result<Option<&StoredTensor>, WeightError> {
        let Some(tensor) = self.optional(suffix) else {
            return Ok(None);
        };
        if is(tensor, kind) && elements.is_some() && count(tensor) == elements {
            return Ok(Some(tensor));
        }
        let elements = elements.map_or("fewer".to_owned(), |elements| elements.to_string());
        let StoredTensor { format, shape, .. } = tensor;
        let problem =
            format!("is {format} {shape:?}, and {elements} elements of {kind} are expected");
        Err(self.bad(suffix, problem))
    }

    fn optional(&self, suffix: &str) -> Option<&StoredTensor> {
        self.entries.get(&format!("{}{suffix}", self.name))
    }

    fn required(&self, suffix: &str) -> Result<&StoredTensor, WeightError> {
        let missing = || self.bad(suffix, "is missing");
        self.optional(suffix).ok_or_else(missing)
    }

    fn of_kind(&self, suffix: &str, kind: &str) -> Result<&StoredTensor, WeightError> {
        let tensor = self.required(suffix)?;
        match is(tensor, kind) {
            true => Ok(tensor),
            false => Err(self.bad(
                suffix,
                format!("is {}, and {kind} is expected", tensor.format),
            )),
        }
    }

    fn bad(&self, suffix: &str, problem: impl Into<String>) -> WeightError {
        WeightError::Packed {
            tensor: format!("{}{suffix}", self.name),
            problem: problem.into(),
        }
    }
}

/// The number of elements; `None` if the shape is absurd.
fn count(tensor: &StoredTensor) -> Option<usize> {
    let mut sides = tensor.shape.iter();
    sides.try_fold(1usize, |count, &side| count.checked_mul(side))
}
