use super::*;
use serde_json::{from_value, json};

fn format(json: Value) -> Result<Option<Asked>, ApiError> {
    let fields = StructuredFields {
        response_format: Some(from_value(json).unwrap()),
        ..StructuredFields::default()
    };
    fields.asked(Whitespace::Natural, false)
}

#[test]
fn every_spelling_of_a_response_format_is_understood() {
    let schema = json!({"type": "integer"});
    let source = |json| format(json).unwrap().map(|asked| asked.spec.source);
    assert_eq!(source(json!({"type": "text"})), None);
    assert_eq!(
        source(json!({"type": "json_object"})),
        Some(Source::JsonObject)
    );
    let expected = Some(Source::JsonSchema(schema.clone()));
    for given in [
        json!({"type": "json_schema", "json_schema":
            {"name": "n", "strict": true, "description": "d", "schema": schema}}),
        json!({"type": "json_schema", "schema": schema}),
        json!({"type": "json_object", "schema": schema}),
    ] {
        assert_eq!(source(given), expected);
    }
    for tag in [
        json!({"format": {"type": "any_text"}}),
        json!({"structures": [{"begin": "<a>", "schema": {}, "end": ""}], "triggers": ["<a"]}),
    ] {
        let mut given = tag.clone();
        given["type"] = json!("structural_tag");
        assert_eq!(source(given), Some(Source::StructuralTag(tag)));
    }
}

#[test]
fn wrong_response_formats_are_refused_at_their_field() {
    let param = |json| format(json).unwrap_err().param.unwrap();
    for (given, at) in [
        (json!({"type": "xml"}), "response_format.type"),
        (
            json!({"type": "structural_tag", "schema": {}}),
            "response_format.schema",
        ),
        (
            json!({"type": "json_object", "triggers": ["<"]}),
            "response_format.triggers",
        ),
        (
            json!({"type": "json_schema"}),
            "response_format.json_schema.schema",
        ),
        (
            json!({"type": "json_schema", "json_schema": {"name": "n"}}),
            "response_format.json_schema.schema",
        ),
        (
            json!({"type": "text", "json_schema": {"schema": {}}}),
            "response_format.json_schema",
        ),
        (
            json!({"type": "text", "schema": {}}),
            "response_format.schema",
        ),
    ] {
        assert_eq!(param(given.clone()), at, "{given}");
    }
}

#[test]
fn one_grammar_at_a_time_and_no_option_without_one() {
    let both = StructuredFields {
        regex: Some("a".to_owned()),
        ebnf: Some("root ::= \"a\"".to_owned()),
        ..StructuredFields::default()
    };
    let error = both.asked(Whitespace::Natural, false).unwrap_err();
    assert_eq!(
        error.message,
        "`regex` and `ebnf` must not be given together"
    );
    let option = StructuredFields {
        options: GrammarOptions {
            jump_forward: Some(true),
            complete: None,
        },
        ..StructuredFields::default()
    };
    let error = option.asked(Whitespace::Natural, false).unwrap_err();
    assert_eq!(error.param.as_deref(), Some("jump_forward"));
    let endless = StructuredFields {
        regex: Some("a".to_owned()),
        ..StructuredFields::default()
    };
    let error = endless.asked(Whitespace::Natural, true).unwrap_err();
    assert_eq!(error.param.as_deref(), Some("ignore_eos"));
}

#[test]
fn vllms_names_are_understood() {
    let asked = |json| {
        let fields = StructuredFields {
            structured_outputs: Some(from_value(json).unwrap()),
            ..StructuredFields::default()
        };
        fields.asked(Whitespace::Natural, false)
    };
    let compact = asked(json!({"json": {}, "disable_any_whitespace": true}));
    assert_eq!(
        compact.unwrap().unwrap().spec.whitespace,
        Whitespace::Compact
    );
    let source = |json| asked(json).unwrap().unwrap().spec.source;
    assert!(matches!(
        source(json!({"grammar": "root ::= \"a\""})),
        Source::Gbnf(_)
    ));
    assert!(matches!(
        source(json!({"grammar": "start: \"a\""})),
        Source::Lark(_)
    ));
    assert_eq!(
        source(json!({"choice": ["a", "b"]})),
        Source::Choice(vec!["a".to_owned(), "b".to_owned()])
    );
    assert_eq!(source(json!({"json_object": true})), Source::JsonObject);
    let tag = json!({"format": {"type": "any_text"}});
    for given in [tag.clone(), json!(tag.to_string())] {
        assert_eq!(
            source(json!({"structural_tag": given})),
            Source::StructuralTag(tag.clone())
        );
    }
    assert!(asked(json!({"json_object": false})).unwrap().is_none());
}
