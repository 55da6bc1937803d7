//! Times masks over a real vocabulary: `cargo run --release -p hearth-grammar --example
//! masks -- cl100k_base.tiktoken` (a file of OpenAI's tiktoken: base64 bytes and rank).
//!
//! Outputs are random walks over the masks, so that no model is needed.
#![allow(clippy::unwrap_used, reason = "an example that cannot go on is over")]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hearth_grammar::{Compiler, Source, Spec, Ticket, VocabularySource, Whitespace};
use serde_json::{Value, json};

struct Tiktoken {
    tokens: Vec<Vec<u8>>,
    ids: HashMap<Vec<u8>, u32>,
}

impl Tiktoken {
    fn read(path: &str) -> Self {
        let text = std::fs::read_to_string(path).unwrap();
        let mut tokens: Vec<Vec<u8>> = Vec::new();
        for line in text.lines() {
            let (bytes, rank) = line.split_once(' ').unwrap();
            let rank: usize = rank.parse().unwrap();
            tokens.resize(tokens.len().max(rank + 1), Vec::new());
            tokens[rank] = base64(bytes);
        }
        let ids = tokens.iter().cloned().zip(0..).collect();
        // The end of an output.
        tokens.push(b"<|endoftext|>".to_vec());
        Self { tokens, ids }
    }
}

fn base64(text: &str) -> Vec<u8> {
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bits, mut count, mut bytes) = (0u32, 0, Vec::new());
    for letter in text.bytes().filter(|&byte| byte != b'=') {
        let value = alphabet.iter().position(|&a| a == letter).unwrap();
        bits = bits << 6 | value as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}

impl VocabularySource for Tiktoken {
    fn size(&self) -> usize {
        self.tokens.len()
    }
    fn bytes(&self, token: u32) -> Vec<u8> {
        self.tokens[token as usize].clone()
    }
    fn is_special(&self, token: u32) -> bool {
        token as usize == self.tokens.len() - 1
    }
    /// The longest token at each place: what is forced is then a little other than
    /// tiktoken's, and as long.
    fn encode(&self, text: &str) -> Option<Vec<u32>> {
        let (mut rest, mut ids) = (text.as_bytes(), Vec::new());
        while !rest.is_empty() {
            let longest = (1..=rest.len().min(128)).rev();
            let (end, id) = longest
                .filter_map(|end| Some((end, *self.ids.get(&rest[..end])?)))
                .next()?;
            ids.push(id);
            rest = &rest[end..];
        }
        Some(ids)
    }
}

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

fn report(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
    println!(
        "{what:<24} {:>6} times  p50 {:>8.1}  p90 {:>8.1}  p99 {:>8.1}  max {:>9.1} us",
        times.len(),
        at(0.5),
        at(0.9),
        at(0.99),
        at(1.0),
    );
}

fn main() {
    let path = std::env::args().nth(1).expect("a file of tiktoken's");
    let source = Tiktoken::read(&path);
    let eos = source.tokens.len() as u32 - 1;
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
