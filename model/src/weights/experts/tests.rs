//! Tests the parts of tensors with all experts.

use std::path::PathBuf;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, serialize};

use crate::config::ModelConfig;
use crate::weights::{WeightError, Weights};

const EXPERTS: usize = 2;
const HIDDEN: usize = 64;
const WIDTH: usize = 32;

fn config(class: &str) -> ModelConfig {
    let text = format!(
        "{{\"architectures\": [\"{class}\"], \"vocab_size\": 8, \"hidden_size\": {HIDDEN},
          \"intermediate_size\": {WIDTH}, \"moe_intermediate_size\": {WIDTH},
          \"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"num_key_value_heads\": 1,
          \"num_experts\": {EXPERTS}, \"num_experts_per_tok\": 1}}"
    );
    let text = match class {
        "GptOssForCausalLM" => text.replace("\"moe_intermediate_size\": 32,", ""),
        _ => text,
    };
    ModelConfig::from_json(&text).unwrap()
}

/// The values of a tensor: each says where it is.
fn values(shape: &[usize]) -> Vec<f32> {
    (0..shape.iter().product())
        .map(|at: usize| at as f32)
        .collect()
}

fn weights(tensors: &[(&str, Dtype, Vec<usize>, Vec<u8>)]) -> Weights {
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        let view = TensorView::new(*dtype, shape.clone(), bytes).unwrap();
        (format!("model.layers.0.mlp.experts.{name}"), view)
    });
    let bytes = serialize(views, None).unwrap();
    Weights::from_bytes(PathBuf::from("file"), bytes).unwrap()
}

fn floats<'a>(name: &'a str, shape: &[usize]) -> (&'a str, Dtype, Vec<usize>, Vec<u8>) {
    let bytes = values(shape).into_iter().flat_map(f32::to_le_bytes);
    (name, Dtype::F32, shape.to_vec(), bytes.collect())
}

fn read(weights: &Weights, name: &str, shape: &[usize]) -> Vec<f32> {
    let name = format!("model.layers.0.mlp.experts.{name}");
    weights.get(&name, shape).unwrap().to_f32()
}

#[test]
fn merged_tensors_are_cut_where_they_lie() {
    let mut all = weights(&[
        floats("gate_up_proj", &[EXPERTS, 2 * WIDTH, HIDDEN]),
        floats("down_proj", &[EXPERTS, HIDDEN, WIDTH]),
    ]);
    let bytes = all.total_bytes();
    let layer = config("Qwen3MoeForCausalLM").expert_tensors(0).unwrap();
    all.split_experts(&layer).unwrap();
    assert_eq!(all.total_bytes(), bytes);
    assert_eq!(all.names().len(), 3 * EXPERTS);
    let each = |first: usize| -> Vec<f32> {
        (first..first + WIDTH * HIDDEN)
            .map(|at| at as f32)
            .collect()
    };
    let one = 2 * WIDTH * HIDDEN;
    let inner = [WIDTH, HIDDEN];
    assert_eq!(read(&all, "1.gate_proj.weight", &inner), each(one));
    assert_eq!(
        read(&all, "1.up_proj.weight", &inner),
        each(one + WIDTH * HIDDEN)
    );
    assert_eq!(
        read(&all, "1.down_proj.weight", &[HIDDEN, WIDTH]),
        each(WIDTH * HIDDEN)
    );
}

#[test]
fn alternating_columns_become_rows() {
    let mut all = weights(&[
        floats("gate_up_proj", &[EXPERTS, HIDDEN, 2 * WIDTH]),
        floats("gate_up_proj_bias", &[EXPERTS, 2 * WIDTH]),
        floats("down_proj", &[EXPERTS, WIDTH, HIDDEN]),
        floats("down_proj_bias", &[EXPERTS, HIDDEN]),
    ]);
    let bytes = all.total_bytes();
    let layer = config("GptOssForCausalLM").expert_tensors(0).unwrap();
    all.split_experts(&layer).unwrap();
    assert_eq!(all.total_bytes(), bytes);
    let up = read(&all, "1.up_proj.weight", &[WIDTH, HIDDEN]);
    let down = read(&all, "1.down_proj.weight", &[HIDDEN, WIDTH]);
    for inner in 0..WIDTH {
        for outer in 0..HIDDEN {
            let at = ((HIDDEN + outer) * 2 * WIDTH) + 2 * inner + 1;
            assert_eq!(up[inner * HIDDEN + outer], at as f32);
            let at = (WIDTH + inner) * HIDDEN + outer;
            assert_eq!(down[outer * WIDTH + inner], at as f32);
        }
    }
    let gate = read(&all, "1.gate_proj.bias", &[WIDTH]);
    assert_eq!(gate[3], (2 * WIDTH + 6) as f32);
    let down = read(&all, "1.down_proj.bias", &[HIDDEN]);
    assert_eq!(down[3], (HIDDEN + 3) as f32);
}

