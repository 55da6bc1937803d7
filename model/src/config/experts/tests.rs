//! Tests the fields of experts.

use hearth_shaders::ExpertWeights;
use serde_json::{Value, json};

use super::super::{ConfigError, Mlp, ModelConfig};

fn read(class: &str, changes: Value) -> Result<ModelConfig, ConfigError> {
    let mut config = json!({
        "architectures": [class], "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 2,
    });
    let fields = config.as_object_mut().unwrap();
    fields.extend(changes.as_object().unwrap().clone());
    ModelConfig::from_json(&config.to_string())
}

fn message(class: &str, changes: Value) -> String {
    read(class, changes).unwrap_err().to_string()
}

const QWEN2: &str = "Qwen2MoeForCausalLM";
const QWEN3: &str = "Qwen3MoeForCausalLM";

#[test]
fn either_spelling_of_the_number_of_experts_is_read() {
    for class in ["MixtralForCausalLM", QWEN2, QWEN3, "GptOssForCausalLM"] {
        for key in ["num_experts", "num_local_experts"] {
            let config = read(class, json!({ key: 6, "num_experts_per_tok": 3 })).unwrap();
            let experts = config.experts().unwrap();
            assert_eq!((experts.experts, experts.routing.top), (6, 3), "{class}");
        }
        let both = json!({"num_experts": 6, "num_local_experts": 8, "num_experts_per_tok": 3});
        let error = message(class, both);
        assert!(
            error.contains("num_experts") && error.contains("num_local_experts = 8"),
            "{error}"
        );
    }
}

#[test]
fn numbers_of_experts_out_of_bounds_are_errors_that_name_the_field() {
    for (changes, field, bound) in [
        (
            json!({"num_experts": 4, "num_experts_per_tok": 5}),
            "num_experts_per_tok",
            "4",
        ),
        (json!({"num_experts": 0}), "num_experts", "from 1"),
        (json!({"num_experts": 5000}), "num_experts", "4096"),
        (
            json!({"num_experts": 4096, "num_hidden_layers": 17}),
            "num_experts",
            "65536",
        ),
        (
            json!({"num_experts_per_tok": "two"}),
            "num_experts_per_tok",
            "integer",
        ),
        (
            json!({"moe_intermediate_size": 0}),
            "moe_intermediate_size",
            "from 1",
        ),
        (
            json!({"decoder_sparse_step": 0}),
            "decoder_sparse_step",
            "from 1",
        ),
        (
            json!({"mlp_only_layers": [0, "one"]}),
            "mlp_only_layers",
            "list of indices",
        ),
        (
            json!({"norm_topk_prob": "yes"}),
            "norm_topk_prob",
            "true or false",
        ),
    ] {
        for class in [QWEN2, QWEN3] {
            let error = message(class, changes.clone());
            assert!(
                error.contains(field) && error.contains(bound),
                "{changes}: {error}"
            );
        }
    }
    let error = message(QWEN2, json!({"shared_expert_intermediate_size": -1}));
    assert!(error.contains("shared_expert_intermediate_size"), "{error}");
    for (field, value) in [("swiglu_limit", json!(0)), ("swiglu_alpha", json!(1e300))] {
        let error = message("GptOssForCausalLM", json!({ field: value }));
        assert!(error.contains(field), "{error}");
    }
}

#[test]
fn some_layers_have_a_plain_mlp() {
    let sparse = |changes: Value| -> Vec<bool> {
        let layers = read(QWEN3, changes).unwrap().layers.into_iter();
        layers
            .map(|layer| matches!(layer.mlp, Mlp::Experts(_)))
            .collect()
    };
    assert_eq!(sparse(json!({})), [true; 5]);
    assert_eq!(
        sparse(json!({"mlp_only_layers": [1, 9]})),
        [true, false, true, true, true]
    );
    let step = json!({"decoder_sparse_step": 2, "mlp_only_layers": [3]});
    assert_eq!(sparse(step), [false, true, false, false, false]);
}

#[test]
fn weights_are_those_of_the_family() {
    let weights = |class: &str, changes: Value| {
        let config = read(class, changes).unwrap();
        config.experts().unwrap().routing.weights
    };
    for class in [QWEN2, QWEN3] {
        assert_eq!(weights(class, json!({})), ExpertWeights::OfAll);
        let normed = weights(class, json!({"norm_topk_prob": true}));
        assert_eq!(normed, ExpertWeights::OfChosen);
    }
    for class in ["MixtralForCausalLM", "GptOssForCausalLM"] {
        assert_eq!(weights(class, json!({})), ExpertWeights::OfChosen);
    }
}

#[test]
fn windows_are_where_the_family_has_them() {
    let windows = |class: &str, changes: Value| -> Vec<Option<u32>> {
        let layers = read(class, changes).unwrap().layers.into_iter();
        layers.map(|layer| layer.window).collect()
    };
    let used = json!({"use_sliding_window": true, "sliding_window": 7, "max_window_layers": 3});
    assert_eq!(
        windows(QWEN2, used.clone()),
        [Some(7), None, Some(7), None, None]
    );
    assert_eq!(windows(QWEN3, used), [Some(7); 5]);
    let unused = json!({"use_sliding_window": false, "sliding_window": 0});
    assert_eq!(windows(QWEN2, unused), [None; 5]);
    let alternating = windows("GptOssForCausalLM", json!({"sliding_window": 9}));
    assert_eq!(alternating, [Some(9), None, Some(9), None, Some(9)]);
    assert_eq!(windows("MixtralForCausalLM", json!({})), [None; 5]);
}

#[test]
fn experts_of_another_family_are_refused() {
    let error = message("LlamaForCausalLM", json!({"num_local_experts": 4}));
    assert!(error.contains("num_local_experts"), "{error}");
    let error = message(
        QWEN3,
        json!({"shared_expert_intermediate_size": 8, "n_routed_experts": 3}),
    );
    assert!(error.contains("n_routed_experts"), "{error}");
}
