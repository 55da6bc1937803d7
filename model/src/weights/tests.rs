use std::fs;

use half::{bf16, f16};
use safetensors::tensor::{Dtype as FileDtype, TensorView as FileTensor, serialize};

use super::*;

/// A temporary directory for one test, removed at the end.
struct TempDir(PathBuf);

impl TempDir {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("hearth-weights-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.0.join(name), bytes).unwrap();
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn file(tensors: &[(&str, FileDtype, &[usize], &[u8])]) -> Vec<u8> {
    let views = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| {
            (
                *name,
                FileTensor::new(*dtype, shape.to_vec(), bytes).unwrap(),
            )
        })
        .collect::<Vec<_>>();
    serialize(views, None).unwrap()
}

fn floats(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

fn open(dir: &TempDir) -> Result<Weights, WeightError> {
    Weights::open_dir(&dir.0)
}

fn message<T>(result: Result<T, WeightError>) -> String {
    result.err().expect("an error").to_string()
}

#[test]
fn all_three_float_formats_come_back_as_the_same_numbers() {
    let dir = TempDir::new("formats");
    let values = [1.5, -2.0, 0.25, 0.0];
    let half: Vec<u8> = values
        .iter()
        .flat_map(|v| f16::from_f32(*v).to_le_bytes())
        .collect();
    let brain: Vec<u8> = values
        .iter()
        .flat_map(|v| bf16::from_f32(*v).to_le_bytes())
        .collect();
    dir.write(
        SINGLE,
        &file(&[
            ("a", FileDtype::F32, &[2, 2], &floats(&values)),
            ("b", FileDtype::F16, &[4], &half),
            ("c", FileDtype::BF16, &[1, 4], &brain),
        ]),
    );
    let weights = open(&dir).unwrap();
    let a = weights.get("a", &[2, 2]).unwrap();
    let b = weights.get("b", &[4]).unwrap();
    let c = weights.get("c", &[1, 4]).unwrap();
    assert_eq!(
        [&a.format, &b.format, &c.format],
        [
            &Format::Float(Dtype::F32),
            &Format::Float(Dtype::F16),
            &Format::Float(Dtype::Bf16)
        ]
    );
    for view in [&a, &b, &c] {
        assert_eq!(view.to_f32(), values);
        assert_eq!(view.len(), 4);
        assert_eq!(*view.to_dtype(Dtype::F16), *half);
        assert_eq!(*view.to_dtype(Dtype::Bf16), *brain);
        assert_eq!(*view.to_dtype(Dtype::F32), *floats(&values));
    }
    assert_eq!(weights.total_bytes(), 16 + 8 + 8);
    assert_eq!(weights.dtype(), Some(Dtype::F32));
    weights.release("a");
    assert_eq!(weights.get("a", &[2, 2]).unwrap().to_f32(), values);
}

#[test]
fn the_model_prefix_may_be_there_or_not() {
    let dir = TempDir::new("prefix");
    let one = floats(&[1.0]);
    dir.write(
        SINGLE,
        &file(&[
            ("model.norm.weight", FileDtype::F32, &[1], &one),
            ("embed", FileDtype::F32, &[1], &one),
        ]),
    );
    let weights = open(&dir).unwrap();
    for name in ["model.norm.weight", "norm.weight", "model.embed", "embed"] {
        assert!(weights.contains(name), "{name}");
        assert!(weights.get(name, &[1]).is_ok(), "{name}");
    }
    assert!(!weights.contains("model.other"));
}

#[test]
fn a_missing_tensor_and_a_wrong_shape_are_named() {
    let dir = TempDir::new("shape");
    dir.write(
        SINGLE,
        &file(&[("w", FileDtype::F32, &[2, 3], &floats(&[0.0; 6]))]),
    );
    let weights = open(&dir).unwrap();
    let missing = message(weights.get("model.layers.0.x", &[1]));
    assert!(missing.contains("model.layers.0.x"), "{missing}");
    let shape = message(weights.get("w", &[3, 2]));
    assert!(
        shape.contains("w has shape [2, 3]") && shape.contains("[3, 2]"),
        "{shape}"
    );
    assert!(shape.contains(SINGLE), "{shape}");
}

#[test]
fn an_unsupported_dtype_is_named_only_when_the_tensor_is_read() {
    let dir = TempDir::new("dtype");
    dir.write(SINGLE, &file(&[("ids", FileDtype::I64, &[1], &[0; 8])]));
    let weights = open(&dir).unwrap();
    let error = message(weights.get("ids", &[1]));
    assert!(error.contains("ids") && error.contains("I64"), "{error}");
    assert_eq!(weights.dtype(), None);
}

#[test]
fn a_directory_without_weights_says_which_files_it_looked_for() {
    let dir = TempDir::new("none");
    let error = message(open(&dir));
    assert!(error.contains(SINGLE) && error.contains(INDEX), "{error}");
    dir.write("pytorch_model.bin", b"");
    assert!(message(open(&dir)).contains("pytorch_model.bin is not supported"));
}

#[test]
fn every_truncation_and_a_garbled_header_are_errors_not_panics() {
    let dir = TempDir::new("corrupt");
    let good = file(&[("w", FileDtype::F32, &[2], &floats(&[1.0, 2.0]))]);
    for end in 0..good.len() {
        dir.write(SINGLE, &good[..end]);
        assert!(open(&dir).is_err(), "{end} bytes");
    }
    for at in 0..good.len() - 8 {
        let mut bad = good.clone();
        bad[at] ^= 0xff;
        dir.write(SINGLE, &bad);
        assert!(message(open(&dir)).contains(SINGLE), "byte {at}");
    }
    let mut long = good.clone();
    long.push(0);
    dir.write(SINGLE, &long);
    assert!(matches!(open(&dir), Err(WeightError::Corrupt { .. })));
    let mut huge = good;
    huge[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    dir.write(SINGLE, &huge);
    assert!(matches!(open(&dir), Err(WeightError::Corrupt { .. })));
}

#[test]
fn offsets_that_overlap_or_overflow_are_errors() {
    let dir = TempDir::new("offsets");
    for header in [
        r#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#,
        r#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}"#,
        r#"{"w":{"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,8]}}"#,
        r#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551615]}}"#,
        r#"{"w":{"dtype":"F99","shape":[2],"data_offsets":[0,8]}}"#,
    ] {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.bytes());
        bytes.extend([0; 8]);
        dir.write(SINGLE, &bytes);
        assert!(
            matches!(open(&dir), Err(WeightError::Corrupt { .. })),
            "{header}"
        );
    }
}

#[test]
fn shards_are_found_through_the_index() {
    let dir = TempDir::new("shards");
    dir.write(
        "a.safetensors",
        &file(&[("x", FileDtype::F32, &[1], &floats(&[1.0]))]),
    );
    dir.write(
        "b.safetensors",
        &file(&[("y", FileDtype::F32, &[1], &floats(&[2.0]))]),
    );
    dir.write(
        INDEX,
        br#"{"metadata":{},"weight_map":{"x":"a.safetensors","y":"b.safetensors"}}"#,
    );
    let weights = open(&dir).unwrap();
    assert_eq!(weights.names(), ["x", "y"]);
    assert_eq!(weights.get("y", &[1]).unwrap().to_f32(), [2.0]);
}

#[test]
fn a_bad_index_names_what_is_wrong() {
    let dir = TempDir::new("index");
    dir.write(
        "a.safetensors",
        &file(&[("x", FileDtype::F32, &[1], &floats(&[1.0]))]),
    );
    let with = |index: &str| {
        dir.write(INDEX, index.as_bytes());
        message(open(&dir))
    };
    let missing = with(r#"{"weight_map":{"x":"a.safetensors","y":"gone.safetensors"}}"#);
    assert!(missing.contains("gone.safetensors"), "{missing}");
    let absent = with(r#"{"weight_map":{"x":"a.safetensors","y":"a.safetensors"}}"#);
    assert!(
        absent.contains('y') && absent.contains("a.safetensors"),
        "{absent}"
    );
    let escape = with(r#"{"weight_map":{"x":"../a.safetensors"}}"#);
    assert!(escape.contains("not a plain file name"), "{escape}");
    assert!(with(r#"{"weight_map":3}"#).contains(INDEX));
    assert!(with("{").contains(INDEX));
}

#[test]
fn embedded_bytes_open_like_a_file() {
    let bytes: &'static [u8] = file(&[("w", FileDtype::F32, &[1], &floats(&[3.0]))]).leak();
    let weights = Weights::from_static("hearth-tiny", bytes).unwrap();
    assert_eq!(weights.get("w", &[1]).unwrap().to_f32(), [3.0]);
    assert!(message(weights.get("v", &[1])).contains("hearth-tiny"));
    assert!(message(Weights::from_static("hearth-tiny", &bytes[..4])).contains("hearth-tiny"));
}

#[test]
fn random_weights_depend_on_the_name_and_the_seed_only() {
    let get = |seed, name: &str| {
        Weights::dummy(Dtype::F32, seed)
            .get(name, &[64, 64])
            .unwrap()
            .to_f32()
    };
    let q = get(0, "model.layers.0.self_attn.q_proj.weight");
    assert_eq!(q, get(0, "model.layers.0.self_attn.q_proj.weight"));
    assert_ne!(q, get(0, "model.layers.1.self_attn.q_proj.weight"));
    assert_ne!(q, get(1, "model.layers.0.self_attn.q_proj.weight"));
    let mean = q.iter().sum::<f32>() / q.len() as f32;
    let deviation = (q.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / q.len() as f32).sqrt();
    assert!(mean.abs() < 0.002, "{mean}");
    assert!((deviation - 0.02).abs() < 0.001, "{deviation}");
    let norm = Weights::dummy(Dtype::Bf16, 0)
        .get("model.norm.weight", &[8])
        .unwrap()
        .to_f32();
    assert_eq!(norm, [1.0; 8]);
}

#[test]
fn progress_counts_the_bytes_handed_out() {
    let dir = TempDir::new("progress");
    dir.write(
        SINGLE,
        &file(&[("w", FileDtype::F32, &[2], &floats(&[1.0, 2.0]))]),
    );
    let mut weights = open(&dir).unwrap();
    let bar = ProgressBar::hidden();
    weights.set_progress(bar.clone());
    weights.get("w", &[2]).unwrap();
    assert_eq!(bar.position(), weights.total_bytes());
}
