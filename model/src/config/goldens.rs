//! Comparison with transformers' reading of the same files; see `goldens/README.md`.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::*;
use crate::weights::{Format, Weights};

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("goldens")
}

#[derive(Deserialize)]
struct Case {
    config: Value,
    resolved: Resolved,
}

#[derive(Deserialize)]
struct Resolved {
    kv_heads: usize,
    head_dim: usize,
    rms_norm_eps: f64,
    tie_word_embeddings: bool,
    max_position_embeddings: usize,
    qkv_bias: bool,
    output_bias: bool,
    mlp_bias: bool,
    qk_norm: bool,
    sliding_window: Vec<Option<u32>>,
    rope_theta: f64,
    bos_token_id: Option<u32>,
    eos_token_ids: Vec<u32>,
    inverse_frequencies: Vec<f64>,
    attention_scaling: f64,
}

#[test]
fn configs_resolve_as_transformers_resolves_them() {
    let text = fs::read_to_string(goldens().join("configs.json")).unwrap();
    let cases: Vec<Case> = serde_json::from_str(&text).unwrap();
    assert!(cases.len() > 40);
    for Case {
        config: source,
        resolved,
    } in cases
    {
        let config = ModelConfig::from_json(&source.to_string())
            .unwrap_or_else(|error| panic!("{error} in {source}"));
        assert_eq!(config.kv_heads, resolved.kv_heads, "{source}");
        assert_eq!(config.head_dim, resolved.head_dim, "{source}");
        assert_eq!(
            config.rms_norm_eps, resolved.rms_norm_eps as f32,
            "{source}"
        );
        assert_eq!(
            config.tie_word_embeddings, resolved.tie_word_embeddings,
            "{source}"
        );
        assert_eq!(
            config.max_position_embeddings, resolved.max_position_embeddings,
            "{source}"
        );
        assert_eq!(config.attention_bias.qkv, resolved.qkv_bias, "{source}");
        assert_eq!(
            config.attention_bias.output, resolved.output_bias,
            "{source}"
        );
        assert_eq!(config.mlp_bias, resolved.mlp_bias, "{source}");
        assert_eq!(config.qk_norm, resolved.qk_norm, "{source}");
        assert_eq!(config.sliding_window, resolved.sliding_window, "{source}");
        assert_eq!(config.rope.theta, resolved.rope_theta, "{source}");
        assert_eq!(config.bos_token_id, resolved.bos_token_id, "{source}");
        assert_eq!(config.eos_token_ids, resolved.eos_token_ids, "{source}");

        let frequencies = config.rope.inverse_frequencies();
        assert_eq!(
            frequencies.len(),
            resolved.inverse_frequencies.len(),
            "{source}"
        );
        for (pair, (ours, theirs)) in frequencies
            .iter()
            .zip(&resolved.inverse_frequencies)
            .enumerate()
        {
            // Two units in the last place, which at position 100,000 is an error of at most 0.02.
            let relative = (f64::from(*ours) / theirs - 1.0).abs();
            assert!(
                relative <= 2.4e-7,
                "pair {pair}: {ours} and {theirs} in {source}"
            );
        }
        let scaling = f64::from(config.rope.attention_scaling());
        assert!(
            (scaling - resolved.attention_scaling).abs() < 1e-6,
            "{scaling} in {source}"
        );
    }
}

#[test]
fn every_golden_checkpoint_has_exactly_the_tensors_that_its_config_asks_for() {
    let mut checked = 0;
    for entry in fs::read_dir(goldens()).unwrap() {
        let dir = entry.unwrap().path();
        if !dir.join("golden.safetensors").exists() {
            continue;
        }
        let text = fs::read_to_string(dir.join("config.json")).unwrap();
        let config = ModelConfig::from_json(&text).unwrap();
        let weights = Weights::open_dir(&dir).unwrap();
        let tensors = config.tensors();
        for (name, shape) in &tensors {
            let view = weights.get(name, shape).unwrap();
            assert_eq!(view.len(), shape.iter().product::<usize>());
            assert_eq!(
                Some(&view.format),
                config.torch_dtype.map(Format::Float).as_ref(),
                "{name} in {}",
                dir.display()
            );
        }
        let mut names: Vec<&str> = tensors.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(weights.names(), names, "{}", dir.display());
        assert_eq!(
            weights.total_bytes(),
            config.parameters() * weights.dtype().unwrap().size() as u64
        );
        checked += 1;
    }
    assert!(checked >= 10, "{checked}");
}
