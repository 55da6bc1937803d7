//! `tokenizer.ggml.*` as a `tokenizer.json` and a `tokenizer_config.json`.

use std::collections::HashMap;

use serde_json::{Map, Value as Json, json};

use super::error::GgufError;
use super::metadata::{Metadata, Value};
use super::pre_tokenizer::PreTokenizer;

const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";
const MODEL: &str = "tokenizer.ggml.model";
/// Longest token of a SentencePiece vocabulary, in bytes. It is bounded because every way to split
/// a token is tried.
const MAX_PIECE: usize = 1 << 10;

/// The parts of a tokenizer in Hugging Face's format.
pub struct TokenizerFiles {
    /// `tokenizer.json`
    pub tokenizer: Vec<u8>,
    /// `tokenizer_config.json`: special tokens and chat templates.
    pub config: Map<String, Json>,
    /// Tokens that end a generation.
    pub eos_token_ids: Vec<u32>,
}

/// Control tokens that end a turn in the families that are supported.
const END_OF_GENERATION: [&str; 12] = [
    "</s>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
];

/// `tokenizer.ggml.token_type`
mod token_type {
    pub const NORMAL: u64 = 1;
    pub const UNKNOWN: u64 = 2;
    pub const CONTROL: u64 = 3;
    pub const USER_DEFINED: u64 = 4;
    /// Padding up to the size of the embedding.
    pub const UNUSED: u64 = 5;
}

/// The whole vocabulary.
struct Vocabulary<'a> {
    tokens: Vec<&'a str>,
    types: Vec<u64>,
    ids: HashMap<&'a str, usize>,
}

pub(super) fn convert(metadata: &Metadata<'_>) -> Result<Option<TokenizerFiles>, GgufError> {
    let Some(model) = metadata.text(MODEL)? else {
        return Ok(None);
    };
    if model == "no_vocab" || model == "none" {
        return Ok(None);
    }
    let vocabulary = Vocabulary::read(metadata)?;
    let (mut tokenizer, adds_bos) = match model {
        "gpt2" => byte_level(metadata, &vocabulary)?,
        "llama" => sentencepiece(metadata, &vocabulary)?,
        other => {
            return Err(GgufError::Unsupported {
                key: MODEL.to_owned(),
                given: format!("{:?}", other.chars().take(80).collect::<String>()),
                supported: "gpt2, llama".to_owned(),
            });
        }
    };
    tokenizer.insert("version".to_owned(), json!("1.0"));
    tokenizer.insert("added_tokens".to_owned(), vocabulary.added());
    let special = Special::read(metadata, &vocabulary)?;
    tokenizer.insert(
        "post_processor".to_owned(),
        special.template(metadata, adds_bos)?,
    );
    let mut config = special.config();
    if let Some(template) = chat_template(metadata)? {
        config.insert("chat_template".to_owned(), template);
    }
    Ok(Some(TokenizerFiles {
        tokenizer: Json::Object(tokenizer).to_string().into_bytes(),
        config,
        eos_token_ids: end_of_generation(metadata, &vocabulary)?,
    }))
}

impl<'a> Vocabulary<'a> {
    fn read(metadata: &Metadata<'a>) -> Result<Self, GgufError> {
        let tokens = metadata.required(TOKENS, Metadata::texts)?;
        let types = match metadata.array(TYPES)? {
            None => vec![token_type::NORMAL; tokens.len()],
            Some(types) if types.count == tokens.len() => types
                .values()
                .map(Value::integer)
                .collect::<Option<_>>()
                .ok_or_else(|| metadata.invalid(TYPES, "an array of integers"))?,
            Some(_) => {
                return Err(metadata.invalid(TYPES, format!("an array of {}", tokens.len())));
            }
        };
        // If two tokens have the same text, the text is encoded as the first.
        let mut ids = HashMap::with_capacity(tokens.len());
        for (id, token) in tokens.iter().enumerate() {
            if types[id] != token_type::UNUSED {
                ids.entry(*token).or_insert(id);
            }
        }
        Ok(Self { tokens, types, ids })
    }

    /// `vocab` of `tokenizer.json`.
    fn map(&self) -> Map<String, Json> {
        let mut ids: Vec<(&str, usize)> = self.ids.iter().map(|(t, id)| (*t, *id)).collect();
        ids.sort_unstable_by_key(|(_, id)| *id);
        ids.into_iter()
            .map(|(token, id)| (token.to_owned(), json!(id)))
            .collect()
    }

    /// The tokens that are searched for in a text before it is split.
    fn added(&self) -> Json {
        let added = self.tokens.iter().zip(&self.types).enumerate();
        added
            .filter_map(|(id, (token, kind))| {
                let special = match *kind {
                    token_type::CONTROL | token_type::UNKNOWN => true,
                    token_type::USER_DEFINED => false,
                    _ => return None,
                };
                let known = self.ids.get(token) == Some(&id) && !token.is_empty();
                known.then(|| {
                    json!({
                        "id": id, "content": token, "special": special, "normalized": false,
                        "single_word": false, "lstrip": false, "rstrip": false,
                    })
                })
            })
            .collect()
    }

