//! The byte-level BPE tokenizer of `hearth-tiny`, trained on the corpus, and how a conversation
//! becomes token ids.
//!
//! Two choices in the pre-tokenizer are made for a small model. Every digit is a token of its
//! own, so that sums are columns. A capitalised word is split from the space before it, so that
//! a name in a text and the same name in JSON are the same tokens: copying is then only copying.

use anyhow::{Result, anyhow};
use serde_json::{Value, json};
use tokenizers::decoders::byte_level::ByteLevel;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split as SplitBy, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior, Tokenizer};

use crate::corpus::mixture::BROAD;
use crate::corpus::{self, Conversation, Split};

pub const PAD: &str = "<|pad|>";
pub const START: &str = "<|im_start|>";
pub const END: &str = "<|im_end|>";
/// Ids of the special tokens: the trainer numbers them first, in this order.
pub const PAD_ID: u32 = 0;
pub const START_ID: u32 = 1;
pub const END_ID: u32 = 2;

pub const VOCAB_SIZE: usize = 1536;
/// Corpus seed and number of conversations that the tokenizer is trained on.
const SEED: u64 = 1;
const CONVERSATIONS: u64 = 12_000;

/// In order: English contractions, lower-case words with their space, capitalised words without it,
/// single digits, punctuation with its space, white space.
const PATTERN: &str = r"'(?:s|t|re|ve|m|ll|d)| ?[\p{Ll}\p{Lo}\p{Lm}\p{M}]+|\p{Lu}+[\p{Ll}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s";

/// ChatML, written for this model: system messages are optional, content may be a list of parts.
pub const CHAT_TEMPLATE: &str = "\
{%- for message in messages -%}
    {%- if message['content'] is string -%}
        {%- set text = message['content'] -%}
    {%- else -%}
        {%- set parts = namespace(text='') -%}
        {%- for part in message['content'] or [] if part['type'] == 'text' -%}
            {%- set parts.text = parts.text + part['text'] -%}
        {%- endfor -%}
        {%- set text = parts.text -%}
    {%- endif -%}
    {{- '<|im_start|>' + message['role'] + '\\n' + text | trim + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
";

/// Trains the tokenizer; the result is a function of the constants of this file and the corpus.
pub fn train() -> Result<Tokenizer> {
    let special = [PAD, START, END].map(|token| AddedToken::from(token, true));
    let split = SplitBy::new(
        SplitPattern::Regex(PATTERN.to_owned()),
        SplitDelimiterBehavior::Isolated,
        false,
    )
    .map_err(|e| anyhow!("tokenizer pattern: {e}"))?;
    let byte_level = ByteLevel::new(false, true, false);
    let mut tokenizer = Tokenizer::new(BPE::default());
    tokenizer
        .with_pre_tokenizer(Some(Sequence::new(vec![
            PreTokenizerWrapper::Split(split),
            PreTokenizerWrapper::ByteLevel(byte_level),
        ])))
        .with_decoder(Some(ByteLevel::new(true, true, false)));
    let mut trainer: TrainerWrapper = BpeTrainer::builder()
        .vocab_size(VOCAB_SIZE)
        .min_frequency(2)
        .show_progress(false)
        .special_tokens(special.to_vec())
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .build()
        .into();
    let texts = (0..CONVERSATIONS).flat_map(|index| {
        let conversation = corpus::conversation(&BROAD, SEED, Split::Train, index);
        conversation.messages().into_iter().map(|m| m.content)
    });
    let roles = (0..CONVERSATIONS).flat_map(|_| {
        ["system\n", "user\n", "assistant\n"]
            .into_iter()
            .map(str::to_owned)
    });
    let texts: Vec<String> = texts.chain(roles).collect();
    tokenizer
        .train(&mut trainer, texts.into_iter())
        .map_err(|e| anyhow!("BPE training: {e}"))?;
    Ok(tokenizer)
}

/// Token ids of a conversation; `learn[i]` says whether id `i` is a part of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    pub ids: Vec<u32>,
    pub learn: Vec<bool>,
}

/// Encodes chat text for training and evaluation.
pub struct Encoder {
    tokenizer: Tokenizer,
}

impl Encoder {
    pub fn from_json(json: &str) -> Result<Self> {
        let tokenizer = json
            .parse::<Tokenizer>()
            .map_err(|e| anyhow!("tokenizer.json: {e}"))?;
        Ok(Self { tokenizer })
    }

    pub fn vocab_size(&self) -> usize {
        self.tokenizer.get_vocab_size(true)
    }

    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let encoding = self
            .tokenizer
            .encode_fast(text, false)
            .map_err(|e| anyhow!("encode: {e}"))?;
        Ok(encoding.get_ids().to_vec())
    }

    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.tokenizer
            .decode(ids, true)
            .map_err(|e| anyhow!("decode: {e}"))
    }

    /// The whole conversation as the chat template renders it. The answers and their ends are
    /// learnt.
    pub fn conversation(&self, conversation: &Conversation) -> Result<Encoded> {
        let mut encoded = Encoded {
            ids: Vec::new(),
            learn: Vec::new(),
        };
        let mut push = |ids: &[u32], learn: bool| {
            encoded.ids.extend_from_slice(ids);
            encoded.learn.extend(std::iter::repeat_n(learn, ids.len()));
        };
        if let Some(system) = &conversation.system {
            push(
                &self.encode(&format!("{START}system\n{system}{END}\n"))?,
                false,
            );
        }
        for turn in &conversation.turns {
            push(
                &self.encode(&format!(
                    "{START}user\n{}{END}\n{START}assistant\n",
                    turn.user
                ))?,
                false,
            );
            push(&self.encode(&turn.assistant)?, true);
            push(&[END_ID], true);
            push(&self.encode("\n")?, false);
        }
        Ok(encoded)
    }

    /// The prompt up to where the last answer begins, and that answer's ids with their end.
    pub fn last_answer(&self, conversation: &Conversation) -> Result<(Vec<u32>, Vec<u32>)> {
        let encoded = self.conversation(conversation)?;
        let last = conversation
            .turns
            .last()
            .map_or("", |turn| turn.assistant.as_str());
        let mut answer = self.encode(last)?;
        answer.push(END_ID);
        // The line break that closes every turn is one token.
        let prompt = encoded.ids.len() - answer.len() - 1;
        Ok((encoded.ids[..prompt].to_vec(), answer))
    }
}

