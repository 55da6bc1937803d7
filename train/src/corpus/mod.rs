//! The training corpus of `hearth-tiny`: conversations made from our own grammar and word lists.
//!
//! Conversation `index` of a seed is a pure function of `(seed, split, index)`. Pairs of addends,
//! names, cities and phrasings are held out by construction in each task's module, and the tests of
//! [`split`] scan samples to prove it.

pub mod arithmetic;
pub mod chat;
pub mod conversation;
pub mod extraction;
mod extraction_templates;
mod fact_lists;
pub mod facts;
pub mod mixture;
pub mod name_lists;
pub mod names;
pub mod phrasing;
pub mod plots;
pub mod rng;
pub mod story;
pub mod styles;
pub mod text;
pub mod words;

#[cfg(test)]
mod split;

pub use conversation::conversation;
use serde::Serialize;

/// Whether a sample may be trained on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    Train,
    HeldOut,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    Arithmetic,
    Extraction,
    Story,
    Facts,
    Chat,
    /// The user's name, given in an earlier turn.
    Memory,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    System,
    User,
    Assistant,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Message {
    pub role: Role,
    pub content: String,
}

/// One user message and the answer that the model should give.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turn {
    pub task: Task,
    pub user: String,
    pub assistant: String,
}

/// A conversation: an optional system prompt, then turns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conversation {
    pub system: Option<String>,
    pub turns: Vec<Turn>,
}

impl Conversation {
    pub fn of(turn: Turn) -> Self {
        Self {
            system: None,
            turns: vec![turn],
        }
    }

    /// The conversation as chat messages.
    pub fn messages(&self) -> Vec<Message> {
        let system = self.system.iter().map(|s| Message {
            role: Role::System,
            content: s.clone(),
        });
        let turns = self.turns.iter().flat_map(|turn| {
            [
                Message {
                    role: Role::User,
                    content: turn.user.clone(),
                },
                Message {
                    role: Role::Assistant,
                    content: turn.assistant.clone(),
                },
            ]
        });
        system.chain(turns).collect()
    }
}
