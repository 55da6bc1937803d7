//! Every kind of grammar, under every name of its field.

use regex::Regex;
use serde_json::{Value, json};

use super::{ask, content, reason, strict, with};
use crate::harness::{CHAT, Server};

#[tokio::test]
async fn every_kind_of_grammar_is_followed_under_every_name() {
    let server = Server::embedded(&[]).await;
    let date = r"[0-9]{4}-[0-9]{2}-[0-9]{2}";
    let lark = "start: \"<\" WORD \">\"\nWORD: /[a-z]{1,8}/";
    let gbnf = "root ::= \"<\" [a-z]{1,8} \">\"";
    let brackets = "root ::= \"(\" root \")\" | \"x\" [0-9]";
    let choices = json!(["yes", "no", "perhaps"]);
    let whole = |pattern: &str| Regex::new(&format!("^(?:{pattern})$")).unwrap();
    let cases = [
        ("regex", json!(date), whole(date)),
        ("guided_regex", json!(date), whole(date)),
        // Features that Rust's dialect does not have, in the spelling of ECMA-262 and Python.
        (
            "regex",
            json!("(?=.*[0-9])(?!0)[a-c0-9]{3}\\Z"),
            whole("[1-9][0-9a-c]{2}|[a-c][0-9][0-9a-c]|[a-c]{2}[0-9]"),
        ),
        ("structured_outputs", json!({"regex": date}), whole(date)),
        ("guided_choice", choices.clone(), whole("yes|no|perhaps")),
        (
            "structured_outputs",
            json!({"choice": choices}),
            whole("yes|no|perhaps"),
        ),
        ("guided_grammar", json!(lark), whole("<[a-z]{1,8}>")),
        (
            "structured_outputs",
            json!({"grammar": gbnf}),
            whole("<[a-z]{1,8}>"),
        ),
        ("ebnf", json!(gbnf), whole("<[a-z]{1,8}>")),
        ("grammar", json!(brackets), whole(r"\(*x[0-9]\)*")),
    ];
    for (field, value, expected) in cases {
        for temperature in [0.0, 1.0] {
            let body = with(ask("What is 3 + 4?"), "temperature", json!(temperature));
            let answer = server.ok(CHAT, &with(body, field, value.clone())).await;
            let text = content(&answer);
            assert!(
                reason(&answer) == "length" || expected.is_match(&text),
                "{field} {value}: {text:?}"
            );
            assert!(
                reason(&answer) == "stop" || field == "grammar",
                "{field}: {answer}"
            );
        }
    }
    let schema = json!({"type": "integer", "minimum": 0, "maximum": 99});
    let as_text = json!(schema.to_string());
    for (field, value) in [
        ("response_format", strict(&schema)),
        (
            "response_format",
            json!({"type": "json_schema", "schema": schema}),
        ),
        ("guided_json", schema.clone()),
        ("guided_json", as_text.clone()),
        ("json_schema", as_text),
        ("structured_outputs", json!({"json": schema})),
    ] {
        let answer = server
            .ok(CHAT, &with(ask("What is 3 + 4?"), field, value))
            .await;
        let number: u32 = content(&answer).parse().unwrap();
        assert!(number <= 99, "{field}: {answer}");
    }
    for (field, value) in [
        ("response_format", json!({"type": "json_object"})),
        ("structured_outputs", json!({"json_object": true})),
    ] {
        let body = with(ask("What is 3 + 4?"), field, value);
        let answer = server.ok(CHAT, &body).await;
        assert!(content(&answer).starts_with('{'), "{answer}");
        if reason(&answer) == "stop" {
            let value: Value = serde_json::from_str(&content(&answer)).unwrap();
            assert!(value.is_object());
        }
    }
    let plain = with(
        ask("What is 3 + 4?"),
        "response_format",
        json!({"type": "text"}),
    );
    assert!(content(&server.ok(CHAT, &plain).await).contains('7'));
    server.wait_until_idle().await;
}

#[tokio::test]
async fn contradicting_fields_are_refused_with_their_names() {
    let server = Server::embedded(&[]).await;
    let refused = async |body: Value, param: &str| {
        let answer = server.post_raw(CHAT, body.to_string()).await;
        assert_eq!(answer.status, 400, "{body}: {}", answer.body);
        assert_eq!(answer.body["error"]["param"], param, "{}", answer.body);
    };
    let regex = with(ask("Hello"), "regex", json!("a"));
    refused(with(regex.clone(), "ebnf", json!("root ::= \"a\"")), "ebnf").await;
    refused(with(regex.clone(), "ignore_eos", json!(true)), "ignore_eos").await;
    refused(
        with(ask("Hello"), "jump_forward", json!(true)),
        "jump_forward",
    )
    .await;
    refused(with(ask("Hello"), "complete", json!(true)), "complete").await;
    let compact = with(ask("Hello"), "json_whitespace", json!("compact"));
    refused(compact, "json_whitespace").await;
    let tag = json!({"format": {"type": "any_text"}});
    let both = with(regex, "structured_outputs", json!({"structural_tag": tag}));
    refused(both, "regex").await;
    let xml = json!({"format": {"type": "qwen_xml_parameter", "json_schema": {}}});
    let body = with(
        ask("Hello"),
        "structured_outputs",
        json!({"structural_tag": xml}),
    );
    refused(body, "structured_outputs.structural_tag").await;
    let not = strict(&json!({"properties": {"x": {"not": {"multipleOf": 2}}}}));
    let body = with(ask("Hello"), "response_format", not);
    let answer = server.post_raw(CHAT, body.to_string()).await;
    let message = answer.body["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("#/properties/x") && message.contains("not"),
        "{message}"
    );
}
