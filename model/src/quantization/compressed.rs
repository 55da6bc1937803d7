//! The format `compressed-tensors` of llm-compressor.

use super::fields::Object;
use super::{Compressed, QuantizationError, Scales, Scheme};

/// Reads a configuration whose matrices all have the same scheme. Activations that are quantized
/// while the model runs (`input_activations`) change nothing in the weights.
pub(super) fn parse(object: Object<'_>) -> Result<Scheme, QuantizationError> {
    object.empty("kv_cache_scheme", "absent")?;
    object.empty("transform_config", "absent")?;
    if let Some(sparsity) = object.object("sparsity_config")? {
        sparsity.one_of("format", &["dense"], "dense")?;
    }
    let groups = object.object("config_groups")?;
    let groups = groups.ok_or_else(|| object.bad("config_groups", "an object"))?;
    let mut schemes = Vec::new();
    for group in groups.objects("an object")? {
        let format = match group.text("format")? {
            Some(_) => group,
            None => object,
        };
        if let Some(weights) = group.object("weights")? {
            schemes.push(scheme(weights, format)?);
        }
    }
    match schemes.as_slice() {
        [first, others @ ..] if others.iter().all(|other| other == first) => Ok(*first),
        _ => Err(object.bad(
            "config_groups",
            "groups whose weights have one and the same scheme",
        )),
    }
}

fn scheme(weights: Object<'_>, with_format: Object<'_>) -> Result<Scheme, QuantizationError> {
    let bits = weights.count("num_bits")?;
    let is_float = match weights.text("type")? {
        None | Some("int") => false,
        Some("float") => true,
        _ => return Err(weights.bad("type", "int or float")),
    };
    let kind = match (with_format.text("format")?, is_float, bits) {
        (Some("pack-quantized"), false, Some(bits @ (4 | 8))) => {
            Compressed::Packed { bits: bits as u32 }
        }
        (Some("int-quantized" | "naive-quantized"), false, Some(8)) => Compressed::Int8,
        (Some("float-quantized" | "naive-quantized"), true, Some(8)) => Compressed::Float8,
        (Some("pack-quantized" | "int-quantized" | "float-quantized" | "naive-quantized"), ..) => {
            return Err(weights.bad(
                "num_bits",
                "8, or 4 with the format pack-quantized, of the type that the format has",
            ));
        }
        _ => {
            return Err(with_format.bad(
                "format",
                "pack-quantized, int-quantized, float-quantized or naive-quantized",
            ));
        }
    };
    weights.flag("symmetric")?;
    weights.one_of(
        "actorder",
        &["weight", "static", "group", "dynamic"],
        "weight, static, group or dynamic",
    )?;
    let group = weights.count("group_size")?.filter(|size| *size > 0);
    let scales = match (weights.text("strategy")?, group) {
        (Some("group") | None, Some(size)) if size <= 1 << 24 => Scales::Group(size as usize),
        (Some("group"), _) => return Err(weights.bad("group_size", "a number of columns above 0")),
        (Some("channel"), _) => Scales::Channel,
        (Some("tensor") | None, _) => Scales::Tensor,
        (Some("block"), _) => match weights.pair("block_structure")? {
            Some(block) => Scales::Block(block),
            None => return Err(weights.bad("block_structure", "two numbers above 0")),
        },
        _ => return Err(weights.bad("strategy", "group, channel, tensor or block")),
    };
    Ok(Scheme::Compressed { kind, scales })
}
