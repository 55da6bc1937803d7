//! Damaged and misleading configurations of the families that have more than a plain block.

use serde_json::{Value, json};

use super::*;

/// A small config of a family, with some fields changed.
fn with(family: &str, changes: Value) -> Result<ModelConfig, ConfigError> {
    let mut config = json!({
        "model_type": family,
        "vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "head_dim": 16,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    });
    if family == "granitemoehybrid" {
        config["num_local_experts"] = json!(0);
        config["shared_intermediate_size"] = json!(48);
        config["layer_types"] = json!(vec!["attention"; 4]);
    }
    for (key, value) in changes.as_object().expect("an object") {
        config[key] = value.clone();
    }
    if family == "gemma3" {
        config = json!({"model_type": family, "text_config": config});
    }
    ModelConfig::from_json(&config.to_string())
}

#[test]
fn a_small_config_of_each_family_is_read() {
    for family in FAMILIES {
        let config = with(family.model_type, json!({}));
        let config = config.unwrap_or_else(|error| panic!("{}: {error}", family.class_name));
        assert_eq!(config.architecture.class_name(), family.class_name);
        assert_eq!(config.layers.len(), 4);
    }
}

#[test]
fn bad_fields_of_each_family_are_named_with_their_value() {
    let longrope = |short: Value, long: Value| json!({"rope_scaling": {"type": "longrope", "short_factor": short, "long_factor": long}});
    let eight = json!([1, 1, 1, 1, 1, 1, 1, 1]);
    let cases = [
        (
            "smollm3",
            json!({"no_rope_layers": [1, 0]}),
            "no_rope_layers",
            "[1,0]",
        ),
        (
            "smollm3",
            json!({"no_rope_layers": [1, 0, 2, 1]}),
            "no_rope_layers",
            "[1,0,2,1]",
        ),
        (
            "smollm3",
            json!({"no_rope_layer_interval": 0}),
            "no_rope_layer_interval",
            "got 0",
        ),
        (
            "smollm3",
            json!({"use_sliding_window": true, "layer_types": vec!["sliding_attention"; 4]}),
            "sliding_window",
            "missing",
        ),
        (
            "granite",
            json!({"residual_multiplier": 0}),
            "residual_multiplier",
            "got 0",
        ),
        (
            "granite",
            json!({"logits_scaling": 1e-300}),
            "logits_scaling",
            "got 1e-300",
        ),
        (
            "granite",
            json!({"embedding_multiplier": 1e39}),
            "embedding_multiplier",
            "got 1e+39",
        ),
        (
            "granite",
            json!({"attention_multiplier": "1"}),
            "attention_multiplier",
            "got \"1\"",
        ),
        (
            "granitemoehybrid",
            json!({"num_local_experts": 8}),
            "num_local_experts",
            "got 8",
        ),
        (
            "granitemoehybrid",
            json!({"num_local_experts": null}),
            "num_local_experts",
            "got null",
        ),
        (
            "granitemoehybrid",
            json!({"layer_types": ["mamba", "attention", "attention", "attention"]}),
            "layer_types",
            "mamba",
        ),
        (
            "granitemoehybrid",
            json!({"shared_intermediate_size": null}),
            "shared_intermediate_size",
            "missing",
        ),
        (
            "granitemoehybrid",
            json!({"position_embedding_type": "alibi"}),
            "position_embedding_type",
            "alibi",
        ),
        ("olmo2", json!({"clip_qkv": 8.0}), "clip_qkv", "got 8.0"),
        (
            "olmo2",
            json!({"sliding_window": 8}),
            "sliding_window",
            "got 8",
        ),
        (
            "phi3",
            longrope(json!([1]), eight.clone()),
            "short_factor",
            "[1]",
        ),
        (
            "phi3",
            longrope(eight.clone(), json!([0, 1, 1, 1, 1, 1, 1, 1])),
            "long_factor",
            "[0,",
        ),
        (
            "phi3",
            longrope(eight.clone(), json!(null)),
            "long_factor",
            "missing",
        ),
        (
            "phi3",
            json!({"rope_scaling": {"type": "yarn", "factor": 4.0}}),
            "rope_scaling",
            "yarn",
        ),
        (
            "phi3",
            json!({"sliding_window": 0}),
            "sliding_window",
            "got 0",
        ),
        (
            "gemma2",
            json!({"query_pre_attn_scalar": 0}),
            "query_pre_attn_scalar",
            "got 0",
        ),
        (
            "gemma2",
            json!({"attn_logit_softcapping": -50}),
            "attn_logit_softcapping",
            "got -50",
        ),
        (
            "gemma2",
            json!({"final_logit_softcapping": -30.0}),
            "final_logit_softcapping",
            "-30",
        ),
        (
            "gemma2",
            json!({"layer_types": ["full_attention"]}),
            "layer_types",
            "a list of 4",
        ),
        (
            "gemma2",
            json!({"sliding_window": null}),
            "sliding_window",
            "missing",
        ),
        (
            "gemma2",
            json!({"hidden_activation": "gelu"}),
            "hidden_activation",
            "got \"gelu\"",
        ),
        (
            "gemma2",
            json!({"use_bidirectional_attention": true}),
            "use_bidirectional_attention",
            "got true",
        ),
        (
            "gemma3_text",
            json!({"attn_logit_softcapping": 50.0}),
            "attn_logit_softcapping",
            "got 50.0",
        ),
        (
            "gemma3_text",
            json!({"rope_local_base_freq": -1}),
            "rope_local_base_freq",
            "got -1",
        ),
        (
            "gemma3_text",
            json!({"sliding_window_pattern": 0}),
            "sliding_window_pattern",
            "got 0",
        ),
        (
            "gemma3_text",
            json!({"rope_parameters": {"rope_type": "linear", "factor": 2}}),
            "rope_parameters.rope_type",
            "linear",
        ),
        (
            "gemma3_text",
            json!({"rope_parameters": {"full_attention": {"rope_type": "linear"}}}),
            "rope_parameters.full_attention.factor",
            "missing",
        ),
        (
            "gemma3",
            json!({"hidden_size": "wide"}),
            "text_config.hidden_size",
            "wide",
        ),
        (
            "gemma3",
            json!({"num_experts": 8}),
            "text_config.num_experts",
            "got 8",
        ),
    ];
    for (family, changes, field, value) in cases {
        let error = with(family, changes.clone()).expect_err("a bad config");
        let message = error.to_string();
        assert!(
            message.contains(field) && message.contains(value),
            "{family} {changes}: {message}"
        );
    }
}

/// Values of wrong types, and numbers that no field takes or that are at the ends of ranges.
fn hostile_values() -> Vec<Value> {
    let numbers = [0.0, -1.0, 0.5, 1e-300, 1e-39, 2e-38, 2e38, 1e39, 1e300];
    let others = [
        json!(0),
        json!(-1),
        json!(u64::MAX),
        json!("x"),
        json!(true),
        json!([]),
        json!([null]),
        json!([-1, 1e300, "x"]),
        json!({"x": 1}),
    ];
    numbers.map(Value::from).into_iter().chain(others).collect()
}

/// The fields that are read in a family beside those which [`Family::reads`] lists.
fn more_fields(family: &str) -> &'static [&'static str] {
    match family {
        "qwen2_moe" => &[
            "decoder_sparse_step",
            "mlp_only_layers",
            "norm_topk_prob",
            "qkv_bias",
            "shared_expert_intermediate_size",
        ],
        "qwen3_moe" => &[
            "attention_bias",
            "decoder_sparse_step",
            "mlp_only_layers",
            "norm_topk_prob",
        ],
        "gpt_oss" => &["attention_bias", "swiglu_alpha"],
        "granitemoehybrid" => &["shared_intermediate_size", "position_embedding_type"],
        "smollm3" | "granite" => &["attention_bias", "mlp_bias"],
        "olmo2" | "gemma2" | "gemma3_text" | "gemma3" => &["attention_bias"],
        _ => &[],
    }
}

#[test]
fn a_hostile_value_is_an_error_that_names_its_field_in_every_family() {
    const COMMON: [&str; 15] = [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
        "rms_norm_eps",
        "rope_theta",
        "rope_scaling",
        "rope_parameters",
        "partial_rotary_factor",
        "tie_word_embeddings",
        "eos_token_id",
    ];
    // Fields without an effect, as in transformers.
    const IGNORED: [(&str, &str); 5] = [
        ("llama", "sliding_window"),
        ("llama", "layer_types"),
        ("qwen3_moe", "max_window_layers"),
        ("smollm3", "max_window_layers"),
        ("granitemoehybrid", "num_experts_per_tok"),
    ];
    for family in FAMILIES {
        let own = family.reads.iter().chain(more_fields(family.model_type));
        for field in COMMON.iter().chain(own) {
            let mut refused = 0;
            for value in hostile_values() {
                let mut changes = json!({"sliding_window": 8});
                if !family.reads.contains(&"sliding_window") {
                    changes = json!({});
                }
                if family.reads.contains(&"use_sliding_window") {
                    changes["use_sliding_window"] = json!(true);
                }
                changes[*field] = value;
                let Err(error) = with(family.model_type, changes.clone()) else {
                    continue;
                };
                refused += 1;
                let message = error.to_string();
                let family = family.class_name;
                assert!(message.contains(field), "{family} {changes}: {message}");
            }
            let ignored = IGNORED.contains(&(family.model_type, field));
            let family = family.class_name;
            assert_eq!(
                refused > 3,
                !ignored,
                "{family}: {field}, {refused} refused"
            );
        }
    }
}

#[test]
fn hostile_parameters_give_a_finite_rotation_or_an_error_that_names_them() {
    let eight = json!([1.0, 1.5, 2, 2, 3, 4, 4, 8]);
    let kinds = [
        ("mixtral", json!({"type": "linear", "factor": 2.0})),
        (
            "llama",
            json!({
                "type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }),
        ),
        (
            "phi3",
            json!({
                "type": "longrope", "short_factor": eight, "long_factor": eight, "factor": 4.0,
                "attention_factor": 1.2, "original_max_position_embeddings": 64,
            }),
        ),
        (
            "gpt_oss",
            json!({
                "type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0,
                "mscale_all_dim": 0.5, "attention_factor": 1.1, "truncate": false,
                "original_max_position_embeddings": 64,
            }),
        ),
    ];
    for (family, parameters) in kinds {
        with(family, json!({"rope_scaling": parameters})).expect("good parameters");
        let mut fields: Vec<&String> = parameters.as_object().unwrap().keys().collect();
        let theta = "rope_theta".to_owned();
        fields.push(&theta);
        for field in fields {
            let mut refused = 0;
            for value in hostile_values() {
                let mut changed = parameters.clone();
                changed[field] = value;
                match with(family, json!({"rope_scaling": changed})) {
                    Ok(config) => {
                        let rope = &config.ropes[0];
                        let last = config.max_position_embeddings as f32;
                        for served in [1, 1 << 20] {
                            let frequencies = rope.inverse_frequencies(served).into_iter();
                            let mut angles = frequencies.map(|frequency| frequency * last);
                            assert!(angles.all(f32::is_finite), "{family} {changed}");
                        }
                        assert!(rope.attention_scaling().is_finite(), "{family} {changed}");
                    }
                    Err(error) => {
                        refused += 1;
                        let message = error.to_string();
                        let named = message.contains(field.as_str())
                            || message.contains("rope_scaling.type");
                        assert!(named, "{family} {changed}: {message}");
                    }
                }
            }
            assert!(refused > 3, "{family}: {field} takes anything");
        }
    }
}

#[test]
fn a_part_that_is_missing_is_named() {
    let config = json!({"model_type": "gemma3", "vocab_size": 8});
    let error = ModelConfig::from_json(&config.to_string()).unwrap_err();
    assert!(error.to_string().contains("text_config"), "{error}");
}

#[test]
fn arithmetic_of_another_family_is_refused_unless_it_changes_nothing() {
    let refused = [
        ("llama", json!({"attention_multiplier": 0.5})),
        ("llama", json!({"residual_multiplier": 0.22})),
        ("llama", json!({"no_rope_layers": [1, 1, 1, 0]})),
        ("mistral", json!({"final_logit_softcapping": 30.0})),
        ("llama", json!({"rope_interleaved": true})),
        (
            "mistral",
            json!({"layer_types": vec!["sliding_attention"; 4]}),
        ),
        ("qwen2", json!({"num_experts": 60})),
        ("qwen3", json!({"query_pre_attn_scalar": 256})),
        ("granite", json!({"use_sliding_window": true})),
    ];
    for (family, changes) in refused {
        let error = with(family, changes.clone()).expect_err("arithmetic that is not computed");
        let (field, _) = changes.as_object().unwrap().iter().next().unwrap();
        let message = error.to_string();
        assert!(message.contains(field.as_str()), "{family}: {message}");
        assert!(message.contains("in this architecture"), "{message}");
    }
    let neutral = json!({
        "residual_multiplier": 1.0, "logits_scaling": 1, "final_logit_softcapping": null,
        "num_local_experts": 0, "use_sliding_window": false,
        "layer_types": ["full_attention", "full_attention", "full_attention", "full_attention"],
    });
    for family in ["llama", "qwen2", "olmo2"] {
        assert_eq!(
            with(family, neutral.clone()).map(|_| ()),
            Ok(()),
            "{family}"
        );
    }
}

#[test]
fn absent_bounds_are_those_of_the_family_and_null_means_none() {
    let gemma2 = with("gemma2", json!({})).unwrap();
    assert_eq!(
        (gemma2.attention_cap, gemma2.logit_cap),
        (Some(50.0), Some(30.0))
    );
    let null = json!({"attn_logit_softcapping": null, "final_logit_softcapping": null});
    let unbounded = with("gemma2", null).unwrap();
    assert_eq!((unbounded.attention_cap, unbounded.logit_cap), (None, None));
    assert!(gemma2.scales_logits() && !unbounded.scales_logits());
}
