//! Whole conversations: a mixture of the tasks in one to fifteen turns.

use super::mixture::Mixture;
use super::rng::Rng;
use super::{Conversation, Split, Turn, arithmetic, chat, extraction, facts, story};

fn turn(rng: &mut Rng, mixture: &Mixture, split: Split) -> Turn {
    match rng.weighted(&mixture.tasks) {
        0 => arithmetic::turn(rng, split, mixture.operands),
        1 => extraction::turn(rng, split),
        2 => story::turn(rng, split),
        3 => facts::turn(rng, split),
        _ => chat::turn(rng),
    }
}

/// Conversation `index` of `seed`.
pub fn conversation(mixture: &Mixture, seed: u64, split: Split, index: u64) -> Conversation {
    let mut rng = Rng::new(
        seed ^ if split == Split::HeldOut {
            0x48_45_4c_44
        } else {
            0
        },
        index,
    );
    let system = rng.percent(25).then(|| rng.pick(chat::SYSTEM).to_owned());
    let count = match 1 + rng.weighted(mixture.turns) {
        // A few long ones, so that late turns and far positions occur too.
        7 => 7 + rng.below(9),
        few => few,
    };
    let mut turns = Vec::with_capacity(count);
    let mut name = None;
    for position in 0..count {
        let early = position == 0 || turns.last().is_some_and(|t: &Turn| t.user.len() < 10);
        turns.push(match rng.below(100) {
            // A name is given early and asked for later.
            0..5 if early && count > 1 && name.is_none() => {
                let (turn, given) = chat::introduction(&mut rng, split);
                name = Some(given);
                turn
            }
            0..5 if !early => chat::recall(&mut rng, name.as_deref()),
            5..40 if position > 0 && name.is_some() => chat::recall(&mut rng, name.as_deref()),
            40..55 if turns.last().is_some_and(|t| t.task == super::Task::Story) => {
                story::another(&mut rng)
            }
            _ => turn(&mut rng, mixture, split),
        });
    }
    Conversation { system, turns }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus::mixture::SHORT;

    #[test]
    fn a_conversation_is_a_function_of_seed_split_and_index() {
        for index in 0..200 {
            let again = conversation(&SHORT, 7, Split::Train, index);
            assert_eq!(conversation(&SHORT, 7, Split::Train, index), again);
        }
        let texts: std::collections::HashSet<String> = (0..1_000)
            .map(|i| format!("{:?}", conversation(&SHORT, 7, Split::Train, i)))
            .collect();
        assert!(texts.len() > 950, "{}", texts.len());
        assert_ne!(
            conversation(&SHORT, 7, Split::Train, 0),
            conversation(&SHORT, 8, Split::Train, 0)
        );
        assert_ne!(
            conversation(&SHORT, 7, Split::Train, 0),
            conversation(&SHORT, 7, Split::HeldOut, 0)
        );
    }
}
