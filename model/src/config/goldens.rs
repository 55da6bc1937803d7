//! Comparison with transformers' reading of the same files; see `goldens/README.md`.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use hearth_shaders::BlockFormat;

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
        assert_eq!(
            config.qk_norms != QkNorms::None,
            resolved.qk_norm,
            "{source}"
        );
        let windows: Vec<_> = config.layers.iter().map(|layer| layer.window).collect();
        assert_eq!(windows, resolved.sliding_window, "{source}");
        let rope = &config.ropes[0];
        assert_eq!(rope.theta, resolved.rope_theta, "{source}");
        assert_eq!(config.bos_token_id, resolved.bos_token_id, "{source}");
        assert_eq!(config.eos_token_ids, resolved.eos_token_ids, "{source}");

        let frequencies = rope.inverse_frequencies(0);
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
        let scaling = f64::from(rope.attention_scaling());
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
        let mut weights = Weights::open_dir(&dir).unwrap();
        for layer in (0..config.layers.len()).filter_map(|layer| config.expert_tensors(layer)) {
            weights.split_experts(&layer).unwrap();
        }
        let tensors = config.tensors();
        let mut bytes = 0;
        for (name, shape) in &tensors {
            let view = weights.get(name, shape).unwrap();
            assert_eq!(view.len(), shape.iter().product::<usize>());
            bytes += view.bytes.len() as u64;
            let in_blocks = view.format == Format::Blocks(BlockFormat::MXFP4);
            assert_eq!(
                Some(&view.format).filter(|_| !in_blocks),
                config
                    .torch_dtype
                    .map(Format::Float)
                    .as_ref()
                    .filter(|_| !in_blocks),
                "{name} in {}",
                dir.display()
            );
        }
        let mut names: Vec<&str> = tensors.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        let of_images = ["vision_tower.", "multi_modal_projector."];
        let is_text = |name: &&str| !of_images.iter().any(|part| name.starts_with(part));
        let there: Vec<&str> = weights.names().into_iter().filter(is_text).collect();
        assert_eq!(there, names, "{}", dir.display());
        if there.len() == weights.names().len() {
            assert_eq!(weights.total_bytes(), bytes);
        }
        checked += 1;
    }
    assert!(checked >= 20, "{checked}");
}

#[derive(Deserialize)]
struct FamilyCase {
    config: Value,
    described: Described,
}

/// The behaviour of the modules of transformers.
#[derive(Deserialize)]
struct Described {
    kv_heads: usize,
    head_dim: usize,
    rms_norm_eps: f64,
    tie_word_embeddings: bool,
    max_position_embeddings: usize,
    qkv_bias: bool,
    output_bias: bool,
    mlp_bias: bool,
    stacked: bool,
    width: usize,
    activation: String,
    /// True where a layer has `input_layernorm`, `pre_feedforward_layernorm` and
    /// `post_feedforward_layernorm`.
    norms: [bool; 3],
    norms_from_one: bool,
    q_norm: Option<usize>,
    embedding_scale: f64,
    residual_scale: f64,
    attention_scale: f64,
    attention_cap: Option<f32>,
    logit_divisor: f64,
    logit_cap: Option<f32>,
    windows: Vec<Option<u32>>,
    rotates: Vec<bool>,
    bos_token_id: Option<u32>,
    eos_token_ids: Vec<u32>,
    /// A list for each rotation; empty where no layer uses it.
    inverse_frequencies: Vec<Vec<f64>>,
    long_frequencies: Option<Vec<f64>>,
    attention_scaling: f64,
}

