//! The choice of the type that a model is computed in and of the format of its matrices.

use crate::config::ModelConfig;
use crate::device::DeviceReport;
use crate::dtype::Dtype;
use crate::load_error::LoadError;
use crate::transformer::Quantized;
use crate::weights::{Quantization, Weights};

/// The type to compute in: the given type, or else the checkpoint's type if the device computes in
/// it and it holds the model's activations, or else f32. A given type that does not hold the
/// activations is taken with a warning.
///
/// # Errors
/// The device does not compute in the given type.
pub(super) fn choose_dtype(
    asked: Option<Dtype>,
    stored: Option<Dtype>,
    config: &ModelConfig,
    at: &DeviceReport,
) -> Result<Dtype, LoadError> {
    let lacks = |dtype: Dtype| match dtype {
        Dtype::F32 => None,
        Dtype::F16 => (!at.f16).then_some("the device has no 16-bit floats"),
        Dtype::Bf16 => (!at.bf16).then_some("the device has no bf16; f16 or f32 may serve"),
    };
    match asked {
        Some(dtype) => match lacks(dtype) {
            Some(reason) => Err(LoadError::Dtype {
                dtype,
                device: at.to_string(),
                reason,
            }),
            None => {
                if let Some(wide) = wide_enough(dtype, config, at) {
                    tracing::warn!(
                        "activations of {} may be beyond the range of {dtype}, and logits are then NaN: \
                         --dtype {wide} holds them",
                        config.architecture
                    );
                }
                Ok(dtype)
            }
        },
        None => Ok(stored
            .map(|dtype| wide_enough(dtype, config, at).unwrap_or(dtype))
            .filter(|dtype| lacks(*dtype).is_none())
            .unwrap_or(Dtype::F32)),
    }
}

/// The type that holds the activations of a model in place of `dtype`; `None` if `dtype` does. On the
/// CPU activations are f32 in any case.
fn wide_enough(dtype: Dtype, config: &ModelConfig, at: &DeviceReport) -> Option<Dtype> {
    let overflows = config.exceeds_f16 && dtype == Dtype::F16 && !at.is_cpu();
    overflows.then_some(if at.bf16 { Dtype::Bf16 } else { Dtype::F32 })
}

/// The matrices that stay quantized unless all are to become it: those that are stored in blocks which
/// kernels compute with. The CPU rounds activations for quantized matrices, so it keeps stored blocks
/// only in bf16, which is the type that blocks count as.
pub(super) fn stored_blocks(dtype: Dtype, is_cpu: bool) -> Quantized {
    match is_cpu && dtype != Dtype::Bf16 {
        true => Quantized::None,
        false => Quantized::Stored,
    }
}

/// The matrices that stay quantized, as [`stored_blocks`] says, or all if that was asked for.
///
/// # Errors
/// Quantization was asked for, and the weights are quantized already.
pub(super) fn choose_blocks(
    asked: Option<Quantization>,
    weights: &Weights,
    dtype: Dtype,
    at: &DeviceReport,
) -> Result<Quantized, LoadError> {
    let Some(given) = asked else {
        return Ok(stored_blocks(dtype, at.is_cpu()));
    };
    let refused = |reason| Err(LoadError::Quantization { given, reason });
    if let Some(already) = weights.quantized() {
        return refused(format!("on weights that are quantized already ({already})"));
    }
    Ok(Quantized::Rounded(given))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Api, list};

    fn config(class: &str) -> ModelConfig {
        let json = serde_json::json!({
            "architectures": [class], "vocab_size": 256, "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
        });
        ModelConfig::from_json(&json.to_string()).unwrap()
    }

    fn gpu(bf16: bool) -> DeviceReport {
        let cpu = list().pop().expect("the CPU is always there");
        DeviceReport {
            api: Api::Vulkan,
            f16: true,
            bf16,
            ..cpu
        }
    }

    #[test]
    fn a_stored_type_that_does_not_hold_the_activations_is_not_taken_unasked() {
        let stored = Some(Dtype::F16);
        let gemma = config("Gemma3ForCausalLM");
        for (bf16, expected) in [(true, Dtype::Bf16), (false, Dtype::F32)] {
            let at = gpu(bf16);
            assert_eq!(choose_dtype(None, stored, &gemma, &at).unwrap(), expected);
            let asked = choose_dtype(stored, stored, &gemma, &at).unwrap();
            assert_eq!(asked, Dtype::F16);
            let llama = choose_dtype(None, stored, &config("LlamaForCausalLM"), &at);
            assert_eq!(llama.unwrap(), Dtype::F16);
        }
        let cpu = list().pop().unwrap();
        let on_cpu = choose_dtype(None, stored, &gemma, &cpu).unwrap();
        assert_eq!(on_cpu, Dtype::F16);
    }

    #[test]
    fn a_type_that_the_device_lacks_is_refused_or_replaced() {
        let (llama, at) = (config("LlamaForCausalLM"), gpu(false));
        let error = choose_dtype(Some(Dtype::Bf16), None, &llama, &at).unwrap_err();
        assert!(error.to_string().contains("bf16"), "{error}");
        let stored = choose_dtype(None, Some(Dtype::Bf16), &llama, &at).unwrap();
        assert_eq!(stored, Dtype::F32);
    }
}