    fn unknown(&self) -> Option<&'a str> {
        let at = self.types.iter().position(|t| *t == token_type::UNKNOWN)?;
        Some(self.tokens[at])
    }
}

/// A `tokenizer.json` without its special tokens, and whether a text begins with BOS by default.
type Made = (Map<String, Json>, bool);

fn object(value: Json) -> Map<String, Json> {
    match value {
        Json::Object(map) => map,
        _ => Map::new(),
    }
}

/// BPE over bytes, as in GPT-2.
fn byte_level(metadata: &Metadata<'_>, vocabulary: &Vocabulary<'_>) -> Result<Made, GgufError> {
    let name = match metadata.text("tokenizer.ggml.pre")? {
        Some(name) => name,
        None => {
            tracing::warn!("the file has no tokenizer.ggml.pre: text is cut the default way");
            "default"
        }
    };
    let pre_tokenizer = PreTokenizer::named(name)?;
    let merges = metadata.required(MERGES, Metadata::texts)?;
    let merges = merges
        .into_iter()
        .map(|merge| {
            // No token begins with a space in practice, because spaces are spelled as another
            // character.
            let split = merge.char_indices().skip(1).find(|(_, c)| *c == ' ');
            let (at, _) = split.ok_or_else(|| GgufError::Invalid {
                key: MERGES.to_owned(),
                bound: "pairs of tokens".to_owned(),
                given: format!("{:?}", merge.chars().take(80).collect::<String>()),
            })?;
            Ok(json!([merge[..at], merge[at + 1..]]))
        })
        .collect::<Result<Vec<_>, GgufError>>()?;
    let mut cuts: Vec<Json> = pre_tokenizer
        .patterns
        .iter()
        .map(|pattern| {
            json!({
                "type": "Split", "pattern": {"Regex": pattern},
                "behavior": "Isolated", "invert": false,
            })
        })
        .collect();
    let bytes = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false,
    });
    cuts.push(bytes.clone());
    let made = json!({
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": cuts},
        "decoder": bytes,
        "model": {
            "type": "BPE", "byte_fallback": false, "fuse_unk": false,
            "ignore_merges": pre_tokenizer.ignore_merges,
            "vocab": vocabulary.map(), "merges": merges,
        },
    });
    Ok((object(made), pre_tokenizer.add_bos))
}

/// SentencePiece's BPE, which first merges the pair of neighbours that makes the token of the
/// highest score. As merges, that is every way to split a token into two others, best token first.
fn sentencepiece(metadata: &Metadata<'_>, vocabulary: &Vocabulary<'_>) -> Result<Made, GgufError> {
    let scores = metadata.required(SCORES, Metadata::numbers)?;
    let tokens = &vocabulary.tokens;
    if scores.len() != tokens.len() {
        return Err(metadata.invalid(SCORES, format!("an array of {}", tokens.len())));
    }
    let mut merges = Vec::new();
    for (id, token) in tokens.iter().enumerate() {
        if vocabulary.types[id] != token_type::NORMAL || vocabulary.ids.get(token) != Some(&id) {
            continue;
        }
        if token.len() > MAX_PIECE {
            return Err(GgufError::Invalid {
                key: TOKENS.to_owned(),
                bound: format!("of at most {MAX_PIECE} bytes each"),
                given: format!("{} bytes", token.len()),
            });
        }
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if let (Some(l), Some(r)) = (vocabulary.ids.get(left), vocabulary.ids.get(right)) {
                merges.push((scores[id], (*l, *r)));
            }
        }
    }
    // Among equal scores, the longer left part comes first, as in transformers' converter.
    merges.sort_unstable_by(|(a, (left_a, right_a)), (b, (left_b, right_b))| {
        let length = |id: usize| tokens[id].chars().count();
        b.total_cmp(a)
            .then_with(|| length(*left_b).cmp(&length(*left_a)))
            .then_with(|| length(*right_b).cmp(&length(*right_a)))
            .then_with(|| (left_a, right_a).cmp(&(left_b, right_b)))
    });
    let merges: Vec<Json> = merges
        .into_iter()
        .map(|(_, (left, right))| json!([tokens[left], tokens[right]]))
        .collect();
    let prefixed = metadata
        .boolean("tokenizer.ggml.add_space_prefix")?
        .unwrap_or(true);
    let mut normalizers = vec![json!({
        "type": "Replace", "pattern": {"String": " "}, "content": "▁",
    })];
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefixed {
        normalizers.insert(0, json!({"type": "Prepend", "prepend": "▁"}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    let made = json!({
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE", "byte_fallback": true, "fuse_unk": true, "ignore_merges": false,
            "unk_token": vocabulary.unknown(),
            "vocab": vocabulary.map(), "merges": merges,
        },
    });
    Ok((object(made), true))
}

/// BOS, EOS and the others that the file names.
struct Special<'a> {
    named: Vec<(&'static str, u64, &'a str)>,
}

