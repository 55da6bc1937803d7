//! Fields that have several forms: one text or a list of them, text or token ids. Their
//! deserialisers are written by hand, because serde's `untagged` has no better error than "did not
//! match any variant".

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

use crate::error::{ApiError, out_of_bounds};
use crate::fields::capped::{Capped, rest_of_seq};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// A `T` that must be written as an object. By itself serde also accepts a list of the fields'
/// values for a struct.
#[derive(Clone, Debug, Default)]
pub struct Object<T>(pub T);

impl<T> Deref for Object<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
            type Value = Object<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }
        deserializer.deserialize_map(Fields(PhantomData))
    }
}

/// Most stop strings of a request. OpenAI allows 4 and vLLM any number; each of them costs a search
/// per token.
pub const MAX_STOP_STRINGS: usize = 16;

/// `"a"` or `["a", "b"]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OneOrMany(pub Capped<String, MAX_STOP_STRINGS>);

impl<'de> Deserialize<'de> for OneOrMany {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Texts;
        impl<'de> Visitor<'de> for Texts {
            type Value = OneOrMany;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list of strings")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<OneOrMany, E> {
                Ok(OneOrMany(Capped {
                    items: vec![text.to_owned()],
                    given: 1,
                }))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<OneOrMany, A::Error> {
                Capped::from_seq(seq).map(OneOrMany)
            }
        }
        deserializer.deserialize_any(Texts)
    }
}

/// One prompt of `/v1/completions`.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

/// Most prompts that are kept of one request; more are only counted, because no queue takes as many.
pub const MAX_PROMPTS: usize = 1 << 14;

/// All prompts of a request: text, a list of texts, token ids, a list of lists of token ids.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prompts(pub Capped<Prompt, MAX_PROMPTS>);

impl Prompts {
    /// The prompts of `field`, as far as they were kept.
    ///
    /// # Errors
    /// 400 when there is none, or one is empty.
    pub fn checked(self, field: &str) -> Result<Vec<Prompt>, ApiError> {
        let prompts = self.0.items;
        if prompts.is_empty() {
            return Err(out_of_bounds(field, "at least 1 prompt", "an empty list"));
        }
        for (index, prompt) in prompts.iter().enumerate() {
            if matches!(prompt, Prompt::Tokens(ids) if ids.is_empty()) {
                let param = format!("{field}[{index}]");
                return Err(out_of_bounds(&param, "at least 1 token long", "0 tokens"));
            }
        }
        Ok(prompts)
    }
}

/// One element of the list form. A bare token id may stand only among bare token ids.
enum Element {
    Whole(Prompt),
    Token(u32),
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Elements;
        impl<'de> Visitor<'de> for Elements {
            type Value = Element;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, a token id or a list of token ids")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Element, E> {
                Ok(Element::Whole(Prompt::Text(text.to_owned())))
            }
            fn visit_u64<E: de::Error>(self, id: u64) -> Result<Element, E> {
                let id = u32::try_from(id);
                id.map(Element::Token)
                    .map_err(|_| E::custom("token ids are below 2^32"))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Element, A::Error> {
                let mut ids = Vec::new();
                while let Some(id) = seq.next_element()? {
                    ids.push(id);
                }
                Ok(Element::Whole(Prompt::Tokens(ids)))
            }
        }
        deserializer.deserialize_any(Elements)
    }
}

impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Lists;
        impl<'de> Visitor<'de> for Lists {
            type Value = Prompts;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a string, a list of strings, a list of token ids or a list of lists of \
                     token ids",
                )
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Prompts, E> {
                Ok(one(Prompt::Text(text.to_owned())))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Prompts, A::Error> {
                let mixed = || de::Error::custom("token ids and prompts are mixed in one list");
                let (mut whole, mut ids) = (Vec::new(), Vec::new());
                while whole.len() < MAX_PROMPTS
                    && let Some(element) = seq.next_element()?
                {
                    match element {
                        Element::Token(id) if whole.is_empty() => ids.push(id),
                        Element::Whole(prompt) if ids.is_empty() => whole.push(prompt),
                        _ => return Err(mixed()),
                    }
                }
                if !ids.is_empty() {
                    return Ok(one(Prompt::Tokens(ids)));
                }
                let more = match whole.len() {
                    MAX_PROMPTS => rest_of_seq(&mut seq)?,
                    _ => 0,
                };
                Ok(Prompts(Capped {
                    given: whole.len() + more,
                    items: whole,
                }))
            }
        }
        fn one(prompt: Prompt) -> Prompts {
            Prompts(Capped {
                items: vec![prompt],
                given: 1,
            })
        }
        deserializer.deserialize_any(Lists)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompts(json: &str) -> Result<Vec<Prompt>, String> {
        serde_json::from_str::<Prompts>(json)
            .map(|p| p.0.items)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_prompt_is_text_or_texts_or_ids_or_lists_of_ids() {
        let text = |text: &str| Prompt::Text(text.to_owned());
        assert_eq!(prompts(r#""a""#).unwrap(), [text("a")]);
        assert_eq!(prompts(r#"["a", "b"]"#).unwrap(), [text("a"), text("b")]);
        assert_eq!(prompts("[1, 2]").unwrap(), [Prompt::Tokens(vec![1, 2])]);
        let lists = [Prompt::Tokens(vec![1]), Prompt::Tokens(vec![2, 3])];
        assert_eq!(prompts("[[1], [2, 3]]").unwrap(), lists);
        assert_eq!(prompts("[]").unwrap(), []);
    }

    #[test]
    fn a_mixed_list_is_refused() {
        for json in [r#"["a", 1]"#, r#"[1, "a"]"#, "[1, [2]]"] {
            assert!(prompts(json).unwrap_err().contains("mixed"), "{json}");
        }
    }

    #[test]
    fn wrong_types_say_what_was_expected() {
        for json in [
            "7",
            "true",
            "{}",
            "[true]",
            "[-1]",
            "[1.5]",
            "[[\"a\"]]",
            "[null]",
        ] {
            let error = prompts(json).unwrap_err();
            assert!(
                error.contains("expected") && error.contains("invalid"),
                "{json}: {error}"
            );
        }
        assert!(prompts("[4294967296]").unwrap_err().contains("below 2^32"));
    }

    #[test]
    fn an_object_is_not_a_list_of_its_values() {
        #[derive(serde::Deserialize)]
        struct Point {
            x: u32,
        }
        let point = |json| serde_json::from_str::<Object<Point>>(json);
        assert_eq!(point(r#"{"x": 1}"#).unwrap().x, 1);
        let error = point("[1]").err().unwrap().to_string();
        assert!(error.contains("sequence, expected an object"), "{error}");
    }

    #[test]
    fn stop_is_a_string_or_a_list() {
        let stop = |json| serde_json::from_str::<OneOrMany>(json).map(|s| s.0.items);
        assert_eq!(stop(r#""a""#).unwrap(), ["a"]);
        assert_eq!(stop(r#"["a", "b"]"#).unwrap(), ["a", "b"]);
        let error = stop("3").unwrap_err().to_string();
        assert!(
            error.contains("expected a string or a list of strings"),
            "{error}"
        );
    }
}
