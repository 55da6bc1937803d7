//! Token ids as SGLang's routes take them: those of one prompt, or of each of several.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};

use crate::fields::capped::{Capped, rest_of_seq};
use crate::fields::wire::MAX_PROMPTS;

/// Token ids of one prompt, or a list of them.
#[derive(Clone, Debug, PartialEq)]
pub enum Ids {
    One(Vec<u32>),
    Many(Capped<Vec<u32>, MAX_PROMPTS>),
}

enum IdOrIds {
    Id(u32),
    Ids(Vec<u32>),
}

impl<'de> Deserialize<'de> for IdOrIds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Elements;
        impl<'de> Visitor<'de> for Elements {
            type Value = IdOrIds;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a token id or a list of token ids")
            }
            fn visit_u64<E: de::Error>(self, id: u64) -> Result<IdOrIds, E> {
                let id = u32::try_from(id);
                id.map(IdOrIds::Id)
                    .map_err(|_| E::custom("token ids are below 2^32"))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<IdOrIds, A::Error> {
                let mut ids = Vec::new();
                while let Some(id) = seq.next_element()? {
                    ids.push(id);
                }
                Ok(IdOrIds::Ids(ids))
            }
        }
        deserializer.deserialize_any(Elements)
    }
}

impl<'de> Deserialize<'de> for Ids {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Lists;
        impl<'de> Visitor<'de> for Lists {
            type Value = Ids;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of token ids or a list of lists of token ids")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Ids, A::Error> {
                let mixed = || de::Error::custom("token ids and lists of them are mixed");
                let (mut ids, mut lists) = (Vec::new(), Vec::new());
                while lists.len() < MAX_PROMPTS
                    && let Some(element) = seq.next_element()?
                {
                    match element {
                        IdOrIds::Id(id) if lists.is_empty() => ids.push(id),
                        IdOrIds::Ids(list) if ids.is_empty() => lists.push(list),
                        _ => return Err(mixed()),
                    }
                }
                if lists.is_empty() {
                    return Ok(Ids::One(ids));
                }
                let given = lists.len() + rest_of_seq(&mut seq)?;
                Ok(Ids::Many(Capped {
                    items: lists,
                    given,
                }))
            }
        }
        deserializer.deserialize_seq(Lists)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::from_str;

    #[test]
    fn ids_are_of_one_prompt_or_of_several() {
        assert_eq!(from_str::<Ids>("[1, 2]").unwrap(), Ids::One(vec![1, 2]));
        assert_eq!(from_str::<Ids>("[]").unwrap(), Ids::One(vec![]));
        let Ids::Many(lists) = from_str("[[1], []]").unwrap() else {
            panic!("one prompt")
        };
        assert_eq!((lists.items, lists.given), (vec![vec![1], vec![]], 2));
        for json in ["[1, [2]]", "[[1], 2]"] {
            assert!(
                from_str::<Ids>(json)
                    .unwrap_err()
                    .to_string()
                    .contains("mixed")
            );
        }
        for json in ["\"a\"", "[\"a\"]", "[-1]", "[4294967296]", "[1.5]", "7"] {
            assert!(from_str::<Ids>(json).is_err(), "{json}");
        }
    }
}
