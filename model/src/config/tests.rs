use serde_json::{Value, json};

use super::*;

fn base(architecture: &str) -> Value {
    json!({
        "architectures": [architecture],
        "vocab_size": 256, "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    })
}

fn with(architecture: &str, changes: Value) -> Result<ModelConfig, ConfigError> {
    let mut config = base(architecture);
    for (key, value) in changes.as_object().expect("an object") {
        config[key] = value.clone();
    }
    ModelConfig::from_json(&config.to_string())
}

fn windows(config: &ModelConfig) -> Vec<Option<u32>> {
    config.layers.iter().map(|layer| layer.window).collect()
}

fn error(architecture: &str, changes: Value) -> String {
    with(architecture, changes)
        .expect_err("a bad config")
        .to_string()
}

#[test]
fn absent_fields_mean_what_they_mean_in_transformers() {
    let llama = with("LlamaForCausalLM", json!({})).unwrap();
    assert_eq!(llama.head_dim, 16);
    assert_eq!(llama.max_position_embeddings, 2048);
    assert_eq!(llama.rms_norm_eps, 1e-6);
    assert_eq!(
        (llama.bos_token_id, &llama.eos_token_ids[..]),
        (Some(1), &[2][..])
    );
    assert_eq!(windows(&llama), [None; 4]);
    assert_eq!(
        llama.ropes,
        [RopeConfig {
            theta: 1e4,
            rotary_dim: 16,
            scaling: RopeScaling::None
        }]
    );
    assert!(!llama.tie_word_embeddings && !llama.mlp_bias);
    assert_eq!(llama.qk_norms, QkNorms::None);

    let mistral = with("MistralForCausalLM", json!({})).unwrap();
    assert_eq!(mistral.max_position_embeddings, 131_072);
    assert_eq!(windows(&mistral), [Some(4096); 4]);

    let qwen2 = with("Qwen2ForCausalLM", json!({})).unwrap();
    assert_eq!(
        qwen2.attention_bias,
        AttentionBias {
            qkv: true,
            output: false
        }
    );
    assert_eq!(windows(&qwen2), [None; 4]);
    assert_eq!((qwen2.bos_token_id, qwen2.eos_token_ids.len()), (None, 0));

    let qwen3 = with("Qwen3ForCausalLM", json!({})).unwrap();
    assert_eq!(qwen3.head_dim, 128);
    assert_eq!(qwen3.qk_norms, QkNorms::Heads);
}

#[test]
fn kv_heads_default_by_family_when_absent_and_to_all_heads_when_null() {
    let without = |architecture: &str| {
        let mut config = base(architecture);
        config
            .as_object_mut()
            .unwrap()
            .remove("num_key_value_heads");
        config["num_attention_heads"] = json!(64);
        config["hidden_size"] = json!(128);
        ModelConfig::from_json(&config.to_string())
            .unwrap()
            .kv_heads
    };
    assert_eq!(without("LlamaForCausalLM"), 64);
    assert_eq!(without("MistralForCausalLM"), 8);
    assert_eq!(without("Qwen2ForCausalLM"), 32);
    let null = with("Qwen2ForCausalLM", json!({"num_key_value_heads": null})).unwrap();
    assert_eq!(null.kv_heads, 4);
}

#[test]
fn biases_follow_the_family_not_only_the_flags() {
    let flags = json!({"attention_bias": true, "mlp_bias": true});
    let llama = with("LlamaForCausalLM", flags.clone()).unwrap();
    assert_eq!(
        llama.attention_bias,
        AttentionBias {
            qkv: true,
            output: true
        }
    );
    assert!(llama.mlp_bias);
    // Mistral's modules have no bias whatever the file says; Qwen2's are fixed.
    let mistral = with("MistralForCausalLM", flags.clone()).unwrap();
    assert_eq!(
        mistral.attention_bias,
        AttentionBias {
            qkv: false,
            output: false
        }
    );
    assert!(!mistral.mlp_bias);
    let qwen3 = with("Qwen3ForCausalLM", flags).unwrap();
    assert_eq!(
        qwen3.attention_bias,
        AttentionBias {
            qkv: true,
            output: true
        }
    );
    assert!(!qwen3.mlp_bias);
}

#[test]
fn sliding_windows_apply_to_the_layers_that_transformers_gives_them() {
    let null = with("MistralForCausalLM", json!({"sliding_window": null})).unwrap();
    assert_eq!(windows(&null), [None; 4]);
    let by_count = json!({"use_sliding_window": true, "sliding_window": 8, "max_window_layers": 2});
    let qwen2 = with("Qwen2ForCausalLM", by_count.clone()).unwrap();
    assert_eq!(windows(&qwen2), [None, None, Some(8), Some(8)]);
    let mut by_type = by_count;
    by_type["layer_types"] = json!([
        "sliding_attention",
        "full_attention",
        "full_attention",
        "sliding_attention"
    ]);
    let qwen3 = with("Qwen3ForCausalLM", by_type.clone()).unwrap();
    assert_eq!(windows(&qwen3), [Some(8), None, None, Some(8)]);
    by_type["use_sliding_window"] = json!(false);
    assert_eq!(
        windows(&with("Qwen3ForCausalLM", by_type).unwrap()),
        [None; 4]
    );
    let llama = with("LlamaForCausalLM", json!({"sliding_window": 8})).unwrap();
    assert_eq!(windows(&llama), [None; 4]);
}

#[test]
fn old_and_new_names_of_the_rotary_parameters_mean_the_same() {
    let scaled = |object: Value| with("LlamaForCausalLM", object).unwrap().ropes.remove(0);
    let old = scaled(json!({
        "rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4.0}
    }));
    let middle = scaled(json!({
        "rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 4}
    }));
    let new = scaled(json!({
        "rope_parameters": {"rope_type": "linear", "factor": 4, "rope_theta": 5e5}
    }));
    assert_eq!(old, new);
    assert_eq!(middle, new);
    assert_eq!(new.scaling, RopeScaling::Linear { factor: 4.0 });
    assert_eq!(new.theta, 5e5);
}

#[test]
fn dtype_is_read_under_its_old_and_new_name() {
    for key in ["dtype", "torch_dtype"] {
        let config = with("LlamaForCausalLM", json!({key: "bfloat16"})).unwrap();
        assert_eq!(config.torch_dtype, Some(Dtype::Bf16));
    }
}

#[test]
fn eos_may_be_one_id_a_list_or_null() {
    let eos = |value: Value| {
        with("LlamaForCausalLM", json!({"eos_token_id": value}))
            .unwrap()
            .eos_token_ids
    };
    assert_eq!(eos(json!(7)), [7]);
    assert_eq!(eos(json!([7, 9])), [7, 9]);
    assert!(eos(Value::Null).is_empty());
}

#[test]
fn an_unsupported_architecture_is_named_beside_the_supported_ones() {
    let message = error("GPT2LMHeadModel", json!({}));
    assert!(message.contains("GPT2LMHeadModel"), "{message}");
    for family in FAMILIES {
        assert!(message.contains(family.class_name), "{message}");
    }
    let by_type = json!({"architectures": null, "model_type": "mamba"});
    assert!(error("", by_type).contains("mamba"));
    let llama = with("", json!({"architectures": [], "model_type": "llama"})).unwrap();
    assert_eq!(llama.architecture.class_name(), "LlamaForCausalLM");
}

#[test]
fn an_unsupported_rope_type_is_named_beside_the_supported_ones() {
    let message = error(
        "LlamaForCausalLM",
        json!({"rope_scaling": {"rope_type": "dynamic"}}),
    );
    assert!(message.contains("rope_scaling.rope_type"), "{message}");
    assert!(
        message.contains("dynamic") && message.contains("yarn"),
        "{message}"
    );
}

#[test]
fn bad_fields_are_named_with_their_bound_and_value() {
    let cases = [
        (json!({"hidden_size": 0}), "hidden_size", "got 0"),
        (json!({"hidden_size": -64}), "hidden_size", "got -64"),
        (json!({"hidden_size": 1e30}), "hidden_size", "got 1e+30"),
        (json!({"hidden_size": "64"}), "hidden_size", "got \"64\""),
        (json!({"hidden_size": null}), "hidden_size", "missing"),
        (json!({"hidden_size": 66}), "hidden_size", "got 66"),
        (
            json!({"vocab_size": 1u64 << 60}),
            "vocab_size",
            "got 1152921504606846976",
        ),
        (
            json!({"num_hidden_layers": 10_000_000}),
            "num_hidden_layers",
            "got 10000000",
        ),
        (
            json!({"num_key_value_heads": 3}),
            "num_key_value_heads",
            "got 3",
        ),
        (json!({"head_dim": 7}), "head_dim", "got 7"),
        (json!({"rms_norm_eps": -1.0}), "rms_norm_eps", "got -1.0"),
        (json!({"hidden_act": "gelu"}), "hidden_act", "got \"gelu\""),
        (json!({"rope_theta": 0}), "rope_theta", "got 0"),
        (json!({"rope_scaling": []}), "rope_scaling", "got []"),
        (
            json!({"rope_scaling": {"type": "linear"}}),
            "rope_scaling.factor",
            "missing",
        ),
        (
            json!({"rope_scaling": {"type": "linear", "factor": "2"}}),
            "factor",
            "got \"2\"",
        ),
        (
            json!({"partial_rotary_factor": 0.01}),
            "partial_rotary_factor",
            "got 0.01",
        ),
        (json!({"architectures": 3}), "architectures", "got 3"),
        (
            json!({"eos_token_id": "</s>"}),
            "eos_token_id",
            "got \"</s>\"",
        ),
        (
            json!({"tie_word_embeddings": "yes"}),
            "tie_word_embeddings",
            "got \"yes\"",
        ),
    ];
    for (change, field, value) in cases {
        let message = error("LlamaForCausalLM", change);
        assert!(
            message.contains(field) && message.contains(value),
            "{message}"
        );
    }
    let types = json!({"use_sliding_window": true, "layer_types": ["full_attention"]});
    assert!(error("Qwen3ForCausalLM", types).contains("layer_types"));
    let zero = error("MistralForCausalLM", json!({"sliding_window": 0}));
    assert!(
        zero.contains("sliding_window") && zero.contains("got 0"),
        "{zero}"
    );
}

#[test]
fn text_that_is_not_a_json_object_is_an_error() {
    for text in ["", "{", "[]", "3", "\u{0}"] {
        assert!(
            matches!(ModelConfig::from_json(text), Err(ConfigError::Json(_))),
            "{text:?}"
        );
    }
}

#[test]
fn a_long_bad_value_is_cut_in_the_message() {
    let message = error(
        "LlamaForCausalLM",
        json!({"hidden_size": "é".repeat(10_000)}),
    );
    assert!(message.len() < 400, "{}", message.len());
}
