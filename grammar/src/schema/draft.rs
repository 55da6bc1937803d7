//! The drafts of JSON Schema: which keywords each of them knows.

use serde_json::{Map, Value};

/// A draft, in the order of publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Draft {
    Four,
    Six,
    Seven,
    Year2019,
    Year2020,
}

use Draft::{Four, Seven, Six, Year2019, Year2020};

/// Keywords that constrain values, with the first and the last draft that has them.
const CONSTRAINTS: [(&str, Draft, Draft); 46] = [
    ("$dynamicRef", Year2020, Year2020),
    ("$recursiveRef", Year2019, Year2019),
    ("$ref", Four, Year2020),
    ("additionalItems", Four, Year2019),
    ("additionalProperties", Four, Year2020),
    ("allOf", Four, Year2020),
    ("anyOf", Four, Year2020),
    ("const", Six, Year2020),
    ("contains", Six, Year2020),
    ("dependencies", Four, Year2020),
    ("dependentRequired", Year2019, Year2020),
    ("dependentSchemas", Year2019, Year2020),
    ("else", Seven, Year2020),
    ("enum", Four, Year2020),
    ("exclusiveMaximum", Four, Year2020),
    ("exclusiveMinimum", Four, Year2020),
    ("format", Four, Year2020),
    ("if", Seven, Year2020),
    ("items", Four, Year2020),
    ("maxContains", Year2019, Year2020),
    ("maxItems", Four, Year2020),
    ("maxLength", Four, Year2020),
    ("maxProperties", Four, Year2020),
    ("maximum", Four, Year2020),
    ("minContains", Year2019, Year2020),
    ("minItems", Four, Year2020),
    ("minLength", Four, Year2020),
    ("minProperties", Four, Year2020),
    ("minimum", Four, Year2020),
    ("multipleOf", Four, Year2020),
    ("not", Four, Year2020),
    ("oneOf", Four, Year2020),
    ("pattern", Four, Year2020),
    ("patternProperties", Four, Year2020),
    ("prefixItems", Year2020, Year2020),
    ("properties", Four, Year2020),
    ("propertyNames", Six, Year2020),
    ("required", Four, Year2020),
    ("then", Seven, Year2020),
    ("type", Four, Year2020),
    ("unevaluatedItems", Year2019, Year2020),
    ("unevaluatedProperties", Year2019, Year2020),
    ("uniqueItems", Four, Year2020),
    // Keywords that say where schemas are.
    ("$defs", Four, Year2020),
    ("definitions", Four, Year2020),
    ("$id", Six, Year2020),
];

/// Keywords that constrain nothing, in any draft or in OpenAPI.
const NOTES: [&str; 22] = [
    "$anchor",
    "$comment",
    "$dynamicAnchor",
    "$recursiveAnchor",
    "$schema",
    "$vocabulary",
    "contentEncoding",
    "contentMediaType",
    "contentSchema",
    "default",
    "deprecated",
    "description",
    "discriminator",
    "example",
    "examples",
    "externalDocs",
    "id",
    "markdownDescription",
    "readOnly",
    "title",
    "writeOnly",
    "xml",
];

/// The meaning of a word in a draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    Constraint,
    Note,
    Unknown,
}

impl Draft {
    /// The draft that the URI of a metaschema names.
    pub fn named(uri: &str) -> Option<Self> {
        let name = uri.trim_end_matches('#').trim_end_matches('/');
        let (_, name) = name.split_once("json-schema.org/")?;
        match name {
            "draft-04/schema" | "draft-04/hyper-schema" => Some(Four),
            "draft-06/schema" | "draft-06/hyper-schema" => Some(Six),
            "draft-07/schema" | "draft-07/hyper-schema" => Some(Seven),
            "draft/2019-09/schema" => Some(Year2019),
            "draft/2020-12/schema" | "schema" => Some(Year2020),
            _ => None,
        }
    }

    /// The draft that `schema` names with `$schema`.
    pub fn of(schema: &Map<String, Value>) -> Option<Self> {
        schema.get("$schema")?.as_str().and_then(Self::named)
    }

    /// True if a `$ref` hides the keywords beside it.
    pub fn ref_stands_alone(self) -> bool {
        self <= Seven
    }
}

/// The meaning of `word` in `draft`; without a draft, the words of all drafts are known.
pub(super) fn meaning(word: &str, draft: Option<Draft>) -> Word {
    let row = CONSTRAINTS.iter().find(|(name, ..)| *name == word);
    match row {
        Some(&(_, since, until)) => match draft {
            Some(draft) if draft < since || draft > until => Word::Unknown,
            _ => Word::Constraint,
        },
        None if NOTES.contains(&word) || word.starts_with("x-") => Word::Note,
        None => Word::Unknown,
    }
}

/// The known word that is most like `word`, if any is like it.
pub(super) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let most = (word.chars().count() / 3).clamp(1, 3);
    let distances = known
        .into_iter()
        .map(|known| (distance(word, known), known));
    let best = distances.min_by_key(|&(distance, _)| distance);
    best.filter(|&(distance, _)| distance <= most)
        .map(|(_, known)| known)
}

/// The known keyword that is most like `word`.
pub(super) fn nearest_keyword(word: &str) -> Option<&'static str> {
    let words = CONSTRAINTS.iter().map(|(name, ..)| *name);
    nearest(word, words.chain(NOTES))
}

/// The letters to insert, delete or replace to make `b` of `a` (Levenshtein). Upper and lower case
/// are alike.
fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.to_lowercase(), b.to_lowercase());
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (line, letter) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = line + 1;
        for (column, &other) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != other);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_known_in_their_drafts_only() {
        assert_eq!(meaning("const", Some(Four)), Word::Unknown);
        assert_eq!(meaning("const", Some(Six)), Word::Constraint);
        assert_eq!(meaning("const", None), Word::Constraint);
        assert_eq!(meaning("additionalItems", Some(Year2020)), Word::Unknown);
        assert_eq!(meaning("title", None), Word::Note);
        assert_eq!(meaning("x-order", None), Word::Note);
        assert_eq!(meaning("javaType", None), Word::Unknown);
        assert_eq!(
            Draft::named("http://json-schema.org/draft-04/schema#"),
            Some(Four)
        );
        assert_eq!(
            Draft::named("https://json-schema.org/draft/2020-12/schema"),
            Some(Year2020)
        );
        assert_eq!(Draft::named("http://example.com/schema"), None);
    }

    #[test]
    fn a_misspelled_word_is_recognised() {
        assert_eq!(nearest_keyword("require"), Some("required"));
        assert_eq!(nearest_keyword("propertes"), Some("properties"));
        assert_eq!(nearest_keyword("readonly"), Some("readOnly"));
        assert_eq!(nearest_keyword("javaType"), None);
    }
}
