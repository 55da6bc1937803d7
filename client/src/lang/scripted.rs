//! A back end with given answers, to test programs without a model.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;

use crate::lang::backend::{Backend, Call, Completion, Prompt, Scores, Sink};
use crate::lang::choices::ChoiceLogprobs;
use crate::lang::error::Error;

/// Answers the calls of a program with given texts, in the order of the calls. A selection takes its
/// first choice.
#[derive(Debug)]
pub struct Scripted(Mutex<VecDeque<String>>);

impl Scripted {
    pub fn new(answers: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let answers = answers.into_iter().map(Into::into);
        Self(Mutex::new(answers.collect()))
    }
}

#[async_trait]
impl Backend for Scripted {
    fn name(&self) -> &str {
        "script"
    }

    async fn generate(&self, call: &Call, sink: Sink<'_>) -> Result<Completion, Error> {
        let mut answers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = || Error::Misuse("the script has no further answer".to_owned());
        let text = answers.pop_front().ok_or_else(ended)?;
        if call.stream {
            sink(&text);
        }
        Ok(Completion {
            text,
            ..Completion::default()
        })
    }

    async fn score(&self, _: &Prompt, choices: &[String], _: bool) -> Result<Scores, Error> {
        let each = (0..choices.len()).map(|index| ChoiceLogprobs {
            logprobs: vec![-(index as f64)],
            unconditional: Vec::new(),
        });
        Ok(Scores {
            choices: each.collect(),
            ..Scores::default()
        })
    }
}
