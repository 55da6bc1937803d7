//! Structural tags: every tag that begins is whole, and all other text is free.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::sync::Arc;

use common::{Bytes, END};
use hearth_grammar::{Compiled, Compiler, GrammarError, Problem, Source, Spec, Ticket};
use serde_json::{Value, json};

fn compile(tag: &Value) -> Result<Arc<Compiled>, GrammarError> {
    let compiler = Compiler::new(Arc::new(Bytes), vec![END]);
    compiler.compile(
        &Spec::new(Source::StructuralTag(tag.clone())),
        &Ticket::default(),
    )
}

/// True if `text` is a complete output; checks that the masks agree.
fn accepts(compiled: &Compiled, text: &str) -> bool {
    let mut matcher = compiled.matcher();
    for byte in text.bytes() {
        let token = u32::from(byte);
        let mask = matcher.mask().unwrap();
        let allowed = mask[token as usize / 32] & (1 << (token % 32)) != 0;
        if matcher.is_complete() || matcher.consume(token).is_err() {
            assert!(!allowed, "{text:?}: the mask had it");
            return false;
        }
        assert!(allowed, "{text:?}: the mask lacked {:?}", byte as char);
    }
    let allowed = matcher.mask().unwrap()[END as usize / 32] & 1 != 0;
    let accepted = matcher.consume(END).is_ok();
    assert_eq!(
        allowed, accepted,
        "{text:?}: the mask is wrong about an end"
    );
    accepted
}

fn assert_language(tag: &Value, good: &[&str], bad: &[&str]) {
    let compiled = compile(tag).unwrap_or_else(|error| panic!("{tag}: {error}"));
    for text in good {
        assert!(accepts(&compiled, text), "{tag}: refuses {text:?}");
    }
    for text in bad {
        assert!(!accepts(&compiled, text), "{tag}: accepts {text:?}");
    }
}

fn add() -> Value {
    json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
        "additionalProperties": false})
}

fn schema(schema: &Value) -> Value {
    json!({"type": "json_schema", "json_schema": schema})
}

fn tag(begin: &str, content: &Value, end: &str) -> Value {
    json!({"type": "tag", "begin": begin, "content": content, "end": end})
}

fn of(format: &Value) -> Value {
    json!({"type": "structural_tag", "format": format})
}

const FREE: [&str; 5] = ["", "Hello, world.", "a < b", "<functio", "é😀\n\n<fn"];
const BROKEN: [&str; 6] = [
    "<function=",
    "see <function=add>",
    "<function=add>{\"a\": 1}",
    "<function=other>{\"a\": 1}</function>",
    "<function=add>{\"a\": \"x\"}</function>",
    "<function=add>{\"a\": 1}</function> and <function=add>{",
];

#[test]
fn text_is_free_and_triggered_tags_are_whole_in_both_forms() {
    let legacy = json!({
        "type": "structural_tag",
        "structures": [
            {"begin": "<function=add>", "schema": add(), "end": "</function>"},
            {"begin": "<function=now>", "schema": {"const": {}}, "end": "</function>"},
        ],
        "triggers": ["<function="],
    });
    let mut named = legacy.clone();
    named.as_object_mut().unwrap().remove("type");
    let newer = of(&json!({
        "type": "triggered_tags", "triggers": ["<function="],
        "tags": [
            tag("<function=add>", &schema(&add()), "</function>"),
            {"begin": "<function=now>", "content": schema(&json!({"const": {}})),
                "end": "</function>"},
        ],
    }));
    let calls = [
        "<function=add>{\"a\": 1}</function>",
        "I add: <function=add>{\"a\": -12}</function> That is it.",
        "<<function=now>{}</function><function=add>{\"a\": 0}</function>\n<",
    ];
    for form in [legacy, named, newer] {
        assert_language(&form, &[&FREE[..], &calls[..]].concat(), &BROKEN);
    }
}

#[test]
fn a_first_tag_may_be_required_and_may_be_the_last() {
    let tags = |at_least_one: bool, stop_after_first: bool| {
        of(&json!({
            "type": "triggered_tags", "triggers": ["<a", "<b"],
            "tags": [tag("<a>", &schema(&json!({"const": 1})), "</a>"),
                tag("<b>", &json!({"type": "const_string", "value": "x"}), "")],
            "at_least_one": at_least_one, "stop_after_first": stop_after_first,
        }))
    };
    let (one, text, two, free) = ("<a>1</a>", "t<b>x", "<b>xand<a>1</a>!", "none");
    assert_language(
        &tags(false, false),
        &[one, text, two, free],
        &["<b>y", "<a>"],
    );
    assert_language(&tags(true, false), &[one, two], &[text, free, ""]);
    assert_language(&tags(false, true), &[one, text, free], &[two, "<b>xx"]);
    assert_language(&tags(true, true), &[one, "<b>x"], &[text, two, free, ""]);
}

