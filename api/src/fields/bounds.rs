//! Checks of numbers and lists against their bounds. Each error names the field, its bound and
//! the value given.

use hearth_engine::params::{MAX_LOGPROBS, MAX_TOKEN_ENTRIES};

use crate::error::{ApiError, out_of_bounds};

/// Most log-probabilities of one answer, those of alternatives and of echoed prompts included. They
/// are about 256 MiB of JSON.
pub const MAX_LOGPROB_ENTRIES: usize = 1 << 22;

/// `given` as a count of at least `least`.
///
/// # Errors
/// 400 below `least`.
pub fn at_least(field: &str, least: usize, given: Option<i64>) -> Result<Option<usize>, ApiError> {
    let Some(given) = given else { return Ok(None) };
    match usize::try_from(given) {
        Ok(value) if value >= least => Ok(Some(value)),
        _ => Err(out_of_bounds(field, &format!("at least {least}"), given)),
    }
}

/// Checks a list of token ids that is searched at every output token.
///
/// # Errors
/// 400 for more than [`MAX_TOKEN_ENTRIES`], and for one that is not in the vocabulary.
pub fn token_ids(field: &str, ids: &[u32], vocab_size: usize) -> Result<(), ApiError> {
    at_most(field, MAX_TOKEN_ENTRIES, "token ids", ids.len())?;
    match ids.iter().find(|&&id| id as usize >= vocab_size) {
        Some(id) => {
            let bound = format!("token ids below the vocabulary size ({vocab_size})");
            Err(out_of_bounds(field, &bound, id))
        }
        None => Ok(()),
    }
}

/// `given` as a number of alternatives per token.
///
/// # Errors
/// 400 below 0 or above [`MAX_LOGPROBS`].
pub fn alternatives(field: &str, given: Option<i64>) -> Result<Option<usize>, ApiError> {
    let value = at_least(field, 0, given)?;
    match value {
        Some(value) if value > MAX_LOGPROBS => {
            let bound = format!("between 0 and {MAX_LOGPROBS}");
            Err(out_of_bounds(field, &bound, value))
        }
        _ => Ok(value),
    }
}

/// Checks that there are at most `most` of `what`.
///
/// # Errors
/// 400 for more.
pub fn at_most(field: &str, most: usize, what: &str, given: usize) -> Result<(), ApiError> {
    if given <= most {
        return Ok(());
    }
    let bound = format!("at most {most} {what}");
    Err(out_of_bounds(field, &bound, format!("{given} {what}")))
}

/// Bounds the log-probabilities of an answer before it is computed. `tokens` are those of all
/// choices, and of the prompts where they are echoed; each has `logprobs` alternatives.
///
/// # Errors
/// 400 that names the fields which make the answer that large.
pub fn check_logprob_entries(
    fields: &str,
    param: &str,
    tokens: usize,
    logprobs: Option<usize>,
) -> Result<(), ApiError> {
    let Some(top) = logprobs else { return Ok(()) };
    let entries = tokens.saturating_mul(top.saturating_add(1));
    if entries <= MAX_LOGPROB_ENTRIES {
        return Ok(());
    }
    let message = format!("{fields} must be at most {MAX_LOGPROB_ENTRIES}, got {entries}");
    Err(ApiError::field(param, message))
}
