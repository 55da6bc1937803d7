//! The formats of a structural tag, read from its JSON.

use serde_json::{Map, Value};

use crate::error::{GrammarError, first_words};

/// The most triggers of one list.
const MAX_TRIGGERS: usize = 64;
/// The most bytes of a fixed text. The time to force a text grows faster than its length.
const MAX_LITERAL_BYTES: usize = 8_192;

/// One format or tag, and its place.
pub(super) struct Format<'a> {
    pub map: &'a Map<String, Value>,
    pub kind: &'a str,
    /// The JSON pointer of the place.
    pub at: String,
}

impl<'a> Format<'a> {
    /// The outermost format of a structural tag.
    pub fn root(given: &'a Value) -> Result<Self, GrammarError> {
        let wrong = |message: &str| Err(GrammarError::invalid(message).at("#"));
        let Value::Object(map) = given else {
            return wrong("a structural tag must be an object");
        };
        if map.get("type").is_some_and(|kind| kind != "structural_tag") {
            return wrong("the `type` of a structural tag must be \"structural_tag\"");
        }
        let at = "#".to_owned();
        if map.contains_key("structures") {
            // SGLang's older form is a list of tags with schemas.
            let root = Self {
                map,
                kind: "structures",
                at,
            };
            root.only(&["type", "structures", "triggers"])?;
            return Ok(root);
        }
        let root = Self { map, kind: "", at };
        root.only(&["type", "format"])?;
        match map.get("format") {
            Some(format) => Self::read(format, "#/format".to_owned()),
            None => wrong("a structural tag must have a `format`, or `structures` and `triggers`"),
        }
    }

    /// The format in `value`, whose JSON pointer is `at`.
    pub fn read(value: &'a Value, at: String) -> Result<Self, GrammarError> {
        let Value::Object(map) = value else {
            return Err(GrammarError::invalid("a format must be an object").at(at));
        };
        let kind = match map.get("type") {
            Some(Value::String(kind)) => kind,
            // Tags in a list may have no `type`.
            None if map.contains_key("begin") => "tag",
            _ => return Err(GrammarError::invalid("a format must have a `type`").at(at)),
        };
        Ok(Self { map, kind, at })
    }

    pub fn below(&self, key: &str) -> String {
        format!("{}/{key}", self.at)
    }

    /// An error about the field `key`.
    pub fn wrong(&self, key: &str, must: &str) -> GrammarError {
        GrammarError::invalid(format!("`{key}` must be {must}")).at(self.below(key))
    }

    /// Refuses fields other than `known`, because they would be ignored.
    pub fn only(&self, known: &[&str]) -> Result<(), GrammarError> {
        match self.map.keys().find(|key| !known.contains(&key.as_str())) {
            Some(key) => {
                let message = format!("the field `{}` is not supported here", first_words(key));
                Err(GrammarError::unsupported(message).at(&*self.at))
            }
            None => Ok(()),
        }
    }

    pub fn text(&self, key: &str) -> Result<&'a str, GrammarError> {
        let text = self.map.get(key).and_then(Value::as_str);
        let text = text.ok_or_else(|| self.wrong(key, "a string"))?;
        checked(text, &self.below(key))
    }

    pub fn flag(&self, key: &str) -> Result<bool, GrammarError> {
        match self.map.get(key) {
            None | Some(Value::Null) => Ok(false),
            Some(value) => value
                .as_bool()
                .ok_or_else(|| self.wrong(key, "true or false")),
        }
    }

    /// The texts of a field that may be a list, one text, or left out.
    pub fn texts(&self, key: &str) -> Result<Vec<&'a str>, GrammarError> {
        let list = match self.map.get(key) {
            None | Some(Value::Null) => return Ok(Vec::new()),
            Some(Value::String(_)) => return Ok(vec![self.text(key)?]),
            Some(Value::Array(list)) => list,
            Some(_) => return Err(self.wrong(key, "a list of strings")),
        };
        if list.len() > MAX_TRIGGERS {
            let message = format!(
                "`{key}` must have at most {MAX_TRIGGERS} entries, got {}",
                list.len()
            );
            return Err(GrammarError::too_complex(message).at(self.below(key)));
        }
        let text = |value: &'a Value| {
            let text = value.as_str().filter(|text| !text.is_empty());
            let text =
                text.ok_or_else(|| self.wrong(key, "a list of strings that are not empty"))?;
            checked(text, &self.below(key))
        };
        list.iter().map(text).collect()
    }

    /// The formats of a list that is not empty.
    pub fn list(&self, key: &str) -> Result<Vec<Self>, GrammarError> {
        let list = self.map.get(key).and_then(Value::as_array);
        let list = list.filter(|list| !list.is_empty());
        let list = list.ok_or_else(|| self.wrong(key, "a list with at least 1 entry"))?;
        let entry = |(index, value)| Self::read(value, format!("{}/{key}/{index}", self.at));
        list.iter().enumerate().map(entry).collect()
    }

    /// True if the format contains free text without an end of its own.
    pub fn is_open(&self) -> Result<bool, GrammarError> {
        Ok(match self.kind {
            "any_text" | "structures" => true,
            "triggered_tags" => !(self.flag("at_least_one")? && self.flag("stop_after_first")?),
            "sequence" | "or" => {
                let elements = self.list("elements")?;
                elements
                    .iter()
                    .try_fold(false, |open, e| Ok(open || e.is_open()?))?
            }
            _ => false,
        })
    }
}

fn checked<'a>(text: &'a str, at: &str) -> Result<&'a str, GrammarError> {
    if text.len() <= MAX_LITERAL_BYTES {
        return Ok(text);
    }
    let message = format!(
        "a fixed text must be at most {MAX_LITERAL_BYTES} bytes long, got {}",
        text.len()
    );
    Err(GrammarError::too_complex(message).at(at))
}
