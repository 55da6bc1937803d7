//! docs/CERTIFIED.md: what was checked of each family, from checks that run here.
//!
//! `UPDATE_DOCS=1` writes the page, with `HEARTH_ALL_GPU_TESTS=1` for the GPUs of this machine as well.
//! Without it the page must have what the CPU is checked for here, and nothing that failed.

mod texts;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use hearth_model::Decoder;
use hearth_model::certified::{self, Packaging};
use hearth_model::device::{self, Api, DeviceSpec};
use hearth_model::dtype::Dtype;

use super::golden::{
    self, CPU, CUDA, Golden, TOLERANCE, all_gpu_tests, feed, gguf_goldens, goldens, wgpu_devices,
};
use super::same_bits;

const HEAD: &str = "# Certified models

What was compared with a reference, for each family of models and each kind of file. A model that is not in this table is
served with a line in the log that says so. One command makes this page, from checks that it runs itself:

```sh
UPDATE_DOCS=1 HEARTH_ALL_GPU_TESTS=1 cargo test --release --workspace --test logits certified
```

- **logits**: the largest difference to the float32 logits of `transformers`, in prefill and greedy decoding, over all tiny random
  checkpoints of the family (at most 0.001); GGUF files are written by llama.cpp's converter and quantiser.
- **decode = prefill**: the largest difference between the logits of a token that is decoded and those in one pass over the whole text.
- **same bits**: with `--deterministic`, whole prompts, chunks, single tokens, and batches with another sequence have the same bits.
- **tokenizer**: the texts that are tokenized as `tokenizers` or SentencePiece do, with vocabularies made like the family's.
- **template**: the conversations that are rendered as Jinja 2 does, with the constructs of the family's templates.

`-` is what nothing was compared for. llama.cpp has one name for some pairs of families: a GGUF file of Mistral is one of
`LlamaForCausalLM`, and that of a Gemma 3 with images one of `Gemma3ForCausalLM`.
";

/// The results for a family with one kind of files on one device.
#[derive(Default)]
struct Row {
    checkpoints: usize,
    logits: f32,
    decode: f32,
    same_bits: bool,
}

fn worst(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    let pairs = got.iter().zip(want);
    // `max` skips NaN.
    pairs.fold(0.0, |worst, (got, want)| match (got - want).abs() {
        difference if difference.is_finite() => difference.max(worst),
        _ => f32::INFINITY,
    })
}

/// The difference to the reference, and between decoding and prefill.
fn differences(decoder: &mut dyn Decoder, golden: &Golden) -> (f32, f32) {
    let prefill = feed(decoder, &golden.prompt, 0);
    let mut decoded = Vec::new();
    for (step, token) in golden.decode_tokens.iter().enumerate() {
        decoded.extend(feed(decoder, &[*token], golden.prompt.len() + step));
    }
    let all = [&golden.prompt[..], &golden.decode_tokens].concat();
    let whole = feed(decoder, &all, 0);
    let logits = worst(&prefill, &golden.prefill).max(worst(&decoded, &golden.decode));
    (logits, worst(&decoded, &whole[prefill.len()..]))
}

type Rows = BTreeMap<(String, Packaging, String), Row>;

fn check(device: DeviceSpec, rows: &mut Rows) {
    let packaging = goldens()
        .into_iter()
        .map(|golden| (Packaging::Safetensors, golden));
    let gguf = gguf_goldens()
        .into_iter()
        .map(|golden| (Packaging::Gguf, golden));
    for (packaging, golden) in packaging.chain(gguf) {
        let checkpoint = golden::open(&golden);
        assert_eq!(checkpoint.packaging, packaging);
        let class = checkpoint.config.architecture.class_name();
        let key = (class.to_owned(), packaging, device.to_string());
        let row = rows.entry(key).or_insert(Row {
            same_bits: true,
            ..Row::default()
        });
        let (logits, decode) = differences(golden::load(&golden, device).as_mut(), &golden);
        row.checkpoints += 1;
        row.logits = row.logits.max(logits);
        row.decode = row.decode.max(decode);
        let mut decoder = golden::load_deterministic(&golden, device, Dtype::F32);
        row.same_bits &= same_bits::differs(decoder.as_mut(), &golden).is_none();
    }
}

