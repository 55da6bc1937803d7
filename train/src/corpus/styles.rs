//! Two styles of answers that are not the model's own: couplets, and questions in place of answers.
//! Adapters learn them, to show what an adapter is.

mod questions;
mod rhymes;

use clap::ValueEnum;
use serde::Serialize;

use super::mixture::{Mixture, SHORT};
use super::names::Gender;
use super::rng::Rng;
use super::story::{self, Wish};
use super::{Conversation, Split, Task, Turn, arithmetic, chat, facts};

/// How every answer is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Style {
    /// Four lines in two rhymes.
    Rhymes,
    /// Three questions.
    Questions,
}

/// The person or the animal that an answer is about.
struct Hero {
    kind: &'static str,
    name: Option<String>,
    gender: Option<Gender>,
}

impl Hero {
    /// Values for the template slots of pronouns; without a name it is "it".
    fn slots(&self) -> [(&'static str, &'static str); 5] {
        const IT: [(&str, &str); 5] = [
            ("he", "it"),
            ("He", "It"),
            ("his", "its"),
            ("His", "Its"),
            ("him", "it"),
        ];
        self.gender.map_or(IT, Gender::slots)
    }
}

impl Style {
    /// An answer to a request for a story, which grants `wish`, or to any other request.
    fn answer(self, rng: &mut Rng, wish: Option<&Wish>) -> String {
        let wish = wish.cloned().unwrap_or_default();
        match self {
            Self::Rhymes => {
                let kind = wish.kind.unwrap_or_else(|| story::kind(rng));
                let (name, gender) = wish.name.unwrap_or_else(|| story::own_name(rng, kind));
                let hero = Hero {
                    kind,
                    name: Some(name),
                    gender: Some(gender),
                };
                rhymes::answer(rng, &hero)
            }
            Self::Questions => {
                let hero = (wish.kind.is_some() || wish.name.is_some()).then(|| Hero {
                    kind: wish.kind.unwrap_or_default(),
                    gender: wish.name.as_ref().map(|(_, gender)| *gender),
                    name: wish.name.map(|(name, _)| name),
                });
                questions::answer(rng, hero.as_ref())
            }
        }
    }

    /// True if `text` is in this style.
    pub fn has(self, text: &str) -> bool {
        match self {
            Self::Rhymes => rhymes::rhymes(text),
            Self::Questions => questions::asks(text),
        }
    }

    /// Conversation `index` of `seed`: one turn, most often a request for a story.
    pub fn conversation(self, seed: u64, split: Split, index: u64) -> Conversation {
        let mut rng = Rng::new(seed ^ 0x57_59_4c_45, index);
        let (request, wish) = match rng.below(10) {
            0 => (arithmetic::turn(&mut rng, split, SHORT.operands), None),
            1 => (facts::turn(&mut rng, split), None),
            2 => (chat::turn(&mut rng), None),
            _ => {
                let (turn, wish) = story::request(&mut rng, split);
                (turn, Some(wish))
            }
        };
        Conversation::of(Turn {
            task: Task::Chat,
            user: request.user,
            assistant: self.answer(&mut rng, wish.as_ref()),
        })
    }

    /// [`conversation`](Self::conversation) for training, as batches take it.
    pub fn corpus(self) -> fn(&Mixture, u64, u64) -> Conversation {
        match self {
            Self::Rhymes => |_, seed, index| Self::Rhymes.conversation(seed, Split::Train, index),
            Self::Questions => {
                |_, seed, index| Self::Questions.conversation(seed, Split::Train, index)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STYLES: [Style; 2] = [Style::Rhymes, Style::Questions];

    #[test]
    fn every_answer_is_in_its_style_and_in_no_other() {
        for style in STYLES {
            let mut different = std::collections::HashSet::new();
            for index in 0..2000 {
                let turn = style.conversation(3, Split::Train, index).turns.remove(0);
                assert!(style.has(&turn.assistant), "{style:?}: {turn:?}");
                let others = STYLES.into_iter().filter(|other| *other != style);
                assert!(others.into_iter().all(|other| !other.has(&turn.assistant)));
                different.insert(turn.assistant);
            }
            assert!(different.len() > 900, "{style:?}: {}", different.len());
        }
        for index in 0..200 {
            let (turn, _) = story::request(&mut Rng::new(1, index), Split::Train);
            assert!(STYLES.iter().all(|style| !style.has(&turn.assistant)));
        }
    }

    #[test]
    fn answers_keep_the_name_that_was_asked_for() {
        for style in STYLES {
            for index in 0..500 {
                let mut rng = Rng::new(4, index);
                let (_, wish) = story::request(&mut rng, Split::Train);
                let answer = style.answer(&mut rng, Some(&wish));
                if let Some((name, _)) = &wish.name {
                    assert!(answer.contains(name.as_str()), "{answer}");
                }
            }
        }
    }
}