#[test]
fn families_are_described_as_their_modules_are_in_transformers() {
    let text = fs::read_to_string(goldens().join("families.json")).unwrap();
    let cases: Vec<FamilyCase> = serde_json::from_str(&text).unwrap();
    assert!(cases.len() >= 20);
    for FamilyCase {
        config: source,
        described: want,
    } in cases
    {
        let config = ModelConfig::from_json(&source.to_string())
            .unwrap_or_else(|error| panic!("{error} in {source}"));
        let same = |what: &str, same: bool| assert!(same, "{what}: {config:?} of {source}");
        let close = |what: &str, ours: f32, theirs: f64| {
            let off = (f64::from(ours) - theirs).abs();
            assert!(
                off <= 1e-6 * theirs.abs(),
                "{what}: {ours}, not {theirs}, in {source}"
            );
        };
        same("kv heads", config.kv_heads == want.kv_heads);
        same("head_dim", config.head_dim == want.head_dim);
        same("epsilon", config.rms_norm_eps == want.rms_norm_eps as f32);
        same(
            "tied",
            config.tie_word_embeddings == want.tie_word_embeddings,
        );
        same(
            "positions",
            config.max_position_embeddings == want.max_position_embeddings,
        );
        same("qkv bias", config.attention_bias.qkv == want.qkv_bias);
        same(
            "output bias",
            config.attention_bias.output == want.output_bias,
        );
        same("mlp bias", config.mlp_bias == want.mlp_bias);
        same("stacked", (config.names.qkv.len() == 1) == want.stacked);
        same("width", config.widest_mlp() == want.width);
        let activation = match want.activation.as_str() {
            "SiLUActivation" => Activation::Silu,
            "GELUTanh" => Activation::GeluTanh,
            other => panic!("{other}"),
        };
        same("activation", config.activation == activation);
        let norms = match want.norms {
            [true, false, false] => NormPlacement::Before,
            [false, false, true] => NormPlacement::After,
            [true, true, true] => NormPlacement::Both,
            other => panic!("{other:?}"),
        };
        same("norms", config.norms == norms);
        same(
            "norms from one",
            config.norms_from_one == want.norms_from_one,
        );
        let q_norm = config.layer_tensors(0).q_norm.map(|(_, size)| size);
        same("q norm", q_norm == want.q_norm);
        close("embedding", config.embedding_scale, want.embedding_scale);
        close("residual", config.residual_scale, want.residual_scale);
        close("attention", config.attention_scale, want.attention_scale);
        close("logits", config.logit_divisor, want.logit_divisor);
        same("score cap", config.attention_cap == want.attention_cap);
        same("logit cap", config.logit_cap == want.logit_cap);
        let windows: Vec<_> = config.layers.iter().map(|layer| layer.window).collect();
        same("windows", windows == want.windows);
        let rotates: Vec<_> = config
            .layers
            .iter()
            .map(|layer| layer.rope.is_some())
            .collect();
        same("rotations", rotates == want.rotates);
        same("bos", config.bos_token_id == want.bos_token_id);
        same("eos", config.eos_token_ids == want.eos_token_ids);
        let context = |long: bool| if long { usize::MAX } else { 1 };
        let equal = |rope: &RopeConfig, long: bool, theirs: &[f64]| {
            let ours = rope.inverse_frequencies(context(long));
            assert_eq!(ours.len(), theirs.len(), "{source}");
            for (ours, theirs) in ours.iter().zip(theirs) {
                let relative = (f64::from(*ours) / theirs - 1.0).abs();
                assert!(relative <= 2.4e-7, "{ours} and {theirs} in {source}");
            }
        };
        for (rope, theirs) in config.ropes.iter().zip(&want.inverse_frequencies) {
            if !theirs.is_empty() {
                equal(rope, false, theirs);
            }
        }
        if let Some(long) = &want.long_frequencies {
            equal(&config.ropes[0], true, long);
        }
        close(
            "scaling",
            config.ropes[0].attention_scaling(),
            want.attention_scaling,
        );
        // A layer with a window has the second rotation, where there are two.
        let local = |layer: &LayerConfig| layer.rope == Some(1);
        if config.ropes.len() == 2 {
            same(
                "local rotations",
                config
                    .layers
                    .iter()
                    .all(|layer| local(layer) == layer.window.is_some()),
            );
        }
    }
}
