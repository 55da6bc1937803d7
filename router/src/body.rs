//! A JSON object whose values are kept as they are written: numbers keep every digit and their
//! spelling, and fields that nobody here knows stay.

//! serde_json reads the values; only the commas and colons between them are read here. Its feature
//! `raw_value` would do the same, but it would compile most dependencies of the workspace again for
//! each selection of crates that has the router and for each that has not.

use std::collections::HashMap;

use serde::de::{Deserialize, DeserializeOwned, Error, IgnoredAny};

/// The white space of JSON.
const BLANK: [char; 4] = [' ', '\n', '\t', '\r'];

/// The fields of an object in their order. A name may occur more than once, as in the text.
#[derive(Clone, Debug, Default)]
pub struct Fields<'a>(Vec<(String, &'a str)>);

/// Reads the parts of an object or an array one after the other.
struct Parts<'a>(&'a str);

impl<'a> Parts<'a> {
    /// Skips white space, and takes `sign` if it comes next.
    fn takes(&mut self, sign: char) -> bool {
        self.0 = self.0.trim_start_matches(BLANK);
        let rest = self.0.strip_prefix(sign);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    /// The next value, and how it is written.
    fn value<T: Deserialize<'a>>(&mut self) -> Option<(T, &'a str)> {
        let text = self.0.trim_start_matches(BLANK);
        let mut values = serde_json::Deserializer::from_str(text).into_iter();
        let value = values.next()?.ok()?;
        let (own, rest) = text.split_at(values.byte_offset());
        self.0 = rest;
        Some((value, own))
    }

    /// Calls `part` for each part between `open` and `close`. `None` if the text is no such list.
    fn list(
        mut self,
        open: char,
        close: char,
        mut part: impl FnMut(&mut Self) -> Option<()>,
    ) -> Option<()> {
        if !self.takes(open) {
            return None;
        }
        if !self.takes(close) {
            loop {
                part(&mut self)?;
                if self.takes(close) {
                    break;
                }
                if !self.takes(',') {
                    return None;
                }
            }
        }
        self.0.trim_start_matches(BLANK).is_empty().then_some(())
    }
}

impl<'a> Fields<'a> {
    /// # Errors
    /// The text is not a JSON object.
    pub fn parse(text: &'a [u8]) -> serde_json::Result<Self> {
        let fields = std::str::from_utf8(text).ok().and_then(Self::read_all);
        fields.ok_or_else(|| {
            // Reading the whole text at once gives an error with a line and a column.
            let whole = serde_json::from_slice::<HashMap<String, IgnoredAny>>(text);
            whole.map_or_else(|error| error, |_| Error::custom("it is not valid JSON"))
        })
    }

    fn read_all(text: &'a str) -> Option<Self> {
        let mut fields = Vec::new();
        Parts(text).list('{', '}', |parts| {
            let (name, _) = parts.value::<String>()?;
            let (_, value) = parts.takes(':').then(|| parts.value::<IgnoredAny>())??;
            fields.push((name, value));
            Some(())
        })?;
        Some(Self(fields))
    }

    /// The last value of this name, which is the one that most parsers take.
    pub fn raw(&self, name: &str) -> Option<&'a str> {
        let mut named = self.0.iter().rev().filter(|(own, _)| own == name);
        named.next().map(|(_, value)| *value)
    }

    /// Like [`raw`](Self::raw), but `None` for null.
    pub fn given(&self, name: &str) -> Option<&'a str> {
        self.raw(name).filter(|&value| value != "null")
    }

    /// The value of this name, if it is there and has this type.
    pub fn read<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        self.raw(name)
            .and_then(|value| serde_json::from_str(value).ok())
    }

    pub fn is_true(&self, name: &str) -> bool {
        self.raw(name) == Some("true")
    }

    pub fn remove(&mut self, name: &str) {
        self.0.retain(|(own, _)| own != name);
    }

    pub fn rename(&mut self, from: &str, to: &str) {
        let named = self.0.iter_mut().filter(|(name, _)| name == from);
        named.for_each(|(name, _)| to.clone_into(name));
    }

    /// The whole object, with this value in place of the one that it has, or at the end.
    pub fn with(&self, name: &str, value: &str) -> String {
        let mut text = String::new();
        for (own, old) in &self.0 {
            add(&mut text, own, if own == name { value } else { old });
        }
        if self.raw(name).is_none() {
            add(&mut text, name, value);
        }
        format!("{{{text}}}")
    }

    /// Writes all fields, without the braces.
    pub fn write(&self, text: &mut String) {
        for (name, value) in &self.0 {
            add(text, name, value);
        }
    }
}

