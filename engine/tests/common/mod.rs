//! The tests of the engine share this: a model without arithmetic, an engine over it, and requests.
#![allow(dead_code, clippy::unwrap_used)] // each test file uses a part of it

mod fixture;
pub mod kinds;
mod model;
mod sample;

use hearth_engine::{
    CachedEdge, Event, FinishReason, Generation, Request, SamplingParams, SchedulePolicy, Usage,
};

#[allow(unused_imports)] // each test file uses a part of it
pub use fixture::{Fixture, limits};
use model::mix;
#[allow(unused_imports)] // each test file uses a part of it
pub use model::{
    ADAPTER_SLOTS, Call, Copies, FAILS, FakeModel, HIDDEN, PANICS, SILENT, Step, VOCAB, expected,
    expected_hidden, expected_of,
};

pub fn greedy(max_tokens: usize) -> SamplingParams {
    SamplingParams {
        max_tokens,
        temperature: 0.0,
        ..SamplingParams::default()
    }
}

/// The tokens from the beginning of a prompt to the end of an edge.
pub fn path(edges: &[CachedEdge], at: usize) -> Vec<u32> {
    let mut tokens = edges[at]
        .parent
        .map_or(Vec::new(), |parent| path(edges, parent));
    tokens.extend(&edges[at].tokens);
    tokens
}

pub fn request(prompt: &[u32], max_tokens: usize) -> Request {
    Request {
        prompt: prompt.to_vec(),
        params: greedy(max_tokens),
        ..Request::default()
    }
}

/// All events of a request.
#[derive(Debug)]
pub struct Answer {
    pub cached_tokens: usize,
    pub tokens: Vec<u32>,
    pub embedding: Option<Vec<f32>>,
    pub end: Result<(FinishReason, Usage), String>,
}

pub fn answer(mut generation: Generation) -> Answer {
    let mut answer = Answer {
        cached_tokens: 0,
        tokens: Vec::new(),
        embedding: None,
        end: Err(String::new()),
    };
    while let Some(event) = generation.next_blocking() {
        match event {
            Event::Started { cached_tokens, .. } => answer.cached_tokens = cached_tokens,
            Event::Token(token) => answer.tokens.push(token.id),
            Event::Forced(tokens) => answer.tokens.extend(tokens.iter().map(|token| token.id)),
            Event::Embedding(vector) => answer.embedding = Some(vector),
            Event::PromptLogprobs(_)
            | Event::Preempted { .. }
            | Event::Resumed { .. }
            | Event::Computed { .. }
            | Event::Receiving { .. } => {}
            Event::Finished(reason, usage) => answer.end = Ok((reason, usage)),
            Event::Failed(text) | Event::Refused(text) => answer.end = Err(text),
        }
    }
    answer
}

pub const POLICIES: [SchedulePolicy; 6] = [
    SchedulePolicy::Fcfs,
    SchedulePolicy::Lpm,
    SchedulePolicy::DfsWeight,
    SchedulePolicy::Lof,
    SchedulePolicy::Priority,
    SchedulePolicy::Random,
];

/// A prompt that is deterministic and has no structure.
pub fn prompt(seed: u64, len: usize) -> Vec<u32> {
    (0..len as u64)
        .map(|i| (mix(seed + 1, i) % 97) as u32)
        .collect()
}
