//! Prometheus' text formats: heads, samples and numbers.

use std::fmt::Write;
use std::time::UNIX_EPOCH;

use crate::points::Exemplar;

/// The text format of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TextFormat {
    /// Version 0.0.4, which every scraper reads.
    #[default]
    Prometheus,
    /// OpenMetrics 1.0.0: the same samples, and an end mark that shows that nothing is missing.
    OpenMetrics,
}

impl TextFormat {
    /// The value of the `content-type` header.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// Writes the HELP and TYPE lines of a family.
    pub fn head(self, out: &mut String, name: &str, kind: &str, help: &str) {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        // In OpenMetrics the name of a counter's family lacks the `_total` of its samples.
        let name = match (self, kind) {
            (Self::OpenMetrics, "counter") => name.strip_suffix("_total").unwrap_or(name),
            _ => name,
        };
        let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    /// Writes the end mark, if the format has one.
    pub fn end(self, out: &mut String) {
        if self == Self::OpenMetrics {
            out.push_str("# EOF\n");
        }
    }
}

/// Writes one sample. `suffix` is appended to `name`; `le` is the bound of a bucket.
pub fn sample<K: AsRef<str>>(
    out: &mut String,
    name: &str,
    suffix: &str,
    labels: &[(K, String)],
    le: Option<&str>,
    value: f64,
) {
    out.push_str(name);
    out.push_str(suffix);
    let labels = labels.iter().map(|(key, value)| (key.as_ref(), &**value));
    for (index, (key, value)) in labels.chain(le.map(|le| ("le", le))).enumerate() {
        out.push(if index == 0 { '{' } else { ',' });
        out.push_str(key);
        out.push_str("=\"");
        escape(out, value);
        out.push('"');
    }
    if out.ends_with('"') {
        out.push('}');
    }
    out.push(' ');
    number(out, value);
    out.push('\n');
}

/// Adds `of` to the sample that was written last, with its value in the unit of the sample. Only
/// OpenMetrics has exemplars.
pub fn exemplar(out: &mut String, of: Option<&Exemplar>, scale: f64) {
    let Some(Exemplar { trace, value, at }) = of else {
        return;
    };
    out.truncate(out.trim_end().len());
    let _ = write!(out, " # {{trace_id=\"{trace}\"}} ");
    number(out, value * scale);
    let at = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let _ = writeln!(out, " {:.3}", at.as_secs_f64());
}

fn escape(out: &mut String, value: &str) {
    for character in value.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            other => out.push(other),
        }
    }
}

/// Writes a number like Prometheus' Python client: `1.0`, `0.5`, `1e+06`. The form matters,
/// because `le="1"` and `le="1.0"` are two series in Prometheus 2.
pub fn number(out: &mut String, value: f64) {
    if value.is_nan() {
        return out.push_str("NaN");
    }
    if value.is_infinite() {
        return out.push_str(if value > 0.0 { "+Inf" } else { "-Inf" });
    }
    let text = format!("{value:?}");
    match text.find('.') {
        Some(dot) if dot > 6 && value > 0.0 => {
            let digits = format!("{}{}", &text[1..dot], &text[dot + 1..]);
            let digits = digits.trim_end_matches('0');
            let point = if digits.is_empty() { "" } else { "." };
            let _ = write!(out, "{}{point}{digits}e+{:02}", &text[..1], dot - 1);
        }
        _ => out.push_str(&text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(value: f64) -> String {
        let mut out = String::new();
        number(&mut out, value);
        out
    }

    #[test]
    fn numbers_are_written_like_pythons_client_writes_them() {
        assert_eq!(written(1.0), "1.0");
        assert_eq!(written(0.0), "0.0");
        assert_eq!(written(0.25), "0.25");
        assert_eq!(written(131_072.0), "131072.0");
        assert_eq!(written(1e6), "1e+06");
        assert_eq!(written(1.1e6), "1.1e+06");
        assert_eq!(written(12_345_678.5), "1.23456785e+07");
        assert_eq!(written(f64::INFINITY), "+Inf");
    }

    #[test]
    fn label_values_are_escaped() {
        let mut out = String::new();
        let labels = [("model_name", "a\"b\\c\nd".to_owned())];
        sample(&mut out, "x", "_total", &labels, None, 2.0);
        assert_eq!(out, "x_total{model_name=\"a\\\"b\\\\c\\nd\"} 2.0\n");
        out.clear();
        sample::<&str>(&mut out, "x", "", &[], None, 2.0);
        assert_eq!(out, "x 2.0\n");
    }
}
