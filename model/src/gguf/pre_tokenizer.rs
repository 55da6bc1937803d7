//! How text is split before byte-level BPE, by the name in `tokenizer.ggml.pre`.
//!
//! The patterns are those of the models' own `tokenizer.json`, from which llama.cpp derives its own
//! (`src/llama-vocab.cpp`).

use super::error::GgufError;

/// One way to split text.
pub(super) struct PreTokenizer {
    /// Applied one after another, each to the pieces of the previous one.
    pub patterns: &'static [&'static str],
    /// A piece that is a token is not merged from its bytes.
    pub ignore_merges: bool,
    /// The model expects BOS before a text, unless the file says otherwise.
    pub add_bos: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
const DEEPSEEK_LETTERS: &str = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";
const DEEPSEEK_MARKS: &str = r"\s?[!-/:-~！-／：-～‘-‟　-。]+";
const DEEPSEEK_CJK: &str = "[一-龥ࠀ-一가-퟿]+";
const DIGIT: &str = r"\p{N}";

/// Names and their meaning. A file without a name has `default`.
const KNOWN: [(&[&str], PreTokenizer); 11] = [
    (
        &["default"],
        PreTokenizer {
            patterns: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
            ignore_merges: false,
            add_bos: false,
        },
    ),
    (
        &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
        ],
        PreTokenizer {
            patterns: &[LLAMA3],
            ignore_merges: true,
            add_bos: true,
        },
    ),
    (
        &["dbrx", "smaug-bpe", "chatglm-bpe"],
        PreTokenizer {
            patterns: &[LLAMA3],
            ignore_merges: false,
            add_bos: false,
        },
    ),
    (
        &[
            "qwen2",
            "deepseek-r1-qwen",
            "megrez",
            "stablelm2",
            "hunyuan",
            "kormo",
        ],
        PreTokenizer {
            patterns: &[QWEN2],
            ignore_merges: false,
            add_bos: false,
        },
    ),
    (
        &[
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "exaone4",
            "gigachat",
            "mellum",
            "granite-docling",
        ],
        PreTokenizer {
            patterns: &[GPT2],
            ignore_merges: false,
            add_bos: false,
        },
    ),
    (
        &[
            "smollm",
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
        ],
        PreTokenizer {
            patterns: &[DIGIT, GPT2],
            ignore_merges: false,
            add_bos: false,
        },
    ),
    (
        &["gpt-4o", "llama4", "kanana2"],
        PreTokenizer {
            patterns: &[O200K],
            ignore_merges: false,
            add_bos: false,
        },
    ),
    (
        &["tekken"],
        PreTokenizer {
            patterns: &[TEKKEN],
            ignore_merges: true,
            add_bos: true,
        },
    ),
    (
        &["deepseek-llm"],
        PreTokenizer {
            patterns: &[
                r"[\r\n]",
                DEEPSEEK_LETTERS,
                DEEPSEEK_MARKS,
                r"\s+$",
                DEEPSEEK_CJK,
                r"\p{N}+",
            ],
            ignore_merges: false,
            add_bos: false,
        },
    ),
    (
        &["deepseek-coder"],
        PreTokenizer {
            patterns: &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_CJK, DIGIT],
            ignore_merges: false,
            add_bos: false,
        },
    ),
    (
        &["deepseek-v3"],
        PreTokenizer {
            patterns: &[r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK3],
            ignore_merges: false,
            add_bos: false,
        },
    ),
];

impl PreTokenizer {
    /// # Errors
    /// [`GgufError::Unsupported`] with the names that are supported.
    pub fn named(name: &str) -> Result<&'static Self, GgufError> {
        KNOWN
            .iter()
            .find(|(names, _)| names.contains(&name))
            .map(|(_, pre_tokenizer)| pre_tokenizer)
            .ok_or_else(|| GgufError::Unsupported {
                key: "tokenizer.ggml.pre".to_owned(),
                given: format!("{:?}", name.chars().take(80).collect::<String>()),
                supported: KNOWN.map(|(names, _)| names.join(", ")).join(", "),
            })
    }
}
