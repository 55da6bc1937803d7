//! Grammars that are too complex, unsupported or invalid.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Map, Value, json};

use super::{ask, content, with};
use crate::harness::{CHAT, Server};

/// A schema behind a chain of `links` references.
fn chained(links: usize) -> Value {
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

/// Grammars to refuse: error code, field and value.
fn abuses() -> Vec<(&'static str, &'static str, Value)> {
    let invalid = "invalid_grammar";
    let unsupported = "unsupported_schema_feature";
    let complex = "grammar_too_complex";
    let properties = |n: usize| -> Map<String, Value> {
        (0..n)
            .map(|i| (format!("p{i}"), json!({"type": "null"})))
            .collect()
    };
    let mut deep = json!({"type": "null"});
    for _ in 0..40 {
        deep = json!({"items": deep});
    }
    vec![
        (complex, "regex", json!("a{1000000}")),
        (complex, "regex", json!("((a{100}){100}){100}")),
        (complex, "regex", json!("a".repeat(1 << 20))),
        (unsupported, "regex", json!("(?<=a)b")),
        (invalid, "regex", json!("(a")),
        (invalid, "regex", json!("[^\\s\\S]")),
        (
            complex,
            "guided_json",
            json!({"type": "object", "properties": properties(10_000)}),
        ),
        (
            complex,
            "guided_json",
            json!({"enum": (0..100_000).collect::<Vec<_>>()}),
        ),
        (
            complex,
            "guided_json",
            json!({"const": "a".repeat(1 << 20)}),
        ),
        (
            unsupported,
            "guided_json",
            json!({"not": {"multipleOf": 2}}),
        ),
        (
            unsupported,
            "guided_json",
            json!({"$ref": "https://example.com/schema.json"}),
        ),
        (
            unsupported,
            "guided_json",
            json!({"$ref": "file:///etc/passwd"}),
        ),
        (
            unsupported,
            "guided_json",
            json!({"type": "string", "format": "regex"}),
        ),
        (
            invalid,
            "guided_json",
            json!({"$ref": "#/$defs/a", "$defs": {
            "a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
        ),
        (invalid, "guided_json", json!(false)),
        (complex, "guided_json", chained(1_500)),
        (
            complex,
            "guided_json",
            json!({"required": properties(5_000).keys().collect::<Vec<_>>()}),
        ),
        (
            complex,
            "guided_json",
            json!({"type": "integer", "multipleOf": 999_999}),
        ),
        (
            complex,
            "guided_json",
            json!({"patternProperties": properties(300)}),
        ),
        (
            complex,
            "guided_json",
            json!({"allOf": (0..30).map(|i| json!({
            "type": "string", "pattern": format!("a{i}.*b")})).collect::<Vec<_>>()}),
        ),
        (
            complex,
            "guided_grammar",
            json!(format!("start: %json {}", chained(1_500))),
        ),
        (
            complex,
            "guided_grammar",
            json!(format!(
                "start: %json {}",
                json!({"properties": properties(4_000)})
            )),
        ),
        (
            unsupported,
            "guided_grammar",
            json!("start: %json {\"not\": {\"multipleOf\": 2}}"),
        ),
        (
            complex,
            "guided_grammar",
            json!(
                (0..5_000)
                    .map(|i| format!("r{i}: \"a\" r{}\n", i + 1))
                    .collect::<String>()
            ),
        ),
        (
            complex,
            "guided_grammar",
            json!(format!(
                "start: x::0\nx::_: \"a\" %if {}eq(_,1){}\n | \"b\"",
                "not(".repeat(20_000),
                ")".repeat(20_000)
            )),
        ),
        (
            complex,
            "guided_grammar",
            json!(format!(
                "start: A\nA: /a/{}",
                " & /(?s:.)*b(?s:.)*/".repeat(30)
            )),
        ),
        (complex, "guided_grammar", json!("start: \"a\"{1000000}")),
        (complex, "guided_grammar", json!("start: /a{1000000}/")),
        (invalid, "guided_grammar", json!("start: start")),
        (invalid, "guided_grammar", json!("start: \"a\u{0}\"")),
        (invalid, "ebnf", json!("root ::= nothing")),
        (invalid, "ebnf", json!("start: \"a\"")),
        (
            complex,
            "ebnf",
            json!(format!(
                "root ::= {}\"a\"{}",
                "(".repeat(9000),
                ")".repeat(9000)
            )),
        ),
        (invalid, "guided_choice", json!([])),
        (complex, "guided_choice", json!(vec!["a"; 20_000])),
    ]
}

async fn refused(server: &Server, code: &str, field: &str, value: &Value) {
    let began = Instant::now();
    let body = with(ask("Hello"), field, value.clone());
    let answer = server.post_raw(CHAT, body.to_string()).await;
    let shown = value.to_string().chars().take(60).collect::<String>();
    assert_eq!(answer.status, 400, "{field} {shown}: {}", answer.body);
    let error = &answer.body["error"];
    assert_eq!(error["code"], code, "{field} {shown}: {error}");
    assert!(
        error["param"].as_str().unwrap().starts_with(field),
        "{error}"
    );
    let message = error["message"].as_str().unwrap();
    assert!(message.len() < 600, "{field} {shown}: {message}");
    assert!(
        began.elapsed() < Duration::from_secs(60),
        "{shown}: {:?}",
        began.elapsed()
    );
}

#[tokio::test]
async fn bad_grammars_are_refused_and_do_not_affect_other_requests() {
    let server = Server::embedded(&[]).await;
    for (code, field, value) in abuses() {
        refused(&server, code, field, &value).await;
        // The second time, the refusal comes from the cache.
        refused(&server, code, field, &value).await;
    }
    // Large but usable: a lazily explored regex, and nested repetition.
    for (field, value) in [
        ("regex", json!("(a|b)*a(a|b){200}c")),
        ("regex", json!("(a+)+x")),
    ] {
        let body = with(with(ask("Hello"), field, value), "max_tokens", json!(3));
        server.ok(CHAT, &body).await;
    }
    // Many different bad grammars at once, beside a good one.
    let bad = (0..64).map(|i| {
        let pattern = format!("(x{i}|y)*x(?<=a)(x|y){{30}}");
        let value = json!(pattern);
        let server = &server;
        async move { refused(server, "unsupported_schema_feature", "regex", &value).await }
    });
    let fine = with(ask("What is 3 + 4?"), "regex", json!("[0-9]{1,2}"));
    let (answer, _) = tokio::join!(server.ok(CHAT, &fine), join_all(bad));
    assert!(content(&answer).parse::<u32>().is_ok(), "{answer}");
    server.wait_until_idle().await;
    assert_eq!(server.stats().await["failed"], 0);
}

/// A grammar within all limits of size, of whose outputs each token has more derivations.
const AMBIGUOUS: &str = "start: s \"\\u0001\"\ns: C | s s | s s s\nC: /[a-zA-Z ,.]/";

#[tokio::test]
async fn an_ambiguous_grammar_ends_its_own_request_and_names_the_limit() {
    let server = Server::embedded(&[]).await;
    let body = with(ask("Hello"), "guided_grammar", json!(AMBIGUOUS));
    let body = with(body, "max_tokens", json!(800));
    let limit = "took longer than 5000 ms in all";
    let stream = async {
        let events = with(body.clone(), "stream", json!(true));
        let request = reqwest::Client::new().post(server.url(CHAT));
        let request = request.header("content-type", "application/json");
        let response = request.body(events.to_string()).send().await.unwrap();
        response.text().await.unwrap()
    };
    let beside = async {
        let mut most = Duration::ZERO;
        for _ in 0..40 {
            let began = Instant::now();
            let fine = with(ask("Hello"), "regex", json!("[a-z]{20}"));
            assert_eq!(content(&server.ok(CHAT, &fine).await).len(), 20);
            most = most.max(began.elapsed());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        most
    };
    let (whole, stream, most) = tokio::join!(server.post(CHAT, &body), stream, beside);
    assert_eq!(whole.status, 400, "{}", whole.body);
    let error = &whole.body["error"];
    assert_eq!(error["code"], "grammar_too_complex", "{error}");
    assert!(
        error["message"].as_str().unwrap().contains(limit),
        "{error}"
    );
    assert!(stream.contains(limit), "{stream}");
    assert!(
        most < Duration::from_secs(2),
        "{most:?} for another request"
    );
    server.wait_until_idle().await;
}
