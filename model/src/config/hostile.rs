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
