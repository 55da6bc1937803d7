//! Simple facts from fixed lists. The facts are all trained on; only phrasings are held out.

use super::fact_lists::{
    ASK_AFTER, ASK_BABY, ASK_BEFORE, ASK_CAPITAL, ASK_COLOUR, ASK_COUNT, ASK_LARGER, ASK_LEGS,
    ASK_OPPOSITE, ASK_SOUND, BABIES, CAPITALS, LEGS, OPPOSITES, SINGLE, SOUNDS, THING_COLOURS,
};
use super::phrasing::{Phrase, casual};
use super::rng::Rng;
use super::text::{article, capital, fill};
use super::words;
use super::{Split, Task, Turn};

/// Whether `city` occurs in a fact and so cannot be held out.
pub fn is_capital(city: &str) -> bool {
    CAPITALS.iter().any(|(_, capital)| *capital == city)
}

fn with_article(word: &str) -> String {
    format!("{} {word}", article(word))
}

struct Fact {
    templates: &'static [&'static str],
    x: String,
    y: String,
    kind: &'static str,
    answer: String,
}

impl Fact {
    fn new(templates: &'static [&'static str], x: impl Into<String>, answer: String) -> Self {
        Self {
            templates,
            x: x.into(),
            y: String::new(),
            kind: "",
            answer,
        }
    }
}

fn neighbour(rng: &mut Rng) -> Fact {
    let after = rng.percent(60);
    let templates = if after { ASK_AFTER } else { ASK_BEFORE };
    let (kind, list) = match rng.below(3) {
        0 => ("day", words::DAYS),
        1 => ("month", words::MONTHS),
        _ => {
            let n = rng.range(1, 60);
            let other = if after { n + 1 } else { n - 1 };
            let word = if after { "after" } else { "before" };
            let answer = format!("{other} comes {word} {n}.");
            return Fact {
                kind: "number",
                ..Fact::new(templates, n.to_string(), answer)
            };
        }
    };
    let i = rng.below(list.len());
    let step = if after { 1 } else { list.len() - 1 };
    let (word, other) = (
        if after { "after" } else { "before" },
        list[(i + step) % list.len()],
    );
    Fact {
        kind,
        ..Fact::new(
            templates,
            list[i],
            format!("{other} comes {word} {}.", list[i]),
        )
    }
}

fn count(rng: &mut Rng) -> Fact {
    let low = if rng.percent(50) { 1 } else { rng.range(0, 30) };
    let high = low + rng.range(2, 11);
    let numbers: Vec<String> = (low..=high).map(|n| n.to_string()).collect();
    Fact {
        y: high.to_string(),
        ..Fact::new(
            ASK_COUNT,
            low.to_string(),
            format!("{}.", numbers.join(", ")),
        )
    }
}

fn larger(rng: &mut Rng) -> Fact {
    let (x, y) = (rng.range(0, 99), rng.range(0, 99));
    let answer = match x.cmp(&y) {
        std::cmp::Ordering::Greater => format!("{x} is bigger than {y}."),
        std::cmp::Ordering::Less => format!("{y} is bigger than {x}."),
        std::cmp::Ordering::Equal => format!("They are equal: both are {x}."),
    };
    Fact {
        y: y.to_string(),
        ..Fact::new(ASK_LARGER, x.to_string(), answer)
    }
}

fn draw(rng: &mut Rng) -> Fact {
    match rng.weighted(&[22, 14, 8, 8, 8, 10, 14, 8, 8]) {
        0 => {
            let (country, city) = *rng.item(CAPITALS);
            Fact::new(
                ASK_CAPITAL,
                country,
                format!("The capital of {country} is {city}."),
            )
        }
        1 => {
            let (thing, verb, colour) = *rng.item(THING_COLOURS);
            Fact::new(
                ASK_COLOUR,
                thing,
                format!("{} {verb} {colour}.", capital(thing)),
            )
        }
        2 => {
            let (animal, sound) = *rng.item(SOUNDS);
            let animal = with_article(animal);
            Fact::new(
                ASK_SOUND,
                animal.clone(),
                format!("{} says {sound}.", capital(&animal)),
            )
        }
        3 => {
            let (animal, legs) = *rng.item(LEGS);
            let animal = with_article(animal);
            Fact::new(
                ASK_LEGS,
                animal.clone(),
                format!("{} has {legs}.", capital(&animal)),
            )
        }
        4 => {
            let (animal, baby) = *rng.item(BABIES);
            Fact::new(
                ASK_BABY,
                animal,
                format!("A baby {animal} is called a {baby}."),
            )
        }
        5 => {
            let (one, other) = *rng.item(OPPOSITES);
            let (one, other) = if rng.percent(50) {
                (one, other)
            } else {
                (other, one)
            };
            Fact::new(
                ASK_OPPOSITE,
                one,
                format!("The opposite of {one} is {other}."),
            )
        }
        6 => neighbour(rng),
        7 => count(rng),
        _ => larger(rng),
    }
}

/// A question from the lists in a phrasing of `split`.
pub fn turn(rng: &mut Rng, split: Split) -> Turn {
    let (user, assistant) = if rng.percent(20) {
        let (questions, answer) = *rng.item(SINGLE);
        let phrase = Phrase::draw(rng, split, questions);
        (phrase.wrap(phrase.template), answer.to_owned())
    } else {
        let fact = draw(rng);
        let phrase = Phrase::draw(rng, split, fact.templates);
        let values = [
            ("x", fact.x.as_str()),
            ("y", fact.y.as_str()),
            ("kind", fact.kind),
        ];
        (phrase.wrap(&fill(phrase.template, &values)), fact.answer)
    };
    let user = if rng.percent(15) { casual(&user) } else { user };
    Turn {
        task: Task::Facts,
        user,
        assistant,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_have_one_answer_each() {
        // "What comes after May?" must not mean two things.
        let mut answers = std::collections::HashMap::new();
        for i in 0..20_000 {
            let turn = turn(&mut Rng::new(41, i), Split::Train);
            let known = answers
                .entry(turn.user.clone())
                .or_insert_with(|| turn.assistant.clone());
            assert_eq!(*known, turn.assistant, "{}", turn.user);
        }
    }

    #[test]
    fn counting_includes_both_ends() {
        let fact = (0..200)
            .map(|i| count(&mut Rng::new(42, i)))
            .find(|f| f.x == "1" && f.y == "5");
        assert_eq!(
            fact.expect("one draw counts to five").answer,
            "1, 2, 3, 4, 5."
        );
    }
}
