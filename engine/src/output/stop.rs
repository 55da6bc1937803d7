//! Stop strings and stop expressions in a stream of text.

use super::stop_regex::{Search, StopRegexes};

/// Finds stop strings in text that comes in pieces. It holds back text that may be the beginning of
/// a stop string, so that no part of a stop string is ever returned. The match of a regular
/// expression is returned, because its beginning is known too late.
///
/// The match that is complete first wins. Of several matches that are complete at the same byte,
/// the longest stop string wins, then the first regular expression; so the result does not depend
/// on how the text is cut into pieces.
#[derive(Debug)]
pub struct StopMatcher {
    patterns: Vec<Pattern>,
    search: Option<Search>,
    include: bool,
    /// The longest suffix of the text so far that some stop string begins with.
    held: String,
    stopped: bool,
}

/// The result of scanning a piece of text together with the text held back before it.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Scanned {
    /// Text that precedes any stop string with certainty.
    pub text: String,
    /// The stop string or the regular expression that was found: the stream ends here.
    pub stop: Option<String>,
}

impl StopMatcher {
    /// A matcher of `stops`, of which empty ones are ignored, and of `regexes`. With `include`, the
    /// stop string itself is returned when it is complete.
    pub fn new(stops: &[String], regexes: Option<&StopRegexes>, include: bool) -> Self {
        let patterns = stops
            .iter()
            .filter(|stop| !stop.is_empty())
            .map(|stop| Pattern::new(stop))
            .collect();
        Self {
            patterns,
            search: regexes.map(Search::new),
            include,
            held: String::new(),
            stopped: false,
        }
    }

    /// Takes the next piece of text. After a stop, all text is dropped.
    pub fn push(&mut self, piece: &str) -> Scanned {
        if self.stopped {
            return Scanned::default();
        }
        let before = self.held.len();
        self.held.push_str(piece);
        for (i, byte) in piece.bytes().enumerate() {
            let end = before + i + 1;
            let complete = self.patterns.iter_mut().filter_map(|p| p.advance(byte));
            let string = complete.max_by_key(String::len).map(|stop| {
                let cut = if self.include { 0 } else { stop.len() };
                (stop, end - cut)
            });
            let found = string.or_else(|| {
                let regex = self.search.as_mut()?.advance(byte)?;
                Some((regex.to_owned(), end))
            });
            if let Some((stop, end)) = found {
                self.stopped = true;
                self.held.truncate(end);
                return Scanned {
                    text: std::mem::take(&mut self.held),
                    stop: Some(stop),
                };
            }
        }
        let partial = self.patterns.iter().map(|p| p.matched).max().unwrap_or(0);
        // Stop strings are UTF-8, so a match cannot begin within a character.
        let rest = self.held.split_off(self.held.len() - partial);
        Scanned {
            text: std::mem::replace(&mut self.held, rest),
            stop: None,
        }
    }

    /// The number of bytes held back.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// The text held back, at the end of the text.
    pub fn finish(&mut self) -> String {
        self.stopped = true;
        std::mem::take(&mut self.held)
    }
}

/// One stop string, with the automaton of Knuth, Morris and Pratt that searches for it. The state
/// of the automaton equals the number of bytes to hold back.
#[derive(Debug)]
struct Pattern {
    stop: String,
    /// For each prefix of `stop`, by length: the length of its longest proper suffix that is also a
    /// prefix of it.
    borders: Vec<usize>,
    /// The length of the longest suffix of the text that is a prefix of `stop`.
    matched: usize,
}

impl Pattern {
    fn new(stop: &str) -> Self {
        let bytes = stop.as_bytes();
        let mut borders = vec![0; bytes.len() + 1];
        let mut border = 0;
        for i in 1..bytes.len() {
            while border > 0 && bytes[border] != bytes[i] {
                border = borders[border];
            }
            border += usize::from(bytes[border] == bytes[i]);
            borders[i + 1] = border;
        }
        Self {
            stop: stop.to_owned(),
            borders,
            matched: 0,
        }
    }

