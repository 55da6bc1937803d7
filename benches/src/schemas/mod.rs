//! Coverage and cost of structured output over a set of JSON Schemas (JSONSchemaBench,
//! arXiv:2501.10868): which schemas compile, whether valid instances are accepted and invalid ones
//! refused, and the times of compilations and masks.

mod coverage;
mod instance;
mod vocabulary;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use anyhow::{Context, anyhow};
use hearth_grammar::{Compiler, Source, Spec, Ticket, VocabularySource, Whitespace};
use serde_json::Value;

use self::coverage::Coverage;
use self::vocabulary::Words;

/// The stack of the measuring thread, which is that of the server's compiling threads.
const STACK_BYTES: usize = 256 << 20;

/// The selection of schemas, and how they are measured.
#[derive(Clone, Debug)]
pub struct Settings {
    pub directory: PathBuf,
    pub vocabulary: Option<PathBuf>,
    pub tokens: usize,
    pub every: usize,
    pub list: usize,
}

/// Measures all schemas, one after the other, and returns the table.
///
/// # Errors
/// If a file cannot be read, or the thread cannot be started.
pub fn run(settings: Settings) -> anyhow::Result<String> {
    let worker = thread::Builder::new()
        .stack_size(STACK_BYTES)
        .spawn(move || measure(&settings))?;
    worker
        .join()
        .map_err(|_| anyhow!("the measurement panicked"))?
}

fn measure(settings: &Settings) -> anyhow::Result<String> {
    let words = Arc::new(match &settings.vocabulary {
        Some(path) => Words::read(path, settings.tokens)?,
        None => Words::bytes(),
    });
    let source = Arc::clone(&words) as Arc<dyn VocabularySource>;
    let compiler = Compiler::new(source, vec![words.end()]);
    compiler.warm_up();
    let mut coverage = Coverage::default();
    for path in files(settings)? {
        let name = path.file_name().unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {name}"))?;
        let Ok(entry) = serde_json::from_str::<Value>(&text) else {
            coverage.unreadable += 1;
            continue;
        };
        measure_one(&name, &entry, &compiler, &words, &mut coverage);
    }
    Ok(coverage.table(words.size(), settings.list))
}

fn files(settings: &Settings) -> anyhow::Result<Vec<PathBuf>> {
    let directory = std::fs::read_dir(&settings.directory)
        .with_context(|| format!("reading {}", settings.directory.display()))?;
    let mut files = Vec::new();
    for entry in directory {
        let path = entry?.path();
        if path.extension().is_some_and(|kind| kind == "json") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files.into_iter().step_by(settings.every).collect())
}

fn measure_one(
    name: &str,
    entry: &Value,
    compiler: &Compiler,
    words: &Words,
    coverage: &mut Coverage,
) {
    let spec = Spec {
        whitespace: Whitespace::Natural,
        ..Spec::new(Source::JsonSchema(entry["schema"].clone()))
    };
    coverage.schemas += 1;
    let began = Instant::now();
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        compiler.compile(&spec, &Ticket::default())
    }));
    let took = began.elapsed();
    let Ok(outcome) = outcome else {
        coverage.refuse(name, "panic", "a panic");
        return;
    };
    let compiled = match outcome {
        Ok(compiled) => compiled,
        Err(error) => {
            coverage.refused_in.push(took);
            return coverage.refuse(name, error.problem.code(), &error.to_string());
        }
    };
    coverage.compiled_in(name, took);
    let orders = instance::orders(&entry["schema"]);
    for test in entry["tests"].as_array().into_iter().flatten() {
        let text = instance::text_of(&test["data"]);
        // Properties come in the schema's order, which an instance need not have.
        let sorted = || instance::text_of(&instance::in_order(&test["data"], &orders));
        let is_valid = test["valid"] == Value::Bool(true);
        let masks = is_valid.then_some(&mut coverage.masks);
        let accepted = instance::follow(&compiled, words, &text, masks)
            || instance::follow(&compiled, words, &sorted(), None);
        if is_valid {
            coverage.valid(name, accepted);
        } else {
            coverage.invalid(name, accepted);
        }
    }
}
