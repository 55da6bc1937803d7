//! Tests of the bounds of `cost`, through `Preparing`.

use serde_json::{Map, Value, json};

use super::Preparing;
use crate::error::Problem;
use crate::spec::{Strictness, Whitespace};

fn prepare(schema: &Value) -> Result<Value, crate::error::GrammarError> {
    Preparing::new(Whitespace::Natural, Strictness::Spec).schema(schema)
}

fn refusal(schema: &Value) -> String {
    let error = prepare(schema).expect_err("it is refused");
    assert_eq!(error.problem, Problem::TooComplex, "{error}");
    error.to_string()
}

fn fine(schema: &Value) {
    prepare(schema).expect("it is within the bounds");
}

fn chain(links: usize) -> Value {
    let link = |i: usize| {
        (
            format!("d{i}"),
            json!({"$ref": format!("#/$defs/d{}", i + 1)}),
        )
    };
    let mut defs: Map<String, Value> = (0..links).map(link).collect();
    defs.insert(format!("d{links}"), json!({"type": "null"}));
    json!({"$ref": "#/$defs/d0", "$defs": defs})
}

#[test]
fn chained_references_are_bounded() {
    fine(&chain(900));
    let message = refusal(&chain(1_400));
    assert!(
        message.starts_with("the schemas that `$ref`s name must be at most 1000, got 1001"),
        "{message}"
    );
}

#[test]
fn multiples_are_bounded_each_and_as_sum_and_as_product() {
    fine(&json!({"type": "number", "multipleOf": 0.25}));
    let message = refusal(&json!({"items": {"type": "integer", "multipleOf": 999_999}}));
    assert!(
        message.contains("at most 10000, got 999999 (at #/items/multipleOf)"),
        "{message}"
    );
    refusal(&json!({"type": "number", "multipleOf": 1e300}));
    refusal(&json!({"type": "number", "multipleOf": 0.123456}));
    let many: Vec<Value> = (0..100).map(|i| json!({"multipleOf": 9_000 + i})).collect();
    assert!(refusal(&json!({"prefixItems": many})).contains("at most 20000, got 27003"));
    let joined = json!({"allOf": [{"multipleOf": 97}, {"multipleOf": 101}, {"multipleOf": 103}]});
    assert!(refusal(&joined).contains("multiply to at most 10000, got 1009091"));
}

#[test]
fn patterns_of_names_are_bounded_by_the_number_of_pairs() {
    let names = |n: usize| -> Value {
        let entries = (0..n).map(|i| (format!("^p{i}_"), json!({})));
        json!({"patternProperties": entries.collect::<Map<_, _>>()})
    };
    fine(&names(64));
    assert!(refusal(&names(65)).contains("at most 2016, got 2080"));
    refusal(&json!({"allOf": [names(40), names(40)]}));
    refusal(&json!({"items": names(50), "additionalProperties": names(50)}));
}

#[test]
fn patterns_that_one_text_must_match_at_once_are_bounded() {
    let patterns = |n: usize, wrap: fn(Value) -> Value| -> Value {
        let list = (0..n).map(|i| wrap(json!({"pattern": format!("a{i}.*b")})));
        json!({"allOf": list.collect::<Vec<_>>()})
    };
    fine(&patterns(8, |inner| inner));
    let expected = "the patterns that one text must match at once must be at most 8, got 9";
    assert!(refusal(&patterns(9, |inner| inner)).starts_with(expected));
    for wrap in [
        (|inner| json!({"properties": {"x": {"items": inner}}})) as fn(Value) -> Value,
        |inner| json!({"additionalProperties": inner}),
        |inner| json!({"anyOf": [inner]}),
        |inner| json!({"allOf": [{"type": "string"}, inner]}),
    ] {
        refusal(&patterns(30, wrap));
    }
    // Patterns of different properties, or of alternatives, need not hold at once.
    let apart: Vec<Value> = (0..30)
        .map(|i| json!({"properties": {format!("p{i}"): {"pattern": "a"}}}))
        .collect();
    fine(&json!({"allOf": apart}));
    let either: Vec<Value> = (0..30)
        .map(|i| json!({"pattern": format!("a{i}")}))
        .collect();
    fine(&json!({"anyOf": either}));
    // Each reference adds a pattern.
    let link = |i: usize| {
        let next = format!("#/$defs/d{}", i + 1);
        (
            format!("d{i}"),
            json!({"$ref": next, "pattern": format!("a{i}")}),
        )
    };
    let mut defs: Map<String, Value> = (0..30).map(link).collect();
    defs.insert("d30".to_owned(), json!({"type": "string"}));
    refusal(&json!({"$ref": "#/$defs/d0", "$defs": defs.clone()}));
    let document = json!({"$id": "http://x/", "$ref": "#/$defs/d0", "$defs": defs});
    refusal(&json!({"items": document}));
}

#[test]
fn the_visits_of_joined_schemas_are_bounded() {
    let twice = |i: usize| {
        let next = json!({"$ref": format!("#/$defs/d{}", i + 1)});
        (format!("d{i}"), json!({"allOf": [next, next]}))
    };
    let mut defs: Map<String, Value> = (0..30).map(twice).collect();
    defs.insert("d30".to_owned(), json!({"type": "string"}));
    let message = refusal(&json!({"$ref": "#/$defs/d0", "$defs": defs}));
    assert!(message.contains("at most 100000, got 100001"), "{message}");
}
