//! From text to token ids. A text that cannot fit the context is refused without tokenising it.

use crate::error::ApiError;
use crate::exchange;
use crate::served::{Served, TextCodec};

/// The token ids of `text`.
///
/// # Errors
/// 400 when the text is too long for the context, however it is tokenised.
pub fn encode(
    served: &Served,
    field: &str,
    text: &str,
    add_special: bool,
) -> Result<Vec<u32>, ApiError> {
    encode_by(served, field, text, |codec| codec.encode(text, add_special))
}

/// The token ids of a rendered chat.
///
/// # Errors
/// As [`encode`].
pub fn encode_chat(
    served: &Served,
    field: &str,
    text: &str,
    add_special: bool,
) -> Result<Vec<u32>, ApiError> {
    let encode = |codec: &dyn TextCodec| codec.encode_chat(text, add_special);
    encode_by(served, field, text, encode)
}

/// The token ids of `text`, in which the names of special tokens are ordinary text.
///
/// # Errors
/// As [`encode`].
pub fn encode_literally(
    served: &Served,
    field: &str,
    text: &str,
    add_special: bool,
) -> Result<Vec<u32>, ApiError> {
    let encode = |codec: &dyn TextCodec| codec.encode_literally(text, add_special);
    encode_by(served, field, text, encode)
}

/// Checks the length of `text` and then runs `encode`, whose time counts as tokenization.
fn encode_by(
    served: &Served,
    field: &str,
    text: &str,
    encode: impl FnOnce(&dyn TextCodec) -> Result<Vec<u32>, String>,
) -> Result<Vec<u32>, ApiError> {
    bound_bytes(served, field, text)?;
    let encoded = exchange::while_tokenizing(|| encode(&*served.text));
    encoded.map_err(|error| ApiError::field(field, format!("`{field}`: {error}")))
}

fn bound_bytes(served: &Served, field: &str, text: &str) -> Result<(), ApiError> {
    let limit = served.max_prompt_bytes();
    if text.len() > limit {
        let message = format!(
            "`{field}` must fit the context of {} tokens, which no text above {limit} bytes does, \
             got {} bytes",
            served.context(),
            text.len()
        );
        return Err(ApiError::context_length(field, message));
    }
    Ok(())
}

/// The output tokens that the context has room for beside the prompt.
///
/// # Errors
/// 400 when the prompt leaves no room.
pub fn output_room(
    served: &Served,
    prompt_field: &str,
    prompt_tokens: usize,
) -> Result<usize, ApiError> {
    let context = served.context();
    match context.saturating_sub(prompt_tokens) {
        0 => {
            let message = format!(
                "`{prompt_field}` has {prompt_tokens} tokens; with at least one output token it \
                 may have at most {} in this server's context of {context} tokens",
                context - 1
            );
            Err(ApiError::context_length(prompt_field, message))
        }
        room => Ok(room),
    }
}

/// The bound on output tokens: `asked`, or the checkpoint's suggestion if the request sets none,
/// as far as it fits beside the prompt.
///
/// # Errors
/// 400 when the prompt leaves no room, or less than was asked for.
pub fn output_limit(
    served: &Served,
    prompt_field: &str,
    prompt_tokens: usize,
    limit_field: &str,
    asked: Option<usize>,
) -> Result<usize, ApiError> {
    let room = output_room(served, prompt_field, prompt_tokens)?;
    match asked {
        Some(asked) if asked > room => {
            let message = format!(
                "`{limit_field}` must be at most {room}: the context is {} tokens, of which \
                 the prompt takes {prompt_tokens}, got {asked}",
                served.context()
            );
            Err(ApiError::context_length(limit_field, message))
        }
        Some(asked) => Ok(asked),
        None => Ok(suggested(served, room)),
    }
}

/// The bound on output tokens of a request that sets none: the checkpoint's suggestion as far as
/// `room` allows it.
pub fn suggested(served: &Served, room: usize) -> usize {
    let most = served.defaults.max_tokens;
    most.map_or(room, |most| most.min(room))
}
