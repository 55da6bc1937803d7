//! Every layout against the values that `goldens/quantised.py` wrote beside it.

use std::fs;
use std::path::{Path, PathBuf};

use hearth_shaders::BlockFormat;
use safetensors::SafeTensors;

use crate::checkpoint::{Checkpoint, LoadFormat};
use crate::dtype::Dtype;
use crate::quantization::Scheme;
use crate::weights::{Format, Weights};

fn goldens() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("goldens/quantised");
    let entries = fs::read_dir(root).unwrap();
    let mut dirs: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    dirs.sort();
    assert!(dirs.len() >= 11, "{dirs:?}");
    dirs
}

/// The blocks that hold a checkpoint's matrices exactly.
fn blocks(name: &str) -> Option<BlockFormat> {
    match name {
        "gptq-4-32" | "compressed-4" => Some(BlockFormat::Q4_0),
        "gptq-4-old" | "awq-32" => Some(BlockFormat::Q5_0),
        "gptq-8-channel-v2" | "compressed-int8" => Some(BlockFormat::Q8_0),
        // Columns out of order, scales that no f16 holds, integers of 9 bits.
        "gptq-4-act-order" | "fp8-block" | "fp8-tensor" | "compressed-int8-asymmetric" => None,
        // Its scales are bf16, but in the range of f16.
        "compressed-4-asymmetric" => Some(BlockFormat::Q5_0),
        _ => panic!("{name}"),
    }
}

#[test]
fn every_layout_gives_the_values_that_its_packer_had() {
    for dir in goldens() {
        let name = dir.file_name().unwrap().to_str().unwrap();
        let checkpoint = Checkpoint::open_dir(&dir, LoadFormat::Safetensors).unwrap();
        let file = fs::read(dir.join("weights.safetensors")).unwrap();
        let golden = SafeTensors::deserialize(&file).unwrap();
        let mut checked = 0;
        for (tensor, expected) in golden.tensors() {
            let view = checkpoint.weights.get(&tensor, expected.shape()).unwrap();
            let format = blocks(name).map_or(Format::Float(Dtype::F32), Format::Blocks);
            assert_eq!(view.format, format, "{name} {tensor}");
            let words = expected.data().as_chunks::<4>().0.iter();
            let expected: Vec<f32> = words.map(|word| f32::from_le_bytes(*word)).collect();
            assert_eq!(view.to_f32(), expected, "{name} {tensor}");
            checked += 1;
        }
        assert_eq!(checked, 2, "{name}");
    }
}

#[test]
fn a_tensor_that_is_missing_or_does_not_fit_is_named() {
    let from = goldens().into_iter().find(|dir| dir.ends_with("gptq-4-32"));
    let from = from.unwrap();
    let dir = std::env::temp_dir().join(format!("hearth-packed-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let whole = fs::read(from.join("model.safetensors")).unwrap();
    let config = fs::read_to_string(from.join("config.json")).unwrap();
    let open = |whole: &[u8], config: &str| {
        fs::write(dir.join("model.safetensors"), whole).unwrap();
        fs::write(dir.join("config.json"), config).unwrap();
        let opened = Checkpoint::open_dir(&dir, LoadFormat::Safetensors);
        opened
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default()
    };
    assert_eq!(open(&whole, &config), "");
    let renamed = |from: &str, to: &str| {
        assert_eq!(from.len(), to.len());
        let mut bytes = whole.clone();
        let at = bytes
            .windows(from.len())
            .position(|window| window == from.as_bytes());
        let at = at.unwrap();
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        bytes
    };
    let error = open(&renamed("q_proj.qzeros", "q_proj.qzerox"), &config);
    assert!(error.contains("q_proj.qzeros is missing"), "{error}");
    let error = open(&whole, &config.replace("\"bits\": 4", "\"bits\": 8"));
    assert!(
        error.contains("quantized tensor model.layers.0."),
        "{error}"
    );
    let error = open(
        &whole,
        &config.replace("\"group_size\": 32", "\"group_size\": 16"),
    );
    assert!(error.contains("scales has the shape"), "{error}");
    assert!(error.contains("x 4 scales of a matrix"), "{error}");
    let error = open(&whole, &config.replace("gptq", "marlin"));
    assert!(
        error.contains("quant_method") && error.contains("marlin"),
        "{error}"
    );
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_column_of_a_group_that_does_not_exist_is_an_error() {
    let mut dirs = goldens().into_iter();
    let from = dirs.find(|dir| dir.ends_with("gptq-4-act-order")).unwrap();
    let mut whole = fs::read(from.join("model.safetensors")).unwrap();
    let name = "model.layers.0.self_attn.k_proj";
    let order = {
        let file = SafeTensors::deserialize(&whole).unwrap();
        let order = file.tensor(&format!("{name}.g_idx")).unwrap();
        order.data().as_ptr().addr() - whole.as_ptr().addr()
    };
    whole[order + 4..order + 8].copy_from_slice(&2u32.to_le_bytes());
    let config = fs::read_to_string(from.join("config.json")).unwrap();
    let scheme = Scheme::of_checkpoint(&config, None).unwrap().unwrap();
    let weights = Weights::from_bytes(from, whole).unwrap();
    let weights = weights.with_scheme(scheme).unwrap();
    let error = weights.get(&format!("{name}.weight"), &[32, 64]);
    let error = error.unwrap_err().to_string();
    assert!(error.contains(name), "{error}");
    assert!(
        error.contains("column 1 in group 2, there are 2 groups"),
        "{error}"
    );
}
