//! Follows an output's JSON, and remembers the items of arrays whose items must differ.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::Value;
use toktrie::TokTrie;

use super::rules::{Id, Rules};

/// The longest token that is looked for in an item.
const MAX_TOKEN: usize = 32;

/// The position of an output within its JSON. A clone is cheap: it shares what was seen.
#[derive(Clone, Debug)]
pub(crate) struct Tracker {
    rules: Arc<Rules>,
    /// The containers that are open.
    levels: Vec<Level>,
    /// The text since the beginning of the outermost item that must differ, or of the key or value
    /// that is being written.
    text: Vec<u8>,
    lexeme: Lexeme,
}

#[derive(Clone, Debug)]
struct Level {
    is_object: bool,
    /// The schemas of the container.
    schemas: Vec<Id>,
    /// The schemas of the property whose value follows.
    value: Vec<Id>,
    /// The number of items that are complete.
    items: usize,
    /// The items so far of an array whose items must differ.
    seen: Option<Arc<Seen>>,
    /// Where in the text the current item begins.
    begin: usize,
    /// True if a key, and not a value, comes next.
    expects_key: bool,
}

#[derive(Clone, Debug, Default)]
struct Seen {
    /// The items as text in which equal values are equal.
    values: HashSet<String>,
    /// The items as they were written.
    texts: Vec<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lexeme {
    /// Between values.
    None,
    /// Within a string that began at this place of the text.
    Text { begin: usize, escaped: bool },
    /// Within a number or a word that began there.
    Word { begin: usize },
}

impl Tracker {
    pub fn new(rules: Arc<Rules>) -> Self {
        Self {
            rules,
            levels: Vec::new(),
            text: Vec::new(),
            lexeme: Lexeme::None,
        }
    }

    /// Goes on by `bytes`; false if they complete an item that its array has already.
    #[must_use]
    pub fn advance(&mut self, bytes: &[u8]) -> bool {
        bytes.iter().all(|&byte| self.push(byte))
    }

    /// True if the output is within an array that has items, all of which must differ.
    pub fn is_concerned(&self) -> bool {
        self.levels.iter().any(|level| {
            let seen = level.seen.as_ref();
            seen.is_some_and(|seen| !seen.texts.is_empty())
        })
    }

    /// True if the current item is written like the beginning of one that the array has, or might
    /// become the same in another spelling.
    pub fn is_like_seen(&self) -> bool {
        self.levels.iter().any(|level| {
            let Some(seen) = &level.seen else {
                return false;
            };
            let item = self.text.get(level.begin..).unwrap_or_default();
            let item = item.trim_ascii_start();
            // Escapes, decimals and the order of properties have several spellings.
            let plain = match item.first() {
                Some(b'"') => !item.contains(&b'\\'),
                Some(b'{' | b'[') => false,
                Some(_) => !item.iter().any(|byte| b".eE".contains(byte)),
                None => true,
            };
            !seen.texts.is_empty()
                && (!plain
                    || seen
                        .texts
                        .iter()
                        .any(|text| text.starts_with(item) || !is_plain(text)))
        })
    }

    /// True if the current item of each such array can always become a new one.
    pub fn is_open(&self) -> bool {
        let unique = self.levels.iter().filter(|level| level.seen.is_some());
        unique.into_iter().all(|level| {
            self.rules
                .is_open(&self.rules.item(&level.schemas, level.items))
        })
    }

    /// The tokens that go on as items do that are written like the current one so far.
    pub fn repeating<'t>(&self, trie: &'t TokTrie) -> impl Iterator<Item = u32> + 't {
        let mut rests = Vec::new();
        for level in &self.levels {
            let item = self.text.get(level.begin..).unwrap_or_default();
            let item = item.trim_ascii_start();
            let texts = level.seen.iter().flat_map(|seen| &seen.texts);
            rests.extend(texts.filter_map(|text| Some(text.strip_prefix(item)?.to_vec())));
        }
        rests.into_iter().flat_map(move |rest| {
            let ends = 1..=rest.len().min(MAX_TOKEN);
            ends.filter_map(move |end| trie.token_id(&rest[..end]))
        })
    }

    fn push(&mut self, byte: u8) -> bool {
        match self.lexeme {
            Lexeme::Text { begin, escaped } => {
                self.text.push(byte);
                match byte {
                    _ if escaped => {
                        self.lexeme = Lexeme::Text {
                            begin,
                            escaped: false,
                        }
                    }
                    b'\\' => {
                        self.lexeme = Lexeme::Text {
                            begin,
                            escaped: true,
                        }
                    }
                    b'"' => {
                        self.lexeme = Lexeme::None;
                        return self.end_text(begin);
                    }
                    _ => {}
                }
                true
            }
            Lexeme::Word { .. } if b",]} \n\r\t".contains(&byte) => {
                self.lexeme = Lexeme::None;
                self.end_value() && self.push(byte)
            }
            Lexeme::Word { .. } => {
                self.text.push(byte);
                true
            }
            Lexeme::None => self.between(byte),
        }
    }

    fn between(&mut self, byte: u8) -> bool {
        let begin = self.text.len();
        self.text.push(byte);
        match byte {
            b' ' | b'\n' | b'\r' | b'\t' | b':' => {}
            b'"' => {
                self.lexeme = Lexeme::Text {
                    begin,
                    escaped: false,
                };
            }
            b'{' | b'[' => self.open(byte == b'{'),
            b'}' | b']' => {
                self.levels.pop();
                return self.end_value();
            }
            b',' => {
                let end = self.text.len();
                if let Some(level) = self.levels.last_mut() {
                    level.expects_key = level.is_object;
                    level.begin = end;
                }
            }
            _ => self.lexeme = Lexeme::Word { begin },
        }
        true
    }

    fn open(&mut self, is_object: bool) {
        let schemas = self.value_schemas();
        let is_unique = !is_object && self.rules.are_unique(&schemas);
        self.levels.push(Level {
            is_object,
            schemas,
            value: Vec::new(),
            items: 0,
            seen: is_unique.then(Arc::default),
            begin: self.text.len(),
            expects_key: is_object,
        });
    }

    /// The schemas of the value that comes next.
    fn value_schemas(&self) -> Vec<Id> {
        match self.levels.last() {
            None => self.rules.root(),
            Some(level) if level.is_object => level.value.clone(),
            Some(level) => self.rules.item(&level.schemas, level.items),
        }
    }

    fn end_text(&mut self, begin: usize) -> bool {
        if let Some(level) = self.levels.last_mut()
            && level.expects_key
        {
            let name: String = serde_json::from_slice(&self.text[begin..]).unwrap_or_default();
            level.value = self.rules.property(&level.schemas, &name);
            level.expects_key = false;
            return true;
        }
        self.end_value()
    }

    /// A value is complete; false if it is an item that its array has already.
    fn end_value(&mut self) -> bool {
        let Some(level) = self.levels.last_mut() else {
            return true;
        };
        level.items += 1;
        if let Some(seen) = &mut level.seen {
            let text = self.text[level.begin..].trim_ascii();
            let value = serde_json::from_slice(text).unwrap_or(Value::Null);
            let seen = Arc::make_mut(seen);
            seen.texts.push(text.to_vec());
            if !seen.values.insert(canonical(&value)) {
                return false;
            }
        }
        // Without an array around it that asks for them, the bytes so far are not needed.
        if self.levels.iter().all(|level| level.seen.is_none()) {
            self.text.clear();
            self.levels.iter_mut().for_each(|level| level.begin = 0);
        }
        true
    }
}

