//! The held-out prompts that the model is measured on. None of them occurs in training.

use crate::corpus::arithmetic::{self, HELD_OUT_PAIRS, Operation};
use crate::corpus::extraction::{self, NameSource};
use crate::corpus::mixture::SHORT;
use crate::corpus::rng::Rng;
use crate::corpus::{Conversation, Split, Turn, chat, facts};

/// A named set of prompts with the one right answer to each.
pub struct Suite {
    pub name: &'static str,
    /// Whether the suite counts towards the project's target (one-digit additions, JSON
    /// extractions).
    pub group: Group,
    pub cases: Vec<Conversation>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    Addition,
    Json,
    Other,
}

/// Seed of the prompts; training uses other streams and, by construction, other content.
const SEED: u64 = 0x00e7_a100;

fn one_digit(rng: &mut Rng, trained: bool) -> (u32, u32) {
    loop {
        let (a, b) = (rng.range(0, 9), rng.range(0, 9));
        if trained != HELD_OUT_PAIRS.contains(&(a, b)) {
            return (a, b);
        }
    }
}

fn add(rng: &mut Rng, phrases: Split, pair: (u32, u32)) -> Turn {
    arithmetic::question(rng, phrases, pair.0, pair.1, Operation::Add)
}

fn larger_sum(rng: &mut Rng, operation: Operation) -> Turn {
    loop {
        let (a, b) = (rng.range(10, 99), rng.range(0, 99));
        let (a, b) = (a.max(b), a.min(b));
        if arithmetic::split_of(a, b, operation) == Split::HeldOut {
            return arithmetic::question(rng, Split::Train, a, b, operation);
        }
    }
}

/// A turn of any task that may come before the one that is measured.
fn other(rng: &mut Rng) -> Turn {
    match rng.below(4) {
        0 => arithmetic::turn(rng, Split::Train, SHORT.operands),
        1 => extraction::turn(rng, Split::Train),
        2 => facts::turn(rng, Split::Train),
        _ => chat::turn(rng),
    }
}

/// One or two turns of other tasks before `last`.
fn after_others(rng: &mut Rng, last: Turn) -> Conversation {
    let count = 1 + rng.below(2);
    let mut turns: Vec<Turn> = (0..count).map(|_| other(rng)).collect();
    turns.push(last);
    Conversation {
        system: None,
        turns,
    }
}

/// `last` at the end of a conversation of about 750 tokens.
fn late(rng: &mut Rng, last: Turn) -> Conversation {
    let mut turns = Vec::new();
    let mut characters = 0;
    while characters < 1_400 {
        let turn = other(rng);
        characters += turn.user.len() + turn.assistant.len();
        turns.push(turn);
    }
    turns.push(last);
    Conversation {
        system: None,
        turns,
    }
}