    /// Takes a byte; returns the stop string if this byte completes it.
    fn advance(&mut self, byte: u8) -> Option<String> {
        let bytes = self.stop.as_bytes();
        while self.matched > 0 && bytes[self.matched] != byte {
            self.matched = self.borders[self.matched];
        }
        self.matched += usize::from(bytes[self.matched] == byte);
        (self.matched == bytes.len()).then(|| self.stop.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::super::stop_regex::StopRegexError;
    use super::*;
    use proptest::prelude::*;

    fn matcher(stops: &[&str], include: bool) -> StopMatcher {
        let stops: Vec<String> = stops.iter().map(|&stop| stop.into()).collect();
        StopMatcher::new(&stops, None, include)
    }

    fn scanned(text: &str, stop: Option<&str>) -> Scanned {
        Scanned {
            text: text.into(),
            stop: stop.map(Into::into),
        }
    }

    #[test]
    fn a_stop_string_across_pieces_does_not_leak() {
        let mut matcher = matcher(&["\nUser:"], false);
        assert_eq!(matcher.push("Hi.\nUs"), scanned("Hi.", None));
        assert_eq!(matcher.push("e"), scanned("", None));
        assert_eq!(matcher.held(), 4);
        assert_eq!(matcher.push("r: more"), scanned("", Some("\nUser:")));
        assert_eq!(matcher.push("and more"), scanned("", None));
        assert_eq!(matcher.finish(), "");
    }

    #[test]
    fn a_partial_match_is_returned_once_it_cannot_become_a_stop_string() {
        let mut matcher = matcher(&["aab"], false);
        assert_eq!(matcher.push("aa"), scanned("", None));
        // "aaa": the last two may still begin the stop string.
        assert_eq!(matcher.push("a"), scanned("a", None));
        assert_eq!(matcher.push("c"), scanned("aac", None));
        assert_eq!(matcher.push("a"), scanned("", None));
        assert_eq!(matcher.finish(), "a");
    }

    #[test]
    fn the_stop_string_is_returned_if_included_but_nothing_after_it() {
        let mut matcher = matcher(&["END"], true);
        assert_eq!(matcher.push("the EN"), scanned("the ", None));
        assert_eq!(matcher.push("D!"), scanned("END", Some("END")));
    }

    #[test]
    fn the_first_complete_match_wins_and_then_the_longest() {
        assert_eq!(
            matcher(&["abc", "b"], false).push("abc"),
            scanned("a", Some("b"))
        );
        assert_eq!(
            matcher(&["b", "ab"], false).push("xab"),
            scanned("x", Some("ab"))
        );
    }

    #[test]
    fn characters_are_never_split() {
        // "é" and "è" share their first byte.
        let mut matcher = matcher(&["é!"], false);
        assert_eq!(matcher.push("è"), scanned("è", None));
        assert_eq!(matcher.push("é"), scanned("", None));
        assert_eq!(matcher.push("?"), scanned("é?", None));
    }

    #[test]
    fn without_stop_strings_nothing_is_held_back() {
        assert_eq!(matcher(&[""], false).push("text"), scanned("text", None));
    }

    fn regexes(patterns: &[&str]) -> Result<StopRegexes, (usize, StopRegexError)> {
        let patterns: Vec<String> = patterns.iter().map(|&pattern| pattern.into()).collect();
        StopRegexes::new(&patterns)
    }

    #[test]
    fn a_match_of_a_regex_ends_the_text_and_is_part_of_it() {
        let regexes = regexes(&[r"\d{3}", r"é+!"]).unwrap();
        let mut matcher = StopMatcher::new(&["34x".to_owned()], Some(&regexes), false);
        assert_eq!(matcher.push("a 12 é"), scanned("a 12 é", None));
        // "3" may begin the stop string, and completes no match of the regex.
        assert_eq!(matcher.push(" 3"), scanned(" ", None));
        assert_eq!(matcher.push("45"), scanned("345", Some(r"\d{3}")));
        assert_eq!(matcher.push("6"), scanned("", None));
        let mut matcher = StopMatcher::new(&[], Some(&regexes), false);
        assert_eq!(matcher.push("éé!?"), scanned("éé!", Some("é+!")));
    }

    #[test]
    fn a_regex_that_cannot_end_a_text_is_refused_with_its_index() {
        let refused = |patterns: &[&str]| regexes(patterns).unwrap_err();
        for looks in ["a$", "^a", r"a\b"] {
            assert_eq!(refused(&["b", looks]), (1, StopRegexError::LooksAround));
        }
        assert_eq!(refused(&["a*"]), (0, StopRegexError::MatchesNothing));
        assert_eq!(refused(&[""]), (0, StopRegexError::MatchesNothing));
        assert_eq!(refused(&["a", r"\w{1000}"]), (1, StopRegexError::TooLarge));
        // The automaton of this one is exponential in its length.
        assert_eq!(
            refused(&["(a|b)*a(a|b){30}"]),
            (0, StopRegexError::TooLarge)
        );
        let (index, error) = refused(&["(a"]);
        assert_eq!(
            (index, error.to_string()),
            (0, "a regular expression (unclosed group)".to_owned())
        );
        assert!(matches!(
            refused(&[r"(?=a)b"]),
            (0, StopRegexError::Syntax(_))
        ));
        assert!(regexes(&[]).is_ok() && regexes(&["[a&&b]"]).is_ok());
    }

    /// The result by definition: the match in the whole text that ends first, of several the
    /// longest stop string, and then the first of `regexes`.
    fn naive(
        text: &str,
        stops: &[String],
        regexes: &[String],
        include: bool,
    ) -> (String, Option<String>) {
        let ends_there = |regex: &str, end: usize| {
            let regex = ::regex::Regex::new(&format!("(?:{regex})$")).unwrap();
            regex.is_match(&text[..end])
        };
        for end in 1..=text.len() {
            let ended = stops
                .iter()
                .filter(|s| text.as_bytes()[..end].ends_with(s.as_bytes()));
            if let Some(stop) = ended.max_by_key(|stop| stop.len()) {
                let cut = if include { end } else { end - stop.len() };
                return (text[..cut].to_owned(), Some(stop.clone()));
            }
            let mut ended = regexes.iter();
            let is_whole = text.is_char_boundary(end);
            if let Some(regex) = ended.find(|regex| is_whole && ends_there(regex, end)) {
                return (text[..end].to_owned(), Some(regex.clone()));
            }
        }
        (text.to_owned(), None)
    }

    proptest! {
        #[test]
        fn any_split_of_the_text_gives_the_result_of_the_whole_text(
            pieces in prop::collection::vec("[abé]{0,4}", 0..12),
            stops in prop::collection::vec("[abé]{1,4}", 0..4),
            regexes in prop::collection::vec("[abé]([ab.]\\+|[ab]\\{2\\}|é\\?|\\(a\\|bb\\))b?", 0..3),
            include: bool,
        ) {
            let (expected, expected_stop) = naive(&pieces.concat(), &stops, &regexes, include);
            let compiled = StopRegexes::new(&regexes).unwrap();
            let mut matcher = StopMatcher::new(&stops, Some(&compiled), include);
            let (mut given, mut stop) = (String::new(), None);
            for piece in &pieces {
                let scanned = matcher.push(piece);
                given += &scanned.text;
                stop = stop.or(scanned.stop);
                // At any time, the returned text is a prefix of the result: nothing is taken back.
                prop_assert!(expected.starts_with(&given));
            }
            given += &matcher.finish();
            prop_assert_eq!(stop, expected_stop);
            if !include {
                prop_assert!(stops.iter().all(|stop| !given.contains(stop.as_str())));
            }
            prop_assert_eq!(given, expected);
        }
    }
}
