use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::names::matrix_of;
use super::peft_config::PeftConfig;
use super::*;
use crate::checkpoint::{Checkpoint, LoadFormat};
use crate::weights::fuzz::{CASES, Random, cases, damage};

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("goldens")
}

fn model(name: &str) -> ModelConfig {
    let dir = goldens().join(name);
    Checkpoint::open_dir(&dir, LoadFormat::Safetensors)
        .unwrap()
        .config
}

/// The configuration with these fields beside the ones that every file has.
fn config(fields: Value) -> Result<PeftConfig, LoraError> {
    let mut all = json!({"peft_type": "LORA", "task_type": "CAUSAL_LM"});
    let all = all.as_object_mut().unwrap();
    all.extend(fields.as_object().unwrap().clone());
    PeftConfig::read(all)
}

const Q0: &str = "model.layers.0.self_attn.q_proj";
const DOWN1: &str = "model.layers.1.mlp.down_proj";

#[test]
fn scales_are_those_of_peft() {
    let scale = |fields: Value, rank| config(fields).unwrap().scale(Q0, rank).unwrap();
    assert_eq!(scale(json!({}), 8), 1.0);
    assert_eq!(scale(json!({"r": 4, "lora_alpha": 2}), 4), 0.5);
    assert_eq!(
        scale(json!({"r": 4, "lora_alpha": 2, "use_rslora": true}), 4),
        1.0
    );
    let patterns = json!({
        "r": 4, "lora_alpha": 2,
        "rank_pattern": {"q_proj": 9, "self_attn.q_proj": 3},
        "alpha_pattern": {"layers.1.mlp.down_proj": 7, "^model.layers.0.self_attn.q_proj": 6},
    });
    let read = config(patterns).unwrap();
    // The first pattern that matches the end of the name counts.
    assert_eq!((read.rank(Q0).unwrap(), read.rank(DOWN1).unwrap()), (9, 4));
    assert_eq!(read.scale(DOWN1, 4).unwrap(), 7.0 / 4.0);
    // `^` comes after what PEFT puts before a key, so that it matches whole names alone.
    assert_eq!(read.scale(Q0, 9).unwrap(), 6.0 / 9.0);
}

#[test]
fn a_module_that_the_fields_do_not_name_is_refused() {
    let model = model("qwen3");
    let check = |fields: Value, module: &str| {
        let matrix = matrix_of(module, &model).unwrap();
        config(fields).and_then(|config| config.check_target(module, matrix))
    };
    let named = |fields: Value, module| assert!(check(fields, module).is_ok(), "{module}");
    let refused = |fields: Value, module, field: &str| {
        let error = check(fields, module).unwrap_err().to_string();
        assert!(error.contains(field), "{error}");
    };
    named(json!({}), Q0);
    named(json!({"target_modules": ["q_proj"]}), Q0);
    named(json!({"target_modules": ["self_attn.q_proj"]}), Q0);
    refused(json!({"target_modules": ["proj"]}), Q0, "target_modules");
    refused(json!({"target_modules": ["v_proj"]}), Q0, "target_modules");
    named(json!({"target_modules": "ALL-linear"}), DOWN1);
    refused(
        json!({"target_modules": "all-linear"}),
        "lm_head",
        "target_modules",
    );
    named(json!({"target_modules": r".*\.(q|k)_proj"}), Q0);
    refused(
        json!({"target_modules": r"(q|k)_proj"}),
        Q0,
        "target_modules",
    );
    refused(
        json!({"target_modules": r"(?!.*\.0\.).*q_proj"}),
        Q0,
        "target_modules",
    );
    let all = json!(["q_proj", "down_proj"]);
    let excluded = json!({"target_modules": all, "exclude_modules": ["q_proj"]});
    refused(excluded, Q0, "exclude_modules");
    let layers = json!({"target_modules": all, "layers_to_transform": [1]});
    named(layers.clone(), DOWN1);
    refused(layers, Q0, "layers_to_transform");
    let layers = json!({"target_modules": "q_proj", "layers_to_transform": 1});
    refused(layers, Q0, "layers_to_transform");
}