/// All suites with `count` prompts each.
pub fn suites(count: usize) -> Vec<Suite> {
    use NameSource::{Any, Invented, Listed};
    use Split::{HeldOut, Train};
    let (strict, twins) = HELD_OUT_PAIRS.split_at(9);
    let mut stream = 0;
    let mut suite =
        |name: &'static str, group: Group, make: &dyn Fn(&mut Rng, usize) -> Conversation| {
            stream += 1;
            let cases = (0..count)
                .map(|i| make(&mut Rng::new(SEED + stream, i as u64), i))
                .collect();
            Suite { name, group, cases }
        };
    let of = Conversation::of;
    vec![
        suite(
            "addition, one digit: held-out pair, neither order trained",
            Group::Addition,
            &|rng, i| of(add(rng, Train, strict[i % strict.len()])),
        ),
        suite(
            "addition, one digit: held-out pair, other order trained",
            Group::Addition,
            &|rng, i| of(add(rng, Train, twins[i % twins.len()])),
        ),
        suite(
            "addition, one digit: trained pair, held-out phrasing",
            Group::Addition,
            &|rng, _| {
                let pair = one_digit(rng, true);
                of(add(rng, HeldOut, pair))
            },
        ),
        suite(
            "addition, one digit: held-out pair, held-out phrasing",
            Group::Addition,
            &|rng, i| of(add(rng, HeldOut, HELD_OUT_PAIRS[i % HELD_OUT_PAIRS.len()])),
        ),
        suite(
            "addition, one digit: held-out pair, unseen wording",
            Group::Addition,
            &|rng, i| {
                let (a, b) = HELD_OUT_PAIRS[i % HELD_OUT_PAIRS.len()];
                of(arithmetic::unseen_wording(rng, a, b))
            },
        ),
        suite(
            "addition, one digit: held-out pair, after other turns",
            Group::Addition,
            &|rng, i| {
                let last = add(rng, Train, HELD_OUT_PAIRS[i % HELD_OUT_PAIRS.len()]);
                after_others(rng, last)
            },
        ),
        suite(
            "addition, two digits: held-out pair",
            Group::Other,
            &|rng, _| of(larger_sum(rng, Operation::Add)),
        ),
        suite(
            "subtraction, two digits: held-out pair",
            Group::Other,
            &|rng, _| of(larger_sum(rng, Operation::Subtract)),
        ),
        suite("JSON: listed names never seen", Group::Json, &|rng, _| {
            of(extraction::person(rng, HeldOut, Listed, Train))
        }),
        suite("JSON: made-up names never seen", Group::Json, &|rng, _| {
            of(extraction::person(rng, HeldOut, Invented, Train))
        }),
        suite(
            "JSON: trained names, held-out phrasing",
            Group::Json,
            &|rng, _| of(extraction::person(rng, Train, Any, HeldOut)),
        ),
        suite(
            "JSON: names never seen, held-out phrasing",
            Group::Json,
            &|rng, _| of(extraction::person(rng, HeldOut, Any, HeldOut)),
        ),
        suite(
            "JSON: names never seen, after other turns",
            Group::Json,
            &|rng, _| {
                let last = extraction::person(rng, HeldOut, Any, Train);
                after_others(rng, last)
            },
        ),
        suite(
            "long conversation: held-out one-digit addition",
            Group::Other,
            &|rng, i| {
                let last = add(rng, Train, HELD_OUT_PAIRS[i % HELD_OUT_PAIRS.len()]);
                late(rng, last)
            },
        ),
        suite(
            "long conversation: JSON, names never seen",
            Group::Other,
            &|rng, _| {
                let last = extraction::person(rng, HeldOut, Any, Train);
                late(rng, last)
            },
        ),
        suite("facts: held-out phrasing", Group::Other, &|rng, _| {
            of(facts::turn(rng, HeldOut))
        }),
        suite(
            "memory: the user's name, never seen, some turns later",
            Group::Other,
            &|rng, _| {
                let (introduction, name) = chat::introduction(rng, HeldOut);
                let last = chat::recall(rng, Some(&name));
                let mut conversation = after_others(rng, last);
                conversation.turns.insert(0, introduction);
                conversation
            },
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::Encoder;

    #[test]
    fn every_suite_is_full_and_made_the_same_each_time() {
        let (first, again) = (suites(20), suites(20));
        for (a, b) in first.iter().zip(&again) {
            assert_eq!(a.cases.len(), 20, "{}", a.name);
            assert_eq!(a.cases, b.cases, "{}", a.name);
        }
    }

    #[test]
    fn every_held_out_pair_is_asked() {
        for suite in suites(28).iter().filter(|s| s.group == Group::Addition) {
            for case in &suite.cases {
                let answer = &case.turns.last().unwrap().assistant;
                let operands: Vec<u32> = answer
                    .split(' ')
                    .filter_map(|word| word.parse().ok())
                    .collect();
                let held_out = HELD_OUT_PAIRS.contains(&(operands[0], operands[1]));
                assert_eq!(
                    held_out,
                    !suite.name.contains("trained pair"),
                    "{}",
                    suite.name
                );
            }
        }
    }

    #[test]
    fn prompts_fit_the_evaluated_length() {
        let encoder = Encoder::from_json(crate::TOKENIZER_JSON).unwrap();
        for suite in suites(100) {
            let long = suite.cases.iter().filter(|case| {
                encoder.conversation(case).unwrap().ids.len() > crate::evaluate::LENGTH
            });
            assert!(long.count() <= 3, "{}", suite.name);
        }
    }
}
