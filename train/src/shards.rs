//! Data parallelism on the CPU: each core takes some rows of a batch through the model and back.
//!
//! Burn's CPU backend runs most operations on one thread; two halves of a batch on two cores are
//! nearly twice as fast as one whole batch.

use anyhow::{Context, Result};
use burn::module::AutodiffModule;
use burn::tensor::Tensor;
use burn::tensor::backend::AutodiffBackend;
use burn_optim::{GradientsAccumulator, GradientsParams};
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::batches::Batch;

/// One pool of one thread for each shard, so that a shard's matrix products stay on its core.
pub struct Shards(Vec<ThreadPool>);

impl Shards {
    pub fn new(count: usize) -> Result<Self> {
        let pool = || ThreadPoolBuilder::new().num_threads(1).build();
        let pools: Result<Vec<_>, _> = (0..count.max(1)).map(|_| pool()).collect();
        Ok(Self(pools.context("cannot start the training threads")?))
    }

    /// The loss of `batch` under `model`, `[1]`, and its gradients. `loss` returns the share of a
    /// part of the batch in the loss; the shares add up to the whole loss.
    pub fn gradients<B, M>(
        &self,
        model: &M,
        batch: Batch,
        device: &B::Device,
        loss: impl Fn(&M, &Batch) -> Tensor<B, 1> + Sync,
    ) -> (Tensor<B::InnerBackend, 1>, GradientsParams)
    where
        B: AutodiffBackend,
        M: AutodiffModule<B>,
    {
        let run = |model: M, part: Batch| {
            let loss = loss(&model, &part);
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            (loss.inner(), gradients)
        };
        let parts = batch.split(self.0.len());
        if parts.len() == 1 {
            let mut parts = parts;
            return run(model.clone(), parts.remove(0));
        }
        let results = std::thread::scope(|scope| {
            let running: Vec<_> = parts
                .into_iter()
                .zip(&self.0)
                .map(|(part, pool)| {
                    // Each shard has a graph of its own, because shards that share one wait for
                    // each other.
                    let model = model.clone().fork(device);
                    let run = &run;
                    scope.spawn(move || pool.install(|| run(model, part)))
                })
                .collect();
            let joined = running.into_iter().map(|shard| match shard.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            joined.collect::<Vec<_>>()
        });
        let mut sum = None;
        let mut accumulator = GradientsAccumulator::new();
        for (loss, gradients) in results {
            accumulator.accumulate::<B>(model, gradients);
            sum = Some(match sum {
                Some(sum) => sum + loss,
                None => loss,
            });
        }
        let sum = sum.unwrap_or_else(|| Tensor::zeros([1], device));
        (sum, accumulator.grads())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::module::{Module, Param};
    use burn::tensor::TensorData;
    use burn::tensor::backend::Backend;
    use burn_autodiff::Autodiff;
    use burn_flex::Flex;

    type B = Autodiff<Flex>;

    #[derive(Module, Debug)]
    struct Scale<B: Backend> {
        by: Param<Tensor<B, 1>>,
    }

    #[test]
    fn shards_give_the_loss_and_the_gradient_of_the_whole_batch() {
        let device = Default::default();
        let model = Scale::<B> {
            by: Param::from_tensor(Tensor::from_floats([3.0], &device)),
        };
        let batch = Batch {
            rows: 3,
            tokens: vec![1, 2, 3, 4, 5, 6],
            targets: vec![0; 6],
            weights: vec![1.0, 0.0, 1.0, 1.0, 0.0, 1.0],
            learnt: 4,
        };
        let loss = |model: &Scale<B>, part: &Batch| {
            let values: Vec<f32> = (part.tokens.iter().zip(&part.weights))
                .map(|(&token, weight)| token as f32 * weight)
                .collect();
            let count = values.len();
            let values = Tensor::<B, 1>::from_data(TensorData::new(values, [count]), &device);
            (values * model.by.val()).sum() / part.learnt as f64
        };
        for count in [1, 2, 3, 8] {
            let shards = Shards::new(count).unwrap();
            let (sum, gradients) = shards.gradients(&model, batch.clone(), &device, loss);
            assert_eq!(sum.into_scalar(), 3.0 * 14.0 / 4.0, "{count} shards");
            let gradient = gradients.get::<Flex, 1>(model.by.id).unwrap();
            assert_eq!(gradient.into_scalar(), 14.0 / 4.0, "{count} shards");
        }
    }
}