/// The tokenizer_config.json of the model, with the chat template.
pub fn tokenizer_config(max_length: usize) -> Value {
    let added = |content: &str| {
        json!({
            "content": content, "lstrip": false, "normalized": false, "rstrip": false,
            "single_word": false, "special": true,
        })
    };
    json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": false,
        "add_eos_token": false,
        "added_tokens_decoder": {
            PAD_ID.to_string(): added(PAD),
            START_ID.to_string(): added(START),
            END_ID.to_string(): added(END),
        },
        "bos_token": null,
        "eos_token": END,
        "pad_token": PAD,
        "unk_token": null,
        "clean_up_tokenization_spaces": false,
        "model_max_length": max_length,
        "chat_template": CHAT_TEMPLATE,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus::{Task, Turn};

    fn encoder() -> Encoder {
        Encoder::from_json(crate::TOKENIZER_JSON).expect("the committed tokenizer loads")
    }

    #[test]
    fn the_committed_tokenizer_is_the_one_that_the_corpus_gives() {
        let json = train()
            .expect("trains")
            .to_string(true)
            .expect("serialises");
        assert!(
            json == crate::TOKENIZER_JSON,
            "run `hearth-train tokenizer`"
        );
    }

    #[test]
    fn text_survives_a_round_trip() {
        let encoder = encoder();
        let texts = [
            "Extract: Anna is 34.\n\n{\"name\": \"Zørvik\"}",
            "  two  spaces ",
            "émoji 🦊 日本",
            "\t\r\n",
        ];
        for text in texts {
            assert_eq!(
                encoder.decode(&encoder.encode(text).unwrap()).unwrap(),
                text
            );
        }
        for i in 0..2_000 {
            for message in corpus::conversation(&BROAD, 9, Split::HeldOut, i).messages() {
                let ids = encoder.encode(&message.content).unwrap();
                assert_eq!(encoder.decode(&ids).unwrap(), message.content);
            }
        }
    }

    #[test]
    fn digits_are_single_tokens_and_names_are_the_same_tokens_everywhere() {
        let encoder = encoder();
        assert_eq!(encoder.encode("1234").unwrap().len(), 4);
        let name = encoder.encode("Xulvortham").unwrap();
        for text in [" Xulvortham lives", "\"Xulvortham\"", "\nXulvortham"] {
            let ids = encoder.encode(text).unwrap();
            assert!(ids.windows(name.len()).any(|w| w == name), "{text}");
        }
    }

    #[test]
    fn only_answers_and_their_ends_are_learnt() {
        let encoder = encoder();
        let turn = |user: &str, assistant: &str| Turn {
            task: Task::Chat,
            user: user.to_owned(),
            assistant: assistant.to_owned(),
        };
        let conversation = Conversation {
            system: Some("Be kind.".to_owned()),
            turns: vec![turn("Hi", "Hello!"), turn("What is 1 + 2?", "1 + 2 = 3.")],
        };
        let encoded = encoder.conversation(&conversation).unwrap();
        let learnt: Vec<u32> = (0..encoded.ids.len())
            .filter(|&i| encoded.learn[i])
            .map(|i| encoded.ids[i])
            .collect();
        let mut expected = encoder.encode("Hello!").unwrap();
        expected.push(END_ID);
        expected.extend(encoder.encode("1 + 2 = 3.").unwrap());
        expected.push(END_ID);
        assert_eq!(learnt, expected);

        let (prompt, answer) = encoder.last_answer(&conversation).unwrap();
        assert_eq!(prompt, encoded.ids[..prompt.len()]);
        assert_eq!(answer, encoded.ids[prompt.len()..encoded.ids.len() - 1]);
        let assistant = encoder.encode("assistant\n").unwrap();
        assert_eq!(prompt[prompt.len() - assistant.len()..], assistant);
    }

    #[test]
    fn the_special_tokens_have_their_ids() {
        let encoder = encoder();
        assert_eq!(
            encoder.encode("<|pad|><|im_start|><|im_end|>").unwrap(),
            [PAD_ID, START_ID, END_ID]
        );
        assert_eq!(encoder.vocab_size(), VOCAB_SIZE);
    }
}
