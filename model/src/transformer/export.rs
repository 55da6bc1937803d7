//! Parameters under their Hugging Face names, for saving a trained model.

use burn::module::Param;
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use super::parameters::{DenseMlp, Layer, LayerMlp, Transformer};
use crate::config::{LayerTensors, Linear, MlpTensors, ModelConfig};

/// A parameter on the host, as Hugging Face names and shapes it.
pub struct ExportedTensor {
    pub name: String,
    pub shape: Vec<usize>,
    pub values: Vec<f32>,
}

impl<B: Backend> Transformer<B> {
    /// All parameters, with the stacked matrices split into Hugging Face's.
    pub fn export(&self, config: &ModelConfig) -> Vec<ExportedTensor> {
        let mut out = Exported {
            tensors: Vec::new(),
            norm_offset: if config.norms_from_one { 1.0 } else { 0.0 },
        };
        out.push(&config.embedding_name(), self.embedding.val());
        for (index, layer) in self.layers.iter().enumerate() {
            layer.export(config.layer_tensors(index), &mut out);
        }
        out.push_norm(&config.norm_name(), &self.norm);
        if let Some((name, lm_head)) = config.lm_head_name().zip(self.lm_head.as_ref()) {
            out.push(&name, lm_head.val());
        }
        out.tensors
    }
}

impl<B: Backend> Layer<B> {
    fn export(&self, tensors: LayerTensors, out: &mut Exported) {
        let norms = [
            (&tensors.attention_norm, &self.attention_norm),
            (&tensors.attention_post_norm, &self.attention_post_norm),
            (&tensors.q_norm, &self.q_norm),
            (&tensors.k_norm, &self.k_norm),
            (&tensors.mlp_norm, &self.mlp_norm),
            (&tensors.mlp_post_norm, &self.mlp_post_norm),
        ];
        for (tensor, parameter) in norms {
            if let Some(((name, _), parameter)) = tensor.as_ref().zip(parameter.as_ref()) {
                out.push_norm(name, parameter);
            }
        }
        if let Some(((name, _), sinks)) = tensors.sinks.as_ref().zip(self.sinks.as_ref()) {
            out.push(name, sinks.val());
        }
        out.push_linear(&tensors.qkv, &self.qkv, &self.qkv_bias);
        out.push_linear(&tensors.output, &self.output, &self.output_bias);
        match (&tensors.mlp, &self.mlp) {
            (MlpTensors::Dense { gate_up, down }, LayerMlp::Dense(mlp)) => {
                out.push_mlp(gate_up, down, mlp);
            }
            (
                MlpTensors::Experts {
                    router,
                    gate_up,
                    down,
                    shared,
                },
                LayerMlp::Experts(mlp),
            ) => {
                out.push_linear(router, &mlp.router, &mlp.router_bias);
                out.push_mlp(gate_up, down, &mlp.experts);
                if let Some((tensors, shared)) = shared.as_ref().zip(mlp.shared.as_ref()) {
                    out.push_mlp(&tensors.gate_up, &tensors.down, &shared.mlp);
                    out.push_linear(&tensors.gate, &shared.gate, &None);
                }
            }
            _ => unreachable!("the parameters were made for another description"),
        }
    }
}

/// The tensors that were collected so far.
struct Exported {
    tensors: Vec<ExportedTensor>,
    /// The checkpoint's weights of norms are less than the parameters by this.
    norm_offset: f32,
}

impl Exported {
    fn push<B: Backend, const D: usize>(&mut self, name: &str, tensor: Tensor<B, D>) {
        let (shape, values) = values(tensor);
        self.tensors.push(ExportedTensor {
            name: name.to_owned(),
            shape,
            values,
        });
    }

    fn push_norm<B: Backend>(&mut self, name: &str, parameter: &Param<Tensor<B, 1>>) {
        self.push(name, parameter.val());
        if let Some(norm) = self.tensors.last_mut() {
            let values = norm.values.iter_mut();
            values.for_each(|value| *value -= self.norm_offset);
        }
    }

    fn push_mlp<B: Backend>(&mut self, gate_up: &Linear, down: &Linear, mlp: &DenseMlp<B>) {
        self.push_linear(gate_up, &mlp.gate_up, &mlp.gate_up_bias);
        self.push_linear(down, &mlp.down, &mlp.down_bias);
    }

    fn push_linear<B: Backend>(
        &mut self,
        linear: &Linear,
        matrix: &Param<Tensor<B, 2>>,
        bias: &Option<Param<Tensor<B, 1>>>,
    ) {
        self.push_stacked(&linear.weights(), matrix.val());
        if let Some((parts, bias)) = linear.biases().zip(bias.as_ref()) {
            self.push_stacked(&parts, bias.val());
        }
    }

    /// Splits a parameter stacked along its rows into `parts` of `(name, rows)`.
    fn push_stacked<B: Backend, const D: usize>(
        &mut self,
        parts: &[(String, usize)],
        parameter: Tensor<B, D>,
    ) {
        let (shape, values) = values(parameter);
        let width: usize = shape[1..].iter().product();
        let mut row = 0;
        for (name, rows) in parts {
            let mut part_shape = shape.clone();
            part_shape[0] = *rows;
            self.tensors.push(ExportedTensor {
                name: name.clone(),
                shape: part_shape,
                values: values[row * width..(row + rows) * width].to_vec(),
            });
            row += rows;
        }
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
