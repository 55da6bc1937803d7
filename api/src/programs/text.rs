//! The texts of a program's nodes: strings, and references to variables.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::fields::capped::Capped;

/// Most parts of one text.
pub const MAX_PIECES: usize = 256;

/// A text, or a list of its parts.
#[derive(Debug)]
pub struct Pieces(pub Capped<GivenPiece, MAX_PIECES>);

/// A string, or a variable.
#[derive(Debug)]
pub enum GivenPiece {
    Text(String),
    Var(Reference),
}

/// The variable `var` of a state; without `state` it is the state of the node.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reference {
    pub var: String,
    pub state: Option<usize>,
}

impl<'de> Deserialize<'de> for GivenPiece {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Piece;
        impl<'de> Visitor<'de> for Piece {
            type Value = GivenPiece;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or an object")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<GivenPiece, E> {
                Ok(GivenPiece::Text(text.to_owned()))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<GivenPiece, A::Error> {
                Reference::deserialize(MapAccessDeserializer::new(map)).map(GivenPiece::Var)
            }
        }
        deserializer.deserialize_any(Piece)
    }
}

impl<'de> Deserialize<'de> for Pieces {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Pieces;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Pieces, E> {
                Ok(Pieces(Capped {
                    items: vec![GivenPiece::Text(text.to_owned())],
                    given: 1,
                }))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Pieces, A::Error> {
                Capped::from_seq(seq).map(Pieces)
            }
        }
        deserializer.deserialize_any(List)
    }
}
