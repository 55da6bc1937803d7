//! From a conversation to the tokens that an answer follows.

use serde_json::{Map, Value};

use super::error::ApiError;
use super::openai::chat_request::MAX_MESSAGES;
use super::openai::sampling::out_of_bounds;
use super::prompt;
use crate::served::{ChatPrompt, Served};

/// Where the last message ends; characters for private use, which no message has.
const END: &str = "\u{f8ff}hearth-continues-here\u{f8ff}";

/// Each message takes a token at the least; templating more of them than fit would
/// take half a gigabyte for ten megabytes of tiny messages.
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

/// The prompt of a conversation. One that ends with the assistant's words is continued:
/// the prompt ends with them.
///
/// # Errors
/// 400 where the template refuses the messages, or they do not fit the context.
pub fn encode(served: &Served, messages: Vec<Value>) -> Result<Vec<u32>, ApiError> {
    let continues = messages.last().is_some_and(|m| m["role"] == "assistant");
    let (messages, kwargs) = (Value::Array(messages), Map::new());
    let text = if continues {
        continued(served, messages, &kwargs)?
    } else {
        let chat = ChatPrompt {
            messages: &messages,
            add_generation_prompt: true,
            kwargs: &kwargs,
        };
        served.text.render_chat(&chat).map_err(refused)?
    };
    // The template frames the conversation itself.
    prompt::encode(served, "messages", &text, false)
}

/// The text of a conversation up to the end of the last message's words.
///
/// # Errors
/// 400 where the template refuses the messages, or drops the last of them.
pub fn continued(
    served: &Served,
    mut messages: Value,
    kwargs: &Map<String, Value>,
) -> Result<String, ApiError> {
    let last = messages.as_array_mut().and_then(|list| list.last_mut());
    if let Some(Value::String(content)) = last.and_then(|last| last.get_mut("content")) {
        content.push_str(END);
    }
    let chat = ChatPrompt {
        messages: &messages,
        add_generation_prompt: false,
        kwargs,
    };
    let mut text = served.text.render_chat(&chat).map_err(refused)?;
    let Some(end) = text.rfind(END) else {
        let error = "the chat template does not let a last assistant message be continued";
        return Err(refused(error.to_owned()));
    };
    text.truncate(end);
    Ok(text)
}

/// 400 in the words of the template.
pub fn refused(error: String) -> ApiError {
    ApiError::field("messages", format!("`messages`: {error}"))
}
