//! The numbers of an adapter: two factors for each projection of each layer.

use burn::module::{Module, Param, ParamId};
use burn::tensor::backend::Backend;
use burn::tensor::{Distribution, Tensor};
use hearth_model::config::ModelConfig;
use hearth_model::transformer::{ExportedTensor, LayerMlp, Transformer};

/// The modules that are adapted, and where each is in a layer.
pub const TARGETS: [(&str, &str); 7] = [
    ("q_proj", "self_attn"),
    ("k_proj", "self_attn"),
    ("v_proj", "self_attn"),
    ("o_proj", "self_attn"),
    ("gate_proj", "mlp"),
    ("up_proj", "mlp"),
    ("down_proj", "mlp"),
];

/// The factors of all layers, in the order of [`TARGETS`].
#[derive(Module, Debug)]
pub struct Factors<B: Backend> {
    pairs: Vec<Pair<B>>,
}

/// The change `b a` of a matrix `[out, in]`.
#[derive(Module, Debug)]
struct Pair<B: Backend> {
    /// `[rank, in]`
    a: Param<Tensor<B, 2>>,
    /// `[out, rank]`
    b: Param<Tensor<B, 2>>,
}

/// The inputs and the outputs of the projections, in the order of [`TARGETS`].
fn shapes(config: &ModelConfig) -> [[usize; 2]; 7] {
    let (hidden, inner) = (config.hidden_size, config.widest_mlp());
    let (q, kv) = (
        config.heads * config.head_dim,
        config.kv_heads * config.head_dim,
    );
    [
        [hidden, q],
        [hidden, kv],
        [hidden, kv],
        [q, hidden],
        [hidden, inner],
        [hidden, inner],
        [inner, hidden],
    ]
}

impl<B: Backend> Factors<B> {
    /// Factors that change nothing yet: the first are random, the second zero.
    pub fn new(config: &ModelConfig, rank: usize, device: &B::Device) -> Self {
        let pair = |[input, output]: [usize; 2]| {
            let normal = Distribution::Normal(0.0, (input as f64).powf(-0.5));
            Pair {
                a: Param::from_tensor(Tensor::random([rank, input], normal, device)),
                b: Param::from_tensor(Tensor::zeros([output, rank], device)),
            }
        };
        let layers = (0..config.layers.len()).flat_map(|_| shapes(config));
        Self {
            pairs: layers.map(pair).collect(),
        }
    }

    /// `base` with the changes times `scale` added to its matrices. Gradients flow to the factors.
    pub fn added_to(&self, base: &Transformer<B>, scale: f64) -> Transformer<B> {
        let mut sum = base.clone();
        let layers = self.pairs.chunks_exact(TARGETS.len());
        for (layer, pairs) in sum.layers.iter_mut().zip(layers) {
            let add = |to: &mut Param<Tensor<B, 2>>, pairs: &[Pair<B>]| {
                let changes = pairs.iter().map(|pair| pair.b.val().matmul(pair.a.val()));
                let change = Tensor::cat(changes.collect(), 0) * scale;
                // It is no parameter of its own, but computed from those of the adapter.
                *to = Param::initialized(ParamId::new(), to.val() + change);
            };
            add(&mut layer.qkv, &pairs[..3]);
            add(&mut layer.output, &pairs[3..4]);
            let LayerMlp::Dense(mlp) = &mut layer.mlp else {
                unreachable!("the model that is trained has no experts");
            };
            add(&mut mlp.gate_up, &pairs[4..6]);
            add(&mut mlp.down, &pairs[6..]);
        }
        sum
    }

    /// The factors under PEFT's names.
    pub fn export(&self, config: &ModelConfig) -> Vec<ExportedTensor> {
        let places =
            (0..config.layers.len()).flat_map(|layer| TARGETS.map(|target| (layer, target)));
        let mut out = Vec::with_capacity(2 * self.pairs.len());
        for ((layer, (module, part)), pair) in places.zip(&self.pairs) {
            for (factor, values) in [("lora_A", &pair.a), ("lora_B", &pair.b)] {
                let values = values.val();
                out.push(ExportedTensor {
                    name: format!(
                        "base_model.model.model.layers.{layer}.{part}.{module}.{factor}.weight"
                    ),
                    shape: values.dims().to_vec(),
                    values: values.into_data().convert::<f32>().iter().collect(),
                });
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Int, TensorData};
    use burn_autodiff::Autodiff;
    use burn_flex::Flex;

    type B = Autodiff<Flex>;

    #[test]
    fn new_factors_change_nothing_and_gradients_reach_them_alone() {
        let config =
            ModelConfig::from_json(include_str!("../../../model/hearth-tiny/config.json")).unwrap();
        let device = Default::default();
        let base = Transformer::<B>::init(&config, 0.02, &device).no_grad();
        let factors = Factors::<B>::new(&config, 2, &device);
        let adapted = factors.added_to(&base, 2.0);
        let tokens = TensorData::new(vec![5, 6, 7, 8], [1, 4]);
        let tokens = Tensor::<B, 2, Int>::from_data(tokens, &device);
        let logits = adapted.forward_dense(&config, tokens.clone());
        let plain = base.forward_dense(&config, tokens);
        let difference = (logits.clone() - plain).abs().max().into_scalar();
        assert!(difference < 1e-5, "{difference}");
        let gradients = logits.square().sum().backward();
        for pair in &factors.pairs {
            let gradient = pair.b.grad(&gradients).unwrap();
            assert!(gradient.abs().max().into_scalar() > 0.0);
        }
        assert!(base.layers[0].output.grad(&gradients).is_none());
    }
}
