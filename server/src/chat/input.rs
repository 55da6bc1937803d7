//! The lines that a user types or pastes, or that another program sends.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::PathBuf;

use super::buffer::Buffer;
use super::keys::{self, Key, RawMode};
use super::search::{Next, Search};

/// Begins and ends a message of several lines.
const FENCE: &str = "\"\"\"";
/// Lines that are kept for later chats.
const MOST_HISTORY: usize = 1000;
/// The width of a terminal that does not tell its own.
const DEFAULT_COLUMNS: usize = 80;

#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    Text(String),
    /// Ctrl-C.
    Cancelled,
    End,
}

/// Standard input.
pub struct Input {
    is_interactive: bool,
    history: Vec<String>,
    file: Option<PathBuf>,
}

impl Input {
    pub fn new() -> Self {
        let is_interactive = io::stdin().is_terminal() && io::stdout().is_terminal();
        let file = history_file().filter(|_| is_interactive);
        let text = file.as_ref().and_then(|file| fs::read_to_string(file).ok());
        let lines = text.iter().flat_map(|text| text.lines()).map(unescaped);
        let mut history: Vec<String> = lines.collect();
        history.drain(..history.len().saturating_sub(MOST_HISTORY));
        Self {
            is_interactive,
            history,
            file,
        }
    }

    pub fn is_interactive(&self) -> bool {
        self.is_interactive
    }

    /// The width of the terminal.
    pub fn columns(&self) -> usize {
        keys::columns().unwrap_or(DEFAULT_COLUMNS)
    }

    /// The next message or command.
    ///
    /// # Errors
    /// Standard input cannot be read.
    pub fn read(&mut self) -> io::Result<Line> {
        if self.is_interactive {
            println!();
        }
        let raw = match self.is_interactive {
            true => RawMode::enter().ok(),
            false => None,
        };
        let Some(_raw) = raw else {
            if self.is_interactive {
                print!("> ");
                io::stdout().flush()?;
            }
            let mut line = String::new();
            return Ok(match io::stdin().lock().read_line(&mut line)? {
                0 => Line::End,
                _ => Line::Text(line),
            });
        };
        let columns = self.columns();
        let line = edit(
            &mut io::stdin().lock(),
            &mut io::stdout().lock(),
            &self.history,
            columns,
        )?;
        if let Line::Text(text) = &line {
            self.remember(text);
            return Ok(Line::Text(joined(text)));
        }
        Ok(line)
    }

    /// Adds a line to the history. As in shells, a line that begins with a space is left out.
    fn remember(&mut self, line: &str) {
        let is_new = self.history.last().is_none_or(|last| last != line);
        if line.trim().is_empty() || line.starts_with(' ') || !is_new {
            return;
        }
        self.history.push(line.to_owned());
        // A history that cannot be written is no reason to end the chat.
        if let Some(file) = &self.file
            && let Ok(mut file) = private(file)
        {
            let _ = writeln!(file, "{}", escaped(line));
        }
    }
}

/// The file of the lines that were typed; `None` where the user has no home.
fn history_file() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let state = folder("XDG_STATE_HOME").filter(|path| path.is_absolute());
    let state = state.or_else(|| Some(folder("HOME")?.join(".local/state")))?;
    let folder = state.join("hearth");
    fs::create_dir_all(&folder).ok()?;
    Some(folder.join("chat_history"))
}

/// Opens a file to append to, which no other user may read.
fn private(path: &PathBuf) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

fn escaped(line: &str) -> String {
    line.replace('\\', "\\\\").replace('\n', "\\n")
}

fn unescaped(line: &str) -> String {
    let mut out = String::new();
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match (letter, letter == '\\') {
            (_, true) => match letters.next() {
                Some('n') => out.push('\n'),
                Some(other) => out.push(other),
                None => out.push('\\'),
            },
            (letter, false) => out.push(letter),
        }
    }
    out
}

/// True if more lines belong to the text.
fn goes_on(text: &str) -> bool {
    match text.trim_start().strip_prefix(FENCE) {
        Some(rest) => !rest.contains(FENCE),
        None => text.ends_with('\\'),
    }
}

/// A message without what joined its lines.
fn joined(text: &str) -> String {
    match text.trim_start().strip_prefix(FENCE) {
        Some(rest) => match rest.split_once(FENCE) {
            Some((inside, after)) => format!("{}{after}", inside.trim_matches('\n')),
            None => rest.to_owned(),
        },
        None => text.replace("\\\n", "\n"),
    }
}

