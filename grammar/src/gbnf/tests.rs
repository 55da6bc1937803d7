use super::*;
use crate::error::Problem;

fn regex(text: &str) -> ::regex::Regex {
    match translate(text).unwrap() {
        Translated::Regex(regex) => ::regex::Regex::new(&format!("^(?:{regex})$")).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_grammar_without_recursion_becomes_a_regex() {
    let date = regex(
        "# a date\nroot ::= year \"-\" two \"-\" two # the end\n\
         year ::= [0-9]{4}\ntwo ::= [0-9] [0-9]",
    );
    assert!(date.is_match("2026-11-21") && !date.is_match("2026-1-21"));
    let all = regex("root ::= (\"a\" | [^b-d\\]\\x20])+ .? \"\\n\\\"é\\u00e9\"?\n  | \"x\"{2,3}");
    for (text, matches) in [
        ("ae", true),
        ("", false),
        ("xx", true),
        ("c", false),
        ("a\n\"éé", true),
    ] {
        assert_eq!(all.is_match(text), matches, "{text:?}");
    }
}

#[test]
fn a_grammar_with_recursion_becomes_lark_with_terminals() {
    let lark = translate(
        "root ::= \"[\" ws (root (\",\" root)*)? \"]\" ws | num\nws ::= \" \"?\nnum ::= [0-9]+",
    )
    .unwrap();
    let Translated::Lark(lark) = lark else {
        panic!("it refers to itself")
    };
    assert!(
        lark.starts_with("start: r0\nr0: (T0 (r0 (T1 r0)*)? T2 | T3)\n"),
        "{lark}"
    );
}

#[test]
fn errors_name_their_line_or_bound() {
    let refusal = |text| translate(text).expect_err(text);
    assert!(refusal("root ::= \"a\nx").message.contains("line"));
    assert!(
        refusal("root ::= \"a\"\nb ::= [")
            .message
            .contains("line 2")
    );
    assert!(refusal("a ::= \"a\"").message.contains("`root`"));
    assert!(refusal("root ::= nothing").message.contains("`nothing`"));
    assert!(refusal("root ::= \"a\"{3,2}").message.contains("below"));
    assert_eq!(
        refusal("root ::= \"a\"{1000000}").problem,
        Problem::TooComplex
    );
    assert_eq!(refusal("root ::= <think>").problem, Problem::Unsupported);
    let deep = format!("root ::= {}\"a\"{}", "(".repeat(5000), ")".repeat(5000));
    assert_eq!(refusal(&deep).problem, Problem::TooComplex);
    let stacked = format!("root ::= \"a\"{}", "*".repeat(100_000));
    assert_eq!(refusal(&stacked).problem, Problem::TooComplex);
    let mut doubling = "root ::= r0\n".to_owned();
    for i in 0..40 {
        doubling += &format!("r{i} ::= r{} r{}\n", i + 1, i + 1);
    }
    doubling += "r40 ::= \"a\"";
    assert_eq!(refusal(&doubling).problem, Problem::TooComplex);
}
