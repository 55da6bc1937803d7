//! Which adapter a request asks for, in the words of every dialect.

use std::sync::Arc;

use super::{AdapterError, AdapterLabels, AdapterUse, Adapters, Listed};
use crate::error::ApiError;

/// The model's name in requests of sglang-router and smg whose clients gave none.
pub const NO_MODEL: &str = "unknown";
/// The most entries of `lora`.
pub const MAX_SCALED: usize = 64;

/// An entry of llama-server's `lora`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scaled {
    pub id: usize,
    pub scale: f32,
}

/// The fields with which a request selects its model and adapters.
#[derive(Clone, Debug, Default)]
pub struct Wanted<'a> {
    /// The base model, an adapter (vLLM), or `base:adapter` (SGLang).
    pub model: Option<&'a str>,
    /// The name of an adapter (SGLang).
    pub lora_path: Option<&'a str>,
    /// Adapters by their ids, with factors (llama-server).
    pub lora: Option<&'a [Scaled]>,
}

/// The base model or the adapters that a request computes with.
#[derive(Clone, Debug, Default)]
pub struct Choice(pub Option<AdapterUse>);

impl Adapters {
    /// The adapter that a request asks for. An error names the `aliases` of `base`, too.
    ///
    /// # Errors
    /// 404 for a model that is neither the served one nor an adapter, 400 for a field that names an
    /// adapter that is not there.
    pub fn choose(
        &self,
        base: &str,
        aliases: &[String],
        wanted: &Wanted<'_>,
    ) -> Result<Choice, ApiError> {
        let list = self.list();
        let by_name = |name: &str| list.iter().find(|there| there.name == name);
        let in_model = match wanted.model {
            None => None,
            Some(model) if model == base || model == NO_MODEL => None,
            Some(model) => {
                let tail = model.strip_prefix(base);
                let tail = tail.and_then(|tail| tail.strip_prefix(':'));
                let found = by_name(model).or_else(|| by_name(tail?));
                Some(found.ok_or_else(|| ApiError::model_not_found(model, base, aliases))?)
            }
        };
        let path = wanted.lora_path.filter(|path| !path.is_empty());
        let in_path = match path {
            None => None,
            Some(_) if !self.is_on() => return Err(ApiError::unsupported("lora_path")),
            Some(name) => {
                let message = || {
                    let loaded: Vec<&str> = list.iter().map(|there| &*there.name).collect();
                    format!(
                        "Got LoRA adapter that has never been loaded: {name}. `lora_path` must be \
                         one of {loaded:?}"
                    )
                };
                let found = by_name(name);
                Some(found.ok_or_else(|| ApiError::field("lora_path", message()))?)
            }
        };
        // As in SGLang, the name in `model` comes first.
        let named = in_model.or(in_path);
        if let Some(scaled) = wanted.lora {
            if named.is_some() {
                let message =
                    "`lora` must be left out where `model` or `lora_path` names an adapter";
                return Err(ApiError::field("lora", message));
            }
            return self.scaled(&list, scaled);
        }
        match named {
            Some(there) => self.named(there, in_model.is_some()),
            None => self.by_default(&list),
        }
    }

    /// Checks that a model, if one is named, is the served one or an adapter.
    ///
    /// # Errors
    /// 404.
    pub fn check_model(
        &self,
        base: &str,
        aliases: &[String],
        model: Option<&str>,
    ) -> Result<(), ApiError> {
        let Some(model) = model.filter(|model| *model != base && *model != NO_MODEL) else {
            return Ok(());
        };
        let tail = model.strip_prefix(base);
        let tail = tail.and_then(|tail| tail.strip_prefix(':'));
        let known = |there: &Listed| there.name == model || Some(&*there.name) == tail;
        match self.list().iter().any(known) {
            true => Ok(()),
            false => Err(ApiError::model_not_found(model, base, aliases)),
        }
    }

    fn named(&self, there: &Listed, in_model: bool) -> Result<Choice, ApiError> {
        let (adapter, uses) = self
            .numbers(there.id)
            .map_err(|error| unreadable(&there.name, &error))?
            .ok_or_else(|| gone(&there.name))?;
        Ok(Choice(Some(AdapterUse {
            name: in_model.then(|| there.name.clone()),
            labels: AdapterLabels::of(&[&there.name]),
            adapter,
            uses: vec![uses],
        })))
    }

    fn scaled(&self, list: &[Listed], given: &[Scaled]) -> Result<Choice, ApiError> {
        if !given.is_empty() && !self.is_on() {
            return Err(ApiError::unsupported("lora"));
        }
        let mut parts = Vec::with_capacity(given.len());
        for (index, Scaled { id, scale }) in given.iter().enumerate() {
            let known = list.iter().any(|there| there.id == *id);
            if !known {
                let ids: Vec<usize> = list.iter().map(|there| there.id).collect();
                let field = format!("lora[{index}].id");
                let message = format!("`{field}` must be one of {ids:?}, got {id}");
                return Err(ApiError::field(field, message));
            }
            if parts.iter().any(|(other, _)| other == id) {
                let field = format!("lora[{index}].id");
                let message =
                    format!("`{field}` must be different from the others, got {id} again");
                return Err(ApiError::field(field, message));
            }
            parts.push((*id, *scale));
        }
        self.sum_of(list, &parts)
    }

    /// Requests that select nothing get the adapters that the operator switched on for all.
    fn by_default(&self, list: &[Listed]) -> Result<Choice, ApiError> {
        let parts: Vec<(usize, f32)> = list.iter().map(|there| (there.id, there.scale)).collect();
        self.sum_of(list, &parts)
    }

    fn sum_of(&self, list: &[Listed], parts: &[(usize, f32)]) -> Result<Choice, ApiError> {
        let (mut adapters, mut uses, mut names) = (Vec::new(), Vec::new(), Vec::new());
        for (id, scale) in parts.iter().filter(|(_, scale)| *scale != 0.0) {
            let numbers = self
                .numbers(*id)
                .map_err(|error| unreadable(&id.to_string(), &error))?;
            let (adapter, used) = numbers.ok_or_else(|| gone(&id.to_string()))?;
            adapters.push((adapter, *scale));
            uses.push(used);
            let name = list.iter().find(|there| there.id == *id);
            names.extend(name.map(|there| there.name.as_str()));
        }
        let adapter = match adapters.as_slice() {
            [] => return Ok(Choice(None)),
            [(only, 1.0)] => Arc::clone(only),
            several => self
                .sum(several)
                .map_err(|error| ApiError::field("lora", error.to_string()))?,
        };
        Ok(Choice(Some(AdapterUse {
            name: None,
            labels: AdapterLabels::of(&names),
            adapter,
            uses,
        })))
    }
}

/// The adapter was there a moment ago.
fn gone(name: &str) -> ApiError {
    ApiError::bad_request(format!("the adapter {name:?} has been unloaded"))
}

/// The files of a registered adapter have gone or changed.
fn unreadable(name: &str, error: &AdapterError) -> ApiError {
    ApiError::internal(format!(
        "the adapter {name:?} cannot be read again: {error}"
    ))
}
