//! The requests that callers send to the engine, and the events that they receive.

use std::sync::Arc;
use std::time::Instant;

use hearth_forward::Adapter;

use crate::constraint::Constrain;
use crate::pooling::Pooling;
use crate::sampling::logprobs::TokenLogprobs;
use crate::sampling::params::{ParamError, SamplingParams};
use crate::transfer::Transfer;

/// One sequence to continue.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Token ids; at least one.
    pub prompt: Vec<u32>,
    pub params: SamplingParams,
    /// Requests of different namespaces never share KV.
    pub namespace: Option<String>,
    /// The adapter to compute with; `None` for the base model. Requests with different adapters never
    /// share KV either, and equal ones share it, wherever they were read from.
    pub adapter: Option<Arc<Adapter>>,
    /// The name by which an [abort](crate::EngineHandle::abort) finds the request; several
    /// requests may have the same.
    pub id: Option<String>,
    /// A request of higher priority is started first under
    /// [`SchedulePolicy::Priority`](crate::SchedulePolicy), and its prefix is kept longer under
    /// [`EvictionPolicy::Priority`](crate::EvictionPolicy). When slots run out, the running
    /// request of the lowest priority is preempted.
    pub priority: i32,
    /// The grammar that the output must match.
    pub constraint: Option<Constrain>,
    /// The request is for an embedding of the prompt, and for no output.
    pub pooling: Option<Pooling>,
    /// The part that this engine does, if another engine does the rest.
    pub transfer: Option<Transfer>,
    /// Nothing is drafted for this request, even where the engine [speculates](
    /// crate::EngineConfig::speculation).
    pub no_speculation: bool,
    /// A text that the output may be like. It is a source of drafts and has no influence on the output;
    /// tokens beyond the vocabulary are never drafted.
    pub prediction: Vec<u32>,
}

/// The events of a [`Generation`](crate::Generation), in this order: `Started`, at most one
/// `PromptLogprobs`, at most one `Embedding`, any number of `Token` and `Forced`, and then
/// either `Finished` or `Failed`. A request that fails or is cancelled early skips the rest.
#[derive(Clone, Debug)]
pub enum Event {
    /// The request left the queue; `cached_tokens` of its prompt are reused.
    Started {
        prompt_tokens: usize,
        cached_tokens: usize,
        /// When the request joined the queue.
        queued: Instant,
        /// When the request left the queue.
        started: Instant,
    },
    /// The request was preempted: its slots went to other requests, and it will get new ones.
    Preempted {
        at: Instant,
    },
    /// The request has slots again after it was preempted.
    Resumed {
        at: Instant,
    },
    /// With [`Transfer::Send`]: the keys and values of the first `tokens` tokens are in their
    /// slots and can be read. It may be sent several times, with growing numbers, and begins
    /// again after `Preempted`.
    Computed {
        tokens: usize,
    },
    /// With [`Transfer::Receive`]: slots are allocated. The cache has the first `from` tokens;
    /// those of the positions `from..tokens` are missing. Tokens that the grammar forces after
    /// the prompt are counted.
    Receiving {
        from: usize,
        tokens: usize,
    },
    /// One entry per prompt token. The first has no context, hence `None`.
    PromptLogprobs(Vec<Option<TokenLogprobs>>),
    /// `[hidden_size]`, pooled as the request asked, not normalised.
    Embedding(Vec<f32>),
    Token(TokenEvent),
    /// Tokens that were the only ones that the grammar allowed; at least one.
    Forced(Vec<TokenEvent>),
    Finished(FinishReason, Usage),
    /// The model failed while it computed this request; the text says how.
    Failed(String),
    /// The output cannot go on, because the request's own grammar is beyond a limit; the text says
    /// which.
    Refused(String),
}

/// One output token. The end-of-sequence or stop token that ends a request is not an output
/// token: it is in [`FinishReason::Stop`].
#[derive(Clone, Debug)]
pub struct TokenEvent {
    pub id: u32,
    pub logprob: Option<TokenLogprobs>,
    /// When the token was sampled.
    pub at: Instant,
    /// How many tokens the step brought, this one included: more than one if drafts were
    /// accepted or a grammar forced text. These follow each other and have the same `at`.
    pub run: usize,
    /// The drafts of the request up to this step.
    pub drafts: DraftCounts,
}

/// The numbers of tokens that were drafted for a request; see
/// [`EngineConfig::speculation`](crate::EngineConfig::speculation).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftCounts {
    /// Steps in which tokens were drafted and computed.
    pub drafts: usize,
    /// Tokens that were drafted and computed.
    pub drafted: usize,
    /// The part of `drafted` that became output.
    pub accepted: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model sampled an end-of-sequence token or one of `stop_token_ids`. Without a
    /// token, the output is complete by its grammar.
    Stop { token: Option<u32> },
    /// `max_tokens` or the context length was reached.
    Length,
    /// The engine shut down before the request was done.
    Cancelled,
    /// An operator ended the request; see [`EngineHandle::abort`](crate::EngineHandle::abort).
    Aborted,
}

/// Token counts of a finished request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt_tokens: usize,
    /// The part of `prompt_tokens` that was reused from the cache.
    pub cached_tokens: usize,
    /// Sampled and forced tokens, including the one that stopped the request.
    pub completion_tokens: usize,
    pub drafts: DraftCounts,
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
    #[error("this engine has no slot for adapters")]
    NoAdapters,
    #[error("this engine has no slot with room for an adapter's whole tables")]
    NoTables,
    #[error("{limit} requests are waiting already; try again later")]
    QueueFull { limit: usize },
    #[error("the server is shutting down")]
    ShuttingDown,
}
