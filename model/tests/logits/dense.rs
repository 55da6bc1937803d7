//! The dense forward pass, which trains, against transformers.

use burn::tensor::{Int, Tensor, TensorData};
use burn_flex::Flex;
use hearth_model::dtype::Dtype;
use hearth_model::transformer::Transformer;

use super::golden::{assert_close, goldens, open};

#[test]
fn the_dense_pass_agrees_with_transformers() {
    for golden in goldens() {
        let checkpoint = open(&golden);
        let device = Default::default();
        let model = Transformer::<Flex>::load(
            &checkpoint.config,
            &checkpoint.weights,
            Dtype::F32,
            Dtype::F32,
            &device,
        );
        let model = model.expect("the golden loads");
        let length = golden.prompt.len();
        // The same prompt twice, because sequences of a batch must not see each other.
        let ids: Vec<i32> = golden.prompt.iter().map(|id| *id as i32).collect();
        let tokens = TensorData::new([&ids[..], &ids].concat(), [2, length]);
        let tokens = Tensor::<Flex, 2, Int>::from_data(tokens, &device);
        let logits = model.forward_dense(&checkpoint.config, tokens);
        let logits: Vec<f32> = logits.into_data().into_vec().expect("f32");
        let want = [&golden.prefill[..], &golden.prefill].concat();
        assert_close(&format!("dense {:?}", golden.dir), &logits, &want);
    }
}

#[test]
fn exported_parameters_are_those_of_the_checkpoint() {
    for golden in goldens() {
        let checkpoint = open(&golden);
        let (config, weights) = (&checkpoint.config, &checkpoint.weights);
        let model =
            Transformer::<Flex>::load(config, weights, Dtype::F32, Dtype::F32, &Default::default());
        let exported = model.expect("the golden loads").export(config);
        let mut names: Vec<&str> = exported.iter().map(|tensor| tensor.name.as_str()).collect();
        let mut want: Vec<String> = config.tensors().into_iter().map(|(name, _)| name).collect();
        names.sort_unstable();
        want.sort_unstable();
        assert_eq!(names, want, "{:?}", golden.dir);
        for tensor in &exported {
            let stored = weights.get(&tensor.name, &tensor.shape);
            let stored = stored.expect("a tensor of the checkpoint").to_f32();
            assert_close(&tensor.name, &tensor.values, &stored);
        }
    }
}
