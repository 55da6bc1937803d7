//! Assembles a model from files of the repository: the weights of a golden checkpoint, a
//! tokenizer whose tokens are bytes, and a chat template.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::VOCABULARY;
use super::binary::workspace;

/// Context length. The golden checkpoints say 128, but their weights work with any length.
const CONTEXT: u32 = 131_072;
/// Special tokens: bytes that never occur in UTF-8.
const MARKS: [(u32, &str); 3] = [
    (250, "<|endoftext|>"),
    (251, "<|im_end|>"),
    (252, "<|im_start|>"),
];

/// Returns a directory with the golden checkpoint `name`, ready to be served.
pub fn assemble(name: &str) -> PathBuf {
    let goldens = workspace().join("model/goldens");
    let from = goldens.join(name);
    let to = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("models")
        .join(name);
    fs::create_dir_all(&to).unwrap();
    let mut config: Value =
        serde_json::from_slice(&fs::read(from.join("config.json")).unwrap()).unwrap();
    config["max_position_embeddings"] = json!(CONTEXT);
    config["eos_token_id"] = json!([250, 251]);
    write(&to, "config.json", config.to_string().as_bytes());
    write(&to, "tokenizer.json", tokenizer().to_string().as_bytes());
    let special = json!({"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"});
    write(&to, "tokenizer_config.json", special.to_string().as_bytes());
    for (file, path) in [
        ("model.safetensors", from.join("model.safetensors")),
        ("chat_template.jinja", goldens.join("chat/chatml.jinja")),
    ] {
        let bytes = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        write(&to, file, &bytes);
    }
    to
}

/// Replaces a file atomically, because other tests and processes may be reading it.
fn write(dir: &Path, file: &str, bytes: &[u8]) {
    let thread = std::thread::current().id();
    let temporary = dir.join(format!(".{file}.{}.{thread:?}", std::process::id()));
    fs::write(&temporary, bytes).unwrap();
    fs::rename(&temporary, dir.join(file)).unwrap();
}

/// A byte-level BPE tokenizer without merges: the id of a token is its byte.
fn tokenizer() -> Value {
    let mut vocabulary = Map::new();
    let mut others = 256;
    for byte in 0..VOCABULARY {
        // GPT-2's alphabet writes bytes that are not printable as characters from 256 on.
        let prints = matches!(byte, 33..=126 | 161..=172 | 174..=255);
        let code = if prints { byte } else { others };
        others += u32::from(!prints);
        let letter = char::from_u32(code).expect("none of these is a surrogate");
        let mark = MARKS.iter().find(|(id, _)| *id == byte);
        let token = mark.map_or_else(|| letter.to_string(), |(_, text)| (*text).to_owned());
        vocabulary.insert(token, json!(byte));
    }
    let added: Vec<Value> = MARKS
        .iter()
        .map(|(id, text)| {
            json!({
                "id": id, "content": text, "special": true, "single_word": false,
                "lstrip": false, "rstrip": false, "normalized": false,
            })
        })
        .collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": null, "pre_tokenizer": byte_level, "post_processor": null,
        "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": false, "vocab": vocabulary, "merges": [],
        },
    })
}