fn is_plain(text: &[u8]) -> bool {
    match text.first() {
        Some(b'"') => !text.contains(&b'\\'),
        Some(b'{' | b'[') => true,
        _ => !text.iter().any(|byte| b".eE".contains(byte)),
    }
}

/// `value` as text, the same for values that JSON Schema calls equal.
fn canonical(value: &Value) -> String {
    match value {
        Value::Number(number) => match number.as_f64() {
            Some(float) if !number.is_f64() || float.fract() != 0.0 || float.abs() >= 1e15 => {
                number.to_string()
            }
            Some(float) => format!("{}", float as i64),
            None => number.to_string(),
        },
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(canonical).collect();
            format!("[{}]", items.join(","))
        }
        Value::Object(entries) => {
            let entry = |(name, value): (&String, &Value)| {
                format!("{}:{}", Value::from(name.as_str()), canonical(value))
            };
            let mut entries: Vec<String> = entries.iter().map(entry).collect();
            entries.sort_unstable();
            format!("{{{}}}", entries.join(","))
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn accepts(schema: &Value, text: &str) -> bool {
        let rules = Rules::of(schema).unwrap();
        Tracker::new(Arc::new(rules)).advance(text.as_bytes())
    }

    #[test]
    fn equal_items_are_found_in_every_spelling() {
        let schema = json!({"properties": {"a": {"uniqueItems": true}}});
        for good in [
            r#"{"a": [1, 2, "1", true, null, [1], {"b": 1}, {"b": 2}]}"#,
            r#"{"b": [1, 1], "a": []}"#,
            r#"{"a": [{"c": [1, 1]}]}"#,
            r#"{"a": ["x", "y\"", "y"]}"#,
        ] {
            assert!(accepts(&schema, good), "{good}");
        }
        for bad in [
            r#"{"a": [1, 2, 1]}"#,
            r#"{"a": [1, 1.0]}"#,
            r#"{"a": ["x", "\u0078"]}"#,
            r#"{"a": [{"b": 1, "c": [2]}, {"c": [2], "b": 1}]}"#,
            r#"{"a": [[], []]}"#,
            r#"{"z": {"y": [1]}, "a": ["p", "q", "p"]}"#,
        ] {
            assert!(!accepts(&schema, bad), "{bad}");
        }
    }

    #[test]
    fn arrays_within_arrays_have_items_of_their_own() {
        let schema = json!({"items": {"uniqueItems": true}});
        assert!(accepts(&schema, "[[1, 2], [1, 2]]"));
        assert!(!accepts(&schema, "[[1, 2], [2, 2]]"));
        let both = json!({"uniqueItems": true, "items": {"uniqueItems": true}});
        assert!(!accepts(&both, "[[1, 2], [1, 2]]"));
        assert!(accepts(&both, "[[1, 2], [2, 1]]"));
    }

    #[test]
    fn only_beginnings_of_items_that_are_there_matter() {
        let rules = Rules::of(&json!({"uniqueItems": true})).unwrap();
        let mut tracker = Tracker::new(Arc::new(rules));
        assert!(tracker.advance(b"[\"hello\"") && tracker.is_concerned());
        assert!(tracker.advance(b", ") && tracker.is_like_seen());
        assert!(tracker.advance(b"\"he") && tracker.is_like_seen());
        assert!(tracker.advance(b"x") && !tracker.is_like_seen());
        assert!(!tracker.clone().advance(b"\", \"hello\""));
        assert!(tracker.advance(b"llo\"]") && !tracker.is_concerned());
    }
}
