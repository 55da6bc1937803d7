//! Writes the formats of a structural tag as Lark.

use std::fmt::Write;

use serde_json::Value;

use super::format::Format;
use super::literal::{either, lacking, literal, slashed};
use crate::error::{GrammarError, first_words};
use crate::gbnf::{self, Translated};
use crate::regex;
use crate::schema::Preparing;

/// The most formats, including tags.
const MAX_FORMATS: usize = 512;
/// The most levels of nested formats.
const MAX_NESTING: usize = 16;

/// The Lark grammar of `format`.
///
/// # Errors
/// If the format is not valid, exceeds a bound, or is not supported; with its JSON pointer.
pub(super) fn lark(format: &Format<'_>, preparing: &mut Preparing) -> Result<String, GrammarError> {
    let mut writer = Writer {
        preparing,
        formats: 0,
        rules: String::new(),
        count: 0,
    };
    let start = writer.format(format, 0)?;
    Ok(format!("start: {start}\n{}", writer.rules))
}

struct Writer<'a> {
    preparing: &'a mut Preparing,
    formats: usize,
    /// The text of all rules and terminals besides `start`.
    rules: String,
    /// The number of rules, for their names.
    count: usize,
}

impl Writer<'_> {
    /// The Lark expression of a format that has its own end, or ends with the output.
    fn format(&mut self, format: &Format<'_>, depth: usize) -> Result<String, GrammarError> {
        self.count_format(format, depth)?;
        match format.kind {
            "const_string" => {
                format.only(&["type", "value"])?;
                Ok(literal(format.text("value")?))
            }
            "json_schema" => {
                format.only(&["type", "json_schema", "style"])?;
                if format.map.get("style").is_some_and(|style| style != "json") {
                    let message = "a `style` other than \"json\" is not supported";
                    return Err(GrammarError::unsupported(message).at(format.below("style")));
                }
                self.schema(format, "json_schema")
            }
            "regex" => {
                format.only(&["type", "pattern"])?;
                self.regex(format.text("pattern")?, &format.below("pattern"))
            }
            "grammar" => {
                format.only(&["type", "grammar"])?;
                self.grammar(format)
            }
            "any_text" => self.text_until(&[], format),
            "sequence" => {
                format.only(&["type", "elements"])?;
                let elements = format.list("elements")?;
                let (last, before) = elements.split_last().expect("it is not empty");
                let mut parts = Vec::new();
                for element in before {
                    if element.is_open()? {
                        let message = "text without an end must come last: put it into a `tag` \
                                       with an `end`";
                        return Err(GrammarError::unsupported(message).at(&*element.at));
                    }
                    parts.push(self.format(element, depth + 1)?);
                }
                parts.push(self.format(last, depth + 1)?);
                Ok(format!("({})", parts.join(" ")))
            }
            "or" => {
                format.only(&["type", "elements"])?;
                let elements = format.list("elements")?;
                let parts: Result<Vec<_>, _> =
                    elements.iter().map(|e| self.format(e, depth + 1)).collect();
                Ok(format!("({})", parts?.join(" | ")))
            }
            "tag" => {
                let begin = format.text("begin")?;
                let rest = self.after_begin(format, begin.len(), depth)?;
                Ok(format!("({} {rest})", literal(begin)))
            }
            "triggered_tags" | "structures" => self.triggered(format, &[], depth),
            "tags_with_separator" => self.separated(format, depth),
            kind => {
                let message = format!(
                    "the format {:?} is not supported: it must be one of const_string, \
                     json_schema, regex, grammar, any_text, sequence, or, tag, triggered_tags, \
                     tags_with_separator",
                    first_words(kind)
                );
                Err(GrammarError::unsupported(message).at(format.below("type")))
            }
        }
    }

    /// # Errors
    /// If there are too many formats, or they are nested too deeply.
    fn count_format(&mut self, format: &Format<'_>, depth: usize) -> Result<(), GrammarError> {
        self.formats += 1;
        let (what, most, given) = if depth > MAX_NESTING {
            ("levels of formats", MAX_NESTING, depth)
        } else if self.formats > MAX_FORMATS {
            ("formats and tags", MAX_FORMATS, self.formats)
        } else {
            return Ok(());
        };
        let message = format!("a structural tag must have at most {most} {what}, got {given}");
        Err(GrammarError::too_complex(message).at(&*format.at))
    }

    /// The Lark expression of a tag without the first `taken` bytes of its begin, which were
    /// written before.
    fn after_begin(
        &mut self,
        tag: &Format<'_>,
        taken: usize,
        depth: usize,
    ) -> Result<String, GrammarError> {
        let rest = match &tag.text("begin")?[taken..] {
            "" => String::new(),
            rest => format!("{} ", literal(rest)),
        };
        if tag.map.contains_key("schema") {
            tag.only(&["begin", "schema", "end"])?;
            let schema = self.schema(tag, "schema")?;
            return Ok(format!("{rest}{schema} {}", literal(tag.text("end")?)));
        }
        tag.only(&["type", "begin", "content", "end"])?;
        let content = tag.map.get("content");
        let content = content.ok_or_else(|| tag.wrong("content", "a format"))?;
        let content = Format::read(content, tag.below("content"))?;
        let ends = tag.texts("end")?;
        if !tag.map.contains_key("end") || ends.is_empty() {
            return Err(tag.wrong("end", "a string, or a list of strings"));
        }
        let ends: Vec<&str> = ends.into_iter().filter(|end| !end.is_empty()).collect();
        if !ends.is_empty() && content.is_open()? {
            let inner = match content.kind {
                "any_text" => self.text_until(&ends, &content)?,
                "triggered_tags" => self.triggered(&content, &ends, depth + 1)?,
                _ => {
                    let message = "text without an end within a `sequence` or an `or` is not \
                                   supported in a `tag`";
                    return Err(GrammarError::unsupported(message).at(content.at));
                }
            };
            return Ok(format!("{rest}{inner}"));
        }
        let inner = self.format(&content, depth + 1)?;
        let ends: Vec<String> = ends.into_iter().map(literal).collect();
        Ok(match ends.len() {
            0 => format!("{rest}{inner}"),
            _ => format!("{rest}{inner} ({})", ends.join(" | ")),
        })
    }

    /// Any text up to and including the first of `ends`; any text at all if there are no ends.
    fn text_until(&mut self, ends: &[&str], format: &Format<'_>) -> Result<String, GrammarError> {
        format.only(&["type", "excludes"])?;
        let excluded = format.texts("excludes")?;
        let without = match excluded.as_slice() {
            [] => String::new(),
            texts => format!(" & {}", lacking(texts)),
        };
        if ends.is_empty() {
            let text = self.rule("TEXT", "", &format!("/(?s:.+)/{without}"));
            return Ok(format!("{text}?"));
        }
        // A lazy lexeme ends at the first end.
        let body = format!("/(?s:.*){}/{without}", either(ends));
        Ok(self.rule("text", "[lazy]", &body))
    }

    /// Free text with tags, up to and including the first of `ends` if there are any.
    fn triggered(
        &mut self,
        format: &Format<'_>,
        ends: &[&str],
        depth: usize,
    ) -> Result<String, GrammarError> {
        let tags = if format.kind == "structures" {
            format.list("structures")?
        } else {
            format.only(&[
                "type",
                "triggers",
                "tags",
                "at_least_one",
                "stop_after_first",
            ])?;
            format.list("tags")?
        };
        let triggers = format.texts("triggers")?;
        if triggers.is_empty() {
            return Err(format.wrong("triggers", "a list with at least 1 entry"));
        }
        let mut after = vec![Vec::new(); triggers.len()];
        for tag in &tags {
            let begin = tag.text("begin")?;
            let fits =
                |(index, trigger): (usize, &&str)| begin.starts_with(*trigger).then_some(index);
            let found: Vec<usize> = triggers.iter().enumerate().filter_map(fits).collect();
            let [index] = found[..] else {
                let message = format!(
                    "`begin` must start with exactly 1 of the triggers, got {}",
                    found.len()
                );
                return Err(GrammarError::invalid(message).at(tag.below("begin")));
            };
            self.count_format(tag, depth)?;
            after[index].push(self.after_begin(tag, triggers[index].len(), depth + 1)?);
        }
        // Each trigger with its tags: without text before it, and with text.
        let (mut at_once, mut later) = (Vec::new(), Vec::new());
        for (trigger, tags) in triggers.iter().zip(after) {
            if tags.is_empty() {
                let message = format!("no tag begins with the trigger {:?}", first_words(trigger));
                return Err(GrammarError::invalid(message).at(format.below("triggers")));
            }
            let tags = self.rule("tags", "", &tags.join(" | "));
            at_once.push(format!("{} {tags}", literal(trigger)));
            let text = self.rule(
                "text",
                "[lazy]",
                &format!("/(?s:.*){}/", either(&[trigger])),
            );
            later.push(format!("{text} {tags}"));
        }
        let at_once = format!("({})", at_once.join(" | "));
        let later = format!("({})", later.join(" | "));
        let end = if ends.is_empty() {
            let body = format!("/(?s:.+)/ & {}", lacking(&triggers));
            format!("{}?", self.rule("TEXT", "", &body))
        } else {
            self.rule("text", "[lazy]", &format!("/(?s:.*){}/", either(ends)))
        };
        let one_end: Vec<String> = ends.iter().map(|end| literal(end)).collect();
        let one_end = match one_end.len() {
            0 => String::new(),
            _ => format!(" ({})", one_end.join(" | ")),
        };
        Ok(
            match (
                format.flag("at_least_one")?,
                format.flag("stop_after_first")?,
            ) {
                (false, false) => format!("({later}* {end})"),
                (true, false) => format!("({at_once} {later}* {end})"),
                (false, true) => format!("({later}{one_end} | {end})"),
                (true, true) => format!("({at_once}{one_end})"),
            },
        )
    }

    /// Tags with separators between them.
    fn separated(&mut self, format: &Format<'_>, depth: usize) -> Result<String, GrammarError> {
        format.only(&[
            "type",
            "tags",
            "separator",
            "at_least_one",
            "stop_after_first",
        ])?;
        let tags: Result<Vec<_>, _> = format
            .list("tags")?
            .iter()
            .map(|tag| match tag.kind {
                "tag" => self.format(tag, depth + 1),
                _ => Err(GrammarError::invalid("it must be a tag").at(&*tag.at)),
            })
            .collect();
        let tag = self.rule("tags", "", &tags?.join(" | "));
        let separator = match format.text("separator")? {
            "" => String::new(),
            separator => format!("{} ", literal(separator)),
        };
        let more = match format.flag("stop_after_first")? {
            true => String::new(),
            false => format!(" ({separator}{tag})*"),
        };
        Ok(match format.flag("at_least_one")? {
            true => format!("({tag}{more})"),
            false => format!("({tag}{more})?"),
        })
    }

    /// The Lark expression of the schema in the field `key`.
    fn schema(&mut self, format: &Format<'_>, key: &str) -> Result<String, GrammarError> {
        let schema = format.map.get(key);
        let schema = schema.ok_or_else(|| format.wrong(key, "a JSON Schema"))?;
        let within = |mut error: GrammarError| {
            let inner = error.pointer.take().unwrap_or_default();
            error.at(format!(
                "{}{}",
                format.below(key),
                inner.trim_start_matches('#')
            ))
        };
        let schema = self.preparing.schema(schema);
        Ok(format!("%json {}", schema.map_err(within)?))
    }

    /// The Lark expression of a regex, whose JSON pointer is `at`.
    fn regex(&mut self, pattern: &str, at: &str) -> Result<String, GrammarError> {
        let hir = regex::parse(pattern, regex::MAX_PATTERN_BYTES).map_err(|e| e.at(at))?;
        let bare = regex::without_anchors(&hir).ok_or_else(|| {
            let message = "anchors and word boundaries within a regex are not supported here";
            GrammarError::unsupported(message).at(at)
        })?;
        Ok(self.terminal(&bare))
    }

    /// A terminal for `regex`; the empty literal if the regex is empty.
    fn terminal(&mut self, regex: &str) -> String {
        match regex {
            "" | "(?:)" => "\"\"".to_owned(),
            regex => self.rule("REGEX", "", &format!("/{}/", slashed(regex))),
        }
    }

    /// The Lark expression of a GBNF grammar.
    fn grammar(&mut self, format: &Format<'_>) -> Result<String, GrammarError> {
        let at = format.below("grammar");
        let text = format.map.get("grammar").and_then(Value::as_str);
        let text = text.ok_or_else(|| format.wrong("grammar", "a string"))?;
        match gbnf::translate(text).map_err(|error| error.at(at))? {
            Translated::Regex(regex) => Ok(self.terminal(&regex)),
            Translated::Lark(lark) => Ok(format!("%lark {{\n{lark}\n}}")),
        }
    }

    /// Adds a rule, or a terminal if `name` ends with a capital letter, and returns its full name.
    fn rule(&mut self, name: &str, attributes: &str, body: &str) -> String {
        self.count += 1;
        let joint = if name.ends_with(|c: char| c.is_ascii_uppercase()) {
            "_"
        } else {
            ""
        };
        let name = format!("{name}{joint}{}", self.count);
        // Writing to a string does not fail.
        let _ = writeln!(self.rules, "{name}{attributes}: {body}");
        name
    }
}
