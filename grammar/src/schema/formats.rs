//! The values of `format` that are enforced, as patterns. Where a format is not regular, the
//! pattern describes a part of it, so that every accepted text is of the format.

use std::sync::LazyLock;

use serde_json::{Map, Value};

/// The formats that are enforced.
pub(super) const NAMES: [&str; 18] = [
    "date",
    "date-time",
    "duration",
    "email",
    "hostname",
    "idn-email",
    "idn-hostname",
    "ipv4",
    "ipv6",
    "iri",
    "iri-reference",
    "json-pointer",
    "relative-json-pointer",
    "time",
    "uri",
    "uri-reference",
    "uri-template",
    "uuid",
];

/// How a format is enforced.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Format {
    /// llguidance knows it.
    Native,
    /// By a pattern.
    Pattern(String),
}

const DATE: &str = concat!(
    "(?:[0-9]{4}-(?:",
    "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|",
    "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|",
    "02-(?:0[1-9]|1[0-9]|2[0-8]))|",
    // Leap years.
    "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)",
);
/// A leap second comes before midnight. In other places than that of Greenwich, it is left out.
const TIME: &str = concat!(
    "(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]+)?",
    "(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])|",
    "23:59:60(?:\\.[0-9]+)?(?:[zZ]|[+-]00:00))",
);
const POINTER: &str = "(?:/(?:[^~/]|~[01])*)*";
const IPV4: &str = "(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\\.){3}\
                    (?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
/// The ranges of characters beyond ASCII that an IRI may have (RFC 3987).
const UCS: &str = "\\x{A0}-\\x{D7FF}\\x{F900}-\\x{FDCF}\\x{FDF0}-\\x{FFEF}\\x{10000}-\\x{1FFFD}\
                   \\x{20000}-\\x{2FFFD}\\x{30000}-\\x{3FFFD}";
/// Some of the letters beyond ASCII that a label of a host name may have (RFC 5892).
const LABEL: &str = "a-z0-9\\x{DF}-\\x{F6}\\x{F8}-\\x{FF}\\x{430}-\\x{44F}\\x{4E00}-\\x{9FA5}";

static URI_REFERENCE: LazyLock<String> = LazyLock::new(|| reference("", true));
static IRI_REFERENCE: LazyLock<String> = LazyLock::new(|| reference(UCS, true));
static IRI: LazyLock<String> = LazyLock::new(|| reference(UCS, false));

/// How the format `name` is enforced; `None` if it is not.
pub(super) fn pattern(name: &str) -> Option<Format> {
    let text = match name {
        "duration" | "email" | "hostname" | "ipv4" | "ipv6" | "uuid" | "uri" => {
            return Some(Format::Native);
        }
        "date" => DATE.to_owned(),
        "time" => TIME.to_owned(),
        "date-time" => format!("{DATE}[tT]{TIME}"),
        "json-pointer" => POINTER.to_owned(),
        "relative-json-pointer" => format!("(?:0|[1-9][0-9]*)(?:#|{POINTER})"),
        "uri-reference" => URI_REFERENCE.clone(),
        "iri-reference" => IRI_REFERENCE.clone(),
        "iri" => IRI.clone(),
        "idn-email" => format!(
            "[A-Za-z0-9{UCS}!#$%&'*+/=?^_`\\{{|\\}}~-]{{1,20}}(?:\\.[A-Za-z0-9{UCS}_-]{{1,20}}){{0,2}}@{}",
            idn_hostname()
        ),
        "idn-hostname" => idn_hostname(),
        "uri-template" => uri_template(),
        _ => return None,
    };
    Some(Format::Pattern(format!("^(?:{text})$")))
}

/// The pattern of a format that llguidance enforces, where it is short.
pub(super) fn native_pattern(name: &str) -> Option<String> {
    let text = match name {
        "ipv4" => IPV4.to_owned(),
        "uuid" => "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}".to_owned(),
        _ => return None,
    };
    Some(format!("^(?:{text})$"))
}

/// A pattern of texts that are surely not of the format `name`: not all such texts.
pub(super) fn outside(name: &str) -> Option<&'static str> {
    Some(match name {
        "uri" | "iri" | "ipv6" | "time" | "date-time" => "^[^:]*$",
        "email" | "idn-email" => "^[^@]*$",
        "duration" => "^(?:[^P](?s:.)*)?$",
        "hostname" | "idn-hostname" | "uri-reference" | "iri-reference" | "uri-template" => " ",
        _ => return None,
    })
}

/// True if a pattern describes all texts of the format `name`.
pub(super) fn is_exact(name: &str) -> bool {
    matches!(
        name,
        "date" | "ipv4" | "json-pointer" | "relative-json-pointer" | "uuid"
    )
}

