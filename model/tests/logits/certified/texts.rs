//! Tokenizers and chat templates that are made like those of the families, against their goldens.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use hearth_model::certified::Packaging;
use hearth_model::chat_template::{ChatInput, ChatTemplate};
use hearth_model::gguf::Gguf;
use hearth_model::tokenizer::Tokenizer;
use serde_json::{Map, Value};

/// A family's class, its kinds of tokenizers, and its templates.
const FAMILIES: &[(&str, &[&str], &[&str])] = &[
    (
        "LlamaForCausalLM",
        &["byte-level", "sentencepiece"],
        &["headers"],
    ),
    (
        "MistralForCausalLM",
        &["sentencepiece", "metaspace"],
        &["inst"],
    ),
    ("MixtralForCausalLM", &["sentencepiece"], &["inst"]),
    ("Qwen2ForCausalLM", &["byte-level"], &["chatml"]),
    ("Qwen2MoeForCausalLM", &["byte-level"], &["chatml"]),
    ("Qwen3ForCausalLM", &["byte-level"], &["thinking"]),
    ("Qwen3MoeForCausalLM", &["byte-level"], &["thinking"]),
    ("SmolLM3ForCausalLM", &["byte-level"], &["modes"]),
    ("GraniteForCausalLM", &["digits"], &["roles"]),
    ("GraniteMoeHybridForCausalLM", &["byte-level"], &["roles"]),
    ("Olmo2ForCausalLM", &["byte-level"], &["loop"]),
    (
        "Phi3ForCausalLM",
        &["sentencepiece", "byte-level", "o200k"],
        &["bars"],
    ),
    ("Gemma2ForCausalLM", &["pieces"], &["turns"]),
    ("Gemma3ForCausalLM", &["pieces"], &["turns"]),
    ("Gemma3ForConditionalGeneration", &["pieces"], &["turns"]),
    ("GptOssForCausalLM", &["o200k"], &["harmony"]),
];
const NOTHING: &str = "-";

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("goldens")
}

fn read(path: PathBuf) -> Value {
    let text = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&text).expect("JSON")
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// The tokenizer `name` from its kind of file, if there is one.
fn tokenizer(name: &str, files: Packaging) -> Option<Tokenizer> {
    let bytes = match files {
        Packaging::Safetensors => {
            let dir = goldens().join("tokenizers").join(name);
            let json = std::fs::read(dir.join("tokenizer.json")).ok()?;
            let config = object(read(dir.join("tokenizer_config.json")));
            return Tokenizer::from_json(&json, &config, &Map::new()).ok();
        }
        Packaging::Gguf => {
            let file = if name == "sentencepiece" {
                "mixed"
            } else {
                name
            };
            std::fs::read(goldens().join(format!("gguf/{file}.gguf"))).ok()?
        }
    };
    let converted = Gguf::parse(&bytes).ok()?.tokenizer().ok()??;
    Tokenizer::from_json(&converted.tokenizer, &converted.config, &Map::new()).ok()
}

/// A cell: the texts that are tokenized as in the reference.
pub fn tokenizers(class: &str, files: Packaging) -> String {
    let family = FAMILIES.iter().find(|(name, ..)| *name == class);
    let names = family.map_or(&[][..], |(_, names, _)| names);
    let (mut same, mut all) = (0, 0);
    for name in names {
        let Some(tokenizer) = tokenizer(name, files) else {
            continue;
        };
        let cases = read(goldens().join("tokenizers").join(name).join("cases.json"));
        for case in cases["encode"].as_array().expect("a list") {
            let text = case["text"].as_str().expect("a text");
            let ids = |special| {
                let ids = tokenizer.encode(text, special);
                serde_json::json!(ids.unwrap_or_default())
            };
            all += 1;
            same += usize::from(ids(false) == case["ids"] && ids(true) == case["ids_with_special"]);
        }
    }
    cell(same, all)
}

/// A cell: the conversations that are rendered, or refused, as by the reference.
pub fn templates(class: &str) -> String {
    let family = FAMILIES.iter().find(|(name, ..)| *name == class);
    let names = family.map_or(&[][..], |(.., names)| names);
    let (mut same, mut all) = (0, 0);
    let conversations = read(goldens().join("chat/conversations.json"));
    let special = [
        ("bos_token", "<s>"),
        ("eos_token", "</s>"),
        ("unk_token", "<unk>"),
    ];
    let special: BTreeMap<String, String> = special
        .map(|(name, token)| (name.to_owned(), token.to_owned()))
        .into();
    for case in read(goldens().join("chat/cases.json"))
        .as_array()
        .expect("a list")
    {
        let file = case["template"].as_str().expect("a name");
        if !names.iter().any(|name| file == format!("{name}.jinja")) {
            continue;
        }
        let source = std::fs::read_to_string(goldens().join("chat").join(file));
        let source = source.expect("a template");
        let template = ChatTemplate::from_checkpoint(Some(&source), &Map::new(), special.clone());
        let mut kwargs = object(case.clone());
        for used in [
            "template",
            "conversation",
            "tools",
            "add_generation_prompt",
            "text",
            "error",
        ] {
            kwargs.remove(used);
        }
        let rendered = template.and_then(|template| {
            template.render(ChatInput {
                messages: &conversations[case["conversation"].as_str().expect("a name")],
                tools: case.get("tools"),
                add_generation_prompt: case["add_generation_prompt"] == true,
                kwargs: &kwargs,
                quoting: None,
            })
        });
        all += 1;
        same += usize::from(rendered.ok().as_deref() == case["text"].as_str());
    }
    cell(same, all)
}

fn cell(same: usize, all: usize) -> String {
    match (same, all) {
        (_, 0) => NOTHING.to_owned(),
        (same, all) if same == all => format!("{all}"),
        (same, all) => format!("**{same} of {all}**"),
    }
}
