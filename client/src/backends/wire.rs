//! The parts that the wire formats have in common.

use serde_json::{Map, Value, json};

use crate::http::ClientError;
use crate::lang::backend::{Backend, Call, Finish, Usage};
use crate::lang::{Error, Sampling};

impl From<ClientError> for Error {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Refused { status, message } => Self::Refused { status, message },
            ClientError::Transport { url, source } => {
                Self::Transport(format!("the request to {url} failed: {source}"))
            }
            other => Self::Transport(other.to_string()),
        }
    }
}

/// A field of a response, which must be there.
pub fn field<'a>(response: &'a Value, pointer: &str) -> Result<&'a Value, Error> {
    let missing = || Error::Transport(format!("the server's response has no {pointer}"));
    response.pointer(pointer).ok_or_else(missing)
}

/// A text of a response, which must be there.
pub fn text<'a>(response: &'a Value, pointer: &str) -> Result<&'a str, Error> {
    let wrong = || Error::Transport(format!("the server's response has no text at {pointer}"));
    field(response, pointer)?.as_str().ok_or_else(wrong)
}

/// OpenAI's `choices`, in the order of their numbers.
pub fn choices(answer: &Value) -> Result<Vec<&Value>, Error> {
    let wrong = || Error::Transport("the server's response has no list of choices".to_owned());
    let choices = field(answer, "/choices")?.as_array().ok_or_else(wrong)?;
    let mut choices: Vec<&Value> = choices.iter().collect();
    choices.sort_by_key(|choice| choice["index"].as_u64());
    Ok(choices)
}

/// OpenAI's `usage`.
pub fn usage(usage: &Value) -> Usage {
    let count = |pointer| usage.pointer(pointer).and_then(Value::as_u64);
    Usage {
        prompt_tokens: count("/prompt_tokens").unwrap_or(0),
        cached_tokens: count("/prompt_tokens_details/cached_tokens").unwrap_or(0),
        completion_tokens: count("/completion_tokens").unwrap_or(0),
    }
}

/// OpenAI's `finish_reason`.
pub fn finish(reason: &Value) -> Finish {
    match reason.as_str() {
        Some("length") => Finish::Length,
        _ => Finish::Stop,
    }
}

/// The sampling fields that OpenAI's API has.
///
/// # Errors
/// The call has one that OpenAI's API lacks.
pub fn openai_sampling(backend: &dyn Backend, call: &Call) -> Result<Map<String, Value>, Error> {
    let sampling = &call.sampling;
    refuse(backend, &[(sampling.top_k.is_some(), "`top_k`")])?;
    refuse(backend, &own_sampling(sampling))?;
    let fields = [
        ("temperature", json!(sampling.temperature)),
        ("top_p", json!(sampling.top_p)),
        ("frequency_penalty", json!(sampling.frequency_penalty)),
        ("presence_penalty", json!(sampling.presence_penalty)),
        ("seed", json!(sampling.seed)),
        ("stop", stop(&sampling.stop)),
    ];
    Ok(given(fields))
}

/// The sampling fields that neither OpenAI's API has nor Anthropic's, and whether they are given.
pub fn own_sampling(sampling: &Sampling) -> [(bool, &'static str); 6] {
    [
        (sampling.min_p.is_some(), "`min_p`"),
        (
            sampling.repetition_penalty.is_some(),
            "`repetition_penalty`",
        ),
        (sampling.min_tokens.is_some(), "`min_tokens`"),
        (sampling.ignore_eos.is_some(), "`ignore_eos`"),
        (!sampling.stop_token_ids.is_empty(), "`stop_token_ids`"),
        (!sampling.stop_regex.is_empty(), "`stop_regex`"),
    ]
}

/// The fields that are not null.
pub fn given<const N: usize>(fields: [(&str, Value); N]) -> Map<String, Value> {
    let given = fields.into_iter().filter(|(_, value)| !value.is_null());
    given
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

/// Stop strings as a field, which is null where there are none.
pub fn stop(stop: &[String]) -> Value {
    match stop {
        [] => Value::Null,
        stop => json!(stop),
    }
}

/// # Errors
/// The first of `features` that the program uses.
pub fn refuse(backend: &dyn Backend, features: &[(bool, &'static str)]) -> Result<(), Error> {
    match features.iter().find(|(used, _)| *used) {
        Some((_, feature)) => Err(backend.lacks(feature)),
        None => Ok(()),
    }
}

/// The number of leading elements that all lists have in common.
pub fn common_length<T: PartialEq>(lists: &[Vec<T>]) -> usize {
    let Some((first, others)) = lists.split_first() else {
        return 0;
    };
    let same = |other: &Vec<T>| {
        let pairs = first.iter().zip(other);
        pairs.take_while(|(one, other)| one == other).count()
    };
    others.iter().map(same).min().unwrap_or(first.len())
}
