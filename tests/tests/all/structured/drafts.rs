//! Answers to schemas of every draft are valid by the words of that draft, as Python's `jsonschema`
//! understands them, and complete however few tokens they may have.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::{strict, with};
use crate::harness::{COMPLETIONS, Server, enlarged, python_with, workspace};

/// A metaschema, and schemas that need it to be understood.
fn drafts() -> Vec<(&'static str, Vec<Value>)> {
    let unique = json!({"type": "array", "uniqueItems": true, "minItems": 2, "maxItems": 5,
        "items": {"enum": ["red", "green", "blue", "black", "white", "grey", "pink"]}});
    let objects = json!({"type": "array", "uniqueItems": true, "maxItems": 4, "items": {
        "type": "object", "required": ["a"], "additionalProperties": false,
        "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 2}, "b": {"type": "boolean"}}}});
    let four = vec![
        json!({"id": "http://example.com/point", "type": "object", "required": ["x", "y"],
            "additionalProperties": false, "properties": {
                "x": {"type": "integer", "minimum": 0, "exclusiveMinimum": true, "maximum": 100},
                "y": {"$ref": "#/definitions/y", "type": "string"}},
            "definitions": {"y": {"type": "integer", "maximum": 9}}}),
        json!({"type": "array", "maxItems": 3, "items": [{"type": "integer"}, {"type": "string", "maxLength": 9}],
            "additionalItems": {"type": "boolean"}}),
        json!({"type": "object", "additionalProperties": false, "dependencies": {"card": ["code"]},
            "properties": {"card": {"type": "string", "pattern": "^\\d{4}$"}, "code": {"type": "integer"}}}),
        unique.clone(),
    ];
    let six = vec![
        json!({"type": "object", "required": ["kind", "n"], "additionalProperties": false, "properties": {
            "kind": {"const": "six"}, "n": {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 9}}}),
        json!({"type": "object", "minProperties": 1, "maxProperties": 3, "additionalProperties": {"type": "integer"},
            "propertyNames": {"pattern": "^[a-c]$"}}),
        json!({"type": "array", "maxItems": 4, "items": {"type": "integer"}, "contains": {"const": 7}}),
        objects.clone(),
    ];
    let seven = vec![
        json!({"type": "object", "required": ["n"], "additionalProperties": false, "properties": {
            "n": {"type": "integer", "minimum": 0, "maximum": 20}, "big": {"type": "boolean"}},
            "if": {"properties": {"n": {"minimum": 10}}}, "then": {"required": ["big"]},
            "else": {"properties": {"big": false}}}),
        json!({"type": "string", "format": "date"}),
        json!({"type": "array", "maxItems": 3, "items": {"not": {"enum": ["a", 1, null]}, "type": ["string", "integer", "null"],
            "maxLength": 5}}),
        unique.clone(),
    ];
    let year2019 = vec![
        json!({"type": "object", "additionalProperties": false, "dependentRequired": {"a": ["b"]},
            "properties": {"a": {"type": "integer"}, "b": {"type": "string", "maxLength": 4}}}),
        json!({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "required": ["v"],
            "additionalProperties": false, "properties": {"v": {"type": "integer", "multipleOf": 5},
                "children": {"type": "array", "maxItems": 2, "items": {"$ref": "#/$defs/tree"}}}}}}),
        json!({"oneOf": [{"type": "integer", "multipleOf": 2, "maximum": 1000},
            {"type": "object", "required": ["k"], "properties": {"k": {"const": 1}}, "additionalProperties": false},
            {"type": "object", "required": ["k"], "properties": {"k": {"const": 2}}, "additionalProperties": false}]}),
        objects.clone(),
    ];
    let year2020 = vec![
        json!({"type": "array", "minItems": 2, "prefixItems": [{"type": "boolean"}, {"type": "null"}],
            "items": {"type": "string", "maxLength": 3}, "maxItems": 4}),
        json!({"allOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"properties": {"b": {"type": "boolean"}}}], "type": "object", "unevaluatedProperties": false}),
        json!({"type": "string", "pattern": "^(?=.*[0-9])[a-z0-9]{4,8}$"}),
        unique,
        objects,
    ];
    vec![
        ("http://json-schema.org/draft-04/schema#", four),
        ("http://json-schema.org/draft-06/schema#", six),
        ("http://json-schema.org/draft-07/schema#", seven),
        ("https://json-schema.org/draft/2019-09/schema", year2019),
        ("https://json-schema.org/draft/2020-12/schema", year2020),
    ]
}

#[tokio::test]
async fn answers_are_complete_and_valid_by_the_words_of_each_draft() {
    let Some(python) = python_with("import jsonschema") else {
        return;
    };
    // Random weights over bytes: only the grammar makes the answers valid.
    let server = Server::start(&[]).await;
    // HEARTH_GENERATIONS sets the number of answers per draft for recorded results.
    let per_draft = enlarged("HEARTH_GENERATIONS", 100);
    let mut lines = String::new();
    for (metaschema, schemas) in drafts() {
        let per_schema = per_draft.div_ceil(schemas.len());
        for mut schema in schemas {
            schema["$schema"] = metaschema.into();
            let mut left = per_schema;
            while left > 0 {
                let n = left.min(32);
                left -= n;
                // Some answers have hardly enough tokens.
                let most = if left % 64 < 32 { 60 } else { 150 };
                let body = json!({"prompt": "a", "max_tokens": most, "temperature": 1, "seed": left,
                    "n": n, "complete": true});
                let body = with(body, "response_format", strict(&schema));
                let answer = server.ok(COMPLETIONS, &body).await;
                for choice in answer["choices"].as_array().unwrap() {
                    assert_eq!(choice["finish_reason"], "stop", "{schema}: {choice}");
                    let text = choice["text"].as_str().unwrap();
                    writeln!(lines, "{}", json!({"schema": schema, "text": text})).unwrap();
                }
            }
        }
    }
    server.wait_until_idle().await;
    let script = workspace().join("tests/python/validate_outputs.py");
    let mut child = Command::new(python)
        .arg(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // A validation that fails early reads no further.
    let _ = stdin.write_all(lines.as_bytes());
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let counts: Value = serde_json::from_slice(&output.stdout).unwrap();
    println!("valid answers by draft: {counts}");
    assert_eq!(counts.as_object().unwrap().len(), 5, "{counts}");
}
