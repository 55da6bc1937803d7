//! Coverage and cost of structured output over a set of JSON Schemas (JSONSchemaBench,
//! arXiv:2501.10868): which schemas compile, whether valid instances are accepted and invalid ones
//! refused, and the times of compilations and masks. Times are processor time of the thread.

mod clock;
mod coverage;
mod instance;
mod vocabulary;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

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
    pub threads: usize,
    pub list: usize,
}

/// Measures all schemas and returns the table.
///
/// # Errors
/// If a file cannot be read, or a thread cannot be started.
pub fn run(settings: Settings) -> anyhow::Result<String> {
    let words = Arc::new(match &settings.vocabulary {
        Some(path) => Words::read(path, settings.tokens)?,
        None => Words::bytes(),
    });
    let source = Arc::clone(&words) as Arc<dyn VocabularySource>;
    let compiler = Arc::new(Compiler::new(source, vec![words.end()]));
    compiler.warm_up();
    let files = Arc::new(files(&settings)?);
    let next = Arc::new(AtomicUsize::new(0));
    let mut workers = Vec::new();
    for _ in 0..settings.threads.max(1) {
        let (compiler, words) = (Arc::clone(&compiler), Arc::clone(&words));
        let (files, next) = (Arc::clone(&files), Arc::clone(&next));
        let builder = thread::Builder::new().stack_size(STACK_BYTES);
        workers.push(builder.spawn(move || measure(&files, &next, &compiler, &words))?);
    }
    let mut coverage = Coverage::default();
    for worker in workers {
        let measured = worker.join();
        coverage.join(measured.map_err(|_| anyhow!("the measurement panicked"))??);
    }
    Ok(coverage.table(words.size(), settings.list))
}

/// Measures one file after the other, each of which no other thread measures.
fn measure(
    files: &[PathBuf],
    next: &AtomicUsize,
    compiler: &Compiler,
    words: &Words,
) -> anyhow::Result<Coverage> {
    let mut coverage = Coverage::default();
    while let Some(path) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
        let name = path.file_name().unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        let text = std::fs::read_to_string(path).with_context(|| format!("reading {name}"))?;
        let Ok(entry) = serde_json::from_str::<Value>(&text) else {
            coverage.unreadable += 1;
            continue;
        };
        measure_one(&name, &entry, compiler, words, &mut coverage);
    }
    Ok(coverage)
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
    let (outcome, took) = clock::timed(|| {
        catch_unwind(AssertUnwindSafe(|| {
            compiler.compile(&spec, &Ticket::default())
        }))
    });
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
    let mut masks = Vec::new();
    for test in entry["tests"].as_array().into_iter().flatten() {
        let text = instance::text_of(&test["data"]);
        // Properties come in the schema's order, which an instance need not have.
        let sorted = || instance::text_of(&instance::in_order(&test["data"], &orders));
        let is_valid = test["valid"] == Value::Bool(true);
        let masks = is_valid.then_some(&mut masks);
        let accepted = instance::follow(&compiled, words, &text, masks)
            || instance::follow(&compiled, words, &sorted(), None);
        if is_valid {
            coverage.valid(name, accepted);
        } else {
            coverage.invalid(name, accepted);
        }
    }
    coverage.masked(name, masks);
}
