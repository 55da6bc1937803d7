//! JSON Schemas with valid and invalid instances: no invalid instance is ever accepted, and a
//! schema whose valid instances would not be accepted is refused with the place of the reason.
//!
//! The schemas of `tests/schemas` are made by the script there. With `HEARTH_SCHEMAS=DIR`, the
//! schemas of another directory are measured too: files of `{schema, tests: [{valid, data}]}`,
//! or of lists of them, in the directory and below it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(
    clippy::print_stdout,
    reason = "the test reports the coverage of a set of schemas"
)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hearth_grammar::{Compiled, Compiler, Source, Spec, Ticket, VocabularySource, Whitespace};
use serde_json::Value;

const LAYOUTS: [Whitespace; 2] = [Whitespace::Natural, Whitespace::Compact];

/// A token that ends an output, a token for each byte, and some that are frequent in JSON.
struct Words(Vec<Vec<u8>>);

impl Words {
    fn new() -> Self {
        let bytes = (0..=255u8).map(|byte| vec![byte]);
        let words = [
            "\": \"", "\":", "\", \"", "{\"", "\"}", "true", "null", ", ", "na", "me", "12", "é",
        ];
        let words = words.iter().map(|word| word.as_bytes().to_vec());
        Self(
            std::iter::once(Vec::new())
                .chain(bytes)
                .chain(words)
                .collect(),
        )
    }
}

impl VocabularySource for Words {
    fn size(&self) -> usize {
        self.0.len()
    }
    fn bytes(&self, token: u32) -> Vec<u8> {
        self.0[token as usize].clone()
    }
    fn is_special(&self, token: u32) -> bool {
        token == 0
    }
    /// Encodes with the longest token at each place.
    fn encode(&self, text: &str) -> Option<Vec<u32>> {
        let (mut rest, mut ids) = (text.as_bytes(), Vec::new());
        while !rest.is_empty() {
            let fits = |id: &usize| rest.starts_with(&self.0[*id]);
            let id = (1..self.0.len())
                .filter(fits)
                .max_by_key(|id| self.0[*id].len())?;
            ids.push(id as u32);
            rest = &rest[self.0[id].len()..];
        }
        Some(ids)
    }
}

/// `value` as text in `layout`, with properties in the order of the instance.
fn text_of(value: &Value, layout: Whitespace) -> String {
    let (comma, colon) = match layout {
        Whitespace::Natural => (", ", ": "),
        Whitespace::Compact => (",", ":"),
    };
    match value {
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(|item| text_of(item, layout)).collect();
            format!("[{}]", items.join(comma))
        }
        Value::Object(entries) => {
            let entry = |(name, value): (&String, &Value)| {
                format!(
                    "{}{colon}{}",
                    Value::from(name.as_str()),
                    text_of(value, layout)
                )
            };
            let entries: Vec<_> = entries.iter().map(entry).collect();
            format!("{{{}}}", entries.join(comma))
        }
        other => other.to_string(),
    }
}

/// True if `text` is a complete output.
fn accepts(compiled: &Compiled, text: &str) -> bool {
    let mut matcher = compiled.matcher();
    let fits = text
        .bytes()
        .all(|byte| matcher.consume(u32::from(byte) + 1).is_ok());
    fits && matcher.consume(0).is_ok()
}

/// True if the masks allow the tokenizer's own tokens of `text`, and an end after them.
fn lets_through(compiled: &Compiled, words: &Words, text: &str) -> bool {
    let mut matcher = compiled.matcher();
    let has = |mask: &[u32], token: u32| mask[token as usize / 32] & (1 << (token % 32)) != 0;
    for token in words.encode(text).unwrap() {
        let mask = matcher.mask().unwrap();
        if !has(&mask, token) {
            return false;
        }
        matcher.consume(token).unwrap();
    }
    matcher.is_complete() || has(&matcher.mask().unwrap(), 0)
}

#[derive(Debug, Default)]
struct Coverage {
    schemas: usize,
    refused: BTreeMap<String, usize>,
    valid: usize,
    /// Valid instances that are not accepted, with their schemas.
    missed: Vec<String>,
    invalid: usize,
    wrong: Vec<String>,
    without_pointer: Vec<String>,
    mislabelled: Vec<String>,
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    found.sort();
    let within = |path: &PathBuf| match path.is_dir() {
        true => files(path),
        false => vec![path.clone()],
    };
    let all = found.iter().flat_map(within);
    all.filter(|path| path.extension().is_some_and(|kind| kind == "json"))
        .collect()
}

/// A validator that checks the labels of the instances.
fn label(schema: &Value) -> Option<jsonschema::Validator> {
    let options = jsonschema::options().with_draft(jsonschema::Draft::Draft202012);
    options.should_validate_formats(true).build(schema).ok()
}