#[test]
fn a_field_that_would_change_the_result_is_refused_by_its_name() {
    for (field, value) in [
        ("use_dora", json!("yes")),
        ("use_qalora", json!(true)),
        ("use_bdlora", json!({"x": 1})),
        ("modules_to_save", json!("lm_head")),
        ("modules_to_save", json!([1])),
        ("bias", json!("some")),
        ("bias", json!(true)),
        ("init_lora_weights", json!("pissa_niter_4")),
        ("init_lora_weights", json!("olora")),
        ("init_lora_weights", json!("corda")),
        ("init_lora_weights", json!("loftq")),
        ("trainable_token_indices", json!([1])),
        ("trainable_token_indices", json!({"embed_tokens": [1]})),
        ("target_parameters", json!(["mlp.experts"])),
        ("alora_invocation_tokens", json!([1, 2])),
        ("layer_replication", json!([[0, 1]])),
        ("arrow_config", json!({"k": 1})),
        ("kasa_config", json!({"k": 1})),
        ("monteclora_config", json!({"k": 1})),
        ("layers_pattern", json!("blocks")),
        ("ensure_weight_tying", json!("yes")),
        ("something_new", json!(1)),
        ("peft_type", json!("LOHA")),
        ("task_type", json!("SEQ_CLS")),
        ("r", json!(0)),
        ("r", json!(1.5)),
        ("r", json!("8")),
        ("lora_alpha", json!("x")),
        ("use_rslora", json!("yes")),
        ("rank_pattern", json!([1])),
        ("rank_pattern", json!({"(": 1})),
        ("alpha_pattern", json!({"q": "x"})),
        ("target_modules", json!("(")),
        ("target_modules", json!([1])),
        ("target_modules", json!("a".repeat(5000))),
        ("layers_to_transform", json!([-1])),
    ] {
        let error = config(json!({field: value.clone()})).err();
        let error = error
            .unwrap_or_else(|| panic!("{field} = {value}"))
            .to_string();
        assert!(error.starts_with(&format!("`{field}`")), "{field}: {error}");
    }
    for (field, value) in [
        ("use_dora", json!(false)),
        ("use_dora", json!(true)),
        ("bias", json!("all")),
        ("bias", json!("lora_only")),
        ("modules_to_save", json!([])),
        ("modules_to_save", json!(["lm_head"])),
        ("ensure_weight_tying", json!(true)),
        ("bias", json!("none")),
        ("init_lora_weights", json!("gaussian")),
        ("loftq_config", json!({})),
        ("fan_in_fan_out", json!(true)),
        ("something_new", json!(null)),
        ("layers_pattern", json!("layers")),
    ] {
        assert!(
            config(json!({field: value.clone()})).is_ok(),
            "{field} = {value}"
        );
    }
}

#[test]
fn dora_does_not_work_with_a_bias_of_the_factors() {
    let error = config(json!({"use_dora": true, "lora_bias": true})).err();
    assert!(error.unwrap().to_string().starts_with("`lora_bias`"));
}

#[test]
fn a_regular_expression_that_never_ends_is_an_error() {
    let fields = json!({"target_modules": r"(?=(m|mo|o|d|e|l|.)*$)(m|mo|.)*(?<!x)(.*)*!"});
    let config = config(fields).unwrap();
    let matrix = matrix_of(Q0, &model("qwen3")).unwrap();
    assert!(config.check_target(Q0, matrix).is_err());
}

#[test]
fn modules_of_other_models_have_no_matrix() {
    let model = model("qwen3");
    for module in [
        Q0,
        DOWN1,
        "layers.0.mlp.up_proj",
        "model.embed_tokens",
        "lm_head",
    ] {
        assert!(matrix_of(module, &model).is_some(), "{module}");
    }
    for module in [
        "model.layers.2.mlp.up_proj",
        "model.layers.+1.mlp.up_proj",
        "model.layers.99999999999.mlp.up_proj",
        "model.layers.0.mlp.experts.0.up_proj",
        "model.norm",
        "transformer.h.0.attn.c_attn",
        "",
    ] {
        assert_eq!(matrix_of(module, &model), None, "{module}");
    }
}

#[test]
fn modules_that_a_checkpoint_stores_stacked_have_no_matrix() {
    let model = model("phi3-long");
    for part in [
        "self_attn.qkv_proj",
        "self_attn.q_proj",
        "mlp.gate_up_proj",
        "mlp.up_proj",
    ] {
        assert_eq!(
            matrix_of(&format!("model.layers.0.{part}"), &model),
            None,
            "{part}"
        );
    }
    for part in ["self_attn.o_proj", "mlp.down_proj"] {
        assert!(
            matrix_of(&format!("model.layers.0.{part}"), &model).is_some(),
            "{part}"
        );
    }
}

