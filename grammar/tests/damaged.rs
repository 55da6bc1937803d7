//! Damaged grammars of every kind: each compiles or is refused, soon and without a panic.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;
#[path = "../../tests/fuzz/json.rs"]
mod json;
#[path = "../../tests/fuzz/mutate.rs"]
mod mutate;

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use common::{Bytes, END};
use hearth_grammar::{Compiler, Source, Spec, Ticket, Whitespace};
use mutate::{Random, cases};

/// Damaged copies of the grammars of each kind, if no variable says otherwise.
const CASES: u64 = 300;
/// A server cancels a compilation after so long.
const DEADLINE: Duration = Duration::from_secs(5);
/// The time within which a cancelled compilation ends, on a machine that is busy with other things.
const GRACE: Duration = Duration::from_secs(20);

const PIECES: [&str; 36] = [
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
    "(a|b)*",
    "[^x]{0,300}",
    "(?i)",
    "\\w",
    "\\b",
    ".",
    "&",
    "~",
    "\"$ref\": \"#\",",
    "\"minLength\": 9,",
    "%json {\"enum\": [1]}",
    "[suffix=\"a\"]",
];

const REGEXES: [&str; 5] = [
    r"(?i)[a-z_]{1,20}\.(com|org)/\d+(\?q=[^&]*)?",
    r"(?=.*[0-9])[A-Za-z0-9]{8,64}\Z",
    r"(\w+\s){1,30}\p{Greek}?[^\x00-\x1f]+",
    r"^(0|[1-9][0-9]{0,5})(\.[0-9]{1,4})?(e[+-]?[0-9]{1,2})?$",
    r"((a|b)*a(a|b){8}|(c{0,40}d{0,40}){3})+",
];

const SCHEMAS: [&str; 3] = [
    r##"{"$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
    "type": "object", "properties": {
        "a": {"type": "string", "pattern": "^[a-c]{1,3}$", "minLength": 1},
        "b": {"type": "array", "items": {"enum": [1, "x", null]}, "maxItems": 3},
        "c": {"anyOf": [{"type": "integer", "minimum": -5, "maximum": 7}, {"$ref": "#/$defs/node"}]}},
    "required": ["a"], "additionalProperties": false}"##,
    r##"{"allOf": [{"type": "object", "properties": {"d": {"format": "date-time"}, "n": {"multipleOf": 0.25}}},
        {"patternProperties": {"^x-[a-z]+$": {"type": ["string", "null"], "maxLength": 40}}}],
    "minProperties": 1, "propertyNames": {"pattern": "^[a-z-]{1,12}$"}, "dependentRequired": {"d": ["n"]}}"##,
    r##"{"type": "array", "prefixItems": [{"const": {"k": [true]}}, {"not": {"enum": [1, 2]}}], "uniqueItems": true,
    "items": {"oneOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string", "format": "uuid"}]},
    "if": {"minItems": 3}, "then": {"contains": {"type": "number"}}, "else": {"maxItems": 9}}"##,
];

const LARKS: [&str; 3] = [
    "start: item+\nitem: /[a-z]{1,5}/ \"=\" NUMBER\nNUMBER: /[0-9]+/\n%ignore / /",
    "start: \"<\" call \">\" | list\ncall: NAME \"(\" args? \")\"\nargs: value (\",\" value)*\n\
     value: NAME | %json {\"type\": \"integer\"} | call\nlist[max_tokens=20]: (\"- \" NAME \"\\n\"){1,9}\n\
     NAME: /[A-Z][a-z]{0,8}/ & ~/.*zz.*/",
    "start: expr\nexpr: expr \"+\" term | term\nterm: term \"*\" atom | atom\n\
     atom: /[0-9]{1,3}/ | \"(\" expr \")\" | \"-\" atom\n%ignore /[ \\t]{1,4}/",
];

