//! Measures the times of compiling and of masks over a directory of schemas, next to those of
//! llguidance alone, and writes the file with which `benches/peers/grammars.py` measures other
//! engines on the same tokens:
//!
//!     cargo run --release -p hearth-grammar --example compare -- cl100k_base.tiktoken \
//!         grammar/tests/schemas sample.json
//!
//! Each valid instance is consumed token by token, and every mask is timed. The two engines
//! take turns, schema by schema.
#![allow(clippy::unwrap_used, reason = "an example may panic")]

#[path = "masks/tiktoken.rs"]
mod tiktoken;

use std::sync::Arc;
use std::time::{Duration, Instant};

use hearth_grammar::{Compiler, Source, Spec, Ticket, Vocabulary, VocabularySource};
use llguidance::api::TopLevelGrammar;
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};
use tiktoken::{Tiktoken, report};
use toktrie::TokEnv;

/// `value` as text in the natural layout.
fn text_of(value: &Value) -> String {
    match value {
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(text_of).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(entries) => {
            let entries = entries.iter();
            let entries: Vec<_> = entries
                .map(|(name, value)| format!("{}: {}", json!(name), text_of(value)))
                .collect();
            format!("{{{}}}", entries.join(", "))
        }
        other => other.to_string(),
    }
}

fn entries(directory: &str) -> Vec<Value> {
    let mut paths: Vec<_> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|kind| kind == "json"))
        .collect();
    paths.sort();
    let content = |path| serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let all = paths.into_iter().flat_map(|path| match content(path) {
        Value::Array(entries) => entries,
        entry => vec![entry],
    });
    all.collect()
}

fn timed<T>(times: &mut Vec<Duration>, work: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let made = work();
    times.push(began.elapsed());
    made
}

fn main() {
    let mut args = std::env::args().skip(1);
    let mut arg = || {
        args.next()
            .expect("a tiktoken file, a directory, and an output")
    };
    let (vocabulary, directory, output) = (arg(), arg(), arg());
    let source = Arc::new(Tiktoken::read(&vocabulary));
    let eos = source.size() as u32 - 1;
    let compiler = Compiler::new(Arc::clone(&source) as Arc<dyn VocabularySource>, vec![eos]);
    compiler.warm_up();
    let env: TokEnv = Arc::new(Vocabulary::new(
        Arc::clone(&source) as Arc<dyn VocabularySource>,
        &[eos],
    ));
    let mut factory = ParserFactory::new_simple(&env).unwrap();
    factory.quiet();
    let (mut compiles, mut masks) = (Vec::new(), Vec::new());
    let (mut their_compiles, mut their_masks) = (Vec::new(), Vec::new());
    let (mut sample, mut off_the_way) = (Vec::new(), 0);
    for entry in entries(&directory) {
        let schema = &entry["schema"];
        let tests = entry["tests"].as_array().unwrap();
        let valid = tests.iter().filter(|test| test["valid"] == true);
        let texts: Vec<String> = valid.map(|test| text_of(&test["data"])).collect();
        let spec = Spec::new(Source::JsonSchema(schema.clone()));
        let began = Instant::now();
        let Ok(compiled) = compiler.compile(&spec, &Ticket::default()) else {
            continue;
        };
        compiles.push(began.elapsed());
        let mut laid_out = schema.clone();
        if let Value::Object(map) = &mut laid_out {
            let layout = json!({"whitespace_flexible": false, "item_separator": ", ",
                "key_separator": ": "});
            map.insert("x-guidance".to_owned(), layout);
        }
        let template = timed(&mut their_compiles, || {
            let parser = factory.create_parser(TopLevelGrammar::from_json_schema(laid_out));
            let template = Matcher::new(parser);
            // Our compilation includes the first mask.
            drop(template.deep_clone().compute_mask());
            template.deep_clone()
        });
        let mut walked = Vec::new();
        for text in texts {
            let tokens = source.encode(&text).unwrap();
            let (mut ours, mut theirs) = (compiled.matcher(), template.deep_clone());
            for &token in &tokens {
                let mask = timed(&mut masks, || ours.mask()).unwrap();
                if ours.consume(token).is_err() {
                    off_the_way += 1;
                    break;
                }
                drop(mask);
                timed(&mut their_masks, || theirs.compute_mask_or_eos()).unwrap();
                theirs.consume_token(token).unwrap();
            }
            walked.push(tokens);
        }
        sample.push(json!({"schema": schema, "tokens": walked}));
    }
    println!(
        "{} schemas, {off_the_way} instances not walked to their end",
        sample.len()
    );
    report("Hearth: compile", compiles);
    report("llguidance: compile", their_compiles);
    report("Hearth: mask", masks);
    report("llguidance: mask", their_masks);
    std::fs::write(output, json!(sample).to_string()).unwrap();
}
