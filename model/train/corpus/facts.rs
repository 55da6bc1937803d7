//! Simple facts from fixed lists. The facts are all trained on; only phrasings are held out.

use super::phrasing::{Phrase, casual};
use super::rng::Rng;
use super::words::{self, article, capital, fill};
use super::{Split, Task, Turn};

const CAPITALS: &[(&str, &str)] = &[
    ("France", "Paris"),
    ("Germany", "Berlin"),
    ("Italy", "Rome"),
    ("Spain", "Madrid"),
    ("Portugal", "Lisbon"),
    ("Norway", "Oslo"),
    ("Sweden", "Stockholm"),
    ("Denmark", "Copenhagen"),
    ("Finland", "Helsinki"),
    ("Poland", "Warsaw"),
    ("Austria", "Vienna"),
    ("Switzerland", "Bern"),
    ("Greece", "Athens"),
    ("Ireland", "Dublin"),
    ("Belgium", "Brussels"),
    ("Hungary", "Budapest"),
    ("England", "London"),
    ("Egypt", "Cairo"),
    ("Kenya", "Nairobi"),
    ("Japan", "Tokyo"),
    ("China", "Beijing"),
    ("India", "Delhi"),
    ("Thailand", "Bangkok"),
    ("Canada", "Ottawa"),
    ("Mexico", "Mexico City"),
    ("Peru", "Lima"),
    ("Cuba", "Havana"),
];
const THING_COLOURS: &[(&str, &str, &str)] = &[
    ("the sky", "is", "blue"),
    ("grass", "is", "green"),
    ("snow", "is", "white"),
    ("blood", "is", "red"),
    ("coal", "is", "black"),
    ("a banana", "is", "yellow"),
    ("the sun", "is", "yellow"),
    ("a carrot", "is", "orange"),
    ("chocolate", "is", "brown"),
    ("an elephant", "is", "grey"),
    ("a flamingo", "is", "pink"),
    ("a lemon", "is", "yellow"),
    ("milk", "is", "white"),
    ("a frog", "is", "green"),
    ("a tomato", "is", "red"),
    ("the sea", "is", "blue"),
];
const SOUNDS: &[(&str, &str)] = &[
    ("cat", "meow"),
    ("dog", "woof"),
    ("cow", "moo"),
    ("duck", "quack"),
    ("sheep", "baa"),
    ("pig", "oink"),
    ("owl", "hoot"),
    ("bee", "buzz"),
    ("lion", "roar"),
    ("frog", "croak"),
    ("horse", "neigh"),
    ("mouse", "squeak"),
];
const LEGS: &[(&str, &str)] = &[
    ("dog", "four legs"),
    ("cat", "four legs"),
    ("horse", "four legs"),
    ("bird", "two legs"),
    ("spider", "eight legs"),
    ("bee", "six legs"),
    ("ant", "six legs"),
    ("snake", "no legs"),
    ("fish", "no legs"),
    ("person", "two legs"),
    ("chicken", "two legs"),
];
const BABIES: &[(&str, &str)] = &[
    ("dog", "puppy"),
    ("cat", "kitten"),
    ("cow", "calf"),
    ("sheep", "lamb"),
    ("horse", "foal"),
    ("duck", "duckling"),
    ("bear", "cub"),
    ("pig", "piglet"),
    ("hen", "chick"),
    ("frog", "tadpole"),
];
const OPPOSITES: &[(&str, &str)] = &[
    ("hot", "cold"),
    ("big", "small"),
    ("fast", "slow"),
    ("day", "night"),
    ("up", "down"),
    ("happy", "sad"),
    ("old", "new"),
    ("light", "dark"),
    ("open", "closed"),
    ("full", "empty"),
    ("long", "short"),
    ("loud", "quiet"),
    ("wet", "dry"),
    ("left", "right"),
    ("early", "late"),
    ("hard", "soft"),
];
const SINGLE: &[(&[&str], &str)] = &[
    (
        &[
            "How many days are in a week?",
            "How many days does a week have?",
        ],
        "A week has seven days.",
    ),
    (
        &[
            "How many months are in a year?",
            "How many months does a year have?",
        ],
        "A year has twelve months.",
    ),
    (
        &[
            "How many hours are in a day?",
            "How many hours does a day have?",
        ],
        "A day has 24 hours.",
    ),
    (
        &[
            "How many minutes are in an hour?",
            "How many minutes does an hour have?",
        ],
        "An hour has 60 minutes.",
    ),
    (
        &["What are the seasons?", "Name the four seasons."],
        "The four seasons are spring, summer, autumn and winter.",
    ),
    (
        &[
            "Name the days of the week.",
            "What are the days of the week?",
        ],
        "The days of the week are Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday.",
    ),
    (
        &["What is ice?", "What is ice made of?"],
        "Ice is frozen water.",
    ),
    (
        &["What do bees make?", "What does a bee make?"],
        "Bees make honey.",
    ),
    (
        &["What do cows give us?", "What does a cow give us?"],
        "Cows give us milk.",
    ),
    (
        &["Where do fish live?", "Where does a fish live?"],
        "Fish live in water.",
    ),
    (
        &["Where do birds live?", "Where does a bird live?"],
        "Birds live in nests.",
    ),
    (
        &["When does the sun rise?", "When does the sun come up?"],
        "The sun rises in the morning.",
    ),
    (
        &["When can we see the stars?", "When do the stars shine?"],
        "We can see the stars at night.",
    ),
    (
        &["What is the largest animal?", "What is the biggest animal?"],
        "The largest animal is the blue whale.",
    ),
    (
        &[
            "What is the tallest animal?",
            "Which animal is the tallest?",
        ],
        "The tallest animal is the giraffe.",
    ),
    (
        &[
            "What are the three primary colours?",
            "Name the primary colours.",
        ],
        "The primary colours are red, yellow and blue.",
    ),
    (
        &[
            "What do you get if you mix blue and yellow?",
            "What colour do blue and yellow make?",
        ],
        "Blue and yellow make green.",
    ),
    (
        &[
            "What do you get if you mix red and yellow?",
            "What colour do red and yellow make?",
        ],
        "Red and yellow make orange.",
    ),
    (
        &[
            "What do you get if you mix red and blue?",
            "What colour do red and blue make?",
        ],
        "Red and blue make purple.",
    ),
];

