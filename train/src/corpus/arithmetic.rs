//! Addition and subtraction of small numbers.
//!
//! Held out: the ordered one-digit pairs of [`HELD_OUT_PAIRS`] in every phrasing, one in eight
//! phrasings, and one two-digit sum in ten. Training does contain sums of larger numbers whose
//! columns use those digits ("12 + 26" beside the held-out 2 + 6), the inverse subtractions
//! (8 - 6 = 2), and for the last five pairs the same sum in the other order.

use super::names;
use super::phrasing::{Phrase, casual};
use super::rng::{Rng, stable_hash};
use super::text::{capital, fill};
use super::words;
use super::{Split, Task, Turn};

/// One-digit additions that never occur in training. The first nine are held out in both orders.
pub const HELD_OUT_PAIRS: [(u32, u32); 14] = [
    (2, 6),
    (6, 2),
    (3, 8),
    (8, 3),
    (4, 7),
    (7, 4),
    (5, 9),
    (9, 5),
    (7, 7),
    (1, 5),
    (6, 9),
    (8, 5),
    (9, 4),
    (0, 3),
];

const QUESTIONS: &[&str] = &[
    "What is {e}?",
    "What is {e}?",
    "What's {e}?",
    "How much is {e}?",
    "How much is {e}?",
    "Calculate {e}.",
    "Compute {e}.",
    "Work out {e}.",
    "Solve {e}.",
    "Tell me what {e} is.",
    "Can you tell me what {e} is?",
    "Do you know what {e} is?",
    "What does {e} make?",
    "What is the result of {e}?",
    "{e}",
    "{e} = ?",
    "{e} =",
    "{e}?",
    "Can you do {e}?",
    "Find {e}.",
];
const ADDITIONS: &[&str] = &[
    "Add {a} and {b}.",
    "Add {b} to {a}.",
    "What is the sum of {a} and {b}?",
    "How much do {a} and {b} make?",
    "Can you add {a} and {b}?",
    "What do you get if you add {a} and {b}?",
    "What is {a} and {b} together?",
];
const SUBTRACTIONS: &[&str] = &[
    "Subtract {b} from {a}.",
    "Take {b} away from {a}.",
    "What is the difference between {a} and {b}?",
    "How much is left if I take {b} from {a}?",
];
/// Question templates that no training sample uses.
pub const UNSEEN_ADDITIONS: &[&str] = &[
    "Give me the sum of {a} and {b}.",
    "If you add {a} to {b}, how much is it?",
    "Do {e} for me.",
];

const STORY_ADDITIONS: &[&str] = &[
    "I have {a} {things} and get {b} more. How many {things} do I have?",
    "{name} has {a} {things} and finds {b} more. How many {things} does {name} have now?",
    "There are {a} {things} on the table and {b} {things} in the box. How many {things} are there?",
];
const STORY_SUBTRACTIONS: &[&str] = &[
    "I have {a} {things} and give away {b}. How many {things} are left?",
    "{name} has {a} {things} and loses {b}. How many {things} are left?",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Add,
    Subtract,
}

/// The split of a sum: one-digit pairs by list, larger ones by hash.
pub fn split_of(a: u32, b: u32, operation: Operation) -> Split {
    let held_out = match operation {
        Operation::Add if a < 10 && b < 10 => HELD_OUT_PAIRS.contains(&(a, b)),
        Operation::Add => stable_hash(&format!("{a}+{b}")).is_multiple_of(10),
        Operation::Subtract => stable_hash(&format!("{a}-{b}")).is_multiple_of(10),
    };
    if held_out {
        Split::HeldOut
    } else {
        Split::Train
    }
}

/// Draws operands of `split`: one-digit, mixed or two-digit.
fn operands(rng: &mut Rng, split: Split, operation: Operation, weights: [u32; 3]) -> (u32, u32) {
    loop {
        let (a, b) = match (operation, rng.weighted(&weights)) {
            (Operation::Add, 0) => (rng.range(0, 9), rng.range(0, 9)),
            (Operation::Add, 1) if rng.percent(65) => (rng.range(10, 99), rng.range(0, 9)),
            (Operation::Add, 1) => (rng.range(0, 9), rng.range(10, 99)),
            (Operation::Add, _) => (rng.range(10, 99), rng.range(10, 99)),
            (Operation::Subtract, 0) => (rng.range(0, 10), rng.range(0, 10)),
            (Operation::Subtract, 1) => (rng.range(10, 99), rng.range(0, 9)),
            (Operation::Subtract, _) => (rng.range(10, 99), rng.range(10, 99)),
        };
        let (a, b) = if operation == Operation::Subtract && a < b {
            (b, a)
        } else {
            (a, b)
        };
        if split_of(a, b, operation) == split {
            return (a, b);
        }
    }
}

/// The equation that every answer states.
pub fn equation(a: u32, b: u32, operation: Operation) -> String {
    match operation {
        Operation::Add => format!("{a} + {b} = {}", a + b),
        Operation::Subtract => format!("{a} - {b} = {}", a - b),
    }
}

/// `a` and `b` in digits, or in words where both have one and the draw says so.
fn spell(rng: &mut Rng, a: u32, b: u32) -> (String, String, bool) {
    let word = |n: u32| words::NUMBER_WORDS.get(n as usize).map(|w| (*w).to_owned());
    match (word(a), word(b)) {
        (Some(a), Some(b)) if rng.percent(15) => (a, b, true),
        _ => (a.to_string(), b.to_string(), false),
    }
}