/// A cell for a difference: its order of magnitude, which other machines have as well.
fn bounded(difference: f32) -> String {
    match difference {
        0.0 => "0".to_owned(),
        d if d <= TOLERANCE => {
            let bounds = [1e-6, 1e-5, 1e-4, 1e-3];
            let bound = bounds.iter().find(|bound| d <= **bound).unwrap_or(&1e-3);
            format!("<= {bound:.0e}")
        }
        d => format!("**off by {d}**"),
    }
}

fn table(rows: &Rows) -> String {
    let mut out = String::from(
        "\n| family | files | device | checkpoints | logits | decode = prefill | same bits | tokenizer | template |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    for ((class, packaging, device), row) in rows {
        let bits = if row.same_bits { "yes" } else { "**no**" };
        let (tokenizer, template) = (
            texts::tokenizers(class, *packaging),
            texts::templates(class),
        );
        writeln!(
            out,
            "| `{class}` | {packaging} | {device} | {} | {} | {} | {bits} | {tokenizer} | {template} |",
            row.checkpoints,
            bounded(row.logits),
            bounded(row.decode),
        )
        .expect("writing to a string");
    }
    out
}

/// A row without the sizes of differences, which other processors have as well but not to the digit.
fn without_sizes(row: &str) -> Vec<&str> {
    let cells = row.split('|').enumerate();
    let kept = cells.filter(|(index, _)| !(5..=6).contains(index));
    kept.map(|(_, cell)| cell).collect()
}

fn commit() -> String {
    let git = |arguments: &[&str]| {
        let run = Command::new("git")
            .args(arguments)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output();
        let run = run.ok().filter(|run| run.status.success())?;
        Some(String::from_utf8_lossy(&run.stdout).trim().to_owned())
    };
    let changed = git(&["status", "--porcelain", "--untracked-files=no", "--", ".."]);
    match (git(&["rev-parse", "--short", "HEAD"]), changed.as_deref()) {
        (Some(commit), Some("")) => commit,
        (Some(commit), _) => format!("{commit} with changes"),
        (None, _) => "unknown".to_owned(),
    }
}

#[test]
fn certified_models_are_listed() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/CERTIFIED.md");
    let update = std::env::var_os("UPDATE_DOCS").is_some();
    let all = device::list();
    let mut specs = vec![CPU];
    if update && all_gpu_tests() {
        let gpus = [Api::Vulkan, Api::WebGpu];
        specs.extend(gpus.into_iter().filter_map(wgpu_devices));
        specs.extend(device::choose(&CUDA, &all).is_ok().then_some(CUDA));
    }
    let mut rows = Rows::new();
    for spec in &specs {
        check(*spec, &mut rows);
    }
    let table = table(&rows);
    assert!(!table.contains("**"), "a check failed:\n{table}");
    if update {
        // The page names the devices of its rows; this machine may have others.
        let devices = specs.iter().map(|spec| {
            let device = device::choose(spec, &all);
            device.map_or(spec.to_string(), |(device, _)| device.to_string())
        });
        let devices: Vec<String> = devices.collect();
        let by = format!(
            "\nMade at commit {} with {}.\n",
            commit(),
            devices.join(", ")
        );
        std::fs::write(&path, [HEAD, &by, &table].concat()).expect("the page is written");
        return;
    }
    let page = std::fs::read_to_string(&path).expect("docs/CERTIFIED.md");
    for row in table.lines().filter(|line| line.starts_with("| `")) {
        assert!(
            page.lines()
                .any(|line| without_sizes(line) == without_sizes(row)),
            "UPDATE_DOCS=1 writes docs/CERTIFIED.md: it lacks\n{row}"
        );
    }
    for (class, packaging, _) in rows.keys() {
        assert!(
            certified::is_certified(class, *packaging),
            "{class} {packaging}"
        );
    }
    assert!(!certified::is_certified("BertForMaskedLM", Packaging::Gguf));
}
