mod file;

use std::fs;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use serde::Deserialize;

use super::*;
use crate::checkpoint::{Checkpoint, LoadFormat};
use crate::dtype::Dtype;
use crate::tokenizer::Tokenizer;
use crate::weights::{Format, Weights};
use file::{File, parse_error};
use hearth_shaders::BlockFormat;

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("goldens")
}

fn golden(name: &str) -> Vec<u8> {
    fs::read(goldens().join("gguf").join(name)).unwrap()
}

fn open(name: &str) -> Checkpoint {
    let path = goldens().join("gguf").join(name);
    Checkpoint::open(path.to_str().unwrap(), LoadFormat::Safetensors).unwrap()
}

#[test]
fn every_type_has_the_bits_of_the_reference_dequantisation() {
    let bytes = golden("types.gguf");
    let llama = File::llama().bytes();
    let config = Gguf::parse(&llama).unwrap().config().unwrap();
    let tensors = Gguf::parse(&bytes).unwrap().tensors;
    let tensors = tensors.renamed(&config, false).unwrap();
    let blocks: Vec<_> = tensors
        .iter()
        .map(|(_, tensor)| tensor.format.clone())
        .collect();
    for block in BlockFormat::integers() {
        assert!(blocks.contains(&Format::Blocks(block)), "{block:?}");
    }
    let path = goldens().join("gguf/types.gguf");
    let map = crate::weights::map(&path).unwrap();
    let weights = Weights::from_files(vec![(path, map)], tensors);
    let expected = golden("types.safetensors");
    let expected = SafeTensors::deserialize(&expected).unwrap();
    assert_eq!(expected.len(), 3 + BlockFormat::integers().count());
    for (name, tensor) in expected.tensors() {
        let view = weights.get(&name, tensor.shape()).unwrap();
        let values = view.to_f32();
        let words = tensor.data().as_chunks::<4>().0.iter();
        for (i, (got, want)) in values.iter().zip(words).enumerate() {
            let want = f32::from_le_bytes(*want);
            assert_eq!(
                got.to_bits(),
                want.to_bits(),
                "{name} ({}) at {i}",
                view.format
            );
        }
        // In a narrower type, the numbers are the same but rounded.
        let halves = view.to_dtype(Dtype::Bf16);
        assert_eq!(
            *halves,
            *Dtype::Bf16.encode(values.iter().copied()),
            "{name}"
        );
    }
}