#[test]
fn blocks_and_scales_are_put_together() {
    let rows = EXPERTS * 2 * WIDTH;
    let blocks: Vec<u8> = (0..rows * HIDDEN / 2)
        .map(|at| (at * 37 % 251) as u8)
        .collect();
    let scales: Vec<u8> = (0..rows * HIDDEN / 32)
        .map(|at| 120 + (at % 13) as u8)
        .collect();
    let (shape, of_row) = ([EXPERTS, 2 * WIDTH], HIDDEN / 32);
    let mut all = weights(&[
        (
            "gate_up_proj_blocks",
            Dtype::U8,
            [&shape[..], &[of_row, 16]].concat(),
            blocks.clone(),
        ),
        (
            "gate_up_proj_scales",
            Dtype::U8,
            [&shape[..], &[of_row]].concat(),
            scales.clone(),
        ),
    ]);
    let layer = config("GptOssForCausalLM").expert_tensors(0).unwrap();
    all.split_experts(&layer).unwrap();
    let up = read(&all, "1.up_proj.weight", &[WIDTH, HIDDEN]);
    let values = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    for (at, got) in up.iter().enumerate() {
        let row = 2 * WIDTH + 2 * (at / HIDDEN) + 1;
        let from = row * HIDDEN + at % HIDDEN;
        let code = blocks[from / 2] >> (from % 2 * 4) & 0xf;
        let value = values[usize::from(code & 7)] * if code > 7 { -1.0 } else { 1.0 };
        assert_eq!(
            *got,
            value * f32::from(i16::from(scales[from / 32]) - 127).exp2(),
            "{at}"
        );
    }
}

#[test]
fn a_wrong_shape_and_missing_scales_are_errors_that_name_the_tensor() {
    let layer = config("Qwen3MoeForCausalLM").expert_tensors(0).unwrap();
    let mut all = weights(&[floats("down_proj", &[EXPERTS + 1, HIDDEN, WIDTH])]);
    let error = all.split_experts(&layer).unwrap_err();
    assert!(
        matches!(&error, WeightError::WrongShape { tensor, .. } if tensor.ends_with("experts.down_proj"))
    );
    let layer = config("GptOssForCausalLM").expert_tensors(0).unwrap();
    let shape = vec![EXPERTS, HIDDEN, WIDTH / 32, 16];
    let bytes = vec![0; shape.iter().product()];
    let mut all = weights(&[("down_proj_blocks", Dtype::U8, shape, bytes)]);
    let error = all.split_experts(&layer).unwrap_err();
    assert!(
        matches!(&error, WeightError::MissingTensor { tensor, .. } if tensor.ends_with("down_proj_scales"))
    );
}

#[test]
fn rows_that_are_no_whole_blocks_are_an_error() {
    let mut layer = config("GptOssForCausalLM").expert_tensors(0).unwrap();
    layer.width = 40;
    let bytes = |name, shape: Vec<usize>| {
        let bytes = vec![0; shape.iter().product()];
        (name, Dtype::U8, shape, bytes)
    };
    let mut all = weights(&[
        bytes("down_proj_blocks", vec![EXPERTS, HIDDEN, 1, 16]),
        bytes("down_proj_scales", vec![EXPERTS, HIDDEN, 1]),
    ]);
    let error = all.split_experts(&layer).unwrap_err().to_string();
    assert!(error.contains("down_proj_blocks"), "{error}");
    assert!(
        error.contains("blocks of 32") && error.contains("have 40"),
        "{error}"
    );
}
