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

const NAMES: [&str; 3] = ["byte-level", "sentencepiece", "metaspace"];

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
            if name == "byte-level" {
                assert_eq!(text, case.text);
                assert_eq!(text, decoded);
            } else {
                // The mark in front of the first word is a space, which decoding drops.
                assert_eq!(
                    text.strip_prefix(' ').unwrap_or(&text),
                    decoded,
                    "{name} {text:?}"
                );
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