const GBNFS: [&str; 3] = [
    "root ::= item (\",\" item)*\nitem ::= [a-z]{1,5} \"=\" num\nnum ::= [0-9]+",
    "root ::= \"{\" ws (pair (\",\" ws pair)*)? \"}\"\npair ::= str \":\" ws value\n\
     value ::= str | num | \"[\" (value (\",\" value)*)? \"]\"\nstr ::= \"\\\"\" [^\"\\\\]{0,20} \"\\\"\"\n\
     num ::= \"-\"? [0-9]{1,9} # a comment\nws ::= [ \\t\\n]*",
    "root ::= a{2,50} | b\na ::= [\\x41-\\u00ff] | \"\\U0001F600\"\nb ::= \"(\" b \")\" | a?",
];

/// Calls `compile` with a ticket that is cancelled after [`DEADLINE`], as by a server.
fn with_deadline<T>(compile: impl FnOnce(&Ticket) -> T) -> T {
    let ticket = Arc::new(Ticket::default());
    let (done, wait) = channel::<()>();
    let watched = Arc::clone(&ticket);
    let watch = std::thread::spawn(move || {
        if wait.recv_timeout(DEADLINE) == Err(RecvTimeoutError::Timeout) {
            watched.cancel();
        }
    });
    let outcome = compile(&ticket);
    drop(done);
    watch.join().unwrap();
    outcome
}

fn fuzz(kind: &'static str, texts: &'static [&'static str]) {
    let compiler = Compiler::new(Arc::new(Bytes), vec![END]);
    let work = move || {
        let (mut compiled, mut refused, mut unread) = (0u64, 0u64, 0u64);
        let (mut slowest, mut slowest_case) = (Duration::ZERO, 0);
        for case in cases(CASES) {
            let mut random = Random(case);
            let whole = texts[random.below(texts.len())];
            let text = match kind {
                // Changes of characters alone would leave little that is JSON.
                "schema" if random.below(4) > 0 => {
                    let schema = serde_json::from_str(whole).unwrap();
                    String::from_utf8_lossy(&json::damaged(&schema, &mut random)).into_owned()
                }
                _ => mutate::text(whole, &PIECES, &mut random),
            };
            let source = match kind {
                "regex" => Source::Regex(text.clone()),
                "lark" => Source::Lark(text.clone()),
                "gbnf" => Source::Gbnf(text.clone()),
                _ => match serde_json::from_str(&text) {
                    Ok(schema) => Source::JsonSchema(schema),
                    Err(_) => {
                        unread += 1;
                        continue;
                    }
                },
            };
            let spec = Spec {
                source,
                whitespace: Whitespace::Natural,
            };
            let began = Instant::now();
            let outcome = with_deadline(|ticket| compiler.compile(&spec, ticket));
            let took = began.elapsed();
            if took > slowest {
                (slowest, slowest_case) = (took, case);
            }
            let most = DEADLINE + GRACE;
            assert!(took < most, "{kind} case {case} took {took:?}: {text}");
            let Ok(grammar) = outcome else {
                refused += 1;
                continue;
            };
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
                match matcher.consume(token) {
                    Ok(()) => {}
                    // An ambiguous grammar has limits, which are named.
                    Err(error) if error.to_string().contains("limit") => break,
                    Err(error) => panic!("{kind} case {case}: {error}: {text}"),
                }
                if token == END {
                    break;
                }
            }
        }
        println!(
            "{kind}: {compiled} compiled, {refused} refused, {unread} no JSON; case {slowest_case} took \
             {slowest:?}"
        );
        // A few cases, as in a repetition of one that failed, say nothing about all of them.
        let cases = compiled + refused + unread;
        assert!(
            cases < 100 || compiled.min(refused) > cases / 50,
            "{kind}: damage was not varied"
        );
    };
    // The depth of a grammar's nesting is bounded, but the parsers need the stack of the pool.
    let thread = std::thread::Builder::new()
        .stack_size(256 << 20)
        .spawn(work)
        .unwrap();
    thread.join().unwrap();
}

#[test]
fn damaged_regexes_compile_or_are_refused() {
    fuzz("regex", &REGEXES);
}

#[test]
fn damaged_schemas_compile_or_are_refused() {
    fuzz("schema", &SCHEMAS);
}

#[test]
fn damaged_lark_grammars_compile_or_are_refused() {
    fuzz("lark", &LARKS);
}

#[test]
fn damaged_gbnf_grammars_compile_or_are_refused() {
    fuzz("gbnf", &GBNFS);
}
