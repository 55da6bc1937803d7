//! Fields that have one value for all prompts or one for each.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserialize, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor};

use crate::error::{ApiError, out_of_bounds};
use crate::fields::capped::Capped;
use crate::fields::wire::MAX_PROMPTS;

/// A value for all prompts, or one for each. It does not work for values that are lists themselves.
#[derive(Clone, Debug, PartialEq)]
pub enum Each<T> {
    All(T),
    One(Capped<T, MAX_PROMPTS>),
}

impl<T: Clone> Each<T> {
    /// The values for `prompts` prompts.
    ///
    /// # Errors
    /// 400 for a list of another length.
    pub fn spread(self, field: &str, prompts: usize) -> Result<Vec<T>, ApiError> {
        match self {
            Self::All(value) => Ok(vec![value; prompts]),
            Self::One(list) if list.given == prompts => Ok(list.items),
            Self::One(list) => {
                let bound = format!("one value, or a list of one for each of {prompts} prompts");
                let given = format!("a list of {}", list.given);
                Err(out_of_bounds(field, &bound, given))
            }
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Each<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Values<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Values<T> {
            type Value = Each<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value, or a list of one for each prompt")
            }
            fn visit_bool<E: de::Error>(self, value: bool) -> Result<Each<T>, E> {
                T::deserialize(value.into_deserializer()).map(Each::All)
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Each<T>, E> {
                T::deserialize(value.into_deserializer()).map(Each::All)
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Each<T>, E> {
                T::deserialize(value.into_deserializer()).map(Each::All)
            }
            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Each<T>, E> {
                T::deserialize(value.into_deserializer()).map(Each::All)
            }
            fn visit_str<E: de::Error>(self, value: &str) -> Result<Each<T>, E> {
                T::deserialize(value.into_deserializer()).map(Each::All)
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Each<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Each::All)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Each<T>, A::Error> {
                Capped::from_seq(seq).map(Each::One)
            }
        }
        deserializer.deserialize_any(Values(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::from_str;

    #[test]
    fn a_value_is_for_all_prompts_or_one_for_each() {
        let one: Each<bool> = from_str("true").unwrap();
        assert_eq!(one.spread("f", 2).unwrap(), [true, true]);
        let each: Each<i64> = from_str("[1, -2]").unwrap();
        assert_eq!(each.clone().spread("f", 2).unwrap(), [1, -2]);
        let error = each.spread("f", 3).unwrap_err();
        assert!(
            error.message.contains("each of 3 prompts, got a list of 2"),
            "{error}"
        );
        let error = from_str::<Each<bool>>("3").unwrap_err().to_string();
        assert!(error.contains("expected a boolean"), "{error}");
        let error = from_str::<Each<bool>>("[true, 3]").unwrap_err().to_string();
        assert!(error.contains("expected a boolean"), "{error}");
    }
}
