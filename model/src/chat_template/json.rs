//! The filter `tojson` as Python's `json.dumps` writes it, spaces and all: models were trained
//! on those very bytes.

use std::fmt::Write;

use minijinja::value::Kwargs;
use minijinja::{Error, ErrorKind, Value as Jinja};
use serde_json::Value;

use super::budget;
use crate::quoting::MARK;

/// Bytes of a separator or an indent, which are written many times.
const MAX_SEPARATOR: usize = 256;

struct Style {
    ensure_ascii: bool,
    indent: Option<String>,
    item: String,
    key: String,
    sort_keys: bool,
}

/// `value | tojson(indent=None, ensure_ascii=False, separators=None, sort_keys=False)`.
pub(super) fn tojson(value: Jinja, options: Kwargs) -> Result<String, Error> {
    if value.is_undefined() {
        let message = "an undefined value is not JSON serializable";
        return Err(Error::new(ErrorKind::UndefinedError, message));
    }
    let indent = match options
        .get::<Option<Jinja>>("indent")?
        .filter(|indent| !indent.is_none())
    {
        None => None,
        Some(indent) => Some(match indent.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::from(u8::try_from(indent)?)),
        }),
    };
    let separators: Option<Vec<String>> = options.get("separators")?;
    let (item, key) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => {
            let message = "separators must be two strings";
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
        None => (
            if indent.is_some() { "," } else { ", " }.to_owned(),
            ": ".to_owned(),
        ),
    };
    let style = Style {
        ensure_ascii: options
            .get::<Option<bool>>("ensure_ascii")?
            .unwrap_or(false),
        indent,
        item,
        key,
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    options.assert_all_used()?;
    let longest = [&style.item, &style.key].map(|text| text.len());
    let indent = style.indent.as_ref().map_or(0, String::len);
    if indent.max(longest[0]).max(longest[1]) > MAX_SEPARATOR {
        let message = format!("separators and indents have at most {MAX_SEPARATOR} bytes");
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    let value = serde_json::to_value(&value).map_err(|error| {
        Error::new(
            ErrorKind::BadSerialization,
            "the value is not JSON serializable",
        )
        .with_source(error)
    })?;
    let mut output = String::new();
    write_value(&mut output, &value, &style, 0)?;
    Ok(output)
}

/// `value` as `json.dumps` writes it without options.
pub(super) fn python(value: &Value) -> String {
    let style = Style {
        ensure_ascii: false,
        indent: None,
        item: ", ".to_owned(),
        key: ": ".to_owned(),
        sort_keys: false,
    };
    let mut output = String::new();
    // Outside of a rendering there is no bound that it could exceed. The rendering counts the text.
    let _ = write_value(&mut output, value, &style, 0);
    output
}

fn write_value(
    output: &mut String,
    value: &Value,
    style: &Style,
    depth: usize,
) -> Result<(), Error> {
    // Indents and separators may be long.
    if output.len() > budget::largest() {
        budget::make(output.len())?;
    }
    match value {
        Value::Null => output.push_str("null"),
        Value::Bool(flag) => output.push_str(if *flag { "true" } else { "false" }),
        Value::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() => output.push_str(&python_float(float)),
            _ => output.push_str(&number.to_string()),
        },
        Value::String(text) => write_string(output, text, style.ensure_ascii),
        Value::Array(list) if list.is_empty() => output.push_str("[]"),
        Value::Object(map) if map.is_empty() => output.push_str("{}"),
        Value::Array(list) => {
            output.push('[');
            for (index, item) in list.iter().enumerate() {
                separate(output, style, depth + 1, index);
                write_value(output, item, style, depth + 1)?;
            }
            close(output, style, depth, ']');
        }
        Value::Object(map) => {
            let mut entries: Vec<(&String, &Value)> = map.iter().collect();
            if style.sort_keys {
                entries.sort_by_key(|(key, _)| *key);
            }
            output.push('{');
            for (index, (key, item)) in entries.into_iter().enumerate() {
                separate(output, style, depth + 1, index);
                write_string(output, key, style.ensure_ascii);
                output.push_str(&style.key);
                write_value(output, item, style, depth + 1)?;
            }
            close(output, style, depth, '}');
        }
    }
    Ok(())
}

fn separate(output: &mut String, style: &Style, depth: usize, index: usize) {
    if index > 0 {
        output.push_str(&style.item);
    }
    if let Some(indent) = &style.indent {
        output.push('\n');
        output.push_str(&indent.repeat(depth));
    }
}

fn close(output: &mut String, style: &Style, depth: usize, bracket: char) {
    if let Some(indent) = &style.indent {
        output.push('\n');
        output.push_str(&indent.repeat(depth));
    }
    output.push(bracket);
}

fn write_string(output: &mut String, text: &str, ensure_ascii: bool) {
    // serde_json escapes what Python escapes, except for its `ensure_ascii`.
    let quoted = Value::from(text).to_string();
    if !ensure_ascii {
        output.push_str(&quoted);
        return;
    }
    for letter in quoted.chars() {
        // A mark is taken out of the prompt again, and is no part of the text.
        if letter.is_ascii() || letter == MARK {
            output.push(letter);
            continue;
        }
        for unit in letter.encode_utf16(&mut [0; 2]) {
            let _ = write!(output, "\\u{unit:04x}");
        }
    }
}

/// `repr(float)`: the shortest digits that round-trip, an exponent below 1e-4 and from 1e16 on.
fn python_float(value: f64) -> String {
    let scientific = format!("{value:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else {
        return scientific;
    };
    match exponent.parse::<i32>() {
        Ok(power @ -4..=15) => {
            let plain = format!("{value}");
            if power >= 0 && !plain.contains('.') {
                format!("{plain}.0")
            } else {
                plain
            }
        }
        Ok(power) => {
            let sign = if power < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", power.abs())
        }
        Err(_) => scientific,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_python_writes_them() {
        let cases = [
            (0.0, "0.0"),
            (1.0, "1.0"),
            (-2.5, "-2.5"),
            (0.1, "0.1"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (123_456_789.0, "123456789.0"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.25e100, "1.25e+100"),
        ];
        for (value, expected) in cases {
            assert_eq!(python_float(value), expected);
        }
    }
}
