//! Answers for a terminal: wrapped between words, with the simple marks of Markdown as type.

use unicode_width::UnicodeWidthStr;

const BOLD: &str = "\x1b[1m";
const CODE: &str = "\x1b[36m";
const PLAIN: &str = "\x1b[0m";

/// Takes text as it is generated, and gives what a terminal shows. A word is given when it is
/// complete.
#[derive(Debug)]
pub struct Markdown {
    /// The width to wrap at; `None` to pass text through.
    columns: Option<usize>,
    column: usize,
    /// The letters since the last white space.
    word: String,
    /// Spaces before `word` that have not been given.
    spaces: usize,
    is_bold: bool,
    is_code: bool,
    is_heading: bool,
    /// Inside a fenced block, whose lines are not wrapped.
    is_fenced: bool,
    /// No word of the line was given.
    is_line_start: bool,
}

impl Markdown {
    pub fn new(columns: Option<usize>) -> Self {
        Self {
            columns,
            column: 0,
            word: String::new(),
            spaces: 0,
            is_bold: false,
            is_code: false,
            is_heading: false,
            is_fenced: false,
            is_line_start: true,
        }
    }

    /// Takes the next piece of an answer, and returns the part that can be shown now.
    pub fn push(&mut self, text: &str) -> String {
        if self.columns.is_none() {
            return text.to_owned();
        }
        let mut out = String::new();
        for letter in text.chars() {
            match letter {
                '\n' => {
                    self.give_word(&mut out);
                    self.end_line(&mut out);
                }
                ' ' | '\t' => {
                    self.give_word(&mut out);
                    self.spaces += if letter == ' ' { 1 } else { 4 };
                }
                letter => self.word.push(letter),
            }
        }
        out
    }

    /// The rest, at the end of the answer.
    pub fn end(&mut self) -> String {
        let mut out = String::new();
        self.give_word(&mut out);
        if self.columns.is_some()
            && (self.is_bold || self.is_code || self.is_heading || self.is_fenced)
        {
            out.push_str(PLAIN);
        }
        out
    }

    fn end_line(&mut self, out: &mut String) {
        if self.is_heading || (self.is_code && !self.is_fenced) {
            // A mark that nothing closes ends with its line.
            out.push_str(PLAIN);
        }
        (self.is_heading, self.is_code) = (false, false);
        out.push('\n');
        (self.column, self.spaces, self.is_line_start) = (0, 0, true);
        if self.is_bold {
            out.push_str(BOLD);
        }
    }

    fn give_word(&mut self, out: &mut String) {
        let word = std::mem::take(&mut self.word);
        if word.is_empty() {
            return;
        }
        let starts = std::mem::take(&mut self.is_line_start);
        if starts && word.starts_with("```") {
            self.is_fenced = !self.is_fenced;
            let style = if self.is_fenced { CODE } else { "" };
            out.push_str(&format!("{PLAIN}\x1b[2m{word}{PLAIN}{style}"));
            self.spaces = 0;
            return;
        }
        if self.is_fenced {
            out.extend(std::iter::repeat_n(' ', std::mem::take(&mut self.spaces)));
            out.push_str(&word);
            return;
        }
        if starts && self.spaces == 0 && word.len() <= 6 && word.bytes().all(|byte| byte == b'#') {
            self.is_heading = true;
            out.push_str(BOLD);
            return;
        }
        let word = match starts && matches!(word.as_str(), "-" | "*" | "+") {
            true => "•".to_owned(),
            false => word,
        };
        let shown = self.styled(&word);
        let width = word.replace("**", "").replace('`', "").width();
        let columns = self.columns.unwrap_or(usize::MAX);
        if self.column > 0 && self.column + self.spaces + width > columns {
            out.push('\n');
            (self.column, self.spaces) = (0, 0);
        }
        let spaces = std::mem::take(&mut self.spaces);
        // The space after the mark of a heading is not shown.
        if self.column > 0 || !self.is_heading {
            out.extend(std::iter::repeat_n(' ', spaces));
            self.column += spaces;
        }
        out.push_str(&shown);
        self.column += width;
    }

    /// The word with its marks as type.
    fn styled(&mut self, word: &str) -> String {
        let mut out = String::new();
        let mut rest = word;
        while let Some(letter) = rest.chars().next() {
            if !self.is_code
                && let Some(after) = rest.strip_prefix("**")
            {
                self.is_bold = !self.is_bold;
                out.push_str(if self.is_bold { BOLD } else { PLAIN });
                if self.is_heading {
                    out.push_str(BOLD);
                }
                rest = after;
                continue;
            }
            rest = &rest[letter.len_utf8()..];
            if letter != '`' {
                out.push(letter);
                continue;
            }
            self.is_code = !self.is_code;
            out.push_str(if self.is_code { CODE } else { PLAIN });
            if !self.is_code && (self.is_bold || self.is_heading) {
                out.push_str(BOLD);
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text that a terminal of `columns` shows, given letter by letter.
    fn shown(columns: usize, text: &str) -> String {
        let mut markdown = Markdown::new(Some(columns));
        let mut out = String::new();
        for letter in text.chars() {
            out += &markdown.push(&letter.to_string());
        }
        out + &markdown.end()
    }

    #[test]
    fn lines_are_wrapped_between_words_and_keep_their_own_breaks() {
        assert_eq!(shown(10, "one two three four"), "one two\nthree four");
        assert_eq!(shown(10, "one\n\n  two three"), "one\n\n  two\nthree");
        assert_eq!(shown(4, "verylongword a"), "verylongword\na");
        // Wide letters take two columns.
        assert_eq!(shown(5, "火火 火"), "火火\n火");
    }

    #[test]
    fn marks_become_type_and_blocks_are_not_wrapped() {
        assert_eq!(shown(80, "a **b c** d"), format!("a {BOLD}b c{PLAIN} d"));
        assert_eq!(shown(80, "`x` y"), format!("{CODE}x{PLAIN} y"));
        assert_eq!(
            shown(80, "## Big thing\nx"),
            format!("{BOLD}Big thing{PLAIN}\nx")
        );
        assert_eq!(shown(80, "- item"), "• item");
        let block = shown(8, "```rust\nlet  a = **b** + c;\n```\nend");
        assert!(block.contains("let  a = **b** + c;\n"), "{block:?}");
        assert_eq!(shown(80, "2 * 3 * 4"), "2 * 3 * 4");
    }

    #[test]
    fn another_program_gets_the_text_as_it_is() {
        let mut markdown = Markdown::new(None);
        assert_eq!(markdown.push("**a** b\n"), "**a** b\n");
        assert_eq!(markdown.end(), "");
    }
}
