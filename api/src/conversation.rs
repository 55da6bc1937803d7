//! From a conversation to the tokens of its prompt.

use serde_json::{Map, Value};

use crate::error::{ApiError, out_of_bounds};
use crate::fields::messages::MAX_MESSAGES;
use crate::reasoning::Begin;
use crate::served::{ChatPrompt, Served};
use crate::{content, exchange, prompt};

/// Marks where the last message ends in the rendered text. Its characters are for private use, and
/// no message has them.
const END: &str = "\u{f8ff}hearth-continues-here\u{f8ff}";

/// Each message is at least one token. Rendering more messages than fit would take half a gigabyte
/// for ten megabytes of tiny messages.
///
/// # Errors
/// 400 for more messages than the context has tokens.
pub fn refuse_too_many(served: &Served, messages: usize) -> Result<(), ApiError> {
    let context = served.context();
    if messages > MAX_MESSAGES {
        let bound = format!("at most {MAX_MESSAGES} messages");
        return Err(out_of_bounds("messages", &bound, messages));
    }
    if messages <= context {
        return Ok(());
    }
    let message =
        format!("`messages` must fit the context of {context} tokens, got {messages} messages");
    Err(ApiError::context_length("messages", message))
}

/// A conversation, from which a prompt is made.
#[derive(Debug, Default)]
pub struct Conversation {
    /// A list of OpenAI's message objects.
    pub messages: Value,
    /// A list of OpenAI's tool objects.
    pub tools: Option<Value>,
    /// Extra template variables.
    pub kwargs: Map<String, Value>,
    /// `true` if the prompt ends inside the last message, whose text the answer continues,
    /// instead of the opening of a new message.
    pub continues: bool,
    /// True if the prompt ends after the last message, without the opening of an answer.
    pub closed: bool,
}

/// A conversation as token ids.
pub struct Rendered {
    pub prompt: Vec<u32>,
    /// The part that the answer begins with: reasoning or text. `None` if reasoning is not separated.
    pub begin: Option<Begin>,
}

impl Conversation {
    /// The conversation of `messages`, to be continued if its last message is the assistant's and
    /// calls no tool.
    pub fn of(messages: Vec<Value>) -> Self {
        let continues = messages
            .last()
            .is_some_and(|m| m["role"] == "assistant" && m.get("tool_calls").is_none());
        Self {
            messages: messages.into(),
            continues,
            ..Self::default()
        }
    }

    /// Renders and tokenises it.
    ///
    /// # Errors
    /// 400 where the template refuses the messages, or they do not fit the context.
    pub fn encode(self, served: &Served) -> Result<Rendered, ApiError> {
        let continues = self.continues;
        exchange::note_content(|| content::of_conversation(&self.messages, self.tools.as_ref()));
        let text = self.render(served)?;
        let reasoning = served.formats.reasoning;
        Ok(Rendered {
            // The template adds the tokens that begin the document itself.
            prompt: prompt::encode_chat(served, "messages", &text, false)?,
            begin: reasoning.map(|format| format.begin(&text, continues)),
        })
    }

    fn render(mut self, served: &Served) -> Result<String, ApiError> {
        if self.continues {
            let last = self
                .messages
                .as_array_mut()
                .and_then(|list| list.last_mut());
            if let Some(Value::String(content)) = last.and_then(|last| last.get_mut("content")) {
                content.push_str(END);
            }
        }
        let chat = ChatPrompt {
            messages: &self.messages,
            tools: self.tools.as_ref(),
            add_generation_prompt: !self.continues && !self.closed,
            kwargs: &self.kwargs,
        };
        let mut text = served.text.render_chat(&chat).map_err(refused)?;
        if self.continues {
            let Some(end) = text.rfind(END) else {
                let error = "the chat template does not let a last assistant message be continued";
                return Err(refused(error.to_owned()));
            };
            text.truncate(end);
        }
        Ok(text)
    }
}

/// 400 with the chat template's own message.
pub fn refused(error: String) -> ApiError {
    ApiError::field("messages", format!("`messages`: {error}"))
}
