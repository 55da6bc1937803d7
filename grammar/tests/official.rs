//! The cases of JSON-Schema-Test-Suite, the official tests of JSON Schema, of which the source
//! distribution of Python's `jsonschema` has a copy. `./test.sh` unpacks it into
//! `.venv/json-schema-tests`; `HEARTH_JSON_SCHEMA_TESTS` names another directory of the same form.
//!
//! No invalid instance may be accepted. Schemas that cannot be enforced are refused, and a few valid
//! instances are not among the outputs (white space, the order of properties, `format: regex`); how
//! many there may be is written down here.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(
    clippy::print_stdout,
    reason = "the test reports the coverage of the suite"
)]

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use common::{Bytes, END};
use hearth_grammar::{Compiled, Compiler, Source, Spec, Ticket};
use serde_json::{Map, Value};

/// The folder of each draft, its metaschema, and the least share of schemas that compile and of
/// valid instances that are accepted then, in percent.
const DRAFTS: [(&str, &str, usize, usize); 5] = [
    ("draft4", "http://json-schema.org/draft-04/schema#", 92, 96),
    ("draft6", "http://json-schema.org/draft-06/schema#", 87, 96),
    ("draft7", "http://json-schema.org/draft-07/schema#", 88, 93),
    (
        "draft2019-09",
        "https://json-schema.org/draft/2019-09/schema",
        81,
        94,
    ),
    (
        "draft2020-12",
        "https://json-schema.org/draft/2020-12/schema",
        79,
        94,
    ),
];

fn suite() -> Option<PathBuf> {
    let given = std::env::var_os("HEARTH_JSON_SCHEMA_TESTS").map(PathBuf::from);
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.venv/json-schema-tests");
    let path = given.unwrap_or(ours);
    if path.join("draft7").is_dir() {
        return Some(path);
    }
    assert!(
        std::env::var_os("HEARTH_REQUIRE_PYTHON").is_none(),
        "HEARTH_REQUIRE_PYTHON is set, and {} has no tests",
        path.display()
    );
    println!("skipped: {} has no tests", path.display());
    None
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return Vec::new();
    };
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|kind| kind == "json"));
    // `format` asserts nothing in it, and here it does.
    files.retain(|path| path.file_name().is_some_and(|name| name != "format.json"));
    files.sort();
    files
}

/// `value` with a space after each comma and colon.
fn text_of(value: &Value) -> String {
    match value {
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(text_of).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(entries) => {
            let entry = |(name, value): (&String, &Value)| {
                format!("{}: {}", Value::from(name.as_str()), text_of(value))
            };
            let entries: Vec<_> = entries.iter().map(entry).collect();
            format!("{{{}}}", entries.join(", "))
        }
        other => other.to_string(),
    }
}

/// Every order of the properties of `value`, if they are few; those of values within keep theirs.
fn orders(value: &Value) -> Vec<Value> {
    let Value::Object(entries) = value else {
        return vec![value.clone()];
    };
    let entries: Vec<(String, Value)> = entries.clone().into_iter().collect();
    let mut orders = vec![Vec::new()];
    for entry in entries {
        let mut longer = Vec::new();
        for order in &orders {
            for place in 0..=order.len() {
                let mut next: Vec<(String, Value)> = order.clone();
                next.insert(place, entry.clone());
                longer.push(next);
            }
        }
        longer.truncate(120);
        orders = longer;
    }
    let object = |order: Vec<(String, Value)>| Value::Object(Map::from_iter(order));
    orders.into_iter().map(object).collect()
}

fn accepts(compiled: &Compiled, value: &Value) -> bool {
    orders(value).iter().any(|value| {
        let mut matcher = compiled.matcher();
        let text = text_of(value);
        text.bytes()
            .all(|byte| matcher.consume(byte.into()).is_ok())
            && matcher.consume(END).is_ok()
    })
}

#[derive(Default)]
struct Counts {
    schemas: usize,
    compiled: usize,
    valid: usize,
    missed: Vec<String>,
    invalid: usize,
    wrong: Vec<String>,
    refused: Vec<String>,
}

fn measure(compiler: &Compiler, file: &Path, metaschema: &str, counts: &mut Counts) {
    let cases: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let file = file.file_name().unwrap().to_string_lossy();
    for case in cases.as_array().unwrap() {
        let name = format!("{file}: {}", case["description"]);
        let mut schema = case["schema"].clone();
        if let Value::Object(map) = &mut schema {
            map.entry("$schema").or_insert_with(|| metaschema.into());
        }
        counts.schemas += 1;
        let spec = Spec::new(Source::JsonSchema(schema));
        let compiled = match compiler.compile(&spec, &Ticket::default()) {
            Ok(compiled) => compiled,
            Err(error) => {
                counts.refused.push(format!("{name}: {error}"));
                continue;
            }
        };
        counts.compiled += 1;
        for test in case["tests"].as_array().unwrap() {
            let accepted = accepts(&compiled, &test["data"]);
            let name = format!("{name}: {}: {}", test["description"], test["data"]);
            if test["valid"] == Value::Bool(true) {
                counts.valid += 1;
                if !accepted {
                    counts.missed.push(name);
                }
            } else {
                counts.invalid += 1;
                if accepted {
                    counts.wrong.push(name);
                }
            }
        }
    }
}

#[test]
fn no_invalid_instance_of_the_official_tests_is_accepted() {
    let Some(suite) = suite() else {
        return;
    };
    // Grammars are compiled on threads with a large stack.
    let builder = thread::Builder::new().stack_size(256 << 20);
    builder.spawn(move || run(&suite)).unwrap().join().unwrap();
}

fn run(suite: &Path) {
    let compiler = Compiler::new(Arc::new(Bytes), vec![END]);
    let lists = std::env::var_os("HEARTH_LIST").is_some();
    let mut wrong = Vec::new();
    for (draft, metaschema, least_compiled, least_accepted) in DRAFTS {
        let folder = suite.join(draft);
        let mut counts = Counts::default();
        for file in [files(&folder), files(&folder.join("optional/format"))].concat() {
            measure(&compiler, &file, metaschema, &mut counts);
        }
        let accepted = counts.valid - counts.missed.len();
        println!(
            "{draft}: {} of {} schemas compile; {accepted} of {} valid instances are accepted, {} of {} invalid ones",
            counts.compiled,
            counts.schemas,
            counts.valid,
            counts.wrong.len(),
            counts.invalid
        );
        if lists {
            let kinds = [("missed", &counts.missed), ("refused", &counts.refused)];
            for (kind, names) in kinds {
                names.iter().for_each(|name| println!("  {kind} {name}"));
            }
        }
        assert!(
            counts.compiled * 100 >= least_compiled * counts.schemas,
            "{draft}"
        );
        assert!(accepted * 100 >= least_accepted * counts.valid, "{draft}");
        wrong.extend(
            counts
                .wrong
                .into_iter()
                .map(|name| format!("{draft} {name}")),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