fn measure(directory: &Path) -> Coverage {
    let words = Words::new();
    let compiler = Compiler::new(Arc::new(Words::new()), vec![0]);
    let mut coverage = Coverage::default();
    for path in files(directory) {
        let text = std::fs::read_to_string(&path).unwrap();
        let Ok(content) = serde_json::from_str::<Value>(&text) else {
            continue;
        };
        let entries = match content {
            Value::Array(entries) => entries,
            entry => vec![entry],
        };
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        for entry in entries.iter().filter(|entry| entry.get("schema").is_some()) {
            measure_one(entry, &name, &compiler, &words, &mut coverage);
        }
    }
    coverage
}

fn measure_one(
    entry: &Value,
    name: &str,
    compiler: &Compiler,
    words: &Words,
    coverage: &mut Coverage,
) {
    let schema = &entry["schema"];
    let shown = || {
        format!(
            "{name}: {}",
            schema.to_string().chars().take(300).collect::<String>()
        )
    };
    coverage.schemas += 1;
    let compile = |whitespace| {
        let spec = Spec {
            source: Source::JsonSchema(schema.clone()),
            whitespace,
        };
        compiler.compile(&spec, &Ticket::default())
    };
    let (natural, compact) = (compile(LAYOUTS[0]), compile(LAYOUTS[1]));
    let validator = label(schema);
    let tests = entry["tests"].as_array().map_or(&[][..], Vec::as_slice);
    for test in tests {
        let valid = test["valid"].as_bool().unwrap();
        if validator
            .as_ref()
            .is_some_and(|v| v.is_valid(&test["data"]) != valid)
        {
            coverage
                .mislabelled
                .push(format!("{} {}", shown(), test["data"]));
        }
    }
    let (Ok(natural), Ok(compact)) = (&natural, &compact) else {
        let error = natural.or(compact).unwrap_err();
        *coverage
            .refused
            .entry(error.problem.code().to_owned())
            .or_default() += 1;
        let in_schema = error.pointer.as_ref().is_some_and(|pointer| {
            let found = pointer.strip_prefix('#').map(|rest| schema.pointer(rest));
            found.flatten().is_some()
        });
        if !in_schema {
            coverage
                .without_pointer
                .push(format!("{}: {error}", shown()));
        }
        return;
    };
    for test in tests {
        let data = &test["data"];
        let texts = LAYOUTS.map(|layout| text_of(data, layout));
        if test["valid"] == Value::Bool(true) {
            coverage.valid += 1;
            let whole = accepts(natural, &texts[0]) && accepts(compact, &texts[1]);
            if !whole || !lets_through(natural, words, &texts[0]) {
                coverage.missed.push(format!("{} {data}", shown()));
            }
        } else {
            coverage.invalid += 1;
            if accepts(natural, &texts[0]) || accepts(compact, &texts[1]) {
                coverage.wrong.push(format!("{} {data}", shown()));
            }
        }
    }
}

fn report(what: &str, coverage: &Coverage) {
    let refused: usize = coverage.refused.values().sum();
    println!(
        "{what}: {} schemas, {refused} refused {:?}; of the others {} valid instances, {} of them \
         not accepted; {} invalid ones, {} of them accepted; {} refusals without a place; {} \
         instances that `jsonschema` labels otherwise",
        coverage.schemas,
        coverage.refused,
        coverage.valid,
        coverage.missed.len(),
        coverage.invalid,
        coverage.wrong.len(),
        coverage.without_pointer.len(),
        coverage.mislabelled.len(),
    );
}

#[test]
fn no_invalid_instance_is_accepted_and_refused_schemas_name_the_place() {
    let own = measure(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/schemas"));
    report("own schemas", &own);
    assert!(own.schemas >= 300, "{}", own.schemas);
    assert_eq!(own.mislabelled, Vec::<String>::new());
    assert_eq!(own.wrong, Vec::<String>::new());
    // With `multipleOf: 0.25`, all decimals must be written: 1.50, and not 1.5.
    // Beside whole numbers, numbers with decimals are left out.
    let short = |text: &&String| {
        !text.starts_with("multipleOf.json: {\"type\":\"number\"")
            && !text.contains(r#""not":{"type":"integer"#)
            && !text.contains(r#""if":{"type":"integer"#)
    };
    assert_eq!(own.missed.iter().find(short), None);
    let decimals = own
        .missed
        .iter()
        .filter(|text| text.starts_with("multipleOf.json"));
    assert_eq!(decimals.count(), 2, "{:?}", own.missed);
    assert_eq!(own.without_pointer, Vec::<String>::new());
    let refused: usize = own.refused.values().sum();
    assert!((5..30).contains(&refused), "{:?}", own.refused);
}

#[test]
fn the_schemas_of_a_given_directory_are_measured() {
    let Some(directory) = std::env::var_os("HEARTH_SCHEMAS") else {
        println!("HEARTH_SCHEMAS is not set");
        return;
    };
    let given = measure(Path::new(&directory));
    report("given schemas", &given);
    for missed in given.missed.iter().chain(&given.without_pointer).take(40) {
        println!("  {missed}");
    }
    // Instances whose label `jsonschema` disputes are ignored.
    let sure: Vec<_> = given
        .wrong
        .iter()
        .filter(|text| !given.mislabelled.contains(text))
        .collect();
    assert!(sure.is_empty(), "{sure:#?}");
}
