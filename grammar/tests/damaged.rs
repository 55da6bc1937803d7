//! Damaged grammars of every kind: each compiles or is refused, soon and without a panic.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;
#[path = "../../tests/fuzz/mutate.rs"]
mod mutate;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Bytes, END};
use hearth_grammar::{Compiler, Source, Spec, Ticket, Whitespace};
use mutate::{Random, cases};
use serde_json::json;

/// Damaged copies of each grammar, if no variable says otherwise.
const CASES: u64 = 150;
/// The bound of a server for a request, after which it gives up waiting. A machine that is busy with
/// other things takes longer.
const PATIENCE: Duration = Duration::from_secs(120);

const PIECES: [&str; 24] = [
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "*",
    "+",
    "?",
    "|",
    "\\",
    "^",
    "$",
    "{1,900}",
    "\"",
    ":",
    ",",
    "999999999",
    "-1",
    "null",
    "::=",
    "%",
    "\u{0}",
    "é",
];

#[test]
fn damaged_grammars_compile_or_are_refused() {
    let schema = json!({
        "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
        "type": "object",
        "properties": {
            "a": {"type": "string", "pattern": "^[a-c]{1,3}$", "minLength": 1},
            "b": {"type": "array", "items": {"enum": [1, "x", null]}, "maxItems": 3},
            "c": {"anyOf": [{"type": "integer", "minimum": -5, "maximum": 7}, {"$ref": "#/$defs/node"}]},
        },
        "required": ["a"], "additionalProperties": false,
    });
    let texts: [(&str, String); 4] = [
        (
            "regex",
            r"(?i)[a-z_]{1,20}\.(com|org)/\d+(\?q=[^&]*)?".to_owned(),
        ),
        ("schema", schema.to_string()),
        (
            "lark",
            "start: item+\nitem: /[a-z]{1,5}/ \"=\" NUMBER\nNUMBER: /[0-9]+/\n%ignore / /"
                .to_owned(),
        ),
        (
            "gbnf",
            "root ::= item (\",\" item)*\nitem ::= [a-z]{1,5} \"=\" num\nnum ::= [0-9]+".to_owned(),
        ),
    ];
    let compiler = Compiler::new(Arc::new(Bytes), vec![END]);
    // The depth of a grammar's nesting is bounded, but the parsers need the stack of the pool.
    let work = move || {
        let (mut compiled, mut refused) = (0, 0);
        for (kind, text) in &texts {
            for case in cases(CASES) {
                let mut random = Random(case);
                let text = mutate::text(text, &PIECES, &mut random);
                let source = match *kind {
                    "regex" => Source::Regex(text.clone()),
                    "lark" => Source::Lark(text.clone()),
                    "gbnf" => Source::Gbnf(text.clone()),
                    _ => match serde_json::from_str(&text) {
                        Ok(schema) => Source::JsonSchema(schema),
                        Err(_) => continue,
                    },
                };
                let spec = Spec {
                    source,
                    whitespace: Whitespace::Natural,
                };
                let ticket = Arc::new(Ticket::default());
                let began = Instant::now();
                let outcome = compiler.compile(&spec, &ticket);
                let took = began.elapsed();
                assert!(took < PATIENCE, "{kind} case {case} took {took:?}: {text}");
                match outcome {
                    Err(_) => refused += 1,
                    Ok(grammar) => {
                        compiled += 1;
                        // An output of a few tokens.
                        let mut matcher = grammar.matcher();
                        for _ in 0..8 {
                            let Ok(mask) = matcher.mask() else { break };
                            let allowed: Vec<u32> = (0..257u32)
                                .filter(|t| mask[*t as usize / 32] & (1 << (t % 32)) != 0)
                                .collect();
                            assert!(!allowed.is_empty(), "{kind} case {case}: {text}");
                            let token = allowed[random.below(allowed.len())];
                            matcher.consume(token).unwrap();
                            if token == END {
                                break;
                            }
                        }
                    }
                }
            }
        }
        println!("{compiled} compiled, {refused} refused");
        assert!(
            compiled > 20 && refused > 20,
            "{compiled} compiled, {refused} refused"
        );
    };
    let thread = std::thread::Builder::new()
        .stack_size(256 << 20)
        .spawn(work)
        .unwrap();
    thread.join().unwrap();
}
