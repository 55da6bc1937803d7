//! Clipping by the norm of all gradients together.
//!
//! Burn's own clipping treats one parameter at a time, which changes the direction of a step. Here
//! everything stays on the device and no value is read back.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_optim::GradientsParams;
use std::marker::PhantomData;

struct SquaredNorm<'a, B: Backend> {
    gradients: &'a GradientsParams,
    sum: Option<Tensor<B, 1>>,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for SquaredNorm<'_, B::InnerBackend> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if let Some(gradient) = self.gradients.get::<B::InnerBackend, D>(param.id) {
            let squares = gradient.square().sum();
            self.sum = Some(match self.sum.take() {
                Some(sum) => sum + squares,
                None => squares,
            });
        }
    }
}

struct Scale<'a, B: Backend> {
    gradients: &'a mut GradientsParams,
    factor: Tensor<B, 1>,
    backend: PhantomData<B>,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Scale<'_, B::InnerBackend> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if let Some(gradient) = self.gradients.remove::<B::InnerBackend, D>(param.id) {
            let scaled = gradient * self.factor.clone().unsqueeze();
            self.gradients.register(param.id, scaled);
        }
    }
}

/// Scales the gradients of `module` so that their joint Euclidean norm is at most `max_norm`.
pub fn clip<B: AutodiffBackend, M: Module<B>>(
    module: &M,
    gradients: &mut GradientsParams,
    max_norm: f32,
) {
    let mut norm = SquaredNorm::<B::InnerBackend> {
        gradients,
        sum: None,
    };
    module.visit(&mut norm);
    let Some(sum) = norm.sum else { return };
    let factor = ((sum.sqrt() + 1e-6).recip() * max_norm).clamp_max(1.0);
    let mut scale = Scale::<B::InnerBackend> {
        gradients,
        factor,
        backend: PhantomData,
    };
    module.visit(&mut scale);
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn_autodiff::Autodiff;
    use burn_flex::Flex;

    type B = Autodiff<Flex>;

    #[derive(Module, Debug)]
    struct Pair<B: Backend> {
        a: Param<Tensor<B, 1>>,
        b: Param<Tensor<B, 2>>,
    }

    fn clipped(max_norm: f32) -> (Vec<f32>, Vec<f32>) {
        let device = Default::default();
        let pair = Pair::<B> {
            a: Param::from_tensor(Tensor::from_floats([1.0], &device)),
            b: Param::from_tensor(Tensor::from_floats([[1.0, 1.0]], &device)),
        };
        // Gradients 3 and (0, 4): norm 5.
        let weights = Tensor::<B, 2>::from_floats([[0.0, 4.0]], &device);
        let loss = pair.a.val().mul_scalar(3.0).sum() + (pair.b.val() * weights).sum();
        let mut gradients = GradientsParams::from_grads(loss.backward(), &pair);
        clip(&pair, &mut gradients, max_norm);
        let values = |data: burn::tensor::TensorData| data.to_vec::<f32>().unwrap();
        (
            values(gradients.get::<Flex, 1>(pair.a.id).unwrap().into_data()),
            values(gradients.get::<Flex, 2>(pair.b.id).unwrap().into_data()),
        )
    }

    #[test]
    fn large_gradients_are_scaled_together_and_small_ones_left_alone() {
        let (a, b) = clipped(1.0);
        assert!(
            (a[0] - 0.6).abs() < 1e-5 && (b[1] - 0.8).abs() < 1e-5,
            "{a:?} {b:?}"
        );
        assert_eq!(clipped(10.0), (vec![3.0], vec![0.0, 4.0]));
    }
}
