//! The one trait between programs and whatever computes them.

use async_trait::async_trait;
use serde::Serialize;

use crate::lang::choices::ChoiceLogprobs;
use crate::lang::error::Error;
use crate::lang::sampling::{Format, Sampling};
use crate::message::Message;

/// The text that a generation continues.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// A text without roles.
    Text(String),
    /// A conversation. The output is a new message of the assistant, or continues the last message
    /// if that is the assistant's.
    Chat(Vec<Message>),
}

/// One generation.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    pub prompt: Prompt,
    pub sampling: Sampling,
    pub format: Format,
    /// Outputs, each a sample of its own; at least 1.
    pub n: u32,
    /// Present if [`TokenLogprob`]s are wanted, with so many of the most likely tokens each.
    pub logprobs: Option<u32>,
    /// True if somebody reads the text while it is generated.
    pub stream: bool,
    /// True if [`Completion::tokens`] is wanted, where the back end can give it.
    pub tokens: bool,
}

/// Why an output ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Finish {
    /// The model ended it, or a stop did.
    #[default]
    Stop,
    /// It has the most tokens that it may have.
    Length,
}

/// Token counts, as the back end reports them; 0 where it reports none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    pub prompt_tokens: u64,
    /// Prompt tokens that a prefix cache had.
    pub cached_tokens: u64,
    pub completion_tokens: u64,
}

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        self.prompt_tokens += other.prompt_tokens;
        self.cached_tokens += other.cached_tokens;
        self.completion_tokens += other.completion_tokens;
    }
}

/// A token of an output.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TokenLogprob {
    pub token: String,
    pub logprob: f64,
    /// The most likely tokens at its place, the most likely one first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub top: Vec<(String, f64)>,
}

/// One of the outputs of a [`Call`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Output {
    /// The text, without the stop that ended it.
    pub text: String,
    pub finish: Finish,
    /// One for each token, where [`Call::logprobs`] asks for them.
    pub logprobs: Vec<TokenLogprob>,
}

/// The output of a [`Call`], or several of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Completion {
    /// The text, without the stop that ended it.
    pub text: String,
    pub finish: Finish,
    /// One for each token, where [`Call::logprobs`] asks for them.
    pub logprobs: Vec<TokenLogprob>,
    /// The outputs after the first one, where [`Call::n`] asks for them.
    pub others: Vec<Output>,
    /// For all outputs together.
    pub usage: Usage,
    /// The texts of the output's tokens, which make up `text`. `None` if the back end does not give
    /// them.
    pub tokens: Option<Vec<String>>,
}

impl Completion {
    /// For `outputs`, which are all of a call's.
    pub fn of(outputs: impl IntoIterator<Item = Output>, usage: Usage) -> Self {
        let mut outputs = outputs.into_iter();
        let Output {
            text,
            finish,
            logprobs,
        } = outputs.next().unwrap_or_default();
        Self {
            text,
            finish,
            logprobs,
            others: outputs.collect(),
            usage,
            tokens: None,
        }
    }
}

/// The result of [`Backend::score`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scores {
    /// One for each choice.
    pub choices: Vec<ChoiceLogprobs>,
    pub usage: Usage,
}

/// Takes the text of an output while it is generated, piece by piece.
pub type Sink<'a> = &'a mut (dyn FnMut(&str) + Send);

/// Something that computes generations: a server, or an engine in the same process. Dropping a
/// future of it cancels the request.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// Its name, for errors.
    fn name(&self) -> &str;

    /// True if it continues an assistant's message that the program began.
    fn continues_messages(&self) -> bool {
        true
    }

    /// Generates. Where [`Call::stream`] is set, `sink` gets the text as it comes; it may get
    /// nothing otherwise.
    ///
    /// # Errors
    /// The back end refuses the call or lacks a feature, or the connection breaks.
    async fn generate(&self, call: &Call, sink: Sink<'_>) -> Result<Completion, Error>;

    /// The log-probabilities of each of `choices` after `prompt`, with one request; with
    /// `unconditional` also those without the prompt.
    ///
    /// # Errors
    /// As for [`generate`](Self::generate).
    async fn score(
        &self,
        _prompt: &Prompt,
        _choices: &[String],
        _unconditional: bool,
    ) -> Result<Scores, Error> {
        Err(self.lacks("the log-probabilities of a prompt, which `select` needs"))
    }

    /// Computes `prompt` into the prefix cache, so that later calls find it there. A back end
    /// without control over its cache does nothing.
    ///
    /// # Errors
    /// As for [`generate`](Self::generate).
    async fn cache(&self, _prompt: &Prompt) -> Result<(), Error> {
        Ok(())
    }

    /// The error for a feature that this back end lacks.
    fn lacks(&self, feature: &'static str) -> Error {
        Error::Unsupported {
            backend: self.name().to_owned(),
            feature,
        }
    }
}
