//! Grammars of every kind over a vocabulary with the difficulties of real ones: bytes, words
//! that overlap, characters split over tokens, special tokens, and two tokens with the same
//! bytes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;
use std::sync::Arc;

use hearth_grammar::{
    Compiled, Compiler, GrammarError, Problem, Source, Spec, Ticket, VocabularySource, Whitespace,
};
use proptest::prelude::*;
use serde_json::{Value, json};

const EOS: [u32; 2] = [0, 1];
const WORDS: [&[u8]; 32] = [
    b"name",
    b"\"name\"",
    b"\": \"",
    b"\":\"",
    b"\", \"",
    b"age",
    b"\": ",
    b"{\"",
    b"\"}",
    b"tr",
    b"true",
    b"rue",
    b"fal",
    b"se",
    b"12",
    b"123",
    b", ",
    b": ",
    b"[1",
    b"null",
    b"ab",
    b"abc",
    b"bc",
    b"  ",
    b"he",
    b"hello",
    b"\xf0\x9f",
    b"\x98\x80",
    b"\xc3",
    b"\xa9x",
    b"ill",
    b"will",
];

/// Two tokens that end an output, a special token, an empty one, 256 bytes, words, and a second
/// token for one of the words.
struct Words {
    tokens: Vec<Vec<u8>>,
}

impl Words {
    fn new() -> Self {
        let mut tokens: Vec<Vec<u8>> = vec![
            b"</s>".to_vec(),
            b"<end>".to_vec(),
            b"<tool>".to_vec(),
            vec![],
        ];
        tokens.extend((0..=255).map(|byte| vec![byte]));
        tokens.extend(WORDS.iter().map(|word| word.to_vec()));
        tokens.push(b"abc".to_vec());
        Self { tokens }
    }
}

impl VocabularySource for Words {
    fn size(&self) -> usize {
        self.tokens.len()
    }
    fn bytes(&self, token: u32) -> Vec<u8> {
        self.tokens[token as usize].clone()
    }
    fn is_special(&self, token: u32) -> bool {
        token < 3
    }
    /// Encodes with the longest token at each place, and the first one of equal tokens.
    fn encode(&self, text: &str) -> Option<Vec<u32>> {
        let (mut rest, mut ids) = (text.as_bytes(), Vec::new());
        while !rest.is_empty() {
            let fits =
                |token: &&(usize, &Vec<u8>)| !token.1.is_empty() && rest.starts_with(token.1);
            let tokens = self.tokens.iter().enumerate().skip(3);
            let best = tokens.collect::<Vec<_>>();
            let best = best
                .iter()
                .filter(fits)
                .rev()
                .max_by_key(|token| token.1.len())?;
            ids.push(best.0 as u32);
            rest = &rest[best.1.len()..];
        }
        Some(ids)
    }
}

fn compiler() -> Compiler {
    Compiler::new(Arc::new(Words::new()), EOS.to_vec())
}

fn compile(compiler: &Compiler, source: Source) -> Result<Arc<Compiled>, GrammarError> {
    compiler.compile(&Spec::new(source), &Ticket::default())
}