#[test]
fn a_model_in_several_files_is_opened_by_any_of_them() {
    let dir = std::env::temp_dir().join(format!("hearth-split-{}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    let path = |part: usize| dir.join(format!("tiny-0000{part}-of-00003.gguf"));
    let number = |file: File, index: u16| {
        let file = file.key("split.no", 2, &index.to_le_bytes());
        file.key("split.count", 2, &3u16.to_le_bytes())
    };
    let with = |file: File, name: &str| file.tensor(name, &[8], 0, 0).data(32);
    let open = |part| Checkpoint::open_gguf(&path(part), LoadFormat::Safetensors);
    let error = |part| open(part).err().expect("an error").to_string();
    fs::write(path(1), number(File::llama(), 0).bytes()).unwrap();
    let other = |index| number(File::default(), index);
    fs::write(path(2), with(other(1), "output_norm.weight").bytes()).unwrap();
    let missing = error(1);
    assert!(missing.contains("tiny-00003-of-00003.gguf"), "{missing}");
    fs::write(path(3), with(other(2), "blk.0.attn_norm.weight").bytes()).unwrap();
    for part in 1..=3 {
        let model = open(part).unwrap();
        assert_eq!(model.name, "tiny");
        let names = [
            "model.embed_tokens.weight",
            "model.layers.0.input_layernorm.weight",
            "model.norm.weight",
        ];
        assert_eq!(model.weights.names(), names);
        let norm = model.weights.get(names[2], &[8]).unwrap();
        assert_eq!(norm.to_f32(), [0.0; 8]);
    }
    fs::write(path(3), with(other(1), "blk.0.attn_norm.weight").bytes()).unwrap();
    let swapped = error(1);
    assert!(swapped.contains("split.no must be 2"), "{swapped}");
    fs::write(path(3), with(other(2), "output_norm.weight").bytes()).unwrap();
    let twice = error(1);
    assert!(
        twice.contains("output_norm.weight") && twice.contains("00003"),
        "{twice}"
    );
    fs::write(dir.join("tiny.gguf"), number(File::llama(), 0).bytes()).unwrap();
    let named = Checkpoint::open_gguf(&dir.join("tiny.gguf"), LoadFormat::Safetensors);
    let named = named.err().expect("an error").to_string();
    assert!(named.contains("split.count = 3"), "{named}");
    let _ = fs::remove_dir_all(&dir);
}

#[test]
fn a_converted_checkpoint_has_the_tensors_and_the_config_that_it_was_made_from() {
    for name in ["llama-llama3-tied", "qwen2-sharded-tied", "qwen3"] {
        let from = Checkpoint::open_dir(&goldens().join(name), LoadFormat::Safetensors).unwrap();
        let made = open(&format!("{name}.gguf"));
        assert_eq!(made.name, name);
        for (tensor, shape) in from.config.tensors() {
            let want = from.weights.get(&tensor, &shape).unwrap().to_f32();
            let got = made.weights.get(&tensor, &shape).unwrap().to_f32();
            assert_eq!(got, want, "{name}: {tensor}");
        }
        let (got, want) = (
            made.config.ropes[0].inverse_frequencies(0),
            from.config.ropes[0].inverse_frequencies(0),
        );
        for (got, want) in got.iter().zip(&want) {
            assert!(
                (got - want).abs() <= 1e-6 * want,
                "{name}: {got} is not {want}"
            );
        }
        let mut expected = from.config.clone();
        expected.ropes[0].scaling = made.config.ropes[0].scaling.clone();
        expected.torch_dtype = None;
        // These ids belong to the tokenizer, and these files have none.
        expected.bos_token_id = made.config.bos_token_id;
        expected.eos_token_ids = made.config.eos_token_ids.clone();
        assert_eq!(made.config, expected, "{name}");
        assert!(made.tokenizer.is_none());
    }
}

#[derive(Deserialize)]
struct Cases {
    encode: Vec<Case>,
}

#[derive(Debug, Deserialize)]
struct Case {
    text: String,
    ids: Vec<u32>,
    ids_with_special: Vec<u32>,
}

#[test]
fn every_model_has_the_architecture_of_its_converted_file() {
    for name in [
        "smollm3", "granite", "olmo2", "phi3", "gemma2", "gemma3", "mixtral", "qwen2moe",
        "qwen3moe", "gpt-oss",
    ] {
        let bytes = golden(&format!("{name}.gguf"));
        let file = Gguf::parse(&bytes).unwrap();
        let written = file.metadata.architecture().unwrap();
        let class = file.config().unwrap().architecture;
        assert_eq!(architecture_of(class), Some(written), "{name}");
    }
    for (name, expected) in [
        ("mistral-window", Some("llama")),
        ("qwen3", Some("qwen3")),
        ("gemma3-text-of-images", Some("gemma3")),
        ("granite4-nope", None),
    ] {
        let config = fs::read_to_string(goldens().join(name).join("config.json")).unwrap();
        let class = ModelConfig::from_json(&config).unwrap().architecture;
        assert_eq!(architecture_of(class), expected, "{name}");
    }
}

#[test]
fn tokenizers_encode_as_the_ones_that_they_were_made_from() {
    for (file, name) in [
        ("byte-level.gguf", "byte-level"),
        ("mixed.gguf", "sentencepiece"),
        ("gpt2.gguf", "gpt2"),
        ("digits.gguf", "digits"),
        ("o200k.gguf", "o200k"),
        ("pieces.gguf", "pieces"),
    ] {
        let bytes = golden(file);
        let files = Gguf::parse(&bytes).unwrap().tokenizer().unwrap().unwrap();
        let tokenizer =
            Tokenizer::from_json(&files.tokenizer, &files.config, &serde_json::Map::new()).unwrap();
        let cases = goldens().join("tokenizers").join(name).join("cases.json");
        let cases: Cases = serde_json::from_slice(&fs::read(cases).unwrap()).unwrap();
        for case in cases.encode {
            let ids = tokenizer.encode(&case.text, false).unwrap();
            assert_eq!(ids, case.ids, "{name} {case:?}");
            let ids = tokenizer.encode(&case.text, true).unwrap();
            assert_eq!(ids, case.ids_with_special, "{name} {case:?}");
            let back = tokenizer.decode(&case.ids, false).unwrap();
            // SentencePiece's mark of a space is a space afterwards. One of the tokenizers has no token for
            // a control character.
            match name {
                "sentencepiece" => {}
                "pieces" => assert_eq!(back, case.text.replace('▁', " "), "{name}"),
                _ => assert_eq!(back, case.text, "{name}"),
            }
        }
        // `<|endoftext|>` ends a generation as well, whatever token the file names.
        let ends: &[u32] = match name {
            "sentencepiece" => &[2],
            "pieces" => &[1],
            _ => &[0, 2],
        };
        assert_eq!(files.eos_token_ids, ends, "{name}");
    }
}

#[test]
fn the_end_of_a_message_in_harmony_ends_no_generation() {
    let ends = |tokens: &[&str]| {
        let file = File::default()
            .text("tokenizer.ggml.model", "gpt2")
            .text("tokenizer.ggml.pre", "gpt-4o")
            .texts("tokenizer.ggml.tokens", tokens)
            .integers("tokenizer.ggml.token_type", &vec![3; tokens.len()])
            .texts("tokenizer.ggml.merges", &[]);
        let bytes = file.bytes();
        let files = Gguf::parse(&bytes).unwrap().tokenizer().unwrap().unwrap();
        files.eos_token_ids
    };
    assert_eq!(ends(&["<|return|>", "<|end|>", "<|call|>"]), [0, 2]);
    assert_eq!(ends(&["<|end|>", "<|user|>"]), [0]);
}

#[test]
fn one_file_has_a_tokenizer_a_template_and_special_tokens() {
    let checkpoint = open("mixed.gguf");
    assert_eq!(checkpoint.eos_token_ids(), [2]);
    assert_eq!(checkpoint.tokenizer().unwrap().bos_id(), Some(1));
    assert_eq!(checkpoint.weights.dtype(), Some(Dtype::Bf16));
    let prompt = checkpoint.chat_template.unwrap();
    let prompt = prompt.render(crate::chat_template::ChatInput {
        messages: &serde_json::json!([{"role": "user", "content": "hi"}]),
        tools: None,
        add_generation_prompt: true,
        kwargs: &serde_json::Map::new(),
        quoting: None,
    });
    assert_eq!(prompt.as_deref(), Ok("<s>hi"));
}

#[test]
fn unsupported_values_are_named() {
    let error = File::default()
        .text("general.architecture", "mamba")
        .config_error();
    assert!(
        error.contains("\"mamba\"") && error.contains("qwen3"),
        "{error}"
    );
    assert!(error.contains("recurrent"), "{error}");
    let error = File::llama().number("llama.expert_count", 8).config_error();
    assert!(error.contains("llama.expert_used_count"), "{error}");
    let softcap = "llama.final_logit_softcapping";
    let error = File::llama().float(softcap, 30.0).config_error();
    assert!(error.contains("final_logit_softcapping = 30"), "{error}");
    let error = File::llama()
        .text("llama.rope.scaling.type", "longrope")
        .config_error();
    assert!(
        error.contains("longrope") && error.contains("yarn"),
        "{error}"
    );
    let error = File::default()
        .text("general.architecture", "qwen2")
        .config_error();
    assert!(
        error.contains("qwen2.attention.head_count is missing"),
        "{error}"
    );
    let config = {
        let bytes = File::llama().bytes();
        Gguf::parse(&bytes).unwrap().config().unwrap()
    };
    assert_eq!(
        (config.layers.len(), config.head_dim, config.vocab_size),
        (1, 4, 4)
    );

    let tokens = |model: &str| {
        File::default()
            .text("tokenizer.ggml.model", model)
            .texts("tokenizer.ggml.tokens", &["a", "b"])
    };
    let error = tokens("bert").tokenizer_error();
    assert!(
        error.contains("\"bert\"") && error.contains("gpt2"),
        "{error}"
    );
    let error = tokens("gpt2")
        .text("tokenizer.ggml.pre", "new")
        .tokenizer_error();
    assert!(
        error.contains("\"new\"") && error.contains("qwen2"),
        "{error}"
    );
    let error = tokens("gpt2").tokenizer_error();
    assert!(
        error.contains("tokenizer.ggml.merges is missing"),
        "{error}"
    );
    let error = tokens("llama")
        .numbers("tokenizer.ggml.scores", &[1.0])
        .tokenizer_error();
    assert!(
        error.contains("tokenizer.ggml.scores must be an array of 2"),
        "{error}"
    );
    let error = tokens("gpt2")
        .texts("tokenizer.ggml.merges", &["ab"])
        .tokenizer_error();
    assert!(
        error.contains("pairs of tokens") && error.contains("\"ab\""),
        "{error}"
    );
    let error = tokens("llama")
        .numbers("tokenizer.ggml.scores", &[0.0, 0.0])
        .number("tokenizer.ggml.bos_token_id", 2)
        .tokenizer_error();
    assert!(
        error.contains("bos_token_id must be below 2, got 2"),
        "{error}"
    );
}

#[test]
fn keys_of_families_are_checked() {
    let error = File::of("granite").config_error();
    assert!(error.contains("granite.embedding_scale"), "{error}");
    let error = File::of("gemma2").config_error();
    assert!(error.contains("gemma2.attention.sliding_window"), "{error}");
    let pattern = "gemma3.attention.sliding_window_pattern";
    let gemma = || File::of("gemma3").number("gemma3.attention.sliding_window", 4);
    let error = gemma().integers(pattern, &[1, 0]).config_error();
    assert!(error.contains("layer_types"), "{error}");
    let error = gemma().number(pattern, 0).config_error();
    assert!(error.contains(pattern), "{error}");
    let long = File::of("phi3")
        .tensor("rope_factors_long.weight", &[1], 0, 0)
        .tensor("rope_factors_short.weight", &[1], 0, 0);
    let error = long.config_error();
    assert!(error.contains("rope_factors_long.weight"), "{error}");
    let short = File::of("phi3").tensor("rope_factors_short.weight", &[1], 0, 0);
    let error = short.config_error();
    assert!(
        error.contains("rope_factors_long.weight is missing"),
        "{error}"
    );
    let error = File::of("olmo2").number("olmo2.attention.sliding_window", 4);
    let error = error.config_error();
    assert!(error.contains("olmo2.attention.sliding_window"), "{error}");
    let error = File::of("gpt-oss").config_error();
    assert!(error.contains("gpt-oss.expert_count"), "{error}");
    let cap = "gemma2.attn_logit_softcapping";
    let gemma = || File::of("gemma2").number("gemma2.attention.sliding_window", 4);
    let error = gemma().float(cap, f32::NAN).config_error();
    assert!(error.contains(cap) && error.contains("NaN"), "{error}");
    // A number that f32 does not have is not taken for an absent one.
    let error = gemma().key(cap, 12, &1e300_f64.to_le_bytes());
    let error = error.config_error();
    assert!(error.contains("attn_logit_softcapping"), "{error}");
    for architecture in ["llama", "qwen2moe", "qwen3moe"] {
        let key = |name: &str| format!("{architecture}.{name}");
        let experts = |count: u32, used: u32| {
            File::of(architecture)
                .number(&key("expert_count"), count)
                .number(&key("expert_used_count"), used)
                .config_error()
        };
        for (count, used) in [(4, 5), (4, 0), (5000, 2)] {
            let error = experts(count, used);
            assert!(error.contains("num_experts"), "{architecture}: {error}");
        }
    }
    let error = File::of("gemma4").config_error();
    assert!(error.contains("share keys and values"), "{error}");
}

#[test]
fn an_unknown_type_or_tensor_is_named() {
    let file = File::llama().tensor("blk.0.ffn_up.weight", &[8, 8], 21, 0);
    let bytes = file.bytes();
    let read = Gguf::parse(&bytes).unwrap();
    let config = read.config().unwrap();
    let tensors = read.into_tensors(&config).unwrap();
    let path = goldens().join("gguf/types.gguf");
    let map = crate::weights::map(&path).unwrap();
    let weights = Weights::from_files(vec![(path.clone(), map)], tensors);
    let error = weights.get("model.layers.0.mlp.up_proj.weight", &[8, 8]);
    let error = error.expect_err("an error").to_string();
    assert!(error.contains("IQ3_S") && error.contains("Q4_K"), "{error}");

    // Llama has no factors of LongRoPE.
    for name in ["output.bias", "rope_factors_long.weight"] {
        let bytes = File::llama().tensor(name, &[4], 0, 0).bytes();
        let read = Gguf::parse(&bytes).unwrap();
        let error = read.into_tensors(&config).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    }
}

#[test]
fn numbers_that_lie_about_the_file_are_errors() {
    let good = File::llama().bytes();
    assert!(Gguf::parse(&good).is_ok());
    assert!(parse_error(b"").contains("end of the file"));
    assert!(parse_error(b"GGML\x03\0\0\0").contains("\"GGUF\""));
    let mut old = good.clone();
    old[4] = 1;
    assert!(parse_error(&old).contains("version 1"));
    old[4..8].copy_from_slice(&3u32.to_be_bytes());
    assert!(parse_error(&old).contains("big-endian"));
    for count in [8, 16] {
        let mut many = good.clone();
        many[count..count + 8].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(
            parse_error(&many).contains("18446744073709551615"),
            "{count}"
        );
    }
    for length in (0..good.len()).step_by(3) {
        assert!(Gguf::parse(&good[..length]).is_err(), "cut at {length}");
    }

    let array = |kind: u32, count: u64| [&kind.to_le_bytes()[..], &count.to_le_bytes()].concat();
    let with = |kind: u32, value: &[u8]| File::default().key("a", kind, value).parse_error();
    assert!(with(9, &array(4, 1 << 62)).contains("4611686018427387904"));
    assert!(with(9, &array(8, 1 << 40)).contains("1099511627776"));
    assert!(with(9, &array(9, 1)).contains("array of arrays"));
    assert!(with(13, &[]).contains("no type 13"));
    assert!(with(8, &u64::MAX.to_le_bytes()).contains("beyond the end"));
    assert!(with(8, &[&2u64.to_le_bytes()[..], &[0xff, 0xfe]].concat()).contains("UTF-8"));
    let twice = File::default().number("a", 1).number("a", 1);
    assert!(twice.parse_error().contains("twice"));
    let error = File::default().number("general.alignment", 3).parse_error();
    assert!(error.contains("general.alignment"), "{error}");

    let with = |shape: &[u64], kind: u32, offset: u64| {
        let file = File::default().tensor("t", shape, kind, offset).data(64);
        file.parse_error()
    };
    assert!(with(&[17], 0, 0).contains("beyond the end"));
    assert!(with(&[1 << 40, 1 << 40], 0, 0).contains("too large"));
    assert!(with(&[u64::MAX], 0, 0).contains("too large"));
    assert!(with(&[u64::MAX / 32 * 32], 8, 0).contains("too large"));
    assert!(with(&[8], 0, u64::MAX - 31).contains("beyond the end"));
    assert!(with(&[8], 0, 8).contains("aligned"));
    assert!(with(&[33], 8, 0).contains("multiple of 32"));
    assert!(with(&[], 0, 0).contains("dimensions"));
    assert!(with(&[1; 5], 0, 0).contains("dimensions"));
}
