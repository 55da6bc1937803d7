//! Outputs that are steered to their end: whatever the model would like to say, an output that may
//! have enough tokens is complete before they run out.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::Arc;

use hearth_grammar::{Compiled, Compiler, Source, Spec, Ticket, VocabularySource};
use serde_json::{Value, json};

/// A token that ends an output, a token for each byte, and some that are frequent in JSON.
struct Words(Vec<Vec<u8>>);

impl Words {
    fn new() -> Self {
        let bytes = (0..=255u8).map(|byte| vec![byte]);
        let words = [
            "\": \"", "\":", "\", \"", "{\"", "\"}", "}]", "[{\"", "[[", "true", "null", ", ",
            "na", "me", "12", "é", "hello", " world", "\"]", "items", "\\n",
        ];
        let words = words.iter().map(|word| word.as_bytes().to_vec());
        let end = std::iter::once(Vec::new());
        Self(end.chain(bytes).chain(words).collect())
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

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) as usize % bound
    }
}

/// An output of at most `most` tokens that a model with random wishes makes, and whether it is
/// complete. A talkative one ends nothing that it could go on with.
fn output(
    compiled: &Compiled,
    words: &Words,
    most: usize,
    talkative: bool,
    random: &mut Random,
) -> (String, bool) {
    let mut matcher = compiled.completing_matcher();
    let (mut bytes, mut left) = (Vec::new(), most);
    while left > 0 && !matcher.is_complete() {
        let mut forced = matcher.forced_tokens(left);
        if forced.is_empty() {
            let mask = matcher.mask_within(left).unwrap();
            let is_set = |token: u32| mask[token as usize / 32] & (1 << (token % 32)) != 0;
            let mut ways: Vec<u32> = (0..words.size() as u32).filter(|&t| is_set(t)).collect();
            assert!(
                !ways.is_empty(),
                "a dead end after {}",
                String::from_utf8_lossy(&bytes)
            );
            let closes = |token: &u32| words.0[*token as usize].iter().any(|b| b"\"}]".contains(b));
            if talkative && ways.iter().any(|token| *token != 0 && !closes(token)) {
                ways.retain(|token| *token != 0 && !closes(token));
            }
            forced.push(ways[random.below(ways.len())]);
        }
        for token in forced {
            matcher.consume(token).unwrap();
            bytes.extend(words.bytes(token));
            left -= 1;
            if token == 0 {
                return (String::from_utf8(bytes).unwrap(), true);
            }
        }
    }
    let complete = matcher.is_complete();
    (String::from_utf8_lossy(&bytes).into_owned(), complete)
}

fn compile(compiler: &Compiler, source: Source) -> Arc<Compiled> {
    compiler
        .compile(&Spec::new(source), &Ticket::default())
        .unwrap()
}

fn schemas() -> Vec<Value> {
    let person = json!({"type": "object", "additionalProperties": false, "required": ["name", "age"],
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"},
            "notes": {"type": "array", "items": {"type": "string"}}}});
    vec![
        json!({"type": "string"}),
        json!({"type": "integer"}),
        json!({}),
        json!({"type": "array", "items": person}),
        json!({"type": "object", "required": ["people"], "properties": {
            "people": {"type": "array", "items": person}, "more": {}}}),
        json!({"type": "array", "minItems": 3, "items": {"type": "object", "required": ["date", "id"],
            "properties": {"date": {"type": "string", "format": "date"},
                "id": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]+$"}}}}),
        json!({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "required": ["value", "children"],
            "additionalProperties": false, "properties": {"value": {"type": "string", "minLength": 4},
                "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}}}}),
        json!({"anyOf": [{"type": "object", "required": ["kind", "text"], "additionalProperties": false,
            "properties": {"kind": {"const": "long"}, "text": {"type": "string", "minLength": 30}}},
            {"type": "object", "required": ["kind"], "additionalProperties": false,
            "properties": {"kind": {"const": "short"}}}]}),
    ]
}

/// The value of `text`; `None` if it is a number that no program can hold, which a model with random
/// wishes writes.
fn read(text: &str) -> Option<Value> {
    match serde_json::from_str(text) {
        Ok(value) => Some(value),
        Err(error) => {
            assert!(
                error.to_string().contains("out of range"),
                "{text}: {error}"
            );
            None
        }
    }
}

/// The fewest tokens of an output, by the way that is found at its beginning.
fn shortest(compiled: &Compiled) -> usize {
    compiled.completing_matcher().shortest().unwrap()
}

#[test]
fn json_is_complete_and_valid_whenever_the_tokens_are_enough() {
    let words = Arc::new(Words::new());
    let compiler = Compiler::new(Arc::clone(&words) as Arc<dyn VocabularySource>, vec![0]);
    let mut random = Random(7);
    for schema in schemas() {
        let compiled = compile(&compiler, Source::JsonSchema(schema.clone()));
        let validator = jsonschema::validator_for(&schema).unwrap();
        let least = shortest(&compiled);
        let mut longest = 0;
        for round in 0..60 {
            let most = least + [0, 1, 3, 10, 40, 150, 600][round % 7];
            let talkative = round % 2 == 0;
            let (text, complete) = output(&compiled, &words, most, talkative, &mut random);
            assert!(complete, "{schema}: {most} tokens are enough: {text:?}");
            let valid = read(&text).is_none_or(|value| validator.is_valid(&value));
            assert!(valid, "{schema}: {text}");
            longest = longest.max(text.len());
        }
        // Steering leaves room while there are many tokens.
        assert!(longest > 100, "{schema}: {longest}");
    }
}

#[test]
fn texts_of_a_regex_are_complete_whenever_the_tokens_are_enough() {
    let words = Arc::new(Words::new());
    let compiler = Compiler::new(Arc::clone(&words) as Arc<dyn VocabularySource>, vec![0]);
    let mut random = Random(3);
    for pattern in [
        "[a-z]+(, [a-z]+)*\\.",
        "no|yes, because .{10,40}!",
        "(ab){3,}c",
        "a*",
    ] {
        let compiled = compile(&compiler, Source::Regex(pattern.to_owned()));
        let regex = regex::Regex::new(&format!("^(?:{pattern})$")).unwrap();
        let least = shortest(&compiled);
        for round in 0..80 {
            let most = least + [0, 1, 2, 5, 20, 90][round % 6];
            let (text, complete) = output(&compiled, &words, most, round % 2 == 0, &mut random);
            assert!(
                complete && regex.is_match(&text),
                "{pattern} {most}: {text:?}"
            );
        }
    }
}

#[test]
fn too_few_tokens_cut_an_output_and_break_nothing() {
    let words = Arc::new(Words::new());
    let compiler = Compiler::new(Arc::clone(&words) as Arc<dyn VocabularySource>, vec![0]);
    let mut random = Random(5);
    for schema in schemas() {
        let compiled = compile(&compiler, Source::JsonSchema(schema.clone()));
        let validator = jsonschema::validator_for(&schema).unwrap();
        for most in 0..shortest(&compiled) {
            let (text, complete) = output(&compiled, &words, most, false, &mut random);
            assert!(
                !complete || read(&text).is_none_or(|value| validator.is_valid(&value)),
                "{text}"
            );
        }
    }
}
