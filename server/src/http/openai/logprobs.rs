//! Log-probabilities in the two shapes of OpenAI's API.

use hearth_engine::logprobs::TokenLogprobs;
use hearth_engine::output::{Detokenize, TextOptions, TextStream, token_text};
use serde_json::{Map, Value, json};

use super::response::{Alternative, ChatLogprob, ChatLogprobs, CompletionLogprobs};
use crate::http::generate::PieceToken;

/// JSON has no -inf; OpenAI writes this for "practically never".
const IMPOSSIBLE: f32 = -9999.0;

/// `logprob` as JSON can write it.
pub fn finite(logprob: f32) -> f32 {
    logprob.max(IMPOSSIBLE)
}

/// The chat shape.
pub fn chat(tokenizer: &dyn Detokenize, tokens: &[PieceToken]) -> ChatLogprobs {
    let alternative = |token, logprob| {
        let (text, bytes) = token_text(tokenizer, token);
        Alternative {
            token: text,
            logprob: finite(logprob),
            bytes,
        }
    };
    let content = tokens
        .iter()
        .map(|PieceToken { logprobs, .. }| ChatLogprob {
            chosen: alternative(logprobs.token, logprobs.logprob),
            top_logprobs: logprobs
                .top
                .iter()
                .map(|&(token, lp)| alternative(token, lp))
                .collect(),
        });
    ChatLogprobs {
        content: content.collect(),
        refusal: None,
    }
}

impl CompletionLogprobs {
    /// Appends output tokens; `before` is the length in characters of what the
    /// choice's text begins with in front of the output.
    pub fn push_output(
        &mut self,
        tokenizer: &dyn Detokenize,
        tokens: &[PieceToken],
        before: usize,
    ) {
        for PieceToken { logprobs, offset } in tokens {
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
            // The chosen token is always among them, as with OpenAI.
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
