//! Names of people and cities: listed ones, and made-up ones built from syllables.
//!
//! Made-up names teach the model to copy a word from the prompt instead of taking one that it
//! remembers: there are some millions of them, so nearly every one in a prompt is new. A name is
//! held out by its hash, so the two splits are disjoint whatever the seed.

use super::Split;
use super::facts::is_capital;
use super::name_lists;
use super::rng::{Rng, stable_hash};
use super::text::capital;

const ONSETS: &[&str] = &[
    "b", "br", "c", "ch", "d", "dr", "f", "fl", "g", "gr", "h", "j", "k", "kr", "l", "m", "n", "p",
    "pr", "qu", "r", "s", "sh", "st", "t", "th", "tr", "v", "w", "y", "z", "",
];
const VOWELS: &[&str] = &[
    "a", "e", "i", "o", "u", "a", "e", "i", "o", "ai", "ea", "ee", "ie", "oo", "ou", "y",
];
const CODAS: &[&str] = &[
    "", "", "", "n", "l", "r", "s", "m", "k", "t", "d", "x", "rn", "ll", "nd", "sk", "th", "p",
];
const CITY_ENDINGS: &[&str] = &[
    "ton", "ville", "burg", "stad", "ford", "ham", "grad", "port", "mouth", "by", "field", "holm",
    "wick", "dorf", "bridge", "haven",
];

/// The pronouns that go with a personal name in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gender {
    She,
    He,
}

impl Gender {
    /// Values for the template slots `he`, `He`, `his`, `His`, `him`.
    pub fn slots(self) -> [(&'static str, &'static str); 5] {
        match self {
            Self::She => [
                ("he", "she"),
                ("He", "She"),
                ("his", "her"),
                ("His", "Her"),
                ("him", "her"),
            ],
            Self::He => [
                ("he", "he"),
                ("He", "He"),
                ("his", "his"),
                ("His", "His"),
                ("him", "him"),
            ],
        }
    }
}

/// One name in nine is held out: never in a training sample, in any role.
pub fn split_of(name: &str) -> Split {
    let held_out = stable_hash(name).is_multiple_of(9) && !is_capital(name);
    if held_out {
        Split::HeldOut
    } else {
        Split::Train
    }
}

fn draw(rng: &mut Rng, split: Split, mut make: impl FnMut(&mut Rng) -> String) -> String {
    loop {
        let name = make(rng);
        if split_of(&name) == split {
            return name;
        }
    }
}

fn syllable(rng: &mut Rng) -> String {
    format!(
        "{}{}{}",
        rng.pick(ONSETS),
        rng.pick(VOWELS),
        rng.pick(CODAS)
    )
}

/// Letter sequences that must not occur in a made-up name.
const RUDE: &[&str] = &[
    "shit", "fuk", "fuc", "cunt", "dik", "dic", "tit", "pis", "nig", "fag", "fat", "sex", "rap",
    "slut",
];

fn invented(rng: &mut Rng) -> String {
    loop {
        let count = [1, 2, 2, 2, 3][rng.below(5)];
        let word: String = (0..count).map(|_| syllable(rng)).collect();
        if (3..=11).contains(&word.len()) && !RUDE.iter().any(|rude| word.contains(rude)) {
            return capital(&word);
        }
    }
}

/// A word that no list contains, in lower case ("a {job}" that must be copied).
pub fn invented_word(rng: &mut Rng, split: Split) -> String {
    draw(rng, split, |rng| invented(rng).to_lowercase())
}

/// A listed first name.
pub fn listed_first(rng: &mut Rng, split: Split) -> (String, Gender) {
    let gender = if rng.percent(50) {
        Gender::She
    } else {
        Gender::He
    };
    let list = if gender == Gender::She {
        name_lists::SHE
    } else {
        name_lists::HE
    };
    (draw(rng, split, |rng| rng.pick(list).to_owned()), gender)
}

/// A made-up first name.
pub fn invented_first(rng: &mut Rng, split: Split) -> (String, Gender) {
    let gender = if rng.percent(50) {
        Gender::She
    } else {
        Gender::He
    };
    (draw(rng, split, invented), gender)
}

/// A first name of `split`, made up in 60 of 100 cases.
pub fn first(rng: &mut Rng, split: Split) -> (String, Gender) {
    if rng.percent(60) {
        invented_first(rng, split)
    } else {
        listed_first(rng, split)
    }
}

/// A surname of `split`.
pub fn surname(rng: &mut Rng, split: Split) -> String {
    if rng.percent(50) {
        draw(rng, split, invented)
    } else {
        draw(rng, split, |rng| rng.pick(name_lists::SURNAMES).to_owned())
    }
}

/// A listed city.
pub fn listed_city(rng: &mut Rng, split: Split) -> String {
    draw(rng, split, |rng| rng.pick(name_lists::CITIES).to_owned())
}

/// A made-up city.
pub fn invented_city(rng: &mut Rng, split: Split) -> String {
    draw(rng, split, |rng| {
        if rng.percent(60) {
            let stem = invented(rng);
            format!("{stem}{}", rng.pick(CITY_ENDINGS))
        } else {
            invented(rng)
        }
    })
}

/// A city of `split`, made up in 60 of 100 cases.
pub fn city(rng: &mut Rng, split: Split) -> String {
    if rng.percent(60) {
        invented_city(rng, split)
    } else {
        listed_city(rng, split)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_splits_of_every_list_are_inhabited() {
        for list in [
            name_lists::SHE,
            name_lists::HE,
            name_lists::SURNAMES,
            name_lists::CITIES,
        ] {
            let held_out = list
                .iter()
                .filter(|n| split_of(n) == Split::HeldOut)
                .count();
            assert!(
                held_out >= 3 && held_out * 4 < list.len(),
                "{held_out} of {}",
                list.len()
            );
        }
    }

    #[test]
    fn made_up_names_seldom_repeat() {
        let mut rng = Rng::new(3, 0);
        let names: std::collections::HashSet<_> = (0..2_000)
            .map(|_| invented_first(&mut rng, Split::Train).0)
            .collect();
        assert!(names.len() > 1_700, "{}", names.len());
    }
}