#[test]
fn formats_can_be_combined() {
    let think = tag("<think>", &json!({"type": "any_text"}), "</think>");
    let call = tag("<call>", &schema(&add()), "</call>");
    let calls = json!({"type": "tags_with_separator", "tags": [call.clone()], "separator": ", "});
    assert_language(
        &of(&json!({"type": "sequence", "elements": [think.clone(), calls]})),
        &[
            "<think>a < b</think>",
            "<think></think><call>{\"a\": 1}</call>, <call>{\"a\": 2}</call>",
        ],
        &[
            "<think>",
            "a",
            "<think></think>a",
            "<think></think><call>{\"a\": 1}</call>, ",
        ],
    );
    let regex = json!({"type": "regex", "pattern": "^[a/b]{1,3}$"});
    let number = json!({"type": "grammar", "grammar": "root ::= \"(\" root \")\" | [0-9]"});
    let flat = json!({"type": "grammar", "grammar": "root ::= [0-9] \"/\"?"});
    assert_language(
        &of(
            &json!({"type": "or", "elements": [regex, tag("n:", &number, ";"), tag("m:", &flat, ";")]}),
        ),
        &["a/b", "n:((1));", "m:1/;", "m:1;"],
        &["abab", "n:(1;", "n:1", ""],
    );
    let inner = json!({"type": "triggered_tags", "triggers": ["<call>"], "tags": [call]});
    assert_language(
        &of(&tag("<out>", &inner, "</out>")),
        &["<out></out>", "<out>a<call>{\"a\": 1}</call>b</out>"],
        &["<out>", "<out></out>x", "<out><call></out>"],
    );
    let shy = json!({"type": "any_text", "excludes": ["no", "never"]});
    assert_language(&of(&shy), &["", "yes", "n"], &["no", "I never"]);
    assert_language(
        &of(&tag("(", &shy, ")")),
        &["()", "(yes)"],
        &["(no)", "(yes)."],
    );
    let ends = json!({"type": "tag", "begin": "(", "content": {"type": "any_text"},
        "end": [")", "]"]});
    assert_language(&of(&ends), &["(a)", "(a]"], &["(a", "(a]b)"]);
}

#[test]
fn unsupported_and_invalid_tags_are_refused_with_their_place() {
    let any = json!({"type": "any_text"});
    let bad = json!({"properties": {"x": {"not": {"multipleOf": 2}}}});
    let tagged = |tags: Value| json!({"type": "triggered_tags", "triggers": ["<a"], "tags": tags});
    let deep = (0..40).fold(
        any.clone(),
        |inner, _| json!({"type": "or", "elements": [inner]}),
    );
    let long = json!({"type": "const_string", "value": "a".repeat(9_000)});
    use Problem::{Invalid, TooComplex, Unsupported};
    for (format, problem, at) in [
        (
            json!({"type": "qwen_xml_parameter", "json_schema": {}}),
            Unsupported,
            "#/format/type",
        ),
        (
            json!({"type": "json_schema", "json_schema": {}, "style": "x"}),
            Unsupported,
            "#/format/style",
        ),
        (
            json!({"type": "any_text", "max": 1}),
            Unsupported,
            "#/format",
        ),
        (
            schema(&bad),
            Unsupported,
            "#/format/json_schema/properties/x/not/multipleOf",
        ),
        (
            tagged(json!([tag("<a>", &schema(&bad), "")])),
            Unsupported,
            "#/format/tags/0/content/json_schema/properties/x/not/multipleOf",
        ),
        (
            json!({"type": "sequence", "elements": [any, any]}),
            Unsupported,
            "#/format/elements/0",
        ),
        (
            json!({"type": "regex", "pattern": "(?=a)"}),
            Unsupported,
            "#/format/pattern",
        ),
        (
            tagged(json!([tag("<b>", &any, "x")])),
            Invalid,
            "#/format/tags/0/begin",
        ),
        (tagged(json!([])), Invalid, "#/format/tags"),
        (
            json!({"type": "sequence", "elements": []}),
            Invalid,
            "#/format/elements",
        ),
        (json!({"value": "x"}), Invalid, "#/format"),
        (deep, TooComplex, "#/format/elements/0"),
        (long, TooComplex, "#/format/value"),
    ] {
        let error = compile(&of(&format)).unwrap_err();
        let pointer = error.pointer.clone().unwrap_or_default();
        assert_eq!(error.problem, problem, "{format}: {error}");
        assert!(pointer.starts_with(at), "{format}: {error}");
    }
    for wrong in [
        json!([]),
        json!({}),
        json!({"type": "json"}),
        json!({"format": 1}),
    ] {
        assert_eq!(compile(&wrong).unwrap_err().problem, Invalid, "{wrong}");
    }
    let many = json!({"structures": vec![json!({"begin": "<a", "schema": {}, "end": ""}); 600],
        "triggers": ["<a"]});
    assert_eq!(compile(&many).unwrap_err().problem, TooComplex);
}