const ASK_CAPITAL: &[&str] = &[
    "What is the capital of {x}?",
    "What is the capital of {x}?",
    "What's the capital of {x}?",
    "Which city is the capital of {x}?",
    "Tell me the capital of {x}.",
    "Name the capital of {x}.",
    "Do you know the capital of {x}?",
];
const ASK_COLOUR: &[&str] = &[
    "What colour is {x}?",
    "What color is {x}?",
    "Which colour does {x} have?",
    "Tell me the colour of {x}.",
    "What is the colour of {x}?",
];
const ASK_SOUND: &[&str] = &[
    "What sound does {x} make?",
    "What does {x} say?",
    "Which sound does {x} make?",
    "Tell me the sound of {x}.",
];
const ASK_LEGS: &[&str] = &[
    "How many legs does {x} have?",
    "How many legs has {x}?",
    "Tell me how many legs {x} has.",
];
const ASK_BABY: &[&str] = &[
    "What is a baby {x} called?",
    "What do you call a baby {x}?",
    "What is the name of a baby {x}?",
];
const ASK_OPPOSITE: &[&str] = &[
    "What is the opposite of {x}?",
    "What's the opposite of {x}?",
    "Tell me the opposite of {x}.",
    "Which word is the opposite of {x}?",
];
const ASK_AFTER: &[&str] = &[
    "What comes after {x}?",
    "Which {kind} comes after {x}?",
    "What {kind} comes after {x}?",
];
const ASK_BEFORE: &[&str] = &[
    "What comes before {x}?",
    "Which {kind} comes before {x}?",
    "What {kind} comes before {x}?",
];
const ASK_COUNT: &[&str] = &[
    "Count from {x} to {y}.",
    "Can you count from {x} to {y}?",
    "Please count from {x} to {y}.",
];
const ASK_LARGER: &[&str] = &[
    "Which is bigger, {x} or {y}?",
    "Which number is larger, {x} or {y}?",
    "What is more, {x} or {y}?",
];

/// Whether `city` stands in a fact, and so cannot be held out.
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
