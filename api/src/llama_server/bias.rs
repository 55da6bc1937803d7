//! llama-server's `logit_bias`: `[[15043, 1.0], ["text", -0.5], [7, false]]`, or an object.

use std::fmt;

use hearth_engine::params::MAX_TOKEN_ENTRIES;
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::error::{ApiError, out_of_bounds};
use crate::fields::bounds::at_most;
use crate::fields::capped::{Capped, Entries};
use crate::prompt;
use crate::served::Served;

/// The strongest bias that the engine takes. `false` is this bias downwards.
const NEVER: f64 = -100.0;

/// A list of pairs, or an object whose keys are token ids or texts.
#[derive(Debug)]
pub enum Biases {
    Pairs(Capped<Pair, MAX_TOKEN_ENTRIES>),
    Named(Entries<Amount, MAX_TOKEN_ENTRIES>),
}

/// A token id, or a text whose tokens are meant, and its bias.
#[derive(Debug, Deserialize)]
pub struct Pair(Key, Amount);

#[derive(Debug, PartialEq)]
enum Key {
    Token(u32),
    Text(String),
}

/// A number, or `false`: never.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Amount(f64);

impl Biases {
    /// The bias of each token. A text gives its bias to each of its tokens.
    ///
    /// # Errors
    /// 400 for too many entries, or a text that cannot be tokenised.
    pub fn tokens(self, served: &Served) -> Result<Vec<(u32, f32)>, ApiError> {
        let (given, entries): (usize, Vec<(Key, Amount)>) = match self {
            Self::Pairs(list) => {
                let pairs = list.items.into_iter().map(|Pair(key, bias)| (key, bias));
                (list.given, pairs.collect())
            }
            Self::Named(entries) => {
                let named = entries.items.into_iter();
                let named = named.map(|(name, bias)| {
                    let token = name.parse().ok().map(Key::Token);
                    (token.unwrap_or(Key::Text(name)), bias)
                });
                (entries.given, named.collect())
            }
        };
        at_most("logit_bias", MAX_TOKEN_ENTRIES, "entries", given)?;
        let mut biases = Vec::new();
        for (key, Amount(bias)) in entries {
            if !(NEVER..=-NEVER).contains(&bias) {
                let bound = format!("between {NEVER} and {}, or false", -NEVER);
                return Err(out_of_bounds("logit_bias", &bound, bias));
            }
            let tokens = match key {
                Key::Token(token) => vec![token],
                Key::Text(text) => prompt::encode(served, "logit_bias", &text, false)?,
            };
            biases.extend(tokens.into_iter().map(|token| (token, bias as f32)));
            at_most("logit_bias", MAX_TOKEN_ENTRIES, "tokens", biases.len())?;
        }
        Ok(biases)
    }
}

impl<'de> Deserialize<'de> for Biases {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Forms;
        impl<'de> Visitor<'de> for Forms {
            type Value = Biases;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of pairs or an object")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Biases, A::Error> {
                Capped::from_seq(seq).map(Biases::Pairs)
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Biases, A::Error> {
                let entries = de::value::MapAccessDeserializer::new(map);
                Entries::deserialize(entries).map(Biases::Named)
            }
        }
        deserializer.deserialize_any(Forms)
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys;
        impl Visitor<'_> for Keys {
            type Value = Key;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a token id or a text")
            }
            fn visit_u64<E: de::Error>(self, id: u64) -> Result<Key, E> {
                let id = u32::try_from(id);
                id.map(Key::Token)
                    .map_err(|_| E::custom("token ids are below 2^32"))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Key, E> {
                Ok(Key::Text(text.to_owned()))
            }
        }
        deserializer.deserialize_any(Keys)
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Amounts;
        impl Visitor<'_> for Amounts {
            type Value = Amount;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number or false")
            }
            fn visit_bool<E: de::Error>(self, given: bool) -> Result<Amount, E> {
                match given {
                    false => Ok(Amount(NEVER)),
                    true => Err(E::invalid_type(de::Unexpected::Bool(true), &self)),
                }
            }
            fn visit_f64<E: de::Error>(self, bias: f64) -> Result<Amount, E> {
                Ok(Amount(bias))
            }
            fn visit_i64<E: de::Error>(self, bias: i64) -> Result<Amount, E> {
                Ok(Amount(bias as f64))
            }
            fn visit_u64<E: de::Error>(self, bias: u64) -> Result<Amount, E> {
                Ok(Amount(bias as f64))
            }
        }
        deserializer.deserialize_any(Amounts)
    }
}
