//! The statements of a program, as a graph has them.

use serde::{Deserialize, Serialize};

use crate::lang::choices::ChoiceMethod;
use crate::lang::sampling::{Format, Sampling};
use crate::message::Role;

/// A statement of one state.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Node {
    /// The number of the state: 0 is the program's own, and forks are numbered as they are made.
    pub state: usize,
    #[serde(flatten)]
    pub op: Op,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Op {
    /// Adds text.
    Text { text: Vec<Piece> },
    /// Generates text into a variable.
    Gen(Box<Generation>),
    /// Takes the most likely of some texts into a variable.
    Select(Selection),
    /// Begins a message.
    Begin { role: Role },
    /// Ends the open message.
    End,
    /// Begins a scope, whose text becomes the variable `name`.
    Scope { name: String },
    /// Ends the scope that began last.
    EndScope,
    /// Sets a variable without adding text.
    Set { name: String, text: String },
    /// Makes copies of the state.
    Fork { into: Vec<usize> },
    /// Ends forks.
    Join { from: Vec<usize>, mode: Join },
    /// An image, which no back end takes.
    Image { path: String },
}

/// A part of a text.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Piece {
    Text(String),
    /// The value of the variable `var` of a state.
    Var {
        var: String,
        state: usize,
    },
}

/// The statement of `generate`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Generation {
    pub name: String,
    #[serde(flatten)]
    pub sampling: Sampling,
    #[serde(flatten)]
    pub format: Format,
    /// Outputs; 1 if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<u32>,
    /// The most likely tokens that are wanted beside each token of the output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<u32>,
}

/// The statement of `select`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Selection {
    pub name: String,
    pub choices: Vec<String>,
    pub method: ChoiceMethod,
}

/// The effect of `join` on the forks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Join {
    /// Each variable that a fork defined becomes a list with one value for each fork.
    #[default]
    Gather,
    /// The same, and the texts of the forks are appended to the state in their order.
    Concatenate,
}
