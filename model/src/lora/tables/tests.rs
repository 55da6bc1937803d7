use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use hearth_forward::{Adapter, TableNumbers};
use safetensors::{Dtype as Stored, SafeTensors, tensor::TensorView as View};
use serde_json::{Map, Value, json};

use super::*;
use crate::checkpoint::{Checkpoint, LoadFormat};
use crate::lora::read;

const HEAD: &str = "base_model.model.lm_head";
const EMBEDDING: &str = "base_model.model.model.embed_tokens";

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("goldens")
}

/// A tensor of a file.
#[derive(Clone)]
struct Tensor {
    stored: Stored,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Tensor {
    fn values(&self) -> Vec<f32> {
        let words = self.bytes.as_chunks::<4>().0.iter();
        words.map(|word| f32::from_le_bytes(*word)).collect()
    }

    fn of(stored: Stored, shape: &[usize], bytes: Vec<u8>) -> Self {
        let shape = shape.to_vec();
        Self {
            stored,
            shape,
            bytes,
        }
    }
}

/// An adapter whose files tests change.
#[derive(Clone)]
struct Files {
    base: String,
    fields: Map<String, Value>,
    tensors: BTreeMap<String, Tensor>,
}

impl Files {
    fn of(name: &str) -> Self {
        let dir = goldens().join("adapters").join(name);
        let fields = fs::read(dir.join("adapter_config.json")).unwrap();
        let fields: Map<String, Value> = serde_json::from_slice(&fields).unwrap();
        let bytes = fs::read(dir.join("adapter_model.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let tensors = file.iter().map(|(name, view)| {
            let tensor = Tensor::of(view.dtype(), view.shape(), view.data().to_vec());
            (name.to_owned(), tensor)
        });
        Self {
            base: fields["base_model_name_or_path"]
                .as_str()
                .unwrap()
                .to_owned(),
            tensors: tensors.collect(),
            fields,
        }
    }

    fn with(mut self, field: &str, value: Value) -> Self {
        self.fields.insert(field.to_owned(), value);
        self
    }

    fn put(mut self, name: String, tensor: Tensor) -> Self {
        self.tensors.insert(name, tensor);
        self
    }

    fn without(mut self, name: &str) -> Self {
        self.tensors.remove(name).unwrap();
        self
    }

    fn renamed(self, from: &str, to: &str) -> Self {
        let tensor = self.tensors[from].clone();
        self.without(from).put(to.to_owned(), tensor)
    }

