use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::json;

use super::*;

#[derive(Deserialize)]
struct Cases {
    vocab_size: usize,
    encode: Vec<EncodeCase>,
    decode: Vec<DecodeCase>,
}

#[derive(Debug, Deserialize)]
struct EncodeCase {
    text: String,
    ids: Vec<u32>,
    ids_with_special: Vec<u32>,
}

#[derive(Deserialize)]
struct DecodeCase {
    ids: Vec<u32>,
    text: String,
    text_without_special: String,
}

const NAMES: [&str; 7] = [
    "byte-level",
    "sentencepiece",
    "metaspace",
    "pieces",
    "gpt2",
    "digits",
    "o200k",
];

fn dir(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("goldens/tokenizers")
        .join(name)
}

fn load(name: &str) -> (Tokenizer, Cases) {
    let read = |file: &str| fs::read(dir(name).join(file)).unwrap();
    let config: Map<String, Value> =
        serde_json::from_slice(&read("tokenizer_config.json")).unwrap();
    let tokenizer = Tokenizer::from_json(&read("tokenizer.json"), &config, &Map::new()).unwrap();
    (
        tokenizer,
        serde_json::from_slice(&read("cases.json")).unwrap(),
    )
}

#[test]
fn texts_encode_as_the_python_package_encodes_them() {
    for name in NAMES {
        let (tokenizer, cases) = load(name);
        assert_eq!(tokenizer.vocab_size(), cases.vocab_size, "{name}");
        for case in cases.encode {
            assert_eq!(
                tokenizer.encode(&case.text, false).unwrap(),
                case.ids,
                "{name} {case:?}"
            );
            assert_eq!(
                tokenizer.encode(&case.text, true).unwrap(),
                case.ids_with_special,
                "{name} {case:?}"
            );
        }
    }
}

#[test]
fn ids_decode_as_the_python_package_decodes_them() {
    for name in NAMES {
        let (tokenizer, cases) = load(name);
        for case in cases.decode {
            assert_eq!(
                tokenizer.decode(&case.ids, false).unwrap(),
                case.text,
                "{name}"
            );
            assert_eq!(
                tokenizer.decode(&case.ids, true).unwrap(),
                case.text_without_special,
                "{name}"
            );
        }
    }
}

#[test]
fn the_bytes_of_the_tokens_of_a_text_are_the_text() {
    for name in NAMES {
        let (tokenizer, cases) = load(name);
        for case in cases.encode {
            let bytes: Vec<u8> = case
                .ids
                .iter()
                .flat_map(|id| tokenizer.token_bytes(*id).to_vec())
                .collect();
            let text = String::from_utf8(bytes).unwrap();
            let decoded = tokenizer.decode(&case.ids, false).unwrap();
            match name {
                // The mark in front of the first word is a space, which decoding drops.
                "sentencepiece" | "metaspace" => assert_eq!(
                    text.strip_prefix(' ').unwrap_or(&text),
                    decoded,
                    "{name} {text:?}"
                ),
                // Marks in a text are spaces, too.
                "pieces" => {
                    assert_eq!(text, case.text.replace('▁', " "));
                    assert_eq!(text, decoded);
                }
                _ => {
                    assert_eq!(text, case.text);
                    assert_eq!(text, decoded);
                }
            }
        }
    }
}

#[test]
fn special_tokens_are_known_by_name_id_and_kind() {
    let (tokenizer, _) = load("byte-level");
    assert_eq!(tokenizer.eos_id(), Some(2));
    assert_eq!(tokenizer.bos_id(), None);
    assert_eq!(tokenizer.special_tokens()["pad_token"], "<|endoftext|>");
    assert!(tokenizer.is_special(1));
    let think = tokenizer.token_to_id("<think>").unwrap();
    assert!(!tokenizer.is_special(think), "an added token that is text");
    assert_eq!(tokenizer.token_bytes(think), b"<think>");
    assert_eq!(tokenizer.id_to_token(1).as_deref(), Some("<|im_start|>"));

    let (tokenizer, _) = load("sentencepiece");
    assert_eq!((tokenizer.bos_id(), tokenizer.eos_id()), (Some(1), Some(2)));
    assert_eq!(tokenizer.token_bytes(3 + 0x0a), b"\n");
}

#[test]
fn special_tokens_map_fills_in_for_the_config() {
    let json = fs::read(dir("byte-level").join("tokenizer.json")).unwrap();
    let config = json!({"eos_token": "<|im_end|>"});
    let map = json!({"eos_token": "<|im_start|>", "bos_token": {"content": "<|im_start|>"}});
    let (config, map) = (config.as_object().unwrap(), map.as_object().unwrap());
    let tokenizer = Tokenizer::from_json(&json, config, map).unwrap();
    assert_eq!((tokenizer.bos_id(), tokenizer.eos_id()), (Some(1), Some(2)));
}

