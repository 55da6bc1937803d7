//! A back end with given answers, to test programs without a model.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;

use crate::lang::backend::{
    Backend, Call, Completion, Output, Prompt, Scores, Sink, TokenLogprob, Usage,
};
use crate::lang::choices::ChoiceLogprobs;
use crate::lang::error::Error;

/// Answers the calls of a program with given texts, in the order of the calls; a call for several
/// outputs takes several. A selection takes its first choice. Each output is one token with the
/// log-probability 0.
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
        let mut outputs = Vec::new();
        for _ in 0..call.n {
            let text = answers.pop_front().ok_or_else(ended)?;
            if call.stream {
                sink(&text);
            }
            let token = TokenLogprob {
                token: text.clone(),
                ..TokenLogprob::default()
            };
            outputs.push(Output {
                text,
                logprobs: call.logprobs.map(|_| token).into_iter().collect(),
                ..Output::default()
            });
        }
        Ok(Completion::of(outputs, Usage::default()))
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