/// Lets the user edit a line of a terminal that sends each key.
fn edit(
    input: &mut impl BufRead,
    out: &mut impl Write,
    history: &[String],
    columns: usize,
) -> io::Result<Line> {
    let mut buffer = Buffer::default();
    let mut screen = Screen {
        columns,
        cursor_row: 0,
    };
    // The line of the history that is shown, and the text from before.
    let mut place = history.len();
    let mut own = String::new();
    let mut search: Option<Search> = None;
    screen.draw(&buffer, out)?;
    let line = loop {
        let Some(key) = keys::read(input)? else {
            break Line::End;
        };
        if let Some(searching) = &mut search {
            let next = searching.key(&key, history);
            if next == Next::GoesOn {
                let mut shown = Buffer::default();
                shown.set(&searching.shown(history));
                screen.draw(&shown, out)?;
                continue;
            }
            search = None;
            let Next::Take(found) = next else {
                screen.draw(&buffer, out)?;
                continue;
            };
            buffer.set(&history[found]);
            screen.draw(&buffer, out)?;
        }
        match key {
            Key::Search => {
                let begun = search.insert(Search::default());
                let mut shown = Buffer::default();
                shown.set(&begun.shown(history));
                screen.draw(&shown, out)?;
                continue;
            }
            Key::Text(text) => buffer.insert(&text),
            Key::NewLine => buffer.insert("\n"),
            Key::Enter if goes_on(buffer.text()) => buffer.insert("\n"),
            Key::Enter => break Line::Text(buffer.text().to_owned()),
            Key::Interrupt => break Line::Cancelled,
            Key::EndOfText if buffer.text().is_empty() => break Line::End,
            Key::EndOfText | Key::Delete => buffer.delete(),
            Key::Backspace => buffer.backspace(),
            Key::Left => buffer.left(),
            Key::Right => buffer.right(),
            Key::WordLeft => buffer.word_left(),
            Key::WordRight => buffer.word_right(),
            Key::Home => buffer.home(),
            Key::End => buffer.end(),
            Key::KillToStart => buffer.kill_to_start(),
            Key::KillToEnd => buffer.kill_to_end(),
            Key::KillWord => buffer.kill_word(),
            Key::ClearScreen => {
                write!(out, "\x1b[2J\x1b[H")?;
                screen.cursor_row = 0;
            }
            Key::Up if !buffer.up() && place > 0 => {
                if place == history.len() {
                    buffer.text().clone_into(&mut own);
                }
                place -= 1;
                buffer.set(&history[place]);
            }
            Key::Down if !buffer.down() && place < history.len() => {
                place += 1;
                buffer.set(history.get(place).unwrap_or(&own));
            }
            Key::Up | Key::Down | Key::Abandon | Key::Unknown => {}
        }
        screen.draw(&buffer, out)?;
    };
    screen.leave(&buffer, out)?;
    Ok(line)
}

/// Where the text is on the terminal.
struct Screen {
    columns: usize,
    /// The row of the cursor, counted from the first row of the text.
    cursor_row: usize,
}

impl Screen {
    fn draw(&mut self, buffer: &Buffer, out: &mut impl Write) -> io::Result<()> {
        let layout = buffer.layout(self.columns);
        self.to_top(out)?;
        write!(out, "\r\x1b[J{}", layout.rows.join("\r\n"))?;
        let (row, column) = layout.cursor;
        let below = layout.rows.len() - 1 - row;
        if below > 0 {
            write!(out, "\x1b[{below}A")?;
        }
        write!(out, "\r\x1b[{column}C")?;
        self.cursor_row = row;
        out.flush()
    }

    fn to_top(&self, out: &mut impl Write) -> io::Result<()> {
        match self.cursor_row {
            0 => Ok(()),
            rows => write!(out, "\x1b[{rows}A"),
        }
    }

    /// Goes to the row below the text.
    fn leave(&self, buffer: &Buffer, out: &mut impl Write) -> io::Result<()> {
        let rows = buffer.layout(self.columns).rows.len();
        write!(out, "{}\r\n", "\r\n".repeat(rows - 1 - self.cursor_row))?;
        out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(keys: &str, history: &[&str]) -> Line {
        let history: Vec<_> = history.iter().map(|line| (*line).to_owned()).collect();
        edit(&mut keys.as_bytes(), &mut Vec::new(), &history, 40).unwrap()
    }

    fn text(text: &str) -> Line {
        Line::Text(text.to_owned())
    }

    #[test]
    fn a_line_is_edited_and_earlier_ones_come_back() {
        assert_eq!(typed("helo\x1b[Dl\r", &[]), text("hello"));
        assert_eq!(typed("one\x03", &[]), Line::Cancelled);
        assert_eq!(typed("\x04", &[]), Line::End);
        assert_eq!(
            typed("ab\x01\x04\r", &[]),
            text("b"),
            "Ctrl-D deletes in a text"
        );
        let up = "\x1b[A";
        assert_eq!(
            typed(&format!("{up}{up}!\r"), &["one", "two"]),
            text("one!")
        );
        let back = format!("mine{up}\x1b[B\r");
        assert_eq!(typed(&back, &["one"]), text("mine"));
    }

    #[test]
    fn an_earlier_line_is_searched_for_taken_and_edited() {
        let history = ["red dog", "cat", "big dog"];
        assert_eq!(typed("\x12dog\r", &history), text("big dog"));
        assert_eq!(typed("\x12dog\x12\r", &history), text("red dog"));
        assert_eq!(typed("\x12cat\x05s\r", &history), text("cats"));
        assert_eq!(typed("mine\x12dog\x07!\r", &history), text("mine!"));
        // Without a match the line is not sent.
        assert_eq!(typed("mine\x12zebra\r!\r", &history), text("mine!"));
    }

    #[test]
    fn a_backslash_fences_and_pasted_lines_make_one_message() {
        assert_eq!(typed("one \\\rtwo\r", &[]), text("one \\\ntwo"));
        let pasted = "\x1b[200~one\rtwo\x1b[201~\r";
        assert_eq!(typed(pasted, &[]), text("one\ntwo"));
        assert_eq!(typed("one\x1b\rtwo\r", &[]), text("one\ntwo"), "Alt-Enter");
        let fenced = "\"\"\"\rone\rtwo\r\"\"\"\r";
        assert_eq!(typed(fenced, &[]), text("\"\"\"\none\ntwo\n\"\"\""));
        assert_eq!(joined("one \\\ntwo"), "one \ntwo");
        assert_eq!(joined("\"\"\"\none\ntwo\n\"\"\""), "one\ntwo");
        assert_eq!(joined("plain \\ text"), "plain \\ text");
    }

    #[test]
    fn lines_of_the_history_survive_their_file() {
        for line in ["one\ntwo", "a \\n b", "\\", "plain"] {
            assert_eq!(unescaped(&escaped(line)), line);
        }
    }
}
