//! From text to token ids. A text that cannot fit the context is refused without tokenising it.

use crate::error::ApiError;
use crate::exchange;
use crate::served::Served;

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
    bound_bytes(served, field, text)?;
    let encoded = exchange::while_tokenizing(|| served.text.encode(text, add_special));
    encoded.map_err(|error| ApiError::field(field, format!("`{field}`: {error}")))
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
    bound_bytes(served, field, text)?;
    let encoded = exchange::while_tokenizing(|| served.text.encode_chat(text, add_special));
    encoded.map_err(|error| ApiError::field(field, format!("`{field}`: {error}")))
}

/// The token ids of `text`, in which what looks like a special token is text.
///
/// # Errors
/// As [`encode`].
pub fn encode_literally(
    served: &Served,
    field: &str,
    text: &str,
    add_special: bool,
) -> Result<Vec<u32>, ApiError> {
    bound_bytes(served, field, text)?;
    let encoded = exchange::while_tokenizing(|| served.text.encode_literally(text, add_special));
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
    let context = served.context();
    let room = context.saturating_sub(prompt_tokens);
    if room == 0 {
        let message = format!(
            "`{prompt_field}` has {prompt_tokens} tokens; with at least one output token it may \
             have at most {} in this server's context of {context} tokens",
            context - 1
        );
        return Err(ApiError::context_length(prompt_field, message));
    }
    match asked {
        Some(asked) if asked > room => {
            let message = format!(
                "`{limit_field}` must be at most {room}: the context is {context} tokens, of which \
                 the prompt takes {prompt_tokens}, got {asked}"
            );
            Err(ApiError::context_length(limit_field, message))
        }
        Some(asked) => Ok(asked),
        None => Ok(served
            .defaults
            .max_tokens
            .map_or(room, |most| most.min(room))),
    }
}
