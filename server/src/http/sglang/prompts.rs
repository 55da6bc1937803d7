//! What SGLang's routes that take prompts have in common: the prompts, their names, and
//! whose cache they share.

use std::collections::BTreeSet;

use uuid::Uuid;

use super::super::error::ApiError;
use super::super::openai::sampling::{MAX_SALT_BYTES, SamplingFields, out_of_bounds};
use super::super::openai::wire::MAX_PROMPTS;
use super::super::prompt;
use super::input::{Each, Ids};
use crate::served::Served;

/// Bytes of a `rid`, which every line of the log has.
const MAX_RID_BYTES: usize = 128;

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

    /// What the API calls them.
    pub fn field(&self) -> &'static str {
        match self {
            Self::Texts(_) => "text",
            Self::Ids(_) => "input_ids",
        }
    }

    /// # Errors
    /// 400 for a text that is too long for the context, whatever its tokens are.
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

/// The prompts, and whether they came as a list.
///
/// # Errors
/// 400 for both of `text` and `input_ids`, for none, and for an empty list.
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

/// The name of each prompt's request: given, or made up.
///
/// # Errors
/// 400 for a name that is empty, too long, not printable, or there twice.
pub fn rids(given: Option<Each<String>>, prompts: usize) -> Result<Vec<String>, ApiError> {
    let fresh = || Uuid::now_v7().simple().to_string();
    let rids = match given {
        None => (0..prompts).map(|_| fresh()).collect(),
        // As SGLang names the requests of a batch that has one name.
        Some(Each::All(rid)) if prompts > 1 => {
            (0..prompts).map(|index| format!("{rid}_{index}")).collect()
        }
        Some(rids) => rids.spread("rid", prompts)?,
    };
    let mut seen = BTreeSet::new();
    for rid in &rids {
        let printable = rid.bytes().all(|byte| byte.is_ascii_graphic());
        if rid.is_empty() || rid.len() > MAX_RID_BYTES || !printable {
            let bound = format!("between 1 and {MAX_RID_BYTES} printable ASCII characters");
            return Err(out_of_bounds("rid", &bound, format!("{rid:?}")));
        }
        if !seen.insert(rid) {
            let bound = "a list of names that differ";
            return Err(out_of_bounds("rid", bound, format!("{rid:?} twice")));
        }
    }
    Ok(rids)
}

/// The part of the cache that this request shares prefixes in.
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
    // SGLang joins them; what has one of them shares nothing with what has the other.
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

/// Who goes first. SGLang's clients send 0 where they mean none.
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
