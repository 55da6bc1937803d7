//! Log-probabilities in the two forms of OpenAI's API.

use hearth_engine::logprobs::TokenLogprobs;
use hearth_engine::output::{Detokenize, TextOptions, TextStream, token_text};
use serde_json::{Map, Value, json};

use crate::generate::PieceToken;
use crate::numbers::finite;
use crate::openai::response::{Alternative, ChatLogprob, ChatLogprobs, CompletionLogprobs};

/// The form of chats.
pub fn chat(tokenizer: &dyn Detokenize, tokens: &[PieceToken]) -> ChatLogprobs {
    let alternative = |token, logprob| {
        let (text, bytes) = token_text(tokenizer, token);
        Alternative {
            token: text,
            logprob: finite(logprob),
            bytes,
        }
    };
    let content = tokens.iter().map(
        |PieceToken {
             logprobs, forced, ..
         }| ChatLogprob {
            chosen: alternative(logprobs.token, logprobs.logprob),
            top_logprobs: logprobs
                .top
                .iter()
                .map(|&(token, lp)| alternative(token, lp))
                .collect(),
            forced: *forced,
        },
    );
    ChatLogprobs {
        content: content.collect(),
        refusal: None,
    }
}

impl CompletionLogprobs {
    /// Appends output tokens. `before` is the length of an echoed prompt in characters.
    pub fn push_output(
        &mut self,
        tokenizer: &dyn Detokenize,
        tokens: &[PieceToken],
        before: usize,
    ) {
        for PieceToken {
            logprobs, offset, ..
        } in tokens
        {
            self.push(tokenizer, logprobs.token, Some(logprobs), before + offset);
        }
    }

    /// Appends the tokens of an echoed prompt.
    pub fn push_prompt(
        &mut self,
        tokenizer: &std::sync::Arc<dyn Detokenize>,
        prompt: &[u32],
        logprobs: &[Option<TokenLogprobs>],
    ) {
        let options = TextOptions::default();
        let mut text = TextStream::new(std::sync::Arc::clone(tokenizer), &[], &options);
        for (index, &id) in prompt.iter().enumerate() {
            let logprobs = logprobs.get(index).and_then(Option::as_ref);
            self.push(tokenizer.as_ref(), id, logprobs, text.offset());
            text.push(id);
        }
    }

    fn push(
        &mut self,
        tokenizer: &dyn Detokenize,
        id: u32,
        logprobs: Option<&TokenLogprobs>,
        offset: usize,
    ) {
        let (token, _) = token_text(tokenizer, id);
        let top = logprobs.map(|logprobs| {
            // As in OpenAI's API, the chosen token is always among the alternatives.
            let chosen = (logprobs.token, logprobs.logprob);
            let entry = |&(id, lp): &(u32, f32)| (token_text(tokenizer, id).0, json!(finite(lp)));
            logprobs
                .top
                .iter()
                .chain([&chosen])
                .map(entry)
                .collect::<Map<String, Value>>()
        });
        self.tokens.push(token);
        self.token_logprobs
            .push(logprobs.map(|logprobs| finite(logprobs.logprob)));
        self.top_logprobs.push(top);
        self.text_offset.push(offset);
    }
}