/// A URI reference (RFC 3986), or a URI if it must not be relative; `more` are the characters that
/// it may have beside those of URIs.
fn reference(more: &str, relative: bool) -> String {
    let unreserved = format!("\\-A-Za-z0-9._~!$&'()*+,;={more}");
    let hex = "%[0-9A-Fa-f]{2}";
    let letter = format!("(?:[{unreserved}:@]|{hex})");
    let no_colon = format!("(?:[{unreserved}@]|{hex})");
    let authority = format!(
        "//(?:(?:[{unreserved}:]|{hex})*@)?(?:(?:[{unreserved}]|{hex})*|\\[(?:[0-9A-Fa-f]{{1,4}}:){{7}}\
         [0-9A-Fa-f]{{1,4}}\\]|\\[::[0-9A-Fa-f]{{0,4}}\\])(?::[0-9]*)?(?:/{letter}*)*"
    );
    let rooted = format!("{authority}|/(?:{letter}+(?:/{letter}*)*)?");
    let absolute = format!("[A-Za-z][A-Za-z0-9+.-]*:(?:{rooted}|{letter}+(?:/{letter}*)*)?");
    let rest = format!("(?:\\?(?:{letter}|[/?])*)?(?:#(?:{letter}|[/?])*)?");
    match relative {
        true => format!("(?:{absolute}|(?:{rooted}|{no_colon}+(?:/{letter}*)*)?){rest}"),
        false => format!("{absolute}{rest}"),
    }
}

fn idn_hostname() -> String {
    let label = format!("[{LABEL}](?:[{LABEL}-]?[{LABEL}]){{0,20}}");
    // Hyphens in the third and fourth place would announce an encoding.
    format!("{label}(?:\\.{label}){{0,5}}")
}

fn uri_template() -> String {
    let hex = "%[0-9A-Fa-f]{2}";
    let name = format!("(?:[A-Za-z0-9_]|{hex})(?:\\.?(?:[A-Za-z0-9_]|{hex}))*");
    let variable = format!("{name}(?::[1-9][0-9]{{0,3}}|\\*)?");
    format!(
        "(?:[A-Za-z0-9\\x{{A1}}-\\x{{D7FF}}!#$&()*+,./:;=?@\\[\\]_~-]|{hex}|\
         \\{{[+#./;?&]?{variable}(?:,{variable})*\\}})*"
    )
}

/// True if `schema` says nothing that rules out strings.
pub(super) fn may_be_string(schema: &Map<String, Value>) -> bool {
    match schema.get("type") {
        None => true,
        Some(Value::Array(types)) => types.iter().any(|kind| kind == "string"),
        Some(kind) => kind == "string",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(name: &str, text: &str) -> bool {
        match pattern(name) {
            Some(Format::Pattern(pattern)) => ::regex::Regex::new(&pattern).unwrap().is_match(text),
            other => panic!("{name}: {other:?}"),
        }
    }

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
    fn texts_outside_of_a_format_are_none_of_its_texts() {
        let samples = [
            ("iri", "http://ö.de/ä?x"),
            ("idn-email", "ö@bücher.de"),
            ("date-time", "2020-02-29T10:00:00Z"),
            ("uri-reference", "../a?b#c"),
            ("iri-reference", "/ä"),
            ("idn-hostname", "bücher.de"),
            ("uri-template", "/a/{b,c*}"),
        ];
        for (name, text) in samples {
            let outside = ::regex::Regex::new(outside(name).unwrap()).unwrap();
            assert!(matches(name, text) && !outside.is_match(text), "{name}");
        }
        for name in NAMES {
            assert!(is_exact(name) != outside(name).is_some(), "{name}");
        }
    }

    #[test]
    fn formats_are_what_their_standards_say() {
        let cases = [
            ("json-pointer", "/a~0b/c", "a/b"),
            ("json-pointer", "", "/~2"),
            ("relative-json-pointer", "1/a", "/a"),
            ("relative-json-pointer", "0#", "01#"),
            ("uri-reference", "../a?b#c", "a b"),
            ("uri-reference", "//h:1/p", "\\\\a"),
            ("uri-reference", "", "a:b:%"),
            ("iri", "http://ö.de/ä?x", "/ä"),
            ("iri-reference", "/ä", "ä ö"),
            ("idn-hostname", "bücher.de", "-a.de"),
            ("idn-email", "ö@bücher.de", "ö"),
            ("uri-template", "/a/{b,c*}", "/a/{b"),
            ("date-time", "2020-02-29T10:00:00Z", "2021-02-29T10:00:00Z"),
            ("time", "23:59:60.5-00:00", "22:59:60Z"),
            ("time", "00:00:00+23:59", "00:00:00+24:00"),
        ];
        for (name, good, bad) in cases {
            assert!(matches(name, good), "{name} {good}");
            assert!(!matches(name, bad), "{name} {bad}");
        }
        assert!(NAMES.iter().all(|name| pattern(name).is_some()));
    }
}
