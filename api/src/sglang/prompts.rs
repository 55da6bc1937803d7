//! Fields that all SGLang routes with prompts share: the prompts and the namespace of the
//! cache.

use crate::error::{ApiError, out_of_bounds};
use crate::fields::each::Each;
use crate::fields::sampling::{MAX_SALT_BYTES, SamplingFields};
use crate::fields::wire::MAX_PROMPTS;
use crate::prompt;
use crate::served::Served;
use crate::sglang::input::Ids;

/// The prompts of a request.
#[derive(Debug, PartialEq)]
pub enum Input {
    Texts(Vec<String>),
    Ids(Vec<Vec<u32>>),
}

impl Input {
    pub fn len(&self) -> usize {
        match self {
            Self::Texts(texts) => texts.len(),
            Self::Ids(lists) => lists.len(),
        }
    }

    /// The name of the field.
    pub fn field(&self) -> &'static str {
        match self {
            Self::Texts(_) => "text",
            Self::Ids(_) => "input_ids",
        }
    }

    /// The prompts as token ids.
    ///
    /// # Errors
    /// 400 for a text that is too long for the context, however it is tokenised.
    pub fn encode(self, served: &Served) -> Result<Vec<Vec<u32>>, ApiError> {
        match self {
            Self::Ids(lists) => Ok(lists),
            Self::Texts(texts) => {
                let texts = texts.iter();
                texts
                    .map(|text| prompt::encode(served, "text", text, true))
                    .collect()
            }
        }
    }
}

/// The prompts, and whether the request has a list of them.
///
/// # Errors
/// 400 for both of `text` and `input_ids`, for neither, and for an empty list.
pub fn input(
    text: Option<Each<String>>,
    input_ids: Option<Ids>,
) -> Result<(Input, bool), ApiError> {
    let (input, given, listed) = match (text, input_ids) {
        (Some(Each::All(text)), None) => (Input::Texts(vec![text]), 1, false),
        (Some(Each::One(texts)), None) => (Input::Texts(texts.items), texts.given, true),
        (None, Some(Ids::One(ids))) => (Input::Ids(vec![ids]), 1, false),
        (None, Some(Ids::Many(lists))) => (Input::Ids(lists.items), lists.given, true),
        (Some(_), Some(_)) => {
            let message = "`input_ids` must be left out where `text` is given";
            return Err(ApiError::field("input_ids", message));
        }
        (None, None) => {
            let message = "one of `text` and `input_ids` must be given";
            return Err(ApiError::field("text", message).code("missing_required_parameter"));
        }
    };
    let field = input.field();
    if given == 0 {
        return Err(out_of_bounds(field, "at least 1 prompt", "an empty list"));
    }
    if given > MAX_PROMPTS {
        let bound = format!("at most {MAX_PROMPTS} prompts");
        return Err(out_of_bounds(field, &bound, given));
    }
    Ok((input, listed))
}

/// The namespace of the prefix cache that this request uses.
///
/// # Errors
/// 400 for a key that is empty or too long, or for both of two that differ.
pub fn namespace(
    cache_salt: Option<&str>,
    extra_key: Option<&str>,
) -> Result<Option<String>, ApiError> {
    for (field, key) in [("cache_salt", cache_salt), ("extra_key", extra_key)] {
        if let Some(key) = key
            && !(1..=MAX_SALT_BYTES).contains(&key.len())
        {
            let bound = format!("between 1 and {MAX_SALT_BYTES} bytes long");
            return Err(out_of_bounds(field, &bound, format!("{} bytes", key.len())));
        }
    }
    // SGLang joins the two into one key. Here requests with only the one never share a prefix
    // with requests that have only the other.
    Ok(match (cache_salt, extra_key) {
        (None, None) => None,
        (Some(salt), None) => Some(salt.to_owned()),
        (salt, Some(key)) => Some(format!(
            "{}:{}:{key}",
            salt.map_or(0, str::len),
            salt.unwrap_or_default()
        )),
    })
}

/// The request's priority. SGLang's clients send 0 for none.
///
/// # Errors
/// 400 where no policy of the server looks at it.
pub fn priority(served: &Served, given: Option<i64>) -> Result<i32, ApiError> {
    let fields = SamplingFields {
        priority: given.filter(|&given| given != 0),
        ..SamplingFields::default()
    };
    fields.priority(served.engine.heeds_priority())
}
