//! Scans of training samples for anything that is held out.

use std::collections::HashSet;

use super::arithmetic::HELD_OUT_PAIRS;
use super::mixture::SHORT;
use super::names::split_of;
use super::{Split, conversation, name_lists, words};

const SCANNED: u64 = 50_000;

fn training_text(index: u64) -> String {
    let conversation = conversation(&SHORT, 2026, Split::Train, index);
    conversation
        .turns
        .iter()
        .map(|t| format!("{}\n{}\n", t.user, t.assistant))
        .collect()
}

/// Words with an upper-case first letter, as written.
fn capitalised(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphabetic())
        .filter(|word| word.len() > 2 && word.starts_with(char::is_uppercase))
}

#[test]
fn training_samples_never_hold_a_held_out_listed_name() {
    let lists = [name_lists::SHE, name_lists::HE, name_lists::SURNAMES];
    let held_out: HashSet<&str> = lists
        .iter()
        .flat_map(|list| list.iter().copied())
        .filter(|name| split_of(name) == Split::HeldOut)
        .collect();
    assert!(held_out.len() > 10);
    // Words of the grammar that also are surnames ("Green") may start a sentence elsewhere.
    let ambiguous = [
        "Green", "Black", "White", "Young", "Stone", "Rivers", "King", "Knight",
    ];
    let cities: Vec<&str> = name_lists::CITIES
        .iter()
        .copied()
        .filter(|city| split_of(city) == Split::HeldOut && !name_lists::SHE.contains(city))
        .collect();
    assert!(cities.len() > 5);
    for index in 0..SCANNED {
        let text = training_text(index);
        for city in &cities {
            assert!(
                !text.contains(&format!(" {city}.")),
                "{city} is held out: {text}"
            );
        }
        for word in capitalised(&text) {
            let clean = !held_out.contains(word) || ambiguous.contains(&word);
            assert!(clean, "{word} is held out: {text}");
        }
    }
}

#[test]
fn training_samples_never_hold_a_held_out_one_digit_addition() {
    let digit = |word: &str| {
        let word = word.to_lowercase();
        let spelled = words::NUMBER_WORDS
            .iter()
            .position(|w| *w == word)
            .map(|n| n as u32);
        word.parse::<u32>().ok().or(spelled)
    };
    for index in 0..SCANNED {
        let text = training_text(index)
            .replace('+', " + ")
            .replace(" plus ", " + ");
        let words: Vec<&str> = text
            .split(|c: char| c.is_whitespace() || ".?!,=".contains(c))
            .collect();
        let words: Vec<&str> = words.into_iter().filter(|w| !w.is_empty()).collect();
        for window in words.windows(3) {
            if window[1] != "+" {
                continue;
            }
            if let (Some(a), Some(b)) = (digit(window[0]), digit(window[2])) {
                assert!(!HELD_OUT_PAIRS.contains(&(a, b)), "{a} + {b}: {text}");
            }
        }
    }
}