#[test]
fn ids_outside_the_vocabulary_are_nothing() {
    let (tokenizer, _) = load("byte-level");
    for id in [tokenizer.vocab_size() as u32, 1_000_000, u32::MAX] {
        assert_eq!(tokenizer.token_bytes(id), b"");
        assert_eq!(tokenizer.id_to_token(id), None);
        assert!(!tokenizer.is_special(id));
        assert_eq!(tokenizer.decode(&[id], false).unwrap(), "");
    }
}

#[test]
fn truncation_and_padding_left_in_the_file_are_ignored() {
    let json = fs::read(dir("byte-level").join("tokenizer.json")).unwrap();
    let mut file: Value = serde_json::from_slice(&json).unwrap();
    file["truncation"] = json!({
        "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0
    });
    file["padding"] = json!({
        "strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": null,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "<|endoftext|>"
    });
    let text = "The hearth is warm, and the cat sleeps";
    let tokenizer =
        Tokenizer::from_json(file.to_string().as_bytes(), &Map::new(), &Map::new()).unwrap();
    assert_eq!(
        tokenizer.encode(text, true).unwrap(),
        load("byte-level").0.encode(text, true).unwrap()
    );
}

#[test]
fn a_damaged_file_is_an_error() {
    for text in ["", "{}", "[1]", "{\"model\": 3}"] {
        let result = Tokenizer::from_json(text.as_bytes(), &Map::new(), &Map::new());
        assert!(matches!(result, Err(TokenizerError::Json(_))), "{text}");
    }
}

#[test]
fn quoted_text_is_tokenized_as_text_and_nothing_else_changes() {
    for name in NAMES {
        let (tokenizer, cases) = load(name);
        let quoting = tokenizer.quoting();
        for case in cases.encode {
            let encode = |text: &str| tokenizer.encode_quoted(text, false).unwrap();
            assert_eq!(encode(&case.text), case.ids, "{name} {case:?}");
            let special = |ids: &[u32]| ids.iter().any(|id| tokenizer.is_special(*id));
            let quoted = encode(&quoting.quote(&case.text));
            if special(&case.ids) {
                assert!(!special(&quoted), "{name} {case:?}");
            } else {
                assert_eq!(quoted, case.ids, "{name} {case:?}");
            }
            if case.text.is_empty() {
                continue;
            }
            // A mark anywhere is no part of the text.
            let middle = case.text.char_indices().nth(case.text.chars().count() / 2);
            let at = middle.map_or(0, |(at, _)| at);
            let marked = format!("{}{MARK}{}", &case.text[..at], &case.text[at..]);
            if !special(&case.ids) {
                assert_eq!(encode(&marked), case.ids, "{name} {marked:?}");
            }
            let around = tokenizer.encode_quoted(&marked, true).unwrap();
            if !special(&case.ids) {
                assert_eq!(around, case.ids_with_special, "{name} {marked:?}");
            }
        }
    }
}

#[test]
fn a_tokenizer_that_makes_gigabytes_of_little_is_refused() {
    let json = fs::read(dir("byte-level").join("tokenizer.json")).unwrap();
    let error = |change: &dyn Fn(&mut Value)| {
        let mut file: Value = serde_json::from_slice(&json).unwrap();
        change(&mut file);
        let text = file.to_string();
        let loaded = Tokenizer::from_json(text.as_bytes(), &Map::new(), &Map::new());
        loaded.unwrap_err().to_string()
    };
    let huge = error(&|file| file["model"]["vocab"]["hearth"] = json!(u32::MAX));
    assert!(huge.contains("got 4294967295"), "{huge}");
    let replace = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"});
    let chain = json!({"type": "Sequence", "normalizers": vec![replace; 40]});
    let long = error(&|file| file["normalizer"] = chain.clone());
    assert!(
        long.contains("the normalizer and pre_tokenizer may make at most 100 bytes"),
        "{long}"
    );
    let prepend = json!({"type": "Prepend", "prepend": "a".repeat(10_000_000)});
    let long = error(&|file| file["normalizer"] = prepend.clone());
    assert!(long.contains("of a piece of text, got 10000000"), "{long}");
    let replace =
        json!({"type": "Replace", "pattern": {"String": "a"}, "content": "a".repeat(1000)});
    let long = error(&|file| file["decoder"] = replace.clone());
    assert!(long.contains("the decoder may make"), "{long}");
}
