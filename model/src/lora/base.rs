//! The base model's own numbers, which the formats of some adapters are relative to.

use std::cell::OnceCell;

use hearth_forward::{AdaptedMatrix, LayerMatrix};

use super::error::LoraError;
use crate::config::{Linear, MlpTensors, ModelConfig};
use crate::weights::{TensorView, Weights};

/// The model that an adapter is read for.
pub struct Base<'a> {
    pub config: &'a ModelConfig,
    open: &'a dyn Fn() -> Result<Weights, String>,
    weights: OnceCell<Weights>,
}

impl<'a> Base<'a> {
    /// `open` returns the weights of the model. It is called only for adapters that need them.
    pub fn new(config: &'a ModelConfig, open: &'a dyn Fn() -> Result<Weights, String>) -> Self {
        Self {
            config,
            open,
            weights: OnceCell::new(),
        }
    }

    fn weights(&self) -> Result<&Weights, LoraError> {
        match self.weights.get() {
            Some(weights) => Ok(weights),
            None => {
                let weights = (self.open)().map_err(LoraError::Base)?;
                Ok(self.weights.get_or_init(|| weights))
            }
        }
    }

    /// `[out, in]`, and `[vocab, hidden]` for the embedding.
    pub fn matrix(&self, matrix: AdaptedMatrix) -> Result<TensorView<'_>, LoraError> {
        let config = self.config;
        let table = [config.vocab_size, config.hidden_size];
        let (name, shape) = match matrix {
            AdaptedMatrix::Embedding => (config.embedding_name(), table),
            AdaptedMatrix::LmHead => {
                let own = config.lm_head_name();
                (own.unwrap_or_else(|| config.embedding_name()), table)
            }
            AdaptedMatrix::Layer(layer, matrix) => {
                let (linear, part) = self.linear(layer, matrix)?;
                let (name, rows) = linear.weights().swap_remove(part);
                (name, [rows, linear.columns])
            }
        };
        Ok(self.weights()?.get(&name, &shape)?)
    }

    /// `[out]`; `None` for a matrix without a bias.
    pub fn bias(&self, matrix: AdaptedMatrix) -> Result<Option<Vec<f32>>, LoraError> {
        let AdaptedMatrix::Layer(layer, matrix) = matrix else {
            return Ok(None);
        };
        let (linear, part) = self.linear(layer, matrix)?;
        let Some(mut biases) = linear.biases() else {
            return Ok(None);
        };
        let (name, rows) = biases.swap_remove(part);
        Ok(Some(self.weights()?.get(&name, &[rows])?.to_f32()))
    }

    /// The linear layer that has a matrix, and the part of it.
    fn linear(&self, layer: u32, matrix: LayerMatrix) -> Result<(Linear, usize), LoraError> {
        use LayerMatrix::{Down, Gate, Key, Output, Query, Up, Value};
        let tensors = self.config.layer_tensors(layer as usize);
        let (gate_up, down) = match tensors.mlp {
            MlpTensors::Dense { gate_up, down } => (Some(gate_up), Some(down)),
            MlpTensors::Experts { .. } => (None, None),
        };
        let (linear, part) = match matrix {
            Query => (Some(tensors.qkv), 0),
            Key => (Some(tensors.qkv), 1),
            Value => (Some(tensors.qkv), 2),
            Output => (Some(tensors.output), 0),
            Gate => (gate_up, 0),
            Up => (gate_up, 1),
            Down => (down, 0),
        };
        let linear = linear.filter(|linear| part < linear.parts.len());
        let linear = linear.ok_or_else(|| LoraError::Base(format!("it has no {matrix:?}")))?;
        Ok((linear, part))
    }
}
