//! Text in lines of a terminal.

/// `text` in lines of at most `columns` characters, each with a line break at its end. Lines are broken
/// between words, and those after the first begin with `indent` spaces. A word that has no room in a line
/// of its own is divided.
pub fn wrapped(text: &str, indent: usize, columns: usize) -> String {
    let indent = " ".repeat(indent);
    let mut out = String::new();
    let mut rest: Vec<char> = text.chars().collect();
    let mut room = columns;
    while rest.len() > room {
        let word = rest.iter().position(|&c| c != ' ').unwrap_or(0);
        let space = (word + 1..=room).rev().find(|&at| rest[at] == ' ');
        out.extend(rest.drain(..space.unwrap_or(room)));
        out.push('\n');
        let spaces = rest.iter().take_while(|&&c| c == ' ').count();
        rest.drain(..spaces);
        if rest.is_empty() {
            return out;
        }
        out += &indent;
        room = columns.saturating_sub(indent.len()).max(1);
    }
    out.extend(rest);
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<&str> {
        text.split_whitespace().collect()
    }

    #[test]
    fn long_lines_are_broken_between_words_and_lose_none() {
        let line = format!("  linear    WRONG: {}", "value ".repeat(40));
        let text = wrapped(&line, 6, 60);
        assert!(text.starts_with("  linear    WRONG: value"), "{text}");
        assert!(text.lines().count() > 2, "{text}");
        assert!(text.lines().all(|line| line.len() <= 60), "{text}");
        assert!(text.lines().skip(1).all(|line| line.starts_with("      v")));
        assert_eq!(words(&text), words(&line));
        assert_eq!(wrapped("short", 6, 60), "short\n");
        assert_eq!(wrapped("", 6, 60), "\n");
    }

    #[test]
    fn a_word_longer_than_a_line_is_divided() {
        let text = wrapped(&format!("a {}", "x".repeat(250)), 2, 100);
        assert_eq!(text.matches('x').count(), 250);
        assert!(text.lines().all(|line| line.len() <= 100), "{text}");
        // Even if the indentation leaves no room.
        assert_eq!(wrapped("abcdef", 4, 3), "abc\n    d\n    e\n    f\n");
    }
}
