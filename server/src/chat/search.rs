//! The search in earlier lines (Ctrl-R): each key narrows it, Ctrl-R again goes to an older line.

use super::keys::Key;

/// A search that goes on.
#[derive(Debug, Default)]
pub struct Search {
    query: String,
    /// The line of the history that is found, if there is one.
    found: Option<usize>,
}

/// The outcome of a search.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    GoesOn,
    /// The user edits this line of the history with the key that ended the search.
    Take(usize),
    /// The text from before the search is edited again.
    Leave,
}

impl Search {
    pub fn key(&mut self, key: &Key, history: &[String]) -> Next {
        match key {
            Key::Text(text) => {
                self.query.push_str(text);
                // The line that was found may have the longer text, too.
                let newest = self.found.map_or(history.len(), |found| found + 1);
                self.find(history, newest);
            }
            Key::Backspace => {
                self.query.pop();
                self.find(history, history.len());
            }
            Key::Search => {
                let before = self.found.unwrap_or(history.len());
                self.find(history, before);
            }
            Key::ClearScreen | Key::Unknown => {}
            Key::Interrupt | Key::Abandon => return Next::Leave,
            _ => return self.found.map_or(Next::Leave, Next::Take),
        }
        Next::GoesOn
    }

    /// Finds the newest line before `end`; without one, what was found stays.
    fn find(&mut self, history: &[String], end: usize) {
        if self.query.is_empty() {
            self.found = None;
            return;
        }
        let has = |line: &String| line.contains(&self.query);
        let found = history[..end].iter().rposition(has);
        let still = self.found.filter(|&found| has(&history[found]));
        self.found = found.or(still);
    }

    /// The line that the terminal shows.
    pub fn shown(&self, history: &[String]) -> String {
        let Self { query, found } = self;
        match found {
            Some(found) => format!("(earlier: {query}) {}", history[*found]),
            None if query.is_empty() => "(earlier: ) type a part of an earlier line".to_owned(),
            None => format!("(earlier: {query}) there is none"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_is_narrowed_goes_back_and_is_left() {
        let history = ["red dog", "cat", "big dog", "bird"].map(str::to_owned);
        let text = |text: &str| Key::Text(text.to_owned());
        let mut search = Search::default();
        assert!(search.shown(&history).contains("type a part"));
        assert_eq!(search.key(&text("d"), &history), Next::GoesOn);
        assert_eq!(search.shown(&history), "(earlier: d) bird");
        search.key(&text("og"), &history);
        assert_eq!(search.shown(&history), "(earlier: dog) big dog");
        search.key(&Key::Search, &history);
        assert_eq!(search.shown(&history), "(earlier: dog) red dog");
        // There is no older one.
        search.key(&Key::Search, &history);
        assert_eq!(search.key(&Key::Enter, &history), Next::Take(0));
        search.key(&text("x"), &history);
        assert!(search.shown(&history).ends_with("there is none"));
        assert_eq!(search.key(&Key::Left, &history), Next::Leave);
        search.key(&Key::Backspace, &history);
        assert_eq!(search.shown(&history), "(earlier: dog) big dog");
        assert_eq!(search.key(&Key::Abandon, &history), Next::Leave);
    }
}