    fn read(&self) -> Result<Adapter, LoraError> {
        static COUNT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("hearth-tables-{}-{count}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        fs::create_dir_all(&dir).unwrap();
        let fields = serde_json::to_vec(&self.fields).unwrap();
        fs::write(dir.join("adapter_config.json"), fields).unwrap();
        let views = self.tensors.iter().map(|(name, tensor)| {
            let view = View::new(tensor.stored, tensor.shape.clone(), &tensor.bytes);
            (name.clone(), view.unwrap())
        });
        let bytes = safetensors::serialize(views, None).unwrap();
        fs::write(dir.join("adapter_model.safetensors"), bytes).unwrap();
        let checkpoint = || {
            let dir = goldens().join(&self.base);
            Checkpoint::open_dir(&dir, LoadFormat::Safetensors).unwrap()
        };
        let weights = || -> Result<_, String> { Ok(checkpoint().weights) };
        let outcome = read(&dir, &Base::new(&checkpoint().config, &weights), 16);
        fs::remove_dir_all(&dir).unwrap();
        outcome
    }

    fn refused(&self, part: &str) {
        let error = self.read().unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

/// The table of the base model.
fn of_base(files: &Files, name: &str) -> Tensor {
    let dir = goldens().join(&files.base);
    let weights = Checkpoint::open_dir(&dir, LoadFormat::Safetensors)
        .unwrap()
        .weights;
    let shape = weights.shape(name).unwrap().to_vec();
    let bytes = weights.get(name, &shape).unwrap().bytes.to_vec();
    Tensor::of(Stored::F32, &shape, bytes)
}

#[test]
fn a_table_has_one_of_the_names_that_versions_of_peft_give_it() {
    let plain = Files::of("saved-tables");
    let want = plain.read().unwrap();
    let from = format!("{HEAD}.weight");
    for to in ["modules_to_save.weight", "modules_to_save.default.weight"] {
        let renamed = plain.clone().renamed(&from, &format!("{HEAD}.{to}"));
        assert!(renamed.read().unwrap() == want, "{to}");
    }
    // As it is saved with `save_embedding_layers`: the base model's, and two names for one table.
    let head = plain.tensors[&from].clone();
    let original = of_base(&plain, "lm_head.weight");
    let all = plain
        .clone()
        .put(format!("{HEAD}.modules_to_save.weight"), head.clone())
        .put(format!("{HEAD}.original_module.weight"), original.clone());
    assert!(all.read().unwrap() == want);
    let other = all.put(format!("{HEAD}.modules_to_save.weight"), original);
    other.refused("another table");
    let nested = plain.renamed(&from, &format!("{HEAD}.modules_to_save.a.b.weight"));
    nested.refused("no factor");
}

#[test]
fn the_numbers_of_a_table_are_kept_in_their_type_and_digested_as_what_they_are() {
    let plain = Files::of("saved-head-tied");
    let want = plain.read().unwrap();
    let name = format!("{HEAD}.weight");
    let head = &plain.tensors[&name];
    let as_f32 = |values: Vec<f32>| {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes());
        Tensor::of(Stored::F32, &head.shape, bytes.collect())
    };
    let in_bf16 = head.values().into_iter().map(bf16::from_f32);
    let in_f16 = head.values().into_iter().map(f16::from_f32);
    for (numbers, stored, bytes, rounded) in [
        (
            TableNumbers::Bf16,
            Stored::BF16,
            in_bf16.clone().flat_map(bf16::to_le_bytes).collect(),
            in_bf16.map(bf16::to_f32).collect(),
        ),
        (
            TableNumbers::F16,
            Stored::F16,
            in_f16.clone().flat_map(f16::to_le_bytes).collect(),
            in_f16.map(f16::to_f32).collect::<Vec<f32>>(),
        ),
    ] {
        let bytes: Vec<u8> = bytes;
        let short = Tensor::of(stored, &head.shape, bytes);
        let short = plain.clone().put(name.clone(), short).read().unwrap();
        assert_eq!(short.tables[0].numbers, numbers);
        assert_eq!(2 * short.table_bytes(), want.table_bytes());
        let rounded = plain
            .clone()
            .put(name.clone(), as_f32(rounded))
            .read()
            .unwrap();
        assert_eq!(short.digest, rounded.digest);
        assert_ne!(short.digest, want.digest);
    }
    let mut changed = head.values();
    changed[100] += 1.0;
    let changed = plain
        .clone()
        .put(name.clone(), as_f32(changed))
        .read()
        .unwrap();
    assert_ne!(changed.digest, want.digest);
    let moved = plain
        .clone()
        .renamed(&name, &format!("{EMBEDDING}.weight"))
        .with("modules_to_save", json!(["embed_tokens"]));
    assert_ne!(
        moved.read().unwrap().digest,
        want.digest,
        "the place counts"
    );
    let mut infinite = head.values();
    infinite[100] = f32::INFINITY;
    plain
        .clone()
        .put(name.clone(), as_f32(infinite))
        .refused("not finite");
    for (stored, size) in [(Stored::F64, 8), (Stored::I8, 1), (Stored::I32, 4)] {
        let bytes = vec![0; size * head.values().len()];
        let other = Tensor::of(stored, &head.shape, bytes);
        plain.clone().put(name.clone(), other).refused("supported");
    }
}

#[test]
fn a_table_of_another_shape_and_one_that_is_missing_are_errors() {
    let plain = Files::of("saved-tables");
    let name = format!("{HEAD}.weight");
    let of_shape = |shape: &[usize]| {
        let bytes = vec![0; 4 * shape.iter().product::<usize>()];
        let tensor = Tensor::of(Stored::F32, shape, bytes);
        plain.clone().put(name.clone(), tensor)
    };
    of_shape(&[300, 48]).refused("has 300 tokens; the vocabulary of this model has 256");
    for shape in [&[256, 40][..], &[48, 256], &[256], &[256, 48, 1], &[]] {
        of_shape(shape).refused("[256, 48]");
    }
    plain
        .clone()
        .without(&name)
        .refused("names lm_head, for which there is no tensor");
    let unnamed = plain
        .clone()
        .with("modules_to_save", json!(["embed_tokens"]));
    // It is in place of the base model's, as PEFT puts it there.
    assert!(unnamed.read().unwrap() == plain.read().unwrap());
    let unnamed = unnamed.renamed(&name, &format!("{HEAD}.modules_to_save.weight"));
    unnamed.refused("`modules_to_save` in adapter_config.json does not name lm_head");
    let of_both = Files::of("tables").with("modules_to_save", json!(["lm_head"]));
    of_both.refused("names lm_head, which has other tensors, too");
}

#[test]
fn whole_weights_of_other_modules_are_refused_by_field_and_name() {
    let plain = Files::of("saved-head-tied");
    for module in ["norm", "score", "classifier", "q_proj", "mlp", ""] {
        let named = plain
            .clone()
            .with("modules_to_save", json!(["lm_head", module]));
        named.refused(&format!(
            "`modules_to_save` in adapter_config.json names {module:?}"
        ));
    }
    for module in ["model.norm", "score", "model.layers.0.self_attn.v_proj"] {
        let tensor = Tensor::of(Stored::F32, &[48], vec![0; 4 * 48]);
        let name = format!("base_model.model.{module}.weight");
        let with = plain.clone().put(name, tensor);
        with.refused("`modules_to_save` in adapter_config.json is supported for");
        with.refused(module);
    }
    let tensor = Tensor::of(Stored::F32, &[48], vec![0; 4 * 48]);
    let name = "base_model.model.model.layers.0.self_attn.v_proj.base_layer.weight";
    plain
        .put(name.to_owned(), tensor)
        .refused("weights of the base model");
}

#[test]
fn tied_embeddings_have_one_table_of_the_base_model() {
    let plain = Files::of("changed-tables-tied");
    let want = plain.read().unwrap();
    assert_eq!(want.tables.len(), 2);
    // PEFT puts either into the place of both.
    for name in [HEAD, EMBEDDING] {
        let one = plain.clone().without(&format!("{name}.weight"));
        assert!(one.read().unwrap() == want, "{name}");
    }
    let other = of_base(&plain, "model.embed_tokens.weight");
    let two = plain.put(format!("{HEAD}.weight"), other);
    two.refused("are tied");
    let ensured = Files::of("saved-tied-ensured");
    let want = ensured.read().unwrap();
    // Either name, and as it is saved with `save_embedding_layers`.
    let one = ensured.clone().without(&format!("{HEAD}.weight"));
    assert!(one.read().unwrap() == want);
    let base = of_base(&ensured, "model.embed_tokens.weight");
    let original = format!("{EMBEDDING}.original_module.weight");
    let all = ensured.clone().put(original, base.clone());
    assert!(all.read().unwrap() == want);
    ensured
        .put(format!("{HEAD}.weight"), base)
        .refused("are tied");
    let tied = Files::of("tied-embedding").with("ensure_weight_tying", json!(true));
    tied.refused("`ensure_weight_tying`");
}