impl<'a> Special<'a> {
    fn read(metadata: &Metadata<'a>, vocabulary: &Vocabulary<'a>) -> Result<Self, GgufError> {
        const NAMES: [(&str, &str); 4] = [
            ("bos_token", "tokenizer.ggml.bos_token_id"),
            ("eos_token", "tokenizer.ggml.eos_token_id"),
            ("unk_token", "tokenizer.ggml.unknown_token_id"),
            ("pad_token", "tokenizer.ggml.padding_token_id"),
        ];
        let mut named = Vec::new();
        for (name, key) in NAMES {
            let Some(id) = metadata.count(key)? else {
                continue;
            };
            let token = usize::try_from(id)
                .ok()
                .and_then(|id| vocabulary.tokens.get(id))
                .ok_or_else(|| {
                    metadata.invalid(key, format!("below {}", vocabulary.tokens.len()))
                })?;
            named.push((name, id, *token));
        }
        Ok(Self { named })
    }

    fn get(&self, name: &str) -> Option<(u64, &'a str)> {
        let (_, id, token) = self.named.iter().find(|(other, ..)| *other == name)?;
        Some((*id, token))
    }

    /// `tokenizer_config.json`
    fn config(&self) -> Map<String, Json> {
        self.named
            .iter()
            .map(|(name, _, token)| ((*name).to_owned(), json!(token)))
            .collect()
    }

    /// The post-processor, which adds BOS and EOS to every text.
    fn template(&self, metadata: &Metadata<'_>, adds_bos: bool) -> Result<Json, GgufError> {
        let asked = |key: &str, unasked: bool, name: &str| {
            let asked = metadata.boolean(key)?;
            match (asked, self.get(name)) {
                (Some(true), None) => Err(GgufError::Missing {
                    key: format!("the id of {name}, which {key} asks for,"),
                }),
                (asked, token) => Ok(token.filter(|_| asked.unwrap_or(unasked))),
            }
        };
        let bos = asked("tokenizer.ggml.add_bos_token", adds_bos, "bos_token")?;
        let eos = asked("tokenizer.ggml.add_eos_token", false, "eos_token")?;
        if bos.is_none() && eos.is_none() {
            return Ok(Json::Null);
        }
        let around = |part: &str| {
            let special = |token: Option<(u64, &str)>| {
                token.map(|(_, token)| json!({"SpecialToken": {"id": token, "type_id": 0}}))
            };
            let text = json!({"Sequence": {"id": part, "type_id": 0}});
            [special(bos), Some(text), special(eos)]
                .into_iter()
                .flatten()
        };
        let tokens: Map<String, Json> = [bos, eos]
            .into_iter()
            .flatten()
            .map(|(id, token)| {
                let entry = json!({"id": token, "ids": [id], "tokens": [token]});
                (token.to_owned(), entry)
            })
            .collect();
        Ok(json!({
            "type": "TemplateProcessing",
            "single": around("A").collect::<Vec<_>>(),
            "pair": around("A").chain(around("B")).collect::<Vec<_>>(),
            "special_tokens": tokens,
        }))
    }
}

/// Tokens that end a generation. Files name one of them; the others are found by their text.
fn end_of_generation(
    metadata: &Metadata<'_>,
    vocabulary: &Vocabulary<'_>,
) -> Result<Vec<u32>, GgufError> {
    let mut ids = Vec::new();
    for name in ["eos", "eot", "eom"] {
        let key = format!("tokenizer.ggml.{name}_token_id");
        ids.extend(metadata.count(&key)?.and_then(|id| u32::try_from(id).ok()));
    }
    let control = vocabulary.tokens.iter().zip(&vocabulary.types).enumerate();
    let ends: Vec<(u32, &str)> = control
        .filter(|(_, (token, kind))| {
            **kind == token_type::CONTROL && END_OF_GENERATION.contains(token)
        })
        .map(|(id, (token, _))| (id as u32, *token))
        .collect();
    // In the harmony format it ends a message, and another one follows.
    let has = |token| ends.iter().any(|(_, end)| *end == token);
    let within = (has("<|return|>") && has("<|call|>")).then_some("<|end|>");
    ids.extend(
        ends.iter()
            .filter(|(_, end)| Some(*end) != within)
            .map(|(id, _)| *id),
    );
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

/// `chat_template` of `tokenizer_config.json`: one template, or several with names.
fn chat_template(metadata: &Metadata<'_>) -> Result<Option<Json>, GgufError> {
    let key = "tokenizer.chat_template";
    let default = metadata.text(key)?;
    let Some(names) = metadata.texts("tokenizer.chat_templates")? else {
        return Ok(default.map(|template| json!(template)));
    };
    let mut templates: Vec<Json> = default
        .into_iter()
        .map(|template| json!({"name": "default", "template": template}))
        .collect();
    for name in names {
        let template = metadata.required(&format!("{key}.{name}"), Metadata::text)?;
        templates.push(json!({"name": name, "template": template}));
    }
    Ok(Some(Json::Array(templates)))
}
