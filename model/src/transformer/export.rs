//! Parameters under their Hugging Face names, for saving a trained model.

use burn::module::Param;
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use super::parameters::{Layer, Transformer};
use crate::config::ModelConfig;

/// A parameter on the host, as Hugging Face names and shapes it.
pub struct ExportedTensor {
    pub name: String,
    pub shape: Vec<usize>,
    pub values: Vec<f32>,
}

impl<B: Backend> Transformer<B> {
    /// All parameters, with the stacked matrices split into Hugging Face's.
    pub fn export(&self, config: &ModelConfig) -> Vec<ExportedTensor> {
        let mut out = Vec::new();
        push_tensor(&mut out, "model.embed_tokens.weight", self.embedding.val());
        for (index, layer) in self.layers.iter().enumerate() {
            layer.export(config, &format!("model.layers.{index}"), &mut out);
        }
        push(&mut out, "model.norm.weight", &self.norm);
        if let Some(lm_head) = &self.lm_head {
            push_tensor(&mut out, "lm_head.weight", lm_head.val());
        }
        out
    }
}

impl<B: Backend> Layer<B> {
    fn export(&self, config: &ModelConfig, prefix: &str, out: &mut Vec<ExportedTensor>) {
        let dim = config.head_dim;
        let qkv = [
            ("self_attn.q_proj", config.heads * dim),
            ("self_attn.k_proj", config.kv_heads * dim),
            ("self_attn.v_proj", config.kv_heads * dim),
        ];
        let inner = config.intermediate_size;
        let gate_up = [("mlp.gate_proj", inner), ("mlp.up_proj", inner)];

        push(
            out,
            &format!("{prefix}.input_layernorm.weight"),
            &self.attention_norm,
        );
        push_stacked(out, prefix, "weight", &self.qkv, &qkv);
        if let Some(bias) = &self.qkv_bias {
            push_stacked(out, prefix, "bias", bias, &qkv);
        }
        let optional = [
            ("self_attn.q_norm.weight", &self.q_norm),
            ("self_attn.k_norm.weight", &self.k_norm),
            ("self_attn.o_proj.bias", &self.output_bias),
            ("mlp.down_proj.bias", &self.down_bias),
        ];
        for (name, parameter) in optional {
            if let Some(parameter) = parameter {
                push(out, &format!("{prefix}.{name}"), parameter);
            }
        }
        push(
            out,
            &format!("{prefix}.self_attn.o_proj.weight"),
            &self.output,
        );
        push(
            out,
            &format!("{prefix}.post_attention_layernorm.weight"),
            &self.mlp_norm,
        );
        push_stacked(out, prefix, "weight", &self.gate_up, &gate_up);
        if let Some(bias) = &self.gate_up_bias {
            push_stacked(out, prefix, "bias", bias, &gate_up);
        }
        push(out, &format!("{prefix}.mlp.down_proj.weight"), &self.down);
    }
}

fn values<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> (Vec<usize>, Vec<f32>) {
    let shape = tensor.dims().to_vec();
    let values = tensor
        .into_data()
        .convert::<f32>()
        .into_vec()
        .expect("converted to f32 above");
    (shape, values)
}

fn push<B: Backend, const D: usize>(
    out: &mut Vec<ExportedTensor>,
    name: &str,
    parameter: &Param<Tensor<B, D>>,
) {
    push_tensor(out, name, parameter.val());
}

fn push_tensor<B: Backend, const D: usize>(
    out: &mut Vec<ExportedTensor>,
    name: &str,
    tensor: Tensor<B, D>,
) {
    let (shape, values) = values(tensor);
    out.push(ExportedTensor {
        name: name.to_owned(),
        shape,
        values,
    });
}

/// Splits a parameter stacked along its rows into `parts` of `(module, rows)`.
fn push_stacked<B: Backend, const D: usize>(
    out: &mut Vec<ExportedTensor>,
    prefix: &str,
    suffix: &str,
    parameter: &Param<Tensor<B, D>>,
    parts: &[(&str, usize)],
) {
    let (shape, values) = values(parameter.val());
    let width: usize = shape[1..].iter().product();
    let mut row = 0;
    for (module, rows) in parts {
        let mut part_shape = shape.clone();
        part_shape[0] = *rows;
        out.push(ExportedTensor {
            name: format!("{prefix}.{module}.{suffix}"),
            shape: part_shape,
            values: values[row * width..(row + rows) * width].to_vec(),
        });
        row += rows;
    }
}
