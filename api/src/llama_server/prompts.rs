//! The forms of `prompt`: a text, tokens, a mixture of both, or a list of any of these.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::error::{ApiError, out_of_bounds};
use crate::fields::capped::{Capped, Noticed, rest_of_seq};
use crate::fields::wire::MAX_PROMPTS;
use crate::prompt;
use crate::served::Served;

/// Most texts and runs of token ids in the mixtures of a request. Each takes many times the memory of its
/// JSON.
const MAX_PARTS: usize = 1 << 14;

/// A piece of a prompt.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    Text(String),
    Tokens(Vec<u32>),
}

/// One prompt: its parts in order.
type Parts = Vec<Part>;

/// All prompts of a request, and whether they were given as a list of prompts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prompts {
    each: Capped<Parts, MAX_PROMPTS>,
}

/// A text with pictures or sounds, which must be absent here.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Multimodal {
    prompt_string: String,
    multimodal_data: Option<Noticed>,
}

/// An element of a list: a part of the only prompt, or a whole prompt.
enum Element {
    Token(u32),
    Text(String),
    Whole(Parts),
}

impl Prompts {
    /// The number of prompts.
    pub fn given(&self) -> usize {
        self.each.given
    }

    /// The token ids of each prompt. A prompt that begins with a text begins as a document does.
    ///
    /// # Errors
    /// 400 when there is no prompt, when one is empty, and for a text that is too long for the context.
    pub fn encode(self, served: &Served) -> Result<Vec<Vec<u32>>, ApiError> {
        if self.each.items.is_empty() {
            return Err(out_of_bounds(
                "prompt",
                "at least 1 prompt",
                "an empty list",
            ));
        }
        let each = self.each.items.into_iter();
        each.map(|parts| encode(served, parts)).collect()
    }
}

fn encode(served: &Served, parts: Parts) -> Result<Vec<u32>, ApiError> {
    let mut ids = Vec::new();
    for (index, part) in parts.into_iter().enumerate() {
        match part {
            Part::Text(text) => ids.extend(prompt::encode(served, "prompt", &text, index == 0)?),
            Part::Tokens(tokens) => ids.extend(tokens),
        }
    }
    match ids.is_empty() {
        true => Err(out_of_bounds("prompt", "at least 1 token long", "0 tokens")),
        false => Ok(ids),
    }
}

/// Adds `token` to the last part if that is one of tokens, or else as a new part.
fn push_token<E: de::Error>(parts: &mut Parts, token: u32) -> Result<(), E> {
    match parts.last_mut() {
        Some(Part::Tokens(tokens)) => {
            tokens.push(token);
            Ok(())
        }
        _ => push(parts, Part::Tokens(vec![token])),
    }
}

fn push<E: de::Error>(parts: &mut Parts, part: Part) -> Result<(), E> {
    parts.push(part);
    bound_parts(parts.len())
}

fn bound_parts<E: de::Error>(count: usize) -> Result<(), E> {
    if count <= MAX_PARTS {
        return Ok(());
    }
    let message = format!(
        "mixtures must have at most {MAX_PARTS} texts and runs of token ids together, got more"
    );
    Err(E::custom(message))
}

fn whole<E: de::Error>(given: Multimodal) -> Result<Parts, E> {
    match given.multimodal_data {
        Some(data) if data.given > 0 => Err(E::custom(
            "`multimodal_data` must be left out or empty: this server reads no pictures and sounds",
        )),
        _ => Ok(vec![Part::Text(given.prompt_string)]),
    }
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Elements;
        impl<'de> Visitor<'de> for Elements {
            type Value = Element;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, a token id, or a list of strings and token ids")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Element, E> {
                Ok(Element::Text(text.to_owned()))
            }
            fn visit_u64<E: de::Error>(self, id: u64) -> Result<Element, E> {
                token(id).map(Element::Token)
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Element, A::Error> {
                let given = Multimodal::deserialize(MapAccessDeserializer::new(map))?;
                whole(given).map(Element::Whole)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Element, A::Error> {
                let mut parts = Vec::new();
                while let Some(piece) = seq.next_element::<Piece>()? {
                    match piece {
                        Piece::Token(token) => push_token(&mut parts, token)?,
                        Piece::Text(text) => push(&mut parts, Part::Text(text))?,
                    }
                }
                Ok(Element::Whole(parts))
            }
        }
        deserializer.deserialize_any(Elements)
    }
}

/// An element of a prompt that is a list itself.
enum Piece {
    Token(u32),
    Text(String),
}

fn token<E: de::Error>(id: u64) -> Result<u32, E> {
    u32::try_from(id).map_err(|_| E::custom("token ids are below 2^32"))
}

impl<'de> Deserialize<'de> for Piece {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pieces;
        impl Visitor<'_> for Pieces {
            type Value = Piece;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a token id")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Piece, E> {
                Ok(Piece::Text(text.to_owned()))
            }
            fn visit_u64<E: de::Error>(self, id: u64) -> Result<Piece, E> {
                token(id).map(Piece::Token)
            }
        }
        deserializer.deserialize_any(Pieces)
    }
}

impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Lists;
        impl<'de> Visitor<'de> for Lists {
            type Value = Prompts;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, token ids, a mixture of both, or a list of prompts")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Prompts, E> {
                Ok(one(vec![Part::Text(text.to_owned())]))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Prompts, A::Error> {
                let given = Multimodal::deserialize(MapAccessDeserializer::new(map))?;
                whole(given).map(one)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Prompts, A::Error> {
                list(seq)
            }
        }
        deserializer.deserialize_any(Lists)
    }
}

/// Texts are prompts of their own, unless there is a bare token id beside them: then all elements
/// are parts of one prompt.
fn list<'de, A: SeqAccess<'de>>(mut seq: A) -> Result<Prompts, A::Error> {
    let (mut parts, mut each) = (Parts::new(), Vec::<Parts>::new());
    let (mut is_mixed, mut has_prompts) = (false, false);
    let mut whole_parts = 0;
    while each.len() < MAX_PROMPTS
        && let Some(element) = seq.next_element()?
    {
        has_prompts |= matches!(element, Element::Whole(_));
        match element {
            Element::Token(token) => {
                is_mixed = true;
                // The texts so far were parts.
                parts.extend(each.drain(..).flatten());
                push_token(&mut parts, token)?;
            }
            Element::Text(text) if is_mixed => push(&mut parts, Part::Text(text))?,
            Element::Text(text) => each.push(vec![Part::Text(text)]),
            Element::Whole(prompt) => {
                whole_parts += prompt.len();
                bound_parts(whole_parts)?;
                each.push(prompt);
            }
        }
        if is_mixed && has_prompts {
            return Err(de::Error::custom(
                "token ids and prompts are mixed in one list",
            ));
        }
    }
    if is_mixed {
        return Ok(one(parts));
    }
    let more = match each.len() {
        MAX_PROMPTS => rest_of_seq(&mut seq)?,
        _ => 0,
    };
    Ok(Prompts {
        each: Capped {
            given: each.len() + more,
            items: each,
        },
    })
}

fn one(parts: Parts) -> Prompts {
    Prompts {
        each: Capped {
            items: vec![parts],
            given: 1,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompts(json: &str) -> Result<Vec<Parts>, String> {
        let given = serde_json::from_str::<Prompts>(json);
        given
            .map(|prompts| prompts.each.items)
            .map_err(|error| error.to_string())
    }

    fn text(text: &str) -> Part {
        Part::Text(text.to_owned())
    }

    #[test]
    fn a_prompt_is_text_tokens_a_mixture_or_a_list_of_these() {
        assert_eq!(prompts(r#""a""#).unwrap(), [[text("a")]]);
        assert_eq!(
            prompts(r#"["a", "b"]"#).unwrap(),
            [[text("a")], [text("b")]]
        );
        assert_eq!(prompts("[1, 2]").unwrap(), [[Part::Tokens(vec![1, 2])]]);
        let mixed = vec![text("a"), Part::Tokens(vec![1, 2]), text("b")];
        assert_eq!(prompts(r#"["a", 1, 2, "b"]"#).unwrap(), vec![mixed.clone()]);
        let list = prompts(r#"[["a", 1, 2, "b"], "c", {"prompt_string": "d"}]"#).unwrap();
        assert_eq!(list, [mixed, vec![text("c")], vec![text("d")]]);
        assert_eq!(prompts(r#"{"prompt_string": "d"}"#).unwrap(), [[text("d")]]);
    }

    #[test]
    fn mixtures_of_too_many_parts_are_refused() {
        let many = |count: usize| vec!["\"a\""; count].join(",");
        for beyond in [
            format!("[1,{}]", many(MAX_PARTS)),
            format!("[[{}]]", many(MAX_PARTS + 1)),
            format!("[[\"b\"],[{}]]", many(MAX_PARTS)),
        ] {
            let error = prompts(&beyond).unwrap_err();
            assert!(error.contains("at most 16384"), "{error}");
        }
        let most = format!("[[{}]]", many(MAX_PARTS));
        assert_eq!(prompts(&most).unwrap()[0].len(), MAX_PARTS);
    }

    #[test]
    fn what_is_no_prompt_says_why() {
        for (json, why) in [
            ("[1, [2]]", "mixed"),
            (r#"[{"prompt_string": "a"}, 1]"#, "mixed"),
            ("[[[1]]]", "expected a string or a token id"),
            ("7", "expected a string"),
            ("[-1]", "expected a string"),
            ("[4294967296]", "below 2^32"),
            (
                r#"{"prompt_string": "a", "multimodal_data": ["x"]}"#,
                "multimodal_data",
            ),
        ] {
            let error = prompts(json).unwrap_err();
            assert!(error.contains(why), "{json}: {error}");
        }
    }
}
