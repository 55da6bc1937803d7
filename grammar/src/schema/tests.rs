use serde_json::{Map, Value, json};

use super::{prepare, within_lark};
use crate::error::Problem;
use crate::spec::Whitespace;

fn refusal(schema: &Value) -> (Problem, String) {
    let error = prepare(schema, Whitespace::Natural).expect_err("it is refused");
    (error.problem, error.pointer.unwrap_or_default())
}

#[test]
fn keywords_that_cannot_be_enforced_are_refused_with_their_place() {
    use Problem::Unsupported;
    let cases = [
        (
            json!({"properties": {"a/b": {"not": {}}}}),
            "#/properties/a~1b",
        ),
        (
            json!({"anyOf": [{}, {"items": {"uniqueItems": true}}]}),
            "#/anyOf/1/items",
        ),
        (json!({"$defs": {"x": {"if": {}, "then": {}}}}), "#/$defs/x"),
        (json!({"$ref": "https://example.com/a.json"}), "#/$ref"),
        (json!({"$ref": "file:///etc/passwd"}), "#/$ref"),
        (json!({"type": "string", "format": "topic"}), "#/format"),
        (json!({"type": "string", "pattern": "(?=a)b"}), "#/pattern"),
        (json!({"x-guidance": {"lenient": true}}), "#"),
        (json!({"type": "string", "nullable": true}), "#"),
    ];
    for (schema, pointer) in cases {
        assert_eq!(
            refusal(&schema),
            (Unsupported, pointer.to_owned()),
            "{schema}"
        );
    }
}

#[test]
fn notes_are_removed_and_names_that_look_like_keywords_are_kept() {
    let schema = json!({
        "deprecated": true, "x-order": 3, "uniqueItems": false,
        "properties": {"not": {"title": "t"}, "deprecated": {}},
        "default": {"not": 1}, "const": {"if": 2},
    });
    let given = prepare(&schema, Whitespace::Compact).unwrap();
    assert!(given.get("deprecated").is_none() && given.get("x-order").is_none());
    assert_eq!(given["properties"], schema["properties"]);
    assert_eq!(given["x-guidance"]["key_separator"], ":");
}

#[test]
fn schemas_within_lark_become_rules_and_are_named_in_errors() {
    let within = |schema: Value| {
        let schemas = [("tools[0].x".to_owned(), schema)];
        within_lark("start: schema_0\n", &schemas, Whitespace::Compact)
    };
    let lark = within(json!({"type": "integer"})).unwrap();
    assert!(lark.starts_with("start: schema_0\nschema_0: %json {\"type\":\"integer\","));
    assert!(lark.contains("\"key_separator\":\":\""), "{lark}");
    let error = within(json!({"items": {"not": {}}})).unwrap_err();
    assert_eq!(error.pointer.as_deref(), Some("tools[0].x#/items"));
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
    assert!(prepare(&many(1_000), Whitespace::Natural).is_ok());
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
