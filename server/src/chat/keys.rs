//! The keys that a terminal sends, and its modes.

use std::io::{self, BufRead, Read, Write};

/// A key, or a text that was pasted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key {
    Text(String),
    Enter,
    NewLine,
    Backspace,
    Delete,
    Left,
    Right,
    WordLeft,
    WordRight,
    Up,
    Down,
    Home,
    End,
    KillToStart,
    KillToEnd,
    KillWord,
    ClearScreen,
    /// Ctrl-R.
    Search,
    /// Ctrl-G.
    Abandon,
    Interrupt,
    /// Ctrl-D.
    EndOfText,
    Unknown,
}

/// The marks around a text that is pasted, after `ESC [`.
const PASTE_BEGIN: &[u8] = b"200~";
const PASTE_END: &[u8] = b"\x1b[201~";
/// The most bytes that are pasted at once.
const MOST_PASTED: usize = 4 << 20;

/// Reads the next key; `None` at the end of the input.
///
/// # Errors
/// The input cannot be read.
pub fn read(input: &mut impl BufRead) -> io::Result<Option<Key>> {
    let Some(byte) = next(input)? else {
        return Ok(None);
    };
    Ok(Some(match byte {
        b'\r' | b'\n' => Key::Enter,
        0x01 => Key::Home,
        0x02 => Key::Left,
        0x03 => Key::Interrupt,
        0x04 => Key::EndOfText,
        0x05 => Key::End,
        0x06 => Key::Right,
        0x07 => Key::Abandon,
        0x08 | 0x7f => Key::Backspace,
        0x0b => Key::KillToEnd,
        0x0c => Key::ClearScreen,
        0x0e => Key::Down,
        0x10 => Key::Up,
        0x12 => Key::Search,
        0x15 => Key::KillToStart,
        0x17 => Key::KillWord,
        0x1b => escape(input)?,
        0x00..0x20 => Key::Unknown,
        byte => character(byte, input)?,
    }))
}

fn next(input: &mut impl BufRead) -> io::Result<Option<u8>> {
    let mut byte = [0];
    loop {
        match input.read(&mut byte) {
            Ok(count) => return Ok((count > 0).then_some(byte[0])),
            // A change of the window's size interrupts the read.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// The character that begins with `first`.
fn character(first: u8, input: &mut impl BufRead) -> io::Result<Key> {
    let more = match first {
        0xc0..0xe0 => 1,
        0xe0..0xf0 => 2,
        0xf0..=0xff => 3,
        _ => 0,
    };
    let mut bytes = vec![first];
    input.take(more).read_to_end(&mut bytes)?;
    Ok(String::from_utf8(bytes).map_or(Key::Unknown, Key::Text))
}

/// Reads the rest of a key that begins with an escape character.
fn escape(input: &mut impl BufRead) -> io::Result<Key> {
    match next(input)? {
        Some(b'\r' | b'\n') => return Ok(Key::NewLine),
        Some(b'b') => return Ok(Key::WordLeft),
        Some(b'f') => return Ok(Key::WordRight),
        Some(0x7f) => return Ok(Key::KillWord),
        Some(b'[' | b'O') => {}
        _ => return Ok(Key::Unknown),
    }
    let mut sequence = Vec::new();
    loop {
        let Some(byte) = next(input)? else {
            return Ok(Key::Unknown);
        };
        sequence.push(byte);
        if (0x40..0x7f).contains(&byte) || sequence.len() > 16 {
            break;
        }
    }
    Ok(match sequence.as_slice() {
        PASTE_BEGIN => pasted(input)?,
        b"A" => Key::Up,
        b"B" => Key::Down,
        b"C" => Key::Right,
        b"D" => Key::Left,
        b"H" | b"1~" | b"7~" => Key::Home,
        b"F" | b"4~" | b"8~" => Key::End,
        b"3~" => Key::Delete,
        b"1;5C" | b"1;3C" => Key::WordRight,
        b"1;5D" | b"1;3D" => Key::WordLeft,
        _ => Key::Unknown,
    })
}

fn pasted(input: &mut impl BufRead) -> io::Result<Key> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(PASTE_END) && bytes.len() < MOST_PASTED {
        match next(input)? {
            Some(byte) => bytes.push(byte),
            None => break,
        }
    }
    let text = bytes.strip_suffix(PASTE_END).unwrap_or(&bytes);
    let text = String::from_utf8_lossy(text);
    Ok(Key::Text(text.replace("\r\n", "\n").replace('\r', "\n")))
}

/// A terminal that sends each key as it is pressed, as long as this lives.
pub struct RawMode {
    #[cfg(unix)]
    before: libc::termios,
}

#[cfg(unix)]
impl RawMode {
    /// # Errors
    /// Standard input is no terminal.
    pub fn enter() -> io::Result<Self> {
        // SAFETY: `termios` is a structure of integers, for which zeros are valid, and the calls
        // write to it alone.
        let before = unsafe {
            let mut before: libc::termios = std::mem::zeroed();
            if libc::tcgetattr(libc::STDIN_FILENO, &raw mut before) != 0 {
                return Err(io::Error::last_os_error());
            }
            let mut raw = before;
            libc::cfmakeraw(&raw mut raw);
            if libc::tcsetattr(libc::STDIN_FILENO, libc::TCSADRAIN, &raw const raw) != 0 {
                return Err(io::Error::last_os_error());
            }
            before
        };
        print!("\x1b[?2004h");
        io::stdout().flush()?;
        Ok(Self { before })
    }
}

#[cfg(unix)]
impl Drop for RawMode {
    fn drop(&mut self) {
        print!("\x1b[?2004l");
        let _ = io::stdout().flush();
        // SAFETY: `before` is what tcgetattr gave.
        unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSADRAIN, &raw const self.before) };
    }
}

#[cfg(not(unix))]
impl RawMode {
    /// # Errors
    /// Always: other systems have no such mode, and lines are read as they are.
    pub fn enter() -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// The width of the terminal, if it tells.
#[cfg(unix)]
pub fn columns() -> Option<usize> {
    // SAFETY: `winsize` is a structure of integers, for which zeros are valid, and the call writes to
    // it alone.
    let size = unsafe {
        let mut size: libc::winsize = std::mem::zeroed();
        let done = libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &raw mut size);
        (done == 0).then_some(size)
    };
    size.map(|size| usize::from(size.ws_col))
        .filter(|&columns| columns > 0)
}

#[cfg(not(unix))]
pub fn columns() -> Option<usize> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(mut bytes: &[u8]) -> Vec<Key> {
        std::iter::from_fn(|| read(&mut bytes).unwrap()).collect()
    }

    fn text(text: &str) -> Key {
        Key::Text(text.to_owned())
    }

    #[test]
    fn keys_characters_and_pasted_texts_are_told_apart() {
        let expected = [text("a"), text("é"), text("火"), Key::Enter, Key::Interrupt];
        assert_eq!(keys("aé火\r\x03".as_bytes()), expected);
        let expected = [Key::Up, Key::Delete, Key::WordLeft, Key::NewLine, Key::Home];
        assert_eq!(keys(b"\x1b[A\x1b[3~\x1bb\x1b\r\x1bOH"), expected);
        let expected = [text("one\ntwo"), Key::Enter];
        assert_eq!(keys(b"\x1b[200~one\r\ntwo\x1b[201~\r"), expected);
        let expected = [Key::Unknown, text("x"), Key::Unknown];
        assert_eq!(keys(b"\x1b[99;9Zx\xff\xfe"), expected);
    }
}
