use serde_json::{Value, json};

use super::*;

fn scheme(config: Value) -> Result<Option<Scheme>, String> {
    let config = json!({"quantization_config": config}).to_string();
    Scheme::of_checkpoint(&config, None).map_err(|error| error.to_string())
}

fn compressed(format: &str, weights: Value) -> Value {
    json!({
        "quant_method": "compressed-tensors", "format": format, "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "kv_cache_scheme": null, "sparsity_config": {},
    })
}

#[test]
fn the_schemes_of_published_files_are_understood() {
    let gptq = |scales, bits, zero_offset| Scheme::Gptq {
        bits,
        scales,
        zero_offset,
    };
    let cases = [
        (
            json!({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": true, "sym": true}),
            gptq(Scales::Group(128), 4, 1),
        ),
        (
            json!({"quant_method": "gptq", "bits": 8, "group_size": -1, "checkpoint_format": "gptq_v2"}),
            gptq(Scales::Channel, 8, 0),
        ),
        (
            json!({"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm", "zero_point": true}),
            Scheme::Awq {
                scales: Scales::Group(64),
            },
        ),
        (
            json!({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}),
            Scheme::Fp8 {
                scales: Scales::Block([128, 128]),
            },
        ),
        (
            json!({"quant_method": "fp8", "activation_scheme": "static"}),
            Scheme::Fp8 {
                scales: Scales::Tensor,
            },
        ),
        (
            compressed(
                "pack-quantized",
                json!({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "actorder": "weight"}),
            ),
            Scheme::Compressed {
                kind: Compressed::Packed { bits: 4 },
                scales: Scales::Group(32),
            },
        ),
        (
            compressed(
                "int-quantized",
                json!({"num_bits": 8, "strategy": "channel"}),
            ),
            Scheme::Compressed {
                kind: Compressed::Int8,
                scales: Scales::Channel,
            },
        ),
        (
            compressed(
                "float-quantized",
                json!({"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 64]}),
            ),
            Scheme::Compressed {
                kind: Compressed::Float8,
                scales: Scales::Block([128, 64]),
            },
        ),
    ];
    for (config, expected) in cases {
        assert_eq!(scheme(config.clone()), Ok(Some(expected)), "{config}");
    }
    let old = r#"{"bits": 4, "group_size": 32, "desc_act": false}"#;
    let found = Scheme::of_checkpoint("{}", Some(old)).unwrap();
    assert_eq!(found, Some(gptq(Scales::Group(32), 4, 1)));
    assert_eq!(Scheme::of_checkpoint("{}", None), Ok(None));
}

#[test]
fn what_is_not_understood_is_refused_by_name() {
    let gptq = |change: Value| {
        let mut config = json!({"quant_method": "gptq", "bits": 4, "group_size": 128});
        let fields = change.as_object().unwrap().clone();
        config.as_object_mut().unwrap().extend(fields);
        config
    };
    let packed = |change: Value| {
        let mut weights = json!({"num_bits": 4, "strategy": "group", "group_size": 128});
        let fields = change.as_object().unwrap().clone();
        weights.as_object_mut().unwrap().extend(fields);
        compressed("pack-quantized", weights)
    };
    let awq = |change: (&str, Value)| {
        let mut config = json!({"quant_method": "awq", "bits": 4, "group_size": 128});
        config[change.0] = change.1;
        config
    };
    let two = json!({
        "quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {
            "a": {"weights": {"num_bits": 4, "strategy": "channel"}},
            "b": {"weights": {"num_bits": 8, "strategy": "channel"}},
        },
    });
    let cases = [
        (json!(3), "quantization_config", "3"),
        (
            json!({"quant_method": "bitsandbytes"}),
            "quant_method",
            "bitsandbytes",
        ),
        (json!({"bits": 4}), "quant_method", "nothing"),
        (gptq(json!({"bits": 3})), "bits", "3"),
        (gptq(json!({"bits": "4"})), "bits", "\"4\""),
        (gptq(json!({"group_size": 0})), "group_size", "0"),
        (
            gptq(json!({"checkpoint_format": "marlin"})),
            "checkpoint_format",
            "marlin",
        ),
        (gptq(json!({"dynamic": {"-:.*": {}}})), "dynamic", "-:.*"),
        (gptq(json!({"pack_dtype": "int8"})), "pack_dtype", "int8"),
        (awq(("version", json!("gemv"))), "version", "gemv"),
        (awq(("zero_point", json!(false))), "zero_point", "false"),
        (json!({"quant_method": "fp8", "fmt": "e5m2"}), "fmt", "e5m2"),
        (
            json!({"quant_method": "fp8", "weight_block_size": [0, 128]}),
            "weight_block_size",
            "[0,128]",
        ),
        (packed(json!({"num_bits": 3})), "num_bits", "3"),
        (packed(json!({"type": "float"})), "num_bits", "4"),
        (
            packed(json!({"actorder": "sideways"})),
            "actorder",
            "sideways",
        ),
        (packed(json!({"strategy": "token"})), "strategy", "token"),
        (packed(json!({"group_size": null})), "group_size", "null"),
        (
            compressed("marlin-24", json!({"num_bits": 4})),
            "format",
            "marlin-24",
        ),
        (two, "config_groups", "a"),
    ];
    for (config, field, given) in cases {
        let error = scheme(config).unwrap_err();
        assert!(error.contains(field) && error.contains(given), "{error}");
    }
}
