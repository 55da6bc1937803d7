//! Polite wrappers around a request, shared by all tasks, and which phrasings are held out.

use super::Split;
use super::rng::{Rng, stable_hash};

const BEFORE: &[(&str, u32)] = &[
    ("", 60),
    ("Please ", 6),
    ("Hi! ", 4),
    ("Hello! ", 4),
    ("Hey, ", 3),
    ("Hello, ", 3),
    ("OK, ", 3),
    ("Now ", 3),
    ("A question: ", 2),
    ("Good morning! ", 2),
    ("And now: ", 2),
    ("Great. ", 2),
    ("Thank you! ", 2),
    ("One more: ", 2),
    ("Quick question: ", 2),
];
const AFTER: &[(&str, u32)] = &[
    ("", 88),
    (" Please.", 4),
    (" Thanks!", 4),
    (" Thank you.", 4),
];

/// One phrasing (wrapper and template together) in eight is held out.
fn split_of(before: &str, template: &str, after: &str) -> Split {
    match stable_hash(&format!("{before}|{template}|{after}")).is_multiple_of(8) {
        // The bare template is the phrasing a user will most likely type: always trained on.
        true if !(before.is_empty() && after.is_empty()) => Split::HeldOut,
        _ => Split::Train,
    }
}

fn weighted(rng: &mut Rng, items: &[(&'static str, u32)]) -> &'static str {
    let weights: Vec<u32> = items.iter().map(|(_, weight)| *weight).collect();
    items[rng.weighted(&weights)].0
}

/// A request phrase: wrapper text around one of a task's templates.
#[derive(Debug, Clone, Copy)]
pub struct Phrase {
    pub before: &'static str,
    pub template: &'static str,
    pub after: &'static str,
}

impl Phrase {
    /// Draws a phrase of `split` around one of `templates`.
    pub fn draw(rng: &mut Rng, split: Split, templates: &[&'static str]) -> Self {
        loop {
            let phrase = Self {
                before: weighted(rng, BEFORE),
                template: rng.pick(templates),
                after: weighted(rng, AFTER),
            };
            if split_of(phrase.before, phrase.template, phrase.after) == split {
                return phrase;
            }
        }
    }

    /// Puts the wrapper around the filled template.
    pub fn wrap(&self, body: &str) -> String {
        // After a comma or a bare word the sentence goes on in lower case: "Please tell me ..."
        let joined = match self.before.trim_end().chars().last() {
            Some(c) if c.is_alphanumeric() || c == ',' => lower_first(body),
            _ => body.to_owned(),
        };
        format!("{}{joined}{}", self.before, self.after)
    }
}

/// `text` with its first letter in lower case, unless its first word has more capitals or is a
/// name-like word of one letter ("I", "JSON").
pub fn lower_first(text: &str) -> String {
    let mut chars = text.chars();
    match (chars.next(), chars.next()) {
        (Some(first), Some(second)) if first.is_uppercase() && second.is_lowercase() => {
            first.to_lowercase().chain(text.chars().skip(1)).collect()
        }
        _ => text.to_owned(),
    }
}

/// The way people type in a hurry: no capital at the start, no mark at the end.
pub fn casual(text: &str) -> String {
    lower_first(text.trim_end_matches(['.', '?', '!']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrappers_read_as_one_sentence() {
        let phrase = |before| Phrase {
            before,
            template: "",
            after: "",
        };
        assert_eq!(phrase("Please ").wrap("Tell me"), "Please tell me");
        assert_eq!(phrase("Hi! ").wrap("Tell me"), "Hi! Tell me");
        assert_eq!(phrase("OK, ").wrap("JSON please"), "OK, JSON please");
        assert_eq!(casual("What is 3 + 4?"), "what is 3 + 4");
    }

    #[test]
    fn a_phrase_belongs_to_the_split_it_was_drawn_for() {
        let mut rng = Rng::new(5, 5);
        for split in [Split::Train, Split::HeldOut] {
            for _ in 0..500 {
                let p = Phrase::draw(&mut rng, split, &["What is {e}?", "Add {a} and {b}."]);
                assert_eq!(split_of(p.before, p.template, p.after), split);
            }
        }
    }
}