/// Replaces some values of a JSON object by ones that somebody might try; nested objects too.
fn damage_values(object: &mut serde_json::Map<String, Value>, random: &mut Random) {
    for _ in 0..=random.below(3) {
        let Some(key) = object.keys().nth(random.below(object.len())).cloned() else {
            return;
        };
        let values = [
            json!(null),
            json!(true),
            json!(0),
            json!(-1),
            json!(7),
            json!(u64::MAX),
            json!(1e308),
            json!(0.5),
            json!(""),
            json!("F64"),
            json!("x".repeat(5000)),
            json!("("),
            json!("(.*)*(.*)*(?=!)"),
            json!([]),
            json!(["q_proj"]),
            json!([u64::MAX, u64::MAX]),
            json!([8, 40]),
            json!([[1]]),
            json!({}),
            json!({"q_proj": 3, "(": 1}),
        ];
        match object.get_mut(&key) {
            Some(Value::Object(inner)) if random.below(4) > 0 => damage_values(inner, random),
            Some(value) if random.below(4) > 0 => {
                *value = values[random.below(values.len())].clone()
            }
            _ => {
                let value = object.remove(&key).unwrap_or_default();
                let names = ["alora_invocation_tokens", "lm_head.weight", "", "r"];
                let moved = key.replace("lora_A", "lora_B").replace(".0.", ".1.");
                let name = match random.below(5) {
                    4 => moved.as_str(),
                    which => names[which],
                };
                object.insert(name.to_owned(), value);
            }
        }
    }
}

/// Damages the values of a configuration, or of the header of a safetensors file; its length stays
/// true. Bytes at random hardly ever make another valid one.
fn damage_json(bytes: &mut Vec<u8>, random: &mut Random) {
    let is_json = bytes.first() == Some(&b'{');
    let length = match is_json {
        true => bytes.len(),
        false => u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize + 8,
    };
    let start = if is_json { 0 } else { 8 };
    let mut object = serde_json::from_slice(&bytes[start..length]).unwrap();
    damage_values(&mut object, random);
    let text = serde_json::to_vec(&object).unwrap();
    let data = bytes.split_off(length);
    bytes.clear();
    if !is_json {
        bytes.extend((text.len() as u64).to_le_bytes());
    }
    bytes.extend(text);
    bytes.extend(data);
}

/// Damaged adapters are errors, or adapters whose numbers are finite, and never a panic.
fn fuzz(name: &str, file: &str, checkpoint: &str, others: &[&str]) {
    let model = model(checkpoint);
    let weights = || -> Result<_, String> {
        let dir = goldens().join(checkpoint);
        let opened = Checkpoint::open_dir(&dir, LoadFormat::Safetensors);
        Ok(opened.unwrap().weights)
    };
    let dir = std::env::temp_dir().join(format!("hearth-lora-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    let from = goldens().join("adapters");
    let from = if others.is_empty() {
        from
    } else {
        from.join(name)
    };
    for other in others {
        fs::copy(from.join(other), dir.join(other)).unwrap();
    }
    let whole = fs::read(from.join(file)).unwrap();
    let (mut count, mut opened) = (0, 0);
    for case in cases(CASES) {
        let mut bytes = whole.clone();
        let mut random = Random(case);
        match file.ends_with(".gguf") || random.below(2) == 0 {
            true => damage(&mut bytes, &mut random),
            false => damage_json(&mut bytes, &mut random),
        }
        fs::write(dir.join(file), &bytes).unwrap();
        count += 1;
        let path = match file.ends_with(".gguf") {
            true => dir.join(file),
            false => dir.clone(),
        };
        let open = || read(&path, &Base::new(&model, &weights), 16);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(open));
        match outcome {
            Ok(Ok(adapter)) => {
                opened += 1;
                assert!(!adapter.changes.is_empty() || adapter.has_tables());
                assert!(adapter.rank() <= 16);
            }
            Ok(Err(error)) => assert!(!error.to_string().is_empty()),
            Err(_) => panic!("{name}: case {case} of {file} panics"),
        }
    }
    println!("{name}, {file}: {count} damaged files, {opened} opened");
    assert!(
        opened > 0 && opened < count,
        "{name}: damage was not varied"
    );
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_damaged_adapter_is_an_error_and_nothing_worse() {
    let (tensors, fields) = ("adapter_model.safetensors", "adapter_config.json");
    fuzz("rslora-all", tensors, "qwen3", &[fields]);
    fuzz("rslora-all", fields, "qwen3", &[tensors]);
    fuzz("tables", tensors, "mistral-window", &[fields]);
    fuzz("dora-tables", tensors, "mistral-window", &[fields]);
    fuzz("changed-tables-dora", tensors, "mistral-window", &[fields]);
    fuzz("saved-tables", fields, "mistral-window", &[tensors]);
    fuzz(
        "saved-tied-ensured",
        tensors,
        "llama-llama3-tied",
        &[fields],
    );
    fuzz("dora-bias-all", tensors, "qwen2-window", &[fields]);
    fuzz("dora-bias-all", fields, "qwen2-window", &[tensors]);
    fuzz("gguf", "rslora-all.gguf", "qwen3", &[]);
    fuzz("gguf-llama", "list.gguf", "llama-llama3-tied", &[]);
}
