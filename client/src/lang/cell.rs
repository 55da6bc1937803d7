//! A variable's value, which one task writes and any number of tasks wait for.

use serde::Serialize;
use serde_json::{Value as Json, json};
use tokio::sync::watch;

use crate::lang::backend::{Finish, TokenLogprob, Usage};
use crate::lang::error::Error;

/// The value of a variable.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Text(String),
    /// The values that forks gave the variable, in the order of the forks, or the outputs of one
    /// generation. A fork that failed has its error there.
    List(Vec<Result<Value, Error>>),
}

impl Value {
    /// The value as JSON: a string, or a list in which an error is `{"error": "..."}`.
    pub fn to_json(&self) -> Json {
        match self {
            Self::Text(text) => json!(text),
            Self::List(values) => values
                .iter()
                .map(|value| match value {
                    Ok(value) => value.to_json(),
                    Err(error) => json!({"error": error.to_string()}),
                })
                .collect(),
        }
    }
}

/// Facts about how a value was computed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Meta {
    pub usage: Usage,
    /// For a generation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finish: Option<Finish>,
    /// True if the value was taken from the output of an earlier call (API-speculative execution).
    pub speculated: bool,
    /// For `select`: the score of each choice, by its method.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scores: Vec<f64>,
    /// For a generation with `n` above 1 or with `logprobs`: the facts about each output.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<OutputMeta>,
}

/// Facts about one output of a generation.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct OutputMeta {
    pub finish: Finish,
    /// One for each token, if they were asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub logprobs: Vec<TokenLogprob>,
}

/// A value with its facts.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub value: Value,
    pub meta: Meta,
}

#[derive(Clone, Debug)]
enum Slot {
    /// The text so far.
    Pending(String),
    Ready(Outcome),
    Failed(Error),
}

/// The side that reads. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Cell(watch::Receiver<Slot>);

/// The side that writes. If it is dropped without a value, the readers get [`Error::Cancelled`].
#[derive(Debug)]
pub struct Setter(watch::Sender<Slot>);

/// A new variable.
pub fn cell() -> (Setter, Cell) {
    let (writer, reader) = watch::channel(Slot::Pending(String::new()));
    (Setter(writer), Cell(reader))
}

impl Setter {
    /// Adds to the text that readers of a stream see.
    pub fn push(&self, delta: &str) {
        self.0.send_modify(|slot| {
            if let Slot::Pending(text) = slot {
                text.push_str(delta);
            }
        });
    }

    pub fn set(self, value: Value, meta: Meta) {
        self.0.send_replace(Slot::Ready(Outcome { value, meta }));
    }

    pub fn fail(self, error: Error) {
        self.0.send_replace(Slot::Failed(error));
    }
}

impl Cell {
    /// Waits for the value.
    ///
    /// # Errors
    /// The error of the statement that computes it.
    pub async fn outcome(&self) -> Result<Outcome, Error> {
        let mut reader = self.0.clone();
        let ended = reader.wait_for(|slot| !matches!(slot, Slot::Pending(_)));
        let slot = ended.await.map_err(|_| Error::Cancelled)?;
        match &*slot {
            Slot::Ready(outcome) => Ok(outcome.clone()),
            Slot::Failed(error) => Err(error.clone()),
            Slot::Pending(_) => Err(Error::Cancelled),
        }
    }

    /// Waits for text beyond the first `seen` bytes; `None` at the end of the value.
    ///
    /// # Errors
    /// The error of the statement that computes it.
    pub async fn text_after(&mut self, seen: usize) -> Result<Option<String>, Error> {
        let more = |slot: &Slot| match slot {
            Slot::Pending(text) => text.len() > seen,
            _ => true,
        };
        let slot = self.0.wait_for(more).await.map_err(|_| Error::Cancelled)?;
        let rest = |text: &str| text.get(seen..).unwrap_or_default().to_owned();
        match &*slot {
            Slot::Pending(text) => Ok(Some(rest(text))),
            Slot::Failed(error) => Err(error.clone()),
            Slot::Ready(Outcome {
                value: Value::Text(text),
                ..
            }) => Ok(Some(rest(text)).filter(|rest| !rest.is_empty())),
            Slot::Ready(_) => Ok(None),
        }
    }
}
