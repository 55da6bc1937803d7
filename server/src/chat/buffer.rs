//! The text that is being edited, and where its parts are on the terminal.

use unicode_width::UnicodeWidthChar;

/// The marks before the first line and before the others. They have the same width.
const PROMPTS: [&str; 2] = ["> ", "  "];

/// A text with a cursor.
#[derive(Debug, Default)]
pub struct Buffer {
    text: String,
    /// The byte that the cursor is before; always a boundary of characters.
    cursor: usize,
}

/// A text as rows of a terminal.
#[derive(Debug, PartialEq, Eq)]
pub struct Layout {
    pub rows: Vec<String>,
    /// Row and column of the cursor.
    pub cursor: (usize, usize),
}

impl Buffer {
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Replaces the text; the cursor is at its end.
    pub fn set(&mut self, text: &str) {
        text.clone_into(&mut self.text);
        self.cursor = text.len();
    }

    pub fn insert(&mut self, text: &str) {
        self.text.insert_str(self.cursor, text);
        self.cursor += text.len();
    }

    pub fn left(&mut self) {
        let before = self.text[..self.cursor].chars().next_back();
        self.cursor -= before.map_or(0, char::len_utf8);
    }

    pub fn right(&mut self) {
        let after = self.text[self.cursor..].chars().next();
        self.cursor += after.map_or(0, char::len_utf8);
    }

    pub fn backspace(&mut self) {
        let end = self.cursor;
        self.left();
        self.text.drain(self.cursor..end);
    }

    pub fn delete(&mut self) {
        let start = self.cursor;
        self.right();
        self.text.drain(start..self.cursor);
        self.cursor = start;
    }

    /// To the beginning of the line.
    pub fn home(&mut self) {
        let before = &self.text[..self.cursor];
        self.cursor = before.rfind('\n').map_or(0, |at| at + 1);
    }

    /// To the end of the line.
    pub fn end(&mut self) {
        let after = &self.text[self.cursor..];
        self.cursor += after.find('\n').unwrap_or(after.len());
    }

    pub fn kill_to_start(&mut self) {
        let end = self.cursor;
        self.home();
        self.text.drain(self.cursor..end);
    }

    pub fn kill_to_end(&mut self) {
        let start = self.cursor;
        self.end();
        self.text.drain(start..self.cursor);
        self.cursor = start;
    }

    pub fn word_left(&mut self) {
        let before = self.text[..self.cursor].trim_end();
        let start = before.rfind(char::is_whitespace);
        let letter = |at: usize| before[at..].chars().next().map_or(0, char::len_utf8);
        self.cursor = start.map_or(0, |at| at + letter(at));
    }

    pub fn word_right(&mut self) {
        let after = &self.text[self.cursor..];
        let word = after.trim_start();
        let end = word.find(char::is_whitespace).unwrap_or(word.len());
        self.cursor += after.len() - word.len() + end;
    }

    pub fn kill_word(&mut self) {
        let end = self.cursor;
        self.word_left();
        self.text.drain(self.cursor..end);
    }

    /// To the line above. Returns whether there is one.
    pub fn up(&mut self) -> bool {
        let column = self.column();
        let before = &self.text[..self.cursor];
        let Some(above) = before.rfind('\n') else {
            return false;
        };
        self.cursor = above;
        self.home();
        self.go_to(column);
        true
    }

    /// To the line below. Returns whether there is one.
    pub fn down(&mut self) -> bool {
        let column = self.column();
        let Some(below) = self.text[self.cursor..].find('\n') else {
            return false;
        };
        self.cursor += below + 1;
        self.go_to(column);
        true
    }

    /// Characters before the cursor in its line.
    fn column(&self) -> usize {
        let before = &self.text[..self.cursor];
        let line = before.rsplit('\n').next().unwrap_or_default();
        line.chars().count()
    }

    fn go_to(&mut self, column: usize) {
        for _ in 0..column {
            if self.text[self.cursor..].starts_with('\n') {
                return;
            }
            self.right();
        }
    }

    /// The rows of a terminal of `columns`. A row never fills the last column, where terminals differ
    /// about the cursor.
    pub fn layout(&self, columns: usize) -> Layout {
        let most = columns.max(8) - 1;
        let mut rows = vec![PROMPTS[0].to_owned()];
        let mut width = PROMPTS[0].len();
        let mut cursor = (0, width);
        for (at, letter) in self.text.char_indices() {
            if at == self.cursor {
                cursor = (rows.len() - 1, width);
            }
            if letter == '\n' {
                rows.push(PROMPTS[1].to_owned());
                width = PROMPTS[1].len();
                continue;
            }
            // Other control characters would move the terminal's own cursor.
            let shown = if letter.is_control() { '·' } else { letter };
            let letter_width = shown.width().unwrap_or(0);
            if width + letter_width > most {
                rows.push(PROMPTS[1].to_owned());
                width = PROMPTS[1].len();
                if at == self.cursor {
                    cursor = (rows.len() - 1, width);
                }
            }
            let row = rows.last_mut().expect("there is at least one");
            row.push(shown);
            width += letter_width;
        }
        if self.cursor == self.text.len() {
            cursor = (rows.len() - 1, width);
        }
        Layout { rows, cursor }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(text: &str) -> Buffer {
        let mut buffer = Buffer::default();
        buffer.insert(text);
        buffer
    }

    #[test]
    fn text_is_edited_at_the_cursor_in_whole_characters() {
        let mut buffer = typed("aé火b");
        buffer.left();
        buffer.left();
        buffer.backspace();
        assert_eq!(buffer.text(), "a火b");
        buffer.delete();
        buffer.insert("xy z");
        assert_eq!(buffer.text(), "axy zb");
        buffer.kill_word();
        assert_eq!(buffer.text(), "axy b");
        buffer.word_left();
        buffer.kill_to_end();
        assert_eq!(buffer.text(), "");
        for edit in [
            Buffer::backspace,
            Buffer::delete,
            Buffer::left,
            Buffer::right,
        ] {
            edit(&mut buffer);
        }
    }

    #[test]
    fn lines_are_walked_and_killed_alone() {
        let mut buffer = typed("first\nse\nthird");
        assert!(buffer.up());
        buffer.insert("|");
        assert_eq!(buffer.text(), "first\nse|\nthird");
        buffer.kill_to_start();
        assert_eq!(buffer.text(), "first\n\nthird");
        assert!(buffer.up() && !buffer.up());
        buffer.word_right();
        buffer.insert("!");
        assert_eq!(buffer.text(), "first!\n\nthird");
        assert!(buffer.down() && buffer.down() && !buffer.down());
    }

    #[test]
    fn rows_are_wrapped_and_the_cursor_is_where_its_character_is() {
        let mut buffer = typed("abcdef火");
        let expected = ["> abcde", "  f火"];
        let layout = buffer.layout(8);
        assert_eq!(
            (&layout.rows[..], layout.cursor),
            (&expected.map(String::from)[..], (1, 5))
        );
        for _ in 0..3 {
            buffer.left();
        }
        assert_eq!(buffer.layout(8).cursor, (0, 6));
        buffer.right();
        assert_eq!(buffer.layout(8).cursor, (1, 2));
        assert_eq!(typed("a\nb").layout(80).rows, ["> a", "  b"]);
        assert_eq!(typed("a\tb").layout(80).rows, ["> a·b"]);
    }
}
