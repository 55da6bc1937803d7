//! What goes into the engine and what comes out of it.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc::UnboundedReceiver;

use crate::constraint::Constrain;
use crate::inbox::{Inbox, RequestId, Withdrawal};
use crate::logprobs::TokenLogprobs;
use crate::params::{ParamError, SamplingParams};
use crate::pooling::Pooling;

/// One sequence to continue.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Token ids; at least one.
    pub prompt: Vec<u32>,
    pub params: SamplingParams,
    /// Requests of different namespaces never share KV.
    pub namespace: Option<String>,
    /// What an abort may call it by; several requests may have the same.
    pub id: Option<String>,
    /// Higher is served first by [`SchedulePolicy::Priority`](crate::SchedulePolicy) and
    /// kept longer by [`EvictionPolicy::Priority`](crate::EvictionPolicy); and of the
    /// running requests the lowest gives way when slots run out.
    pub priority: i32,
    /// What the output must follow.
    pub constraint: Option<Constrain>,
    /// An embedding of the prompt is wanted, and no output.
    pub pooling: Option<Pooling>,
}

/// What a [`Generation`] yields, in this order: `Started`, at most one
/// `PromptLogprobs`, at most one `Embedding`, any number of `Token` and `Forced`, and then one of `Finished` and
/// `Failed`. A request that fails or is cancelled early skips the rest.
#[derive(Clone, Debug)]
pub enum Event {
    /// The request left the queue; `cached_tokens` of its prompt are reused.
    Started {
        prompt_tokens: usize,
        cached_tokens: usize,
        /// When it came to the queue, and when it left it.
        queued: Instant,
        started: Instant,
    },
    /// It gave its slots back to others, and will get new ones.
    Preempted {
        at: Instant,
    },
    /// One entry per prompt token; the first has no context, hence `None`.
    PromptLogprobs(Vec<Option<TokenLogprobs>>),
    /// `[hidden_size]`, pooled as asked, not normalised.
    Embedding(Vec<f32>),
    Token(TokenEvent),
    /// Tokens that a grammar left no choice about; at least one.
    Forced(Vec<TokenEvent>),
    Finished(FinishReason, Usage),
    /// The model failed under this request; the text says how.
    Failed(String),
}

/// One output token. The end-of-sequence or stop token that ends a request is
/// not one of them: it is in [`FinishReason::Stop`].
#[derive(Clone, Debug)]
pub struct TokenEvent {
    pub id: u32,
    pub logprob: Option<TokenLogprobs>,
    /// When it was sampled.
    pub at: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model chose an end-of-sequence token or one of `stop_token_ids`; without a
    /// token the output is all that its grammar allows.
    Stop { token: Option<u32> },
    /// `max_tokens` or the context length was reached.
    Length,
    /// The engine shut down before the request was done.
    Cancelled,
    /// An operator ended it; see [`EngineHandle::abort`](crate::EngineHandle::abort).
    Aborted,
}

/// Token counts of a finished request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt_tokens: usize,
    /// The part of `prompt_tokens` that was reused from the cache.
    pub cached_tokens: usize,
    /// Sampled and forced tokens, the one that stopped the request included.
    pub completion_tokens: usize,
}

/// Why a request was not accepted. Nothing was queued.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum SubmitError {
    #[error("the prompt is empty; it needs at least 1 token")]
    EmptyPrompt,
    #[error(
        "the prompt has {given} tokens; with at least one output token it may have at most \
         {limit} in this server's context of {context} tokens"
    )]
    PromptTooLong {
        given: usize,
        limit: usize,
        context: usize,
    },
    #[error("prompt token {index} is {given}; token ids of this model are below {vocab}")]
    TokenOutOfRange {
        index: usize,
        given: u32,
        vocab: usize,
    },
    #[error(transparent)]
    Params(#[from] ParamError),
    #[error("{limit} requests are waiting already; try again later")]
    QueueFull { limit: usize },
    #[error("the server is shutting down")]
    ShuttingDown,
}

/// A request in the engine, as a stream of its events.
///
/// Dropping it cancels the request: its slots are free within one step.
///
/// Events that are not read wait here, without a bound of their own: there are
/// at most `max_tokens` and three of them, and one of a token takes some 50
/// bytes, and 8 for each alternative asked for.
#[derive(Debug)]
pub struct Generation {
    pub(crate) id: RequestId,
    pub(crate) events: UnboundedReceiver<Event>,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) ended: bool,
}

impl Generation {
    /// A number of its own among the engine's requests.
    pub fn id(&self) -> u64 {
        self.id.number()
    }

    /// The next event; `None` after `Finished` or `Failed`. Cancel-safe.
    pub async fn next(&mut self) -> Option<Event> {
        if self.ended {
            return None;
        }
        let event = self.events.recv().await;
        Some(self.seen(event))
    }

    /// [`next`](Self::next) for threads without a runtime; it panics on a
    /// runtime's thread.
    pub fn next_blocking(&mut self) -> Option<Event> {
        if self.ended {
            return None;
        }
        let event = self.events.blocking_recv();
        Some(self.seen(event))
    }

    /// Ends the request early because its consumer has all it wants (a stop
    /// string matched): like a drop, but counted as finished, not cancelled.
    pub fn stop(mut self) {
        self.withdraw(Withdrawal::Satisfied);
    }

    fn seen(&mut self, event: Option<Event>) -> Event {
        // The engine ends every stream with an event, unless its thread died.
        let event = event.unwrap_or_else(|| Event::Failed("the engine stopped".to_owned()));
        self.ended = matches!(event, Event::Finished(..) | Event::Failed(_));
        event
    }

    fn withdraw(&mut self, why: Withdrawal) {
        if !self.ended {
            self.ended = true;
            self.inbox.withdraw(self.id, why);
        }
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.withdraw(Withdrawal::Cancelled);
    }
}
