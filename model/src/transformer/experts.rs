//! Both forward passes of a layer's experts.

use burn::tensor::Tensor;
use burn::tensor::activation::{sigmoid, softmax};
use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use hearth_shaders::{Activation, ExpertActivation, ExpertWeights, Experts, Kernels, Summation};

use super::dense::linear;
use super::parameters::{DenseMlp, ExpertMlp};
use super::primitive::{primitive, tensor};
use crate::config::ExpertsConfig;

impl<B: Kernels> ExpertMlp<B> {
    /// `x` is `[rows, hidden]`.
    pub(super) fn feed_forward(
        &self,
        config: &ExpertsConfig,
        x: FloatTensor<B>,
        summation: Summation,
    ) -> FloatTensor<B> {
        let router = primitive(self.router.val());
        let router_bias = self.router_bias.as_ref().map(|bias| primitive(bias.val()));
        let logits = B::project(x.clone(), router, router_bias, summation);
        let chosen = B::choose_experts(logits, config.routing);
        let DenseMlp {
            gate_up,
            gate_up_bias,
            down,
            down_bias,
        } = &self.experts;
        let [_, hidden] = self.router.dims();
        let stack = Experts::<B> {
            gate_up: primitive(gate_up.val()),
            gate_up_bias: gate_up_bias.as_ref().map(|bias| primitive(bias.val())),
            down: primitive(down.val()),
            down_bias: down_bias.as_ref().map(|bias| primitive(bias.val())),
            hidden,
            width: config.width,
            activation: config.activation,
        };
        let mixed = B::mix_experts(x.clone(), &chosen, &stack);
        let Some(shared) = &self.shared else {
            return mixed;
        };
        let gate = B::project(x.clone(), primitive(shared.gate.val()), None, summation);
        let y = shared
            .mlp
            .feed_forward(Activation::Silu, x, None, summation);
        let (mixed, y): (Tensor<B, 2>, Tensor<B, 2>) = (tensor(mixed), tensor(y));
        primitive(mixed + y * sigmoid(tensor::<B, 2>(gate)))
    }
}

impl<B: Backend> ExpertMlp<B> {
    /// `x` is `[rows, hidden]`. Every expert computes every row, and most outputs get a weight of zero.
    pub(super) fn apply(&self, config: &ExpertsConfig, x: Tensor<B, 2>) -> Tensor<B, 2> {
        let bias = self.router_bias.as_ref().map(|bias| bias.val());
        let logits = linear(x.clone(), self.router.val(), bias);
        let top = config.routing.top;
        let least = logits.clone().topk(top, 1).narrow(1, top - 1, 1);
        let others = logits.clone().lower(least);
        let weights = match config.routing.weights {
            ExpertWeights::OfAll => softmax(logits, 1).mask_fill(others, 0.0),
            ExpertWeights::OfChosen => softmax(logits.mask_fill(others, -1e9), 1),
        };
        let [rows, hidden] = x.dims();
        let mut mixed = Tensor::zeros([rows, hidden], &x.device());
        for expert in 0..config.experts {
            let y = self.expert(config, expert, x.clone());
            mixed = mixed + y * weights.clone().narrow(1, expert, 1);
        }
        match &self.shared {
            None => mixed,
            Some(shared) => {
                let gate = sigmoid(linear(x.clone(), shared.gate.val(), None));
                mixed + shared.mlp.apply(Activation::Silu, x) * gate
            }
        }
    }

    fn expert(&self, config: &ExpertsConfig, expert: usize, x: Tensor<B, 2>) -> Tensor<B, 2> {
        let [_, hidden] = x.dims();
        let width = config.width;
        let half = |first: usize| {
            let from = expert * 2 * width + first;
            let weight = self.experts.gate_up.val().narrow(0, from, width);
            let bias = self.experts.gate_up_bias.as_ref();
            let bias = bias.map(|bias| bias.val().narrow(0, from, width));
            linear(x.clone(), weight, bias)
        };
        let (gate, up) = (half(0), half(width));
        let gated = match config.activation {
            ExpertActivation::Silu => gate.clone() * sigmoid(gate) * up,
            ExpertActivation::Clamped { alpha, limit } => {
                let gate = gate.clamp_max(limit);
                gate.clone() * sigmoid(gate * alpha) * (up.clamp(-limit, limit) + 1.0)
            }
        };
        let down = self.experts.down.val().narrow(0, expert * hidden, hidden);
        let bias = self.experts.down_bias.as_ref();
        let bias = bias.map(|bias| bias.val().narrow(0, expert * hidden, hidden));
        linear(gated, down, bias)
    }
}
