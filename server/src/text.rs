//! Connects a checkpoint's tokenizer and chat template to the HTTP server.

use hearth_api::served::{ChatPrompt, TextCodec};
use hearth_engine::output::Detokenize;
use hearth_model::chat_template::{ChatInput, ChatTemplate, ChatTemplateError};
use hearth_model::tokenizer::Tokenizer;

/// The tokenizer and the chat template of a checkpoint.
pub struct ModelText {
    tokenizer: Tokenizer,
    /// If the template is missing or invalid, completions work and chats return this error.
    template: Result<ChatTemplate, ChatTemplateError>,
    /// Bytes of the longest token.
    max_token_bytes: usize,
    /// True if special tokens in the messages of a chat stay text.
    quote_messages: bool,
}

impl ModelText {
    /// With `quote_messages` special tokens in the messages of a chat stay text.
    pub fn new(
        tokenizer: Tokenizer,
        template: Result<ChatTemplate, ChatTemplateError>,
        quote_messages: bool,
    ) -> Self {
        let ids = 0..u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX);
        let longest = ids.map(|id| tokenizer.token_bytes(id).len()).max();
        Self {
            tokenizer,
            template,
            max_token_bytes: longest.unwrap_or(0).max(1),
            quote_messages,
        }
    }
}

impl Detokenize for ModelText {
    fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        self.tokenizer
            .decode(ids, skip_special)
            .unwrap_or_else(|error| {
                // Only possible with a damaged tokenizer.json. Falls back to the tokens' bytes.
                tracing::warn!(%error, "decoding failed");
                let shown = ids
                    .iter()
                    .filter(|&&id| !(skip_special && self.is_special(id)));
                let bytes: Vec<u8> = shown.flat_map(|&id| self.token_bytes(id)).collect();
                String::from_utf8_lossy(&bytes).into_owned()
            })
    }

    fn token_bytes(&self, id: u32) -> Vec<u8> {
        self.tokenizer.token_bytes(id).to_vec()
    }

    fn is_special(&self, id: u32) -> bool {
        self.tokenizer.is_special(id)
    }
}

impl TextCodec for ModelText {
    fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, String> {
        self.tokenizer
            .encode(text, add_special)
            .map_err(|error| error.to_string())
    }

    fn encode_chat(&self, text: &str, add_special: bool) -> Result<Vec<u32>, String> {
        if !self.quote_messages {
            return self.encode(text, add_special);
        }
        self.tokenizer
            .encode_quoted(text, add_special)
            .map_err(|error| error.to_string())
    }

    fn encode_literally(&self, text: &str, add_special: bool) -> Result<Vec<u32>, String> {
        let quoted = self.tokenizer.quoting().quote(text);
        self.tokenizer
            .encode_quoted(&quoted, add_special)
            .map_err(|error| error.to_string())
    }

    fn max_token_bytes(&self) -> usize {
        self.max_token_bytes
    }

    fn can_chat(&self) -> bool {
        self.template.is_ok()
    }

    fn render_chat(&self, chat: &ChatPrompt<'_>) -> Result<String, String> {
        let template = self.template.as_ref().map_err(ToString::to_string)?;
        let input = ChatInput {
            messages: chat.messages,
            tools: chat.tools,
            add_generation_prompt: chat.add_generation_prompt,
            kwargs: chat.kwargs,
            quoting: self.quote_messages.then(|| self.tokenizer.quoting()),
        };
        template.render(input).map_err(|error| error.to_string())
    }
}

/// Replaces the tokenizer of a model with random weights, which was made from its configuration
/// alone. Prompts are token ids, and the text of a token is its id.
pub struct IdText;

impl Detokenize for IdText {
    fn decode(&self, ids: &[u32], _skip_special: bool) -> String {
        ids.iter().map(|id| format!("<{id}>")).collect()
    }

    fn token_bytes(&self, id: u32) -> Vec<u8> {
        self.decode(&[id], false).into_bytes()
    }

    fn is_special(&self, _id: u32) -> bool {
        false
    }
}

impl TextCodec for IdText {
    fn encode(&self, _text: &str, _add_special: bool) -> Result<Vec<u32>, String> {
        Err("this model has no tokenizer; give the prompt as token ids".to_owned())
    }

    fn encode_literally(&self, text: &str, add_special: bool) -> Result<Vec<u32>, String> {
        self.encode(text, add_special)
    }

    fn max_token_bytes(&self) -> usize {
        "<4294967295>".len()
    }

    fn can_chat(&self) -> bool {
        false
    }

    fn render_chat(&self, _chat: &ChatPrompt<'_>) -> Result<String, String> {
        Err("this model has no chat template; use /v1/completions".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_tokenizer_the_text_of_a_token_is_its_id() {
        assert_eq!(IdText.decode(&[7, 12], true), "<7><12>");
        assert_eq!(IdText.token_bytes(u32::MAX).len(), IdText.max_token_bytes());
        assert!(IdText.encode("a", true).unwrap_err().contains("token ids"));
    }
}