fn sources() -> Vec<Source> {
    let regex = |text: &str| Source::Regex(text.to_owned());
    vec![
        regex("(ab|abc|hello) (will|ill)"),
        regex("[0-9]{1,3}(\\.[0-9]{1,3}){3}"),
        regex("\\{\"name\": \"[a-z]{1,5}\", \"age\": [1-9][0-9]?\\}"),
        regex("é?😀*x"),
        regex("a.{0,2}\\n?"),
        Source::Choice(vec![
            "hello".into(),
            "hell".into(),
            "abc".into(),
            "é😀".into(),
        ]),
        Source::JsonObject,
        Source::JsonSchema(json!({
            "type": "object", "required": ["name", "age"], "additionalProperties": false,
            "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        })),
        Source::JsonSchema(json!({"enum": ["a", 12, null, {"name": [true]}]})),
        Source::Lark("start: \"ab\"+ /[0-9]{1,3}/".into()),
        Source::Gbnf("root ::= \"ab\"+ [0-9]{1,3}".into()),
        Source::Gbnf("root ::= \"[\" (root (\", \" root)*)? \"]\" | [0-9]{1,3}".into()),
    ]
}

fn is_allowed(mask: &[u32], token: u32) -> bool {
    mask[token as usize / 32] & (1 << (token % 32)) != 0
}

/// The bytes with which the tokens of `mask` begin; `None` stands for an end of the output.
fn next_bytes(mask: &[u32]) -> BTreeSet<Option<u8>> {
    let words = Words::new();
    let tokens = (0..words.tokens.len() as u32).filter(|&token| is_allowed(mask, token));
    tokens
        .map(|token| match EOS.contains(&token) {
            true => None,
            false => words.tokens[token as usize].first().copied(),
        })
        .collect()
}

/// True if more than one text can follow. A mask of forced text has only the tokenizer's token.
fn is_choice(mask: &[u32]) -> bool {
    next_bytes(mask).len() > 1
}

/// Pseudo-random numbers, so that a walk can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % bound
    }
}

#[test]
fn a_token_is_in_the_mask_exactly_if_it_can_be_consumed() {
    let compiler = compiler();
    let size = Words::new().tokens.len() as u32;
    let (mut allowed, mut refused) = (0, 0);
    for source in sources() {
        let compiled = compile(&compiler, source.clone()).unwrap();
        for seed in 0..6 {
            let (mut random, mut way) = (Random(seed), Vec::new());
            while way.len() < 24 {
                let at = || {
                    let mut matcher = compiled.matcher();
                    way.iter()
                        .for_each(|&token| matcher.consume(token).unwrap());
                    matcher
                };
                let mut matcher = at();
                if matcher.is_complete() {
                    break;
                }
                let mask = matcher.mask().unwrap();
                // Where text is forced, the mask has only the tokenizer's token. Our own machine
                // gives the whole mask where it holds the token back.
                let on_our_machine = matches!(source, Source::Regex(_) | Source::Choice(_));
                let exact =
                    is_choice(&mask) || on_our_machine && matcher.forced_tokens(1).is_empty();
                let ways: Vec<u32> = (0..size).filter(|&t| is_allowed(&mask, t)).collect();
                assert!(!ways.is_empty(), "{source:?}: a dead end after {way:?}");
                // All tokens are tried at the first places, some later on.
                for token in (0..size).filter(|t| way.len() < 3 || t % 7 == 0 || *t < 4) {
                    let consumed = at().consume(token).is_ok();
                    if is_allowed(&mask, token) {
                        assert!(consumed, "{source:?}: {token} after {way:?}");
                        allowed += 1;
                    } else if exact {
                        assert!(!consumed, "{source:?}: {token} after {way:?}");
                        refused += 1;
                    }
                }
                for end in EOS {
                    assert_eq!(
                        is_allowed(&mask, end),
                        at().consume(end).is_ok(),
                        "{source:?}: an end after {way:?}"
                    );
                }
                let text: Vec<u32> = ways.into_iter().filter(|token| *token > 1).collect();
                if text.is_empty() {
                    break;
                }
                way.push(text[random.below(text.len())]);
            }
        }
    }
    assert!(allowed > 1_000 && refused > 10_000, "{allowed} {refused}");
}

/// The masks of a random walk.
fn masks_of(matcher: &mut hearth_grammar::Matcher, seed: u64) -> Vec<hearth_grammar::Mask> {
    let mut random = Random(seed);
    let mut masks = Vec::new();
    while !matcher.is_complete() && masks.len() < 60 {
        let mask = matcher.mask().unwrap();
        let ways: Vec<u32> = (0..293).filter(|&t| is_allowed(&mask, t)).collect();
        masks.push(mask);
        matcher.consume(ways[random.below(ways.len())]).unwrap();
    }
    masks
}

#[test]
fn the_masks_of_an_output_do_not_depend_on_earlier_or_concurrent_outputs() {
    for source in sources() {
        let compiled = compile(&compiler(), source.clone()).unwrap();
        let fresh: Vec<_> = (0..8)
            .map(|seed| {
                let anew = compile(&compiler(), source.clone()).unwrap();
                masks_of(&mut anew.matcher(), seed)
            })
            .collect();
        for round in 0..3 {
            // One output is cancelled, one fails, and one goes on at the same time.
            let mut beside = compiled.matcher();
            let cancelled = compiled.matcher();
            cancelled.canceller().cancel();
            drop(cancelled);
            let mut failed = compiled.matcher();
            let mask = failed.mask().unwrap();
            if let Some(token) = (0..293).find(|&t| !is_allowed(&mask, t)) {
                failed.consume(token).unwrap_err();
            }
            drop(failed);
            for (seed, expected) in fresh.iter().enumerate() {
                let masks = masks_of(&mut compiled.matcher(), seed as u64);
                assert_eq!(masks, *expected, "{source:?}, round {round}");
            }
            assert_eq!(masks_of(&mut beside, round), fresh[round as usize]);
        }
    }
}

/// Chooses tokens at random where there is a choice. Where there is none, appends the forced
/// tokens if `jump` is set.
fn generate(compiled: &Compiled, seed: u64, jump: bool) -> (Vec<u32>, usize) {
    let (mut matcher, mut random) = (compiled.matcher(), Random(seed));
    let (mut tokens, mut forced) = (Vec::new(), 0);
    while !matcher.is_complete() && tokens.len() < 200 {
        let jumped = if jump {
            matcher.forced_tokens(200 - tokens.len())
        } else {
            Vec::new()
        };
        if !jumped.is_empty() {
            forced += jumped.len();
            for token in jumped {
                matcher.consume(token).expect("what is forced is allowed");
                tokens.push(token);
            }
            continue;
        }
        let mask = matcher.mask().unwrap();
        let ways: Vec<u32> = (0..290).filter(|&t| is_allowed(&mask, t)).collect();
        // Ends as soon as it may, so that outputs do not become too long.
        let token = if is_allowed(&mask, EOS[1]) {
            EOS[1]
        } else {
            ways[random.below(ways.len())]
        };
        matcher.consume(token).unwrap();
        if !EOS.contains(&token) {
            tokens.push(token);
        }
    }
    (tokens, forced)
}

#[test]
fn an_output_with_forced_tokens_is_a_text_that_the_grammar_accepts() {
    let (compiler, words) = (compiler(), Words::new());
    let mut total = 0;
    for source in sources() {
        let compiled = compile(&compiler, source.clone()).unwrap();
        for seed in 0..20 {
            let (tokens, forced) = generate(&compiled, seed, true);
            total += forced;
            let bytes: Vec<u8> = tokens.iter().flat_map(|&t| words.bytes(t)).collect();
            let Ok(text) = String::from_utf8(bytes) else {
                assert_eq!(tokens.len(), 200, "{source:?}: cut within a character");
                continue;
            };
            // The grammar accepts the text byte by byte, too.
            let mut bytewise = compiled.matcher();
            for byte in text.bytes() {
                bytewise.consume(4 + u32::from(byte)).unwrap();
            }
            assert!(
                bytewise.consume(EOS[0]).is_ok() || tokens.len() == 200,
                "{source:?} {text:?}"
            );
        }
    }
    assert!(total > 500, "{total}");
}

#[test]
fn masks_allow_the_tokens_of_a_jump() {
    let compiler = compiler();
    for source in sources() {
        let compiled = compile(&compiler, source.clone()).unwrap();
        for seed in 0..20 {
            let (jumped, forced) = generate(&compiled, seed, true);
            // The choices are the same, so only the tokens of forced text could differ.
            let mut matcher = compiled.matcher();
            for &token in jumped.iter().take(60) {
                if matcher.is_complete() {
                    break;
                }
                let mask = matcher.mask().unwrap();
                assert!(
                    is_allowed(&mask, token),
                    "{source:?}: {jumped:?} ({forced} forced)"
                );
                matcher.consume(token).unwrap();
            }
        }
    }
}

#[test]
fn the_tokens_of_a_key_are_forced_except_for_its_end() {
    let compiled = compile(&compiler(), sources()[2].clone()).unwrap();
    let mut matcher = compiled.matcher();
    let words = Words::new();
    let text =
        |tokens: &[u32]| -> Vec<u8> { tokens.iter().flat_map(|&t| words.bytes(t)).collect() };
    let forced = matcher.forced_tokens(100);
    // The rest, `": "`, is forced too, but a longer token could begin with its end.
    assert_eq!(text(&forced), b"{\"name");
    assert_eq!(matcher.forced_tokens(2), forced[..2], "the bound is kept");
    forced
        .iter()
        .for_each(|&token| matcher.consume(token).unwrap());
    assert!(
        matcher.forced_tokens(100).is_empty(),
        "the rest is held back"
    );
}

#[test]
fn a_last_token_that_a_longer_one_could_replace_is_held_back() {
    let compiled = compile(&compiler(), Source::Regex("h(ello|ab|abc)".into())).unwrap();
    let mut matcher = compiled.matcher();
    assert!(
        matcher.forced_tokens(9).is_empty(),
        "`he` and `hello` begin with it"
    );
    matcher.consume(4 + u32::from(b'h')).unwrap();
    matcher.consume(4 + u32::from(b'e')).unwrap();
    assert!(!matcher.forced_tokens(9).is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn our_masks_equal_those_of_llguidance_where_there_is_a_choice(seed in any::<u64>(), index in 0usize..5) {
        let Source::Regex(pattern) = &sources()[index] else { panic!() };
        let compiler = compiler();
        let ours = compile(&compiler, Source::Regex(pattern.clone())).unwrap();
        let lark = format!("start: /{}/", pattern.replace('/', "\\/"));
        let theirs = compile(&compiler, Source::Lark(lark)).unwrap();
        prop_assert_eq!(compiler.stats().fallbacks, 0, "the regex runs on our own machine");
        let (mut a, mut b, mut random) = (ours.matcher(), theirs.matcher(), Random(seed));
        for _ in 0..20 {
            prop_assert_eq!(a.is_complete(), b.is_complete());
            if a.is_complete() { break; }
            let (mask, other) = (a.mask().unwrap(), b.mask().unwrap());
            let ends = |mask: &[u32]| EOS.map(|end| is_allowed(mask, end));
            prop_assert_eq!(ends(&mask), ends(&other));
            if is_choice(&other) {
                prop_assert_eq!(&mask, &other);
            } else {
                // Both have the tokenizer's token, or tokens that could still become it.
                prop_assert!(mask.iter().zip(other.iter()).any(|(a, b)| a & b != 0));
            }
            let ways: Vec<u32> = (2..290).filter(|&t| is_allowed(&other, t)).collect();
            if ways.is_empty() { break; }
            let token = ways[random.below(ways.len())];
            a.consume(token).unwrap();
            b.consume(token).unwrap();
        }
    }
}

#[test]
fn grammars_that_are_invalid_or_too_large_are_refused_in_time() {
    use Problem::{Invalid, TooComplex, Unsupported};
    let regex = |text: &str| Source::Regex(text.to_owned());
    let lark = |text: &str| Source::Lark(text.to_owned());
    let mut ten_thousand = serde_json::Map::new();
    (0..10_000).for_each(|i| drop(ten_thousand.insert(format!("p{i}"), json!({"type": "null"}))));
    let mut cases = vec![
        (regex("a{1000000}"), TooComplex),
        (regex(&"a".repeat(1 << 20)), TooComplex),
        (regex("(?=a)b"), Invalid),
        (regex("a(?<=a)b"), Unsupported),
        (regex("(a)\\1"), Unsupported),
        (regex("[^\\s\\S]"), Invalid),
        (regex("("), Invalid),
        (
            Source::JsonSchema(json!({"properties": ten_thousand})),
            TooComplex,
        ),
        (
            Source::JsonSchema(json!({"enum": (0..100_000).collect::<Vec<_>>()})),
            TooComplex,
        ),
        (
            Source::JsonSchema(json!({
                "$ref": "#/$defs/a",
                "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
            })),
            Invalid,
        ),
        (
            Source::JsonSchema(json!({"$ref": "http://localhost/x"})),
            Unsupported,
        ),
        (
            Source::JsonSchema(json!({"$ref": "file:///etc/passwd"})),
            Unsupported,
        ),
        (
            Source::JsonSchema(json!({"type": "string", "minLength": 5, "maxLength": 2})),
            Invalid,
        ),
        (lark("start: \"a\"{1000000}"), TooComplex),
        (lark("start: /a{1000000}/"), TooComplex),
        (lark("start: start"), Invalid),
        (lark("start: \0"), Invalid),
        (lark("start: ("), Invalid),
        (lark(""), Invalid),
        (Source::Gbnf("root ::= root".into()), Invalid),
        (Source::Choice(vec![]), Invalid),
        (Source::Choice(vec!["a".into(); 20_000]), TooComplex),
        (Source::Choice(vec!["a".repeat(600_000)]), TooComplex),
    ];
    cases.push((lark(&"a: b\n".repeat(40_000)), TooComplex));
    // Only the second mask shows that this grammar is too large.
    let terminals: String = (0..3000).map(|i| format!("| /x{i}[a-z]/ ")).collect();
    cases.push((lark(&format!("start: \"y\" {terminals}")), TooComplex));
    let compiler = compiler();
    for (source, problem) in cases {
        let began = std::time::Instant::now();
        let shown = format!("{source:?}").chars().take(80).collect::<String>();
        let error = compile(&compiler, source).expect_err(&shown);
        assert_eq!(error.problem, problem, "{shown}: {error}");
        assert!(error.to_string().len() < 500, "{shown}: {error}");
        assert!(
            began.elapsed().as_secs() < 20,
            "{shown}: {:?}",
            began.elapsed()
        );
    }
}

#[test]
fn regexes_too_large_for_our_machine_run_on_llguidance() {
    let compiler = compiler();
    let patterns = ["(a|b)*a(a|b){30}", "^(a|b)*a(a|b){200}$", "\\w{1,300}"];
    for (before, pattern) in (0..).zip(patterns) {
        let compiled = compile(&compiler, Source::Regex(pattern.to_owned())).unwrap();
        assert_eq!(compiler.stats().fallbacks, before + 1, "{pattern}");
        let mut matcher = compiled.matcher();
        matcher.consume(4 + u32::from(b'a')).unwrap();
        matcher.mask().unwrap();
    }
}

#[test]
fn a_grammar_is_compiled_once_and_its_refusal_is_cached() {
    let compiler = compiler();
    for source in sources() {
        let spec = Spec::new(source);
        assert!(compiler.cached(&spec).is_none());
        let first = compiler.compile(&spec, &Ticket::default()).unwrap();
        let again = compiler.cached(&spec).unwrap().unwrap();
        assert!(Arc::ptr_eq(&first, &again));
    }
    let before = compiler.stats();
    assert_eq!(before.compilations, sources().len() as u64);
    assert_eq!(before.cache_misses, before.compilations);
    assert_eq!(before.cache_hits, before.compilations);
    assert!(!before.compile_time.is_zero() && before.invalid == 0);
    let bad = Spec::new(Source::Regex("(".to_owned()));
    let refused = compiler.compile(&bad, &Ticket::default()).unwrap_err();
    assert_eq!(compiler.cached(&bad).unwrap().unwrap_err(), refused);
    assert_eq!(compiler.stats().invalid, 2, "refused, and from the cache");
    let large = Source::Regex("(a|b)*a(a|b){30}".to_owned());
    let compiled = compile(&compiler, large).unwrap();
    let mut matcher = compiled.matcher();
    matcher.mask().unwrap();
    matcher.count_forced(&[4 + u32::from(b'a'), 4 + u32::from(b'b')]);
    let after = compiler.stats();
    assert_eq!((after.fallbacks, after.masks), (1, before.masks + 1));
    assert_eq!((after.forced_tokens, after.forced_bytes), (2, 2));
}

#[test]
fn each_layout_allows_exactly_one_white_space() {
    let compiler = compiler();
    let schema = json!({
        "type": "object", "required": ["a", "b"], "additionalProperties": false,
        "properties": {"a": {"const": [1, 2]}, "b": {"const": {"c": true}}},
    });
    let texts = [
        (Whitespace::Natural, "{\"a\": [1, 2], \"b\": {\"c\": true}}"),
        (Whitespace::Compact, "{\"a\":[1,2],\"b\":{\"c\":true}}"),
    ];
    for (whitespace, text) in texts {
        let spec = Spec {
            source: Source::JsonSchema(schema.clone()),
            whitespace,
        };
        let compiled = compiler.compile(&spec, &Ticket::default()).unwrap();
        let mut matcher = compiled.matcher();
        for byte in text.bytes() {
            let next = next_bytes(&matcher.mask().unwrap());
            assert_eq!(next, BTreeSet::from([Some(byte)]), "{text}");
            matcher.consume(4 + u32::from(byte)).unwrap();
        }
        assert!(matcher.is_complete());
        let value: Value = serde_json::from_str(text).unwrap();
        assert_eq!(value["b"]["c"], true);
    }
    let free = compile(&compiler, Source::JsonObject).unwrap();
    let mut matcher = free.matcher();
    matcher.consume(4 + u32::from(b'{')).unwrap();
    let mask = matcher.mask().unwrap();
    let spaces = [b' ', b'\n', b'\t', b'\r'].map(|byte| 4 + u32::from(byte));
    assert!(spaces.iter().all(|&space| !is_allowed(&mask, space)));
}

#[test]
fn all_end_tokens_are_allowed_where_the_grammar_accepts() {
    let compiler = compiler();
    let compiled = compile(&compiler, Source::Choice(vec!["ab".into(), "abc".into()])).unwrap();
    let mut matcher = compiled.matcher();
    let ends = |matcher: &mut hearth_grammar::Matcher| {
        let mask = matcher.mask().unwrap();
        EOS.iter().filter(|&&end| is_allowed(&mask, end)).count()
    };
    assert_eq!(ends(&mut matcher), 0);
    b"ab"
        .iter()
        .for_each(|&byte| matcher.consume(4 + u32::from(byte)).unwrap());
    assert_eq!(ends(&mut matcher), 2);
    let mut ended = matcher;
    ended.consume(EOS[1]).unwrap();
    assert!(ended.is_complete() && ended.consume(EOS[0]).is_err());
}
