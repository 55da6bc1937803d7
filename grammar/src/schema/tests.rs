use serde_json::{Map, Value, json};

use super::Preparing;
use crate::error::{GrammarError, Problem};
use crate::spec::{Strictness, Whitespace};

fn prepare(schema: &Value, strictness: Strictness) -> Result<(Value, Vec<String>), GrammarError> {
    let mut preparing = Preparing::new(Whitespace::Compact, strictness);
    let prepared = preparing.schema(schema)?;
    Ok((prepared, preparing.ignored()))
}

fn refusal(schema: &Value) -> (Problem, String) {
    let error = prepare(schema, Strictness::Spec).expect_err("it is refused");
    (error.problem, error.pointer.unwrap_or_default())
}

#[test]
fn conditions_that_cannot_be_enforced_are_refused_with_their_place() {
    use Problem::Unsupported;
    let cases = [
        (
            json!({"properties": {"a/b": {"not": {"multipleOf": 2}}}}),
            "#/properties/a~1b/not/multipleOf",
        ),
        (
            json!({"anyOf": [{}, {"items": {"uniqueItems": true}}]}),
            "#/anyOf/1/items/uniqueItems",
        ),
        (json!({"contains": {"type": "null"}}), "#/contains"),
        (json!({"$ref": "https://example.com/a.json"}), "#/$ref"),
        (json!({"$ref": "file:///etc/passwd"}), "#/$ref"),
        (json!({"$ref": "#/definitions/x"}), "#/$ref"),
        (
            json!({"type": "string", "pattern": "a(?<=a)b"}),
            "#/pattern",
        ),
    ];
    for (schema, pointer) in cases {
        assert_eq!(
            refusal(&schema),
            (Unsupported, pointer.to_owned()),
            "{schema}"
        );
        assert!(prepare(&schema, Strictness::Strict).is_err());
    }
}

#[test]
fn strictness_decides_what_is_ignored() {
    let schema = json!({"require": ["a"], "items": {"type": "string", "format": "topic"},
        "uniqueItems": true, "x-order": 3, "deprecated": true});
    let error = prepare(&schema, Strictness::Strict).unwrap_err();
    assert!(
        error.message.contains("did you mean \"required\"?"),
        "{error}"
    );
    assert!(prepare(&schema, Strictness::Spec).is_err());
    let (given, ignored) = prepare(&schema, Strictness::Lenient).unwrap();
    assert_eq!(ignored, ["require", "format:topic", "uniqueItems"]);
    assert_eq!(given["items"]["type"], "string");
    assert_eq!(given["x-guidance"]["key_separator"], ":");
}

#[test]
fn words_have_the_meaning_of_their_draft() {
    let prepared = |schema: Value| prepare(&schema, Strictness::Spec).unwrap();
    let four = "http://json-schema.org/draft-04/schema#";
    let (given, ignored) = prepared(json!({"$schema": four, "const": 1, "minimum": 2,
        "exclusiveMinimum": true, "items": [{"type": "null"}], "additionalItems": false}));
    assert_eq!(ignored, ["const"]);
    assert_eq!(given["exclusiveMinimum"], 2);
    assert_eq!(
        (&given["prefixItems"][0]["type"], &given["items"]),
        (&json!("null"), &json!(false))
    );
    let beside = |draft: &str| {
        prepared(
            json!({"$schema": draft, "$ref": "#/definitions/a", "maxLength": 3,
            "definitions": {"a": {"type": "string"}}}),
        )
    };
    let (given, ignored) = beside(four);
    assert!(given.get("maxLength").is_none() && ignored == ["maxLength"]);
    let (given, _) = beside("https://json-schema.org/draft/2020-12/schema");
    assert_eq!(
        (&given["maxLength"], &given["$defs"]["0"]["type"]),
        (&json!(3), &json!("string"))
    );
    let (given, _) = prepared(
        json!({"$id": "http://x/a/b", "anyOf": [{"$ref": "c#d"}, {"$ref": "#e"}],
        "$defs": {"one": {"$id": "c", "$defs": {"d": {"$anchor": "d", "type": "null"}}},
            "two": {"$anchor": "e", "type": "boolean"}}}),
    );
    assert_eq!(given["$defs"]["0"]["type"], "null");
    assert_eq!(given["$defs"]["1"]["type"], "boolean");
    let (given, _) = prepared(json!({"$dynamicAnchor": "n", "items": {"$dynamicRef": "#n"}}));
    assert_eq!(given["items"]["$ref"], "#/$defs/0");
}

#[test]
fn schemas_within_lark_become_rules_and_are_named_in_errors() {
    let within = |schema: Value| {
        let schemas = [("tools[0].x".to_owned(), schema)];
        let mut preparing = Preparing::new(Whitespace::Compact, Strictness::Spec);
        preparing.within_lark("start: schema_0\n", &schemas)
    };
    let lark = within(json!({"type": "integer"})).unwrap();
    assert!(lark.starts_with("start: schema_0\nschema_0: %json {\"type\":\"integer\","));
    assert!(lark.contains("\"key_separator\":\":\""), "{lark}");
    let error = within(json!({"items": {"not": {"multipleOf": 3}}})).unwrap_err();
    assert_eq!(
        error.pointer.as_deref(),
        Some("tools[0].x#/items/not/multipleOf")
    );
}

#[test]
fn sizes_are_bounded() {
    let many = |n: usize| -> Value {
        let entries = (0..n).map(|i| (format!("p{i}"), json!({})));
        let required: Vec<_> = (0..n).map(|i| format!("p{i}")).collect();
        json!({"properties": entries.collect::<Map<_, _>>(), "required": required})
    };
    assert_eq!(
        refusal(&many(3_000)),
        (Problem::TooComplex, "#/properties".to_owned())
    );
    assert!(prepare(&many(1_000), Strictness::Spec).is_ok());
    let mut optional = many(1_000);
    optional["required"] = json!([]);
    assert_eq!(refusal(&optional).0, Problem::TooComplex);
    let mut deep = json!({});
    for _ in 0..70 {
        deep = json!({"items": deep});
    }
    assert_eq!(refusal(&deep).0, Problem::TooComplex);
    let long = json!({"const": "a".repeat(10_000)});
    assert_eq!(refusal(&long), (Problem::TooComplex, "#/const".to_owned()));
    let values: Vec<usize> = (0..15_000).collect();
    assert_eq!(refusal(&json!({"enum": values})).0, Problem::TooComplex);
    assert_eq!(
        refusal(&json!({"title": "a".repeat(300_000)})).0,
        Problem::TooComplex
    );
    let names: Vec<String> = (0..3_000).map(|i| format!("p{i}")).collect();
    assert_eq!(
        refusal(&json!({"required": names})),
        (Problem::TooComplex, "#/required".to_owned())
    );
    assert_eq!(refusal(&json!(false)).0, Problem::Invalid);
    assert_eq!(refusal(&json!([])).0, Problem::Invalid);
}
