//! Parts of a request that are counted instead of being kept. What will be refused must not first
//! be built in memory, where it takes many times the size of its JSON.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{
    self, Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::{Map, Value};

/// The first `MAX` elements of a list, and how many it has.
#[derive(Clone, Debug, PartialEq)]
pub struct Capped<T, const MAX: usize> {
    pub items: Vec<T>,
    pub given: usize,
}

impl<T, const MAX: usize> Default for Capped<T, MAX> {
    fn default() -> Self {
        Self {
            items: Vec::new(),
            given: 0,
        }
    }
}

impl<T, const MAX: usize> Capped<T, MAX> {
    /// Reads the rest of `seq`.
    pub fn from_seq<'de, A: SeqAccess<'de>>(mut seq: A) -> Result<Self, A::Error>
    where
        T: Deserialize<'de>,
    {
        let mut items = Vec::new();
        while items.len() < MAX {
            match seq.next_element()? {
                Some(item) => items.push(item),
                None => {
                    let given = items.len();
                    return Ok(Self { items, given });
                }
            }
        }
        let given = items.len() + rest_of_seq(&mut seq)?;
        Ok(Self { items, given })
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for Capped<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List<T, const MAX: usize>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for List<T, MAX> {
            type Value = Capped<T, MAX>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Self::Value, A::Error> {
                Capped::from_seq(seq)
            }
        }
        deserializer.deserialize_seq(List(PhantomData))
    }
}

/// Counts the elements that follow in `seq`, and keeps none.
pub fn rest_of_seq<'de, A: SeqAccess<'de>>(seq: &mut A) -> Result<usize, A::Error> {
    let mut count = 0;
    while seq.next_element::<IgnoredAny>()?.is_some() {
        count += 1;
    }
    Ok(count)
}

/// A list of which only the length is known.
pub type Noticed = Capped<IgnoredAny, 0>;

/// The first `MAX` entries of an object, in its order and with its duplicates, and how many it has
/// in all.
#[derive(Clone, Debug, PartialEq)]
pub struct Entries<T, const MAX: usize> {
    pub items: Vec<(String, T)>,
    pub given: usize,
}

impl<T, const MAX: usize> Default for Entries<T, MAX> {
    fn default() -> Self {
        Self {
            items: Vec::new(),
            given: 0,
        }
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for Entries<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object<T, const MAX: usize>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Object<T, MAX> {
            type Value = Entries<T, MAX>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let (mut items, mut given) = (Vec::new(), 0);
                while items.len() < MAX {
                    match map.next_entry()? {
                        Some(entry) => items.push(entry),
                        None => break,
                    }
                }
                given += items.len();
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                    given += 1;
                }
                Ok(Entries { items, given })
            }
        }
        deserializer.deserialize_map(Object(PhantomData))
    }
}

/// A value that is kept if it is a string, and is `None` if it is anything else.
#[derive(Debug, PartialEq)]
pub struct Word(pub Option<String>);

impl<'de> Deserialize<'de> for Word {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Words;
        impl<'de> Visitor<'de> for Words {
            type Value = Word;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any value")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Word, E> {
                Ok(Word(Some(text.to_owned())))
            }
            fn visit_bool<E: de::Error>(self, _: bool) -> Result<Word, E> {
                Ok(Word(None))
            }
            fn visit_i64<E: de::Error>(self, _: i64) -> Result<Word, E> {
                Ok(Word(None))
            }
            fn visit_u64<E: de::Error>(self, _: u64) -> Result<Word, E> {
                Ok(Word(None))
            }
            fn visit_f64<E: de::Error>(self, _: f64) -> Result<Word, E> {
                Ok(Word(None))
            }
            fn visit_unit<E: de::Error>(self) -> Result<Word, E> {
                Ok(Word(None))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Word, A::Error> {
                rest_of_seq(&mut seq)?;
                Ok(Word(None))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Word, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Word(None))
            }
        }
        deserializer.deserialize_any(Words)
    }
}

/// Most values that one [`Variables`] may have, at all depths together.
pub const MAX_VALUES: usize = 4096;

/// An object of any JSON, of at most [`MAX_VALUES`] values.
#[derive(Debug, Default)]
pub struct Variables(pub Map<String, Value>);

impl<'de> Deserialize<'de> for Variables {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (value, given) = counted(deserializer, MAX_VALUES)?;
        if given > MAX_VALUES {
            let bound = format!("must be at most {MAX_VALUES} values in all, got {given}");
            return Err(de::Error::custom(bound));
        }
        match value {
            Value::Object(map) => Ok(Self(map)),
            _ => Err(de::Error::custom("invalid type, expected an object")),
        }
    }
}

/// Any JSON, and the number of its values at all depths together. At most `most` values are kept.
pub fn counted<'de, D: Deserializer<'de>>(
    deserializer: D,
    most: usize,
) -> Result<(Value, usize), D::Error> {
    let count = Cell::new(0);
    let value = Counted {
        count: &count,
        most,
    };
    let value = value.deserialize(deserializer)?;
    Ok((value, count.get()))
}

/// Reads a value and counts it and the values inside of it.
#[derive(Clone, Copy)]
struct Counted<'a> {
    count: &'a Cell<usize>,
    most: usize,
}

impl<'de> DeserializeSeed<'de> for Counted<'_> {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.count.set(self.count.get() + 1);
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Counted<'_> {
    type Value = Value;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }
    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_str<E: de::Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(value) = seq.next_element_seed(self)? {
            if self.count.get() <= self.most {
                list.push(value);
            }
        }
        Ok(list.into())
    }
    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let value = entries.next_value_seed(self)?;
            if self.count.get() <= self.most {
                map.insert(key, value);
            }
        }
        Ok(map.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{from_str, json};

    #[test]
    fn a_capped_list_keeps_the_first_and_counts_all() {
        let list: Capped<u8, 2> = from_str("[1, 2, 3, [4]]").unwrap();
        assert_eq!((list.items, list.given), (vec![1, 2], 4));
        let list: Capped<u8, 2> = from_str("[1]").unwrap();
        assert_eq!((list.items, list.given), (vec![1], 1));
        assert_eq!(from_str::<Noticed>("[{}]").unwrap().given, 1);
        let error = from_str::<Noticed>("7").unwrap_err().to_string();
        assert!(error.contains("expected a list"), "{error}");
    }

    #[test]
    fn entries_keep_duplicates_and_count_all() {
        let entries: Entries<u8, 2> = from_str(r#"{"a": 1, "a": 2, "b": []}"#).unwrap();
        let first = vec![("a".to_owned(), 1), ("a".to_owned(), 2)];
        assert_eq!((entries.items, entries.given), (first, 3));
    }

    #[test]
    fn variables_are_any_json_up_to_their_bound() {
        let text = r#"{"a": [1, -2, 0.5, null, true, "b"], "c": {"d": {}}}"#;
        let expected: Value = from_str(text).unwrap();
        let given: Variables = from_str(text).unwrap();
        assert_eq!(Value::Object(given.0), expected);
        assert!(from_str::<Variables>("[]").is_err());
        let most = json!({"a": vec![0; MAX_VALUES - 2]}).to_string();
        assert!(from_str::<Variables>(&most).is_ok());
        let more = json!({"a": vec![0; MAX_VALUES - 1]}).to_string();
        let error = from_str::<Variables>(&more).unwrap_err().to_string();
        assert!(error.contains("at most 4096 values"), "{error}");
    }
}
