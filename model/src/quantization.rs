//! `quantization_config` of a `config.json`: how the matrices of a Hugging Face checkpoint are
//! quantized.
//!
//! | `quant_method` | read as | published in |
//! |---|---|---|
//! | `gptq` | [`Scheme::Gptq`] | arXiv 2210.17323; layout of AutoGPTQ and GPTQModel |
//! | `awq` | [`Scheme::Awq`] | arXiv 2306.00978; AutoAWQ's layout `gemm` |
//! | `fp8` | [`Scheme::Fp8`] | DeepSeek-V3 (arXiv 2412.19437), Qwen3-FP8 |
//! | `compressed-tensors` | [`Scheme::Compressed`] | llm-compressor |
//!
//! Whatever is not understood is refused by the name of its field, because weights that are decoded
//! wrongly load without an error.

mod compressed;
mod fields;

use serde_json::Value;

use fields::Object;

/// A field that this program does not understand.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{field} must be {bound}, got {given}")]
pub struct QuantizationError {
    pub field: String,
    pub bound: &'static str,
    pub given: String,
}

/// Which weights share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scales {
    /// So many consecutive columns of a row.
    Group(usize),
    /// A row.
    Channel,
    /// The matrix.
    Tensor,
    /// So many rows by so many columns.
    Block([usize; 2]),
}

/// How a matrix of [`Scheme::Compressed`] is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compressed {
    /// Integers of 4 or 8 bits in 32-bit words, `weight_packed`.
    Packed { bits: u32 },
    /// A byte for each weight, `weight`.
    Int8,
    /// E4M3 floats (arXiv 2209.05433), `weight`.
    Float8,
}

/// How the quantized matrices of a checkpoint are stored. Which ones are quantized shows in the names
/// of their tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// `qweight`, packed along the columns.
    Gptq {
        bits: u32,
        scales: Scales,
        /// The number to add to a stored zero point.
        zero_offset: u32,
    },
    /// `qweight` of 4 bits, packed along the rows in an interleaved order.
    Awq {
        scales: Scales,
    },
    /// `weight` in E4M3, with the factors `weight_scale_inv` or `weight_scale`.
    Fp8 {
        scales: Scales,
    },
    Compressed {
        kind: Compressed,
        scales: Scales,
    },
}

impl Scheme {
    /// The scheme of a checkpoint with the text `config` of its `config.json`, and that of its
    /// `quantize_config.json`, where older files of GPTQ have it; `None` if it is not quantized.
    ///
    /// # Errors
    /// The first field that is not understood.
    pub fn of_checkpoint(
        config: &str,
        quantize_config: Option<&str>,
    ) -> Result<Option<Self>, QuantizationError> {
        // A file that is no JSON is an error of the configuration itself.
        let config: Value = serde_json::from_str(config).unwrap_or_default();
        for key in ["quantization_config", "compression_config"] {
            if let Some(value) = config.get(key).filter(|value| !value.is_null()) {
                let object = Object::of(value, key)?;
                return Self::parse(object, None);
            }
        }
        let Some(text) = quantize_config else {
            return Ok(None);
        };
        let file = "quantize_config.json";
        let value: Value = serde_json::from_str(text).unwrap_or_default();
        Self::parse(Object::of(&value, file)?, Some("gptq"))
    }

    fn parse(object: Object<'_>, method: Option<&str>) -> Result<Option<Self>, QuantizationError> {
        match object.text("quant_method")?.or(method) {
            Some("gptq") => gptq(object).map(Some),
            Some("awq") => awq(object).map(Some),
            Some("fp8") => fp8(object).map(Some),
            Some("compressed-tensors") => compressed::parse(object).map(Some),
            // Experts in this format are in blocks already.
            Some("mxfp4") => Ok(None),
            _ => Err(object.bad("quant_method", "gptq, awq, fp8 or compressed-tensors")),
        }
    }
}

fn gptq(object: Object<'_>) -> Result<Scheme, QuantizationError> {
    let bits = match object.count("bits")? {
        Some(bits @ (4 | 8)) => bits as u32,
        _ => return Err(object.bad("bits", "4 or 8")),
    };
    object.one_of("pack_dtype", &["int32"], "int32")?;
    // The order of columns is in the tensor `g_idx`; this only checks the type.
    object.flag("desc_act")?;
    object.flag("sym")?;
    object.empty("dynamic", "absent: all matrices have the same bits")?;
    let mut zero_offset = 1;
    for key in ["checkpoint_format", "format"] {
        match object.text(key)? {
            None | Some("gptq") => {}
            Some("gptq_v2") => zero_offset = 0,
            _ => return Err(object.bad(key, "gptq or gptq_v2")),
        }
    }
    Ok(Scheme::Gptq {
        bits,
        scales: group_size(object)?,
        zero_offset,
    })
}

fn awq(object: Object<'_>) -> Result<Scheme, QuantizationError> {
    if object.count("bits")? != Some(4) {
        return Err(object.bad("bits", "4"));
    }
    if object.flag("zero_point")? == Some(false) {
        return Err(object.bad("zero_point", "true"));
    }
    object.one_of("version", &["gemm", "GEMM"], "gemm")?;
    Ok(Scheme::Awq {
        scales: group_size(object)?,
    })
}

fn fp8(object: Object<'_>) -> Result<Scheme, QuantizationError> {
    object.one_of("fmt", &["e4m3"], "e4m3")?;
    object.one_of(
        "activation_scheme",
        &["dynamic", "static"],
        "dynamic or static",
    )?;
    let scales = match object.pair("weight_block_size")? {
        Some(block) => Scales::Block(block),
        None => Scales::Tensor,
    };
    Ok(Scheme::Fp8 { scales })
}

/// The columns of a group; -1 stands for all of a row.
fn group_size(object: Object<'_>) -> Result<Scales, QuantizationError> {
    match object.integer("group_size")? {
        Some(-1) => Ok(Scales::Channel),
        Some(size) if size > 0 => Ok(Scales::Group(size as usize)),
        _ => Err(object.bad("group_size", "-1, or a number of columns above 0")),
    }
}

#[cfg(test)]
mod tests;
