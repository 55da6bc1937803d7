//! Translates Python's literals to JSON.

/// Most lists and objects within each other.
const MAX_NESTING: usize = 64;

/// Reads values from the beginning of a text. Each method takes the thing in its name and the white
/// space around it, or gives `None`.
pub struct Values<'a> {
    rest: &'a str,
}

impl<'a> Values<'a> {
    pub fn new(text: &'a str) -> Self {
        Self { rest: text }
    }

    pub fn is_at_end(&self) -> bool {
        self.rest.trim_start().is_empty()
    }

    pub fn expect(&mut self, c: char) -> Option<()> {
        self.rest = self.rest.trim_start().strip_prefix(c)?;
        Some(())
    }

    pub fn name(&mut self) -> Option<&'a str> {
        let text = self.rest.trim_start();
        let end = text.len() - text.trim_start_matches(super::is_name).len();
        let (name, rest) = text.split_at(end);
        self.rest = rest;
        (!name.is_empty()).then_some(name)
    }

    /// `(a=1, b="x")` as a JSON object.
    pub fn keywords(&mut self) -> Option<String> {
        let mut names = Vec::new();
        self.expect('(')?;
        self.items(')', 0, "{}", |values, out| {
            let name = values.name()?;
            if names.contains(&name) {
                return None;
            }
            names.push(name);
            values.expect('=')?;
            out.push_str(&serde_json::to_string(name).ok()?);
            out.push_str(": ");
            values.value(out, 1)
        })
    }

    /// The items before `close`, which commas separate, between JSON's `brackets`.
    fn items(
        &mut self,
        close: char,
        depth: usize,
        brackets: &str,
        mut item: impl FnMut(&mut Self, &mut String) -> Option<()>,
    ) -> Option<String> {
        if depth > MAX_NESTING {
            return None;
        }
        let mut out = brackets[..1].to_owned();
        while self.expect(close).is_none() {
            if out.len() > 1 {
                out.push_str(", ");
            }
            item(self, &mut out)?;
            if self.expect(',').is_none() {
                self.expect(close)?;
                break;
            }
        }
        out.push_str(&brackets[1..]);
        Some(out)
    }

    fn value(&mut self, out: &mut String, depth: usize) -> Option<()> {
        let element = |values: &mut Self, out: &mut String| values.value(out, depth + 1);
        let list = if self.expect('[').is_some() {
            self.items(']', depth, "[]", element)?
        } else if self.expect('(').is_some() {
            self.items(')', depth, "[]", element)?
        } else if self.expect('{').is_some() {
            self.items('}', depth, "{}", |values, out| {
                let key = values.string()?;
                out.push_str(&serde_json::to_string(&key).ok()?);
                out.push_str(": ");
                values.expect(':')?;
                values.value(out, depth + 1)
            })?
        } else if self.rest.trim_start().starts_with(['"', '\'']) {
            serde_json::to_string(&self.string()?).ok()?
        } else {
            self.word()?
        };
        out.push_str(&list);
        Some(())
    }

    /// A number or a constant.
    fn word(&mut self) -> Option<String> {
        let text = self.rest.trim_start();
        let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.' | '_');
        let end = text.len() - text.trim_start_matches(is_word).len();
        let (word, rest) = text.split_at(end);
        self.rest = rest;
        let json = match word {
            "True" => "true",
            "False" => "false",
            "None" => "null",
            word => word,
        };
        serde_json::from_str::<serde::de::IgnoredAny>(json).ok()?;
        Some(json.to_owned())
    }

    fn string(&mut self) -> Option<String> {
        let text = self.rest.trim_start();
        let quote = text.chars().next().filter(|c| matches!(c, '"' | '\''))?;
        let mut out = String::new();
        let mut chars = text[1..].char_indices();
        while let Some((at, c)) = chars.next() {
            if c == quote {
                self.rest = &text[1 + at + 1..];
                return Some(out);
            }
            if c != '\\' {
                out.push(c);
                continue;
            }
            let (_, escape) = chars.next()?;
            let digits = match escape {
                'x' => 2,
                'u' => 4,
                'U' => 8,
                _ => 0,
            };
            match escape {
                _ if digits > 0 => {
                    let mut code = 0;
                    for _ in 0..digits {
                        code = code * 16 + chars.next()?.1.to_digit(16)?;
                    }
                    out.push(char::from_u32(code)?);
                }
                'n' => out.push('\n'),
                't' => out.push('\t'),
                'r' => out.push('\r'),
                'b' => out.push('\u{8}'),
                'f' => out.push('\u{c}'),
                '0' => out.push('\0'),
                '\n' => {}
                '\\' | '\'' | '"' | '/' => out.push(escape),
                // Python keeps a backslash that begins no escape.
                other => out.extend(['\\', other]),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Option<String> {
        let mut values = Values::new(text);
        let json = values.keywords()?;
        values.is_at_end().then_some(json)
    }

    #[test]
    fn keywords_become_an_object() {
        for (python, expected) in [
            ("()", "{}"),
            ("( a = 1 , )", r#"{"a": 1}"#),
            (
                r#"(a=-1.5e3, b="x", c='it\'s "', d=True, e=None, f=False)"#,
                r#"{"a": -1.5e3, "b": "x", "c": "it's \"", "d": true, "e": null, "f": false}"#,
            ),
            (
                "(a=[1, 'é', {}], b={'k': (2,), \"l\": []}, c=true)",
                r#"{"a": [1, "é", {}], "b": {"k": [2], "l": []}, "c": true}"#,
            ),
            (r"(a='\x41\u00e9\n\q')", r#"{"a": "Aé\n\\q"}"#),
        ] {
            assert_eq!(json(python).as_deref(), Some(expected), "{python}");
        }
    }

    #[test]
    fn what_is_no_literal_is_none() {
        for wrong in [
            "(1)",
            "(a)",
            "(a=)",
            "(a=b)",
            "(a=1, a=2)",
            "(a=1 b=2)",
            "(a={1: 2})",
            "(a='x)",
            "(a=0x10)",
            "(a='\\ud800')",
            "(a=1",
        ] {
            assert_eq!(json(wrong), None, "{wrong}");
        }
        let deep = |n| format!("(a={}{})", "[".repeat(n), "]".repeat(n));
        assert!(json(&deep(60)).is_some());
        assert_eq!(json(&deep(10_000)), None);
    }
}
