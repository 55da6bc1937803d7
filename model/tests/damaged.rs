//! Damaged tokenizers and chat templates: each works or is an error, soon and without a panic.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../../tests/fuzz/json.rs"]
mod json;
#[path = "../../tests/fuzz/mutate.rs"]
mod mutate;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hearth_model::chat_template::{ChatInput, ChatTemplate};
use hearth_model::tokenizer::Tokenizer;
use mutate::{Random, cases};
use serde_json::{Map, Value};

/// Damaged copies of each file, if no variable says otherwise.
const TOKENIZERS: u64 = 300;
const TEMPLATES: u64 = 300;
/// A byte becomes at most 100, a piece gets 256 more, and 1024 are added around a text of 50 bytes.
const MOST_IDS: usize = 100 * 50 + 256 * 51 + 1024;
/// The bound of a template's time is 10 s, on a machine that does nothing else.
const PATIENCE: Duration = Duration::from_secs(60);

fn goldens(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("goldens")
        .join(path)
}

#[test]
fn a_damaged_tokenizer_works_or_is_an_error() {
    const TEXT: &str = "A text, with <s> marks </s>\n and 12\u{20ac}\u{301} \u{0}";
    for name in ["byte-level", "metaspace", "sentencepiece"] {
        let path = goldens("tokenizers").join(name).join("tokenizer.json");
        let whole: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        let (mut count, mut opened) = (0, 0);
        for case in cases(TOKENIZERS) {
            let bytes = json::damaged(&whole, &mut Random(case));
            count += 1;
            let Ok(tokenizer) = Tokenizer::from_json(&bytes, &Map::new(), &Map::new()) else {
                continue;
            };
            opened += 1;
            for special in [false, true] {
                if let Ok(ids) = tokenizer.encode(TEXT, special) {
                    assert!(
                        ids.len() < MOST_IDS,
                        "{name} case {case}: {} ids",
                        ids.len()
                    );
                    let _ = tokenizer.decode(&ids, special);
                    let bytes = ids.iter().map(|&id| tokenizer.token_bytes(id).len());
                    assert!(bytes.sum::<usize>() < 1_000_000, "{name} case {case}");
                }
            }
        }
        println!("{name}: {count} damaged tokenizers, {opened} opened");
        assert!(
            opened > 0 && opened < count,
            "{name}: damage was not varied"
        );
    }
}

#[test]
fn a_damaged_chat_template_renders_or_is_an_error() {
    const PIECES: [&str; 28] = [
        "{{",
        "}}",
        "{%",
        "%}",
        "(",
        ")",
        "[",
        "]",
        "|",
        "*",
        "**",
        "~",
        "not ",
        "-",
        "%",
        ".",
        "[0]",
        "9999999999",
        "{% for a in range(100000) %}",
        "{% endfor %}",
        "|indent(10**9)",
        "|replace('a', 'aa')",
        "|batch(10**9)",
        "messages",
        "{% set m = m ~ m %}",
        "loop.index",
        "namespace(a=1)",
        "|tojson",
    ];
    let messages = serde_json::json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a < b \u{20ac}"},
        {"role": "assistant", "content": "c", "tool_calls": [{"id": "1", "type": "function",
            "function": {"name": "f", "arguments": {"a": 1}}}]},
        {"role": "tool", "tool_call_id": "1", "content": "2"},
    ]);
    let tools = serde_json::json!([{"type": "function", "function": {"name": "f",
        "description": "d", "parameters": {"type": "object"}}}]);
    for name in ["chatml", "headers", "inst", "python", "thinking"] {
        let whole = fs::read_to_string(goldens("chat").join(format!("{name}.jinja"))).unwrap();
        let (mut count, mut compiled, mut rendered) = (0, 0, 0);
        for case in cases(TEMPLATES) {
            let mut random = Random(case);
            let source = mutate::text(&whole, &PIECES, &mut random);
            let began = Instant::now();
            count += 1;
            let sources = BTreeMap::from([("default".to_owned(), source)]);
            let Ok(template) = ChatTemplate::new(sources, BTreeMap::new()) else {
                continue;
            };
            compiled += 1;
            let text = template.render(ChatInput {
                messages: &messages,
                tools: (random.below(2) == 0).then_some(&tools),
                add_generation_prompt: true,
                kwargs: &Map::new(),
                quoting: None,
            });
            rendered += u64::from(text.is_ok());
            assert!(began.elapsed() < PATIENCE, "{name} case {case}");
        }
        println!("{name}: {count} damaged templates, {compiled} compiled, {rendered} rendered");
        assert!(
            rendered > 0 && compiled < count,
            "{name}: damage was not varied"
        );
    }
}
