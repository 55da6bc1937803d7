//! Patterns for dates that exist: llguidance's date formats accept 29 February in every year.

use serde_json::{Map, Value, json};

const DATE: &str = concat!(
    "(?:[0-9]{4}-(?:",
    "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|",
    "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|",
    "02-(?:0[1-9]|1[0-9]|2[0-8]))|",
    // Leap years.
    "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)",
);
const TIME: &str = concat!(
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:(?:[0-5][0-9]|60)(?:\\.[0-9]+)?",
    "(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])",
);

/// Replaces a `format` that contains a date with a `pattern`.
pub(super) fn replace_formats(schema: &mut Map<String, Value>) {
    let pattern = match schema.get("format").and_then(Value::as_str) {
        Some("date") => format!("^{DATE}$"),
        Some("date-time") => format!("^{DATE}[tT]{TIME}$"),
        _ => return,
    };
    schema.remove("format");
    if !schema.contains_key("pattern") {
        schema.insert("pattern".to_owned(), Value::String(pattern));
        return;
    }
    let all = schema.entry("allOf").or_insert_with(|| json!([]));
    // An `allOf` that is not a list is refused later, when the lists are checked.
    if let Value::Array(all) = all {
        all.push(json!({"pattern": pattern}));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_the_days_of_ten_thousand_years_are_dates() {
        let date = ::regex::Regex::new(&format!("^{DATE}$")).unwrap();
        for year in 0..10_000 {
            let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let february = format!("{year:04}-02-29");
            assert_eq!(date.is_match(&february), leap, "{february}");
        }
        let lengths = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        for month in 0..=13 {
            for day in 0..=32 {
                let there = (1..=12).contains(&month) && (1..=lengths[month - 1]).contains(&day);
                let text = format!("1923-{month:02}-{day:02}");
                assert_eq!(date.is_match(&text), there, "{text}");
            }
        }
    }

    #[test]
    fn a_pattern_beside_a_date_is_kept() {
        let mut schema = json!({"format": "date", "pattern": "^20"});
        replace_formats(schema.as_object_mut().unwrap());
        assert_eq!(schema["pattern"], "^20");
        let added = schema["allOf"][0]["pattern"].as_str().unwrap();
        assert!(added.contains("02-29") && schema.get("format").is_none());
        let mut schema = json!({"format": "time"});
        replace_formats(schema.as_object_mut().unwrap());
        assert_eq!(schema, json!({"format": "time"}));
    }
}