/// Appends a field to the inside of an object; `value` is JSON.
pub fn add(text: &mut String, name: &str, value: &str) {
    if !text.is_empty() {
        text.push(',');
    }
    text.push_str(&quoted(name));
    text.push(':');
    text.push_str(value);
}

/// A text as JSON.
pub fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The items of a JSON array as they are written; `None` if it is none.
pub fn items(array: &str) -> Option<Vec<&str>> {
    let mut items = Vec::new();
    Parts(array).list('[', ']', |parts| {
        items.push(parts.value::<IgnoredAny>()?.1);
        Some(())
    })?;
    Some(items)
}

/// The items of a JSON array of objects; `None` if it is none.
pub fn objects(array: &[u8]) -> Option<Vec<Fields<'_>>> {
    let items = items(std::str::from_utf8(array).ok()?)?;
    let objects = items
        .into_iter()
        .map(|item| Fields::parse(item.as_bytes()).ok());
    objects.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_they_were_read() {
        let text = r#"{"a":1.0,"b":12345678901234567890123,"c":{"x":1e5,"y":[0.10]},"é\"":null}"#;
        let fields = Fields::parse(text.as_bytes()).unwrap();
        let mut written = String::new();
        fields.write(&mut written);
        assert_eq!(format!("{{{written}}}"), text);
    }

    #[test]
    fn fields_are_found_renamed_and_removed() {
        let mut fields = Fields::parse(br#"{"a": 1, "a": 2, "b": null, "c": true}"#).unwrap();
        assert_eq!(fields.read::<u64>("a"), Some(2));
        assert_eq!((fields.raw("b"), fields.given("b")), (Some("null"), None));
        assert!(fields.is_true("c"));
        fields.rename("c", "d");
        fields.remove("a");
        let mut written = String::new();
        fields.write(&mut written);
        assert_eq!(written, r#""b":null,"d":true"#);
    }

    #[test]
    fn other_texts_are_refused_with_a_place() {
        for text in [
            "",
            "[1]",
            "{",
            "{}}",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "{,}",
            "{\"a\":1 \"b\":2}",
            "{a:1}",
            "{\"a\":01}",
            "{\"a\":[1,]}",
            "{\"a\":\"\\x\"}",
            "{\"a\":tru}",
            "{1:2}",
        ] {
            let error = Fields::parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("line 1"), "{text}: {error}");
        }
        assert!(Fields::parse(b"{\"a\":\"\xff\"}").is_err());
        for text in ["{}", " { } ", "{\"a\" : [ {} , \"}\" ] }\n"] {
            assert!(Fields::parse(text.as_bytes()).is_ok(), "{text}");
        }
    }

    #[test]
    fn items_are_those_of_the_array() {
        assert_eq!(items("[]"), Some(vec![]));
        assert_eq!(
            items("[ 1.0 ,\"a,]\", [2] ]"),
            Some(vec!["1.0", "\"a,]\"", "[2]"])
        );
        assert_eq!(
            [items("{}"), items("[1,"), items("[1]2")],
            [None, None, None]
        );
        assert_eq!(objects(b"[{\"a\":1},{}]").unwrap().len(), 2);
        assert!(objects(b"[{},1]").is_none());
    }

    proptest::proptest! {
        /// It accepts what serde_json accepts as an object.
        #[test]
        fn no_other_texts_are_objects(text in "[{}\\[\\]:,\"a1 .-]{0,12}") {
            let object = serde_json::from_str::<HashMap<String, IgnoredAny>>(&text);
            proptest::prop_assert_eq!(Fields::parse(text.as_bytes()).is_ok(), object.is_ok());
        }
    }
}