/// One question about `a` and `b` in a phrasing of `phrases`.
pub fn question(rng: &mut Rng, phrases: Split, a: u32, b: u32, operation: Operation) -> Turn {
    let specific = if operation == Operation::Add {
        ADDITIONS
    } else {
        SUBTRACTIONS
    };
    let templates = if rng.percent(70) { QUESTIONS } else { specific };
    let phrase = Phrase::draw(rng, phrases, templates);
    ask(rng, phrase, a, b, operation)
}

/// The addition `a + b` in wording that no training sample uses.
pub fn unseen_wording(rng: &mut Rng, a: u32, b: u32) -> Turn {
    let phrase = Phrase {
        before: "",
        template: rng.pick(UNSEEN_ADDITIONS),
        after: "",
    };
    ask(rng, phrase, a, b, Operation::Add)
}

fn ask(rng: &mut Rng, phrase: Phrase, a: u32, b: u32, operation: Operation) -> Turn {
    let (left, right, spelled) = spell(rng, a, b);
    let (sign, word) = if operation == Operation::Add {
        ("+", "plus")
    } else {
        ("-", "minus")
    };
    let expression = match rng.weighted(&[50, 25, 25]) {
        0 if !spelled => format!("{left} {sign} {right}"),
        1 if !spelled => format!("{left}{sign}{right}"),
        _ => format!("{left} {word} {right}"),
    };
    let values = [
        ("e", expression.as_str()),
        ("a", left.as_str()),
        ("b", right.as_str()),
    ];
    let mut user = phrase.wrap(&capital(&fill(phrase.template, &values)));
    if rng.percent(15) {
        user = casual(&user);
    }
    let assistant = format!("{}.", equation(a, b, operation));
    Turn {
        task: Task::Arithmetic,
        user,
        assistant,
    }
}

fn word_problem(rng: &mut Rng, split: Split, weights: [u32; 3]) -> Turn {
    let operation = if rng.percent(60) {
        Operation::Add
    } else {
        Operation::Subtract
    };
    let (a, b) = operands(rng, split, operation, weights);
    let templates = if operation == Operation::Add {
        STORY_ADDITIONS
    } else {
        STORY_SUBTRACTIONS
    };
    let template = rng.pick(templates);
    let (name, _) = names::first(rng, split);
    let things = rng.pick(words::THINGS);
    let (a_text, b_text) = (a.to_string(), b.to_string());
    let values = [
        ("a", &*a_text),
        ("b", &*b_text),
        ("things", things),
        ("name", &*name),
    ];
    let sum = equation(a, b, operation);
    Turn {
        task: Task::Arithmetic,
        user: fill(template, &values),
        assistant: format!(
            "{sum}, so the answer is {}.",
            sum.rsplit(' ').next().unwrap_or("")
        ),
    }
}

/// A draw of `split` over all kinds of sums, operands by `weights` (see
/// [`super::mixture::Mixture`]).
pub fn turn(rng: &mut Rng, split: Split, weights: [u32; 3]) -> Turn {
    if rng.percent(12) {
        return word_problem(rng, split, weights);
    }
    let operation = if rng.percent(72) {
        Operation::Add
    } else {
        Operation::Subtract
    };
    let (a, b) = operands(rng, split, operation, weights);
    question(rng, split, a, b, operation)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads "a + b = c" from the start of an answer.
    fn parse(answer: &str) -> (u32, char, u32, u32) {
        let equation = answer
            .split(['.', ','])
            .next()
            .expect("split gives one piece");
        let parts: Vec<&str> = equation.split(' ').collect();
        assert_eq!(parts.len(), 5, "{answer}");
        let number = |i: usize| parts[i].parse().expect("a number");
        (
            number(0),
            parts[1].chars().next().expect("a sign"),
            number(2),
            number(4),
        )
    }

    #[test]
    fn every_answer_is_arithmetically_right() {
        for split in [Split::Train, Split::HeldOut] {
            for i in 0..20_000 {
                let turn = turn(&mut Rng::new(11, i), split, [1, 1, 1]);
                let (a, sign, b, c) = parse(&turn.assistant);
                let right = if sign == '+' { a + b } else { a - b };
                assert_eq!(right, c, "{turn:?}");
                if let Some((_, last)) = turn.assistant.split_once("the answer is ") {
                    assert_eq!(last, format!("{c}."));
                }
            }
        }
    }

    #[test]
    fn training_draws_never_use_a_held_out_pair() {
        for i in 0..50_000 {
            let turn = turn(&mut Rng::new(12, i), Split::Train, [1, 1, 1]);
            let (a, sign, b, _) = parse(&turn.assistant);
            assert!(sign == '-' || !HELD_OUT_PAIRS.contains(&(a, b)), "{turn:?}");
        }
    }

    #[test]
    fn the_first_nine_held_out_pairs_are_held_out_in_both_orders_and_the_others_in_one() {
        for (i, (a, b)) in HELD_OUT_PAIRS.into_iter().enumerate() {
            assert_eq!(HELD_OUT_PAIRS.contains(&(b, a)), i < 9, "{a} + {b}");
        }
    }
}
