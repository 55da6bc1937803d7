//! Measures the times of masks over a real vocabulary: `cargo run --release -p hearth-grammar
//! --example masks -- cl100k_base.tiktoken` (a file of OpenAI's tiktoken: base64 bytes and
//! rank).
//!
//! Outputs are random walks over the masks, so that no model is needed.
#![allow(clippy::unwrap_used, reason = "an example may panic")]

#[path = "masks/tiktoken.rs"]
mod tiktoken;

use std::sync::Arc;
use std::time::Instant;

use hearth_grammar::{Compiler, Source, Spec, Ticket, VocabularySource, Whitespace};
use serde_json::{Value, json};
use tiktoken::{Tiktoken, report};

fn schemas() -> Vec<Value> {
    let object = |properties: Value| {
        let required: Vec<&String> = properties.as_object().unwrap().keys().collect();
        json!({"type": "object", "additionalProperties": false, "required": required,
            "properties": properties})
    };
    vec![
        object(json!({"name": {"type": "string"}, "age": {"type": "integer"}})),
        object(json!({"city": {"type": "string", "maxLength": 30}, "ok": {"type": "boolean"}})),
        object(json!({"when": {"type": "string", "format": "date-time"}})),
        object(json!({"id": {"type": "string", "format": "uuid"}, "n": {"type": "number"}})),
        object(json!({"tags": {"type": "array", "items": {"type": "string"}, "maxItems": 5}})),
        object(
            json!({"kind": {"enum": ["a", "b", "cd"]}, "at": {"type": "string",
            "pattern": "^[A-Z]{2}-[0-9]{4}$"}}),
        ),
        json!({"type": "object"}),
        json!({"anyOf": [{"type": "null"}, {"type": "array", "items": {"type": "integer"}}]}),
        object(json!({"a": object(json!({"b": object(json!({"c": {"type": "string"}}))}))})),
        json!({"$defs": {"t": {"type": "object", "additionalProperties": false,
            "properties": {"v": {"type": "integer"}, "l": {"$ref": "#/$defs/t"},
                "r": {"$ref": "#/$defs/t"}}}}, "$ref": "#/$defs/t"}),
    ]
}

fn regexes() -> Vec<&'static str> {
    vec![
        "[0-9]{1,3}(\\.[0-9]{1,3}){3}",
        "\\{\"name\": \"[\\w ]{1,20}\", \"house\": \"(Gryffindor|Slytherin|Ravenclaw)\"\\}",
        "[a-z0-9._%+-]{1,64}@[a-z0-9.-]{1,100}\\.[a-z]{2,8}",
        "(yes|no|perhaps)( (yes|no|perhaps)){0,9}",
    ]
}

fn main() {
    let path = std::env::args().nth(1).expect("a file of tiktoken's");
    let source = Tiktoken::read(&path);
    let eos = source.size() as u32 - 1;
    let began = Instant::now();
    let compiler = Compiler::new(Arc::new(source), vec![eos]);
    compiler.warm_up();
    println!(
        "vocabulary of {} tokens read in {:?}",
        eos + 1,
        began.elapsed()
    );
    let json = schemas().into_iter().map(Source::JsonSchema);
    let regex = regexes()
        .into_iter()
        .map(|text| Source::Regex(text.to_owned()));
    for (kind, sources) in [
        ("JSON Schema", json.collect::<Vec<_>>()),
        ("regex", regex.collect::<Vec<_>>()),
    ] {
        let (mut compiles, mut masks, mut consumes) = (Vec::new(), Vec::new(), Vec::new());
        let (mut forced, mut all, mut random) = (0, 0, 1u64);
        for source in sources {
            let spec = Spec {
                source,
                whitespace: Whitespace::Compact,
            };
            let began = Instant::now();
            let compiled = compiler.compile(&spec, &Ticket::default()).unwrap();
            compiles.push(began.elapsed());
            for _ in 0..40 {
                let mut matcher = compiled.matcher();
                for _ in 0..60 {
                    let jumped = matcher.forced_tokens(60);
                    forced += jumped.len();
                    all += jumped.len();
                    jumped.iter().for_each(|&t| matcher.consume(t).unwrap());
                    if matcher.is_complete() {
                        break;
                    }
                    let began = Instant::now();
                    let mask = matcher.mask().unwrap();
                    masks.push(began.elapsed());
                    let words = mask.iter().enumerate();
                    let allowed: Vec<u32> = words
                        .flat_map(|(i, word)| {
                            (0..32)
                                .filter(move |b| word & 1 << b != 0)
                                .map(move |b| i as u32 * 32 + b)
                        })
                        .collect();
                    random = random
                        .wrapping_mul(6364136223846793005)
                        .wrapping_add(1442695040888963407);
                    let token = allowed[(random >> 33) as usize % allowed.len()];
                    if token == eos {
                        break;
                    }
                    all += 1;
                    let began = Instant::now();
                    matcher.consume(token).unwrap();
                    consumes.push(began.elapsed());
                }
            }
        }
        report(&format!("{kind}: compile"), compiles);
        report(&format!("{kind}: mask"), masks);
        report(&format!("{kind}: consume"), consumes);
        println!("{kind}: {forced} of {all} tokens forced");
    }
}
