//! Requests of all kinds of sampling, and what their callers see.

use std::sync::Arc;

use hearth_engine::constraint::{Constrain, Constraint, Grammar};
use hearth_engine::{
    EngineConfig, Event, FinishReason, Generation, Request, SamplingParams, TokenEvent,
};
use hearth_forward::TokenMask;

use super::{Fixture, VOCAB, answer, greedy, prompt};

/// The events of a request as a caller sees them, but for times.
#[derive(Debug, PartialEq)]
pub struct Seen {
    pub tokens: Vec<(u32, Option<String>)>,
    pub end: Result<(FinishReason, usize, usize), String>,
}

pub fn seen(mut generation: Generation) -> Seen {
    let mut tokens = Vec::new();
    let text = |event: &TokenEvent| (event.id, event.logprob.as_ref().map(|l| format!("{l:?}")));
    loop {
        match generation.next_blocking().unwrap() {
            Event::Token(token) => tokens.push(text(&token)),
            Event::Forced(forced) => tokens.extend(forced.iter().map(text)),
            Event::Finished(reason, usage) => {
                let end = Ok((reason, usage.prompt_tokens, usage.completion_tokens));
                return Seen { tokens, end };
            }
            Event::Failed(error) | Event::Refused(error) => {
                return Seen {
                    tokens,
                    end: Err(error),
                };
            }
            _ => {}
        }
    }
}

/// The output of `request`, from an engine that does not speculate.
pub fn output(request: &Request) -> Vec<u32> {
    let fixture = Fixture::sampling_on_host(EngineConfig::default(), 1024);
    answer(fixture.engine.submit(request.clone()).unwrap()).tokens
}

/// Adds a prediction that is right but for every seventh token.
pub fn with_prediction(request: &Request) -> Request {
    let mut prediction = output(request);
    for token in prediction.iter_mut().skip(3).step_by(7) {
        *token = (*token + 1) % 90;
    }
    Request {
        prediction,
        ..request.clone()
    }
}

/// A grammar that allows the tokens whose remainder by 3 follows from the number of tokens, and
/// forces two tokens after every token that is divisible by 10.
#[derive(Debug)]
struct Thirds;

struct InThirds {
    tokens: usize,
    forced: Vec<u32>,
    end: Option<usize>,
}

impl Grammar for Thirds {
    fn start(&self) -> Box<dyn Constraint> {
        Box::new(InThirds {
            tokens: 0,
            forced: Vec::new(),
            end: Some(40),
        })
    }
}

impl Constraint for InThirds {
    fn mask(&mut self) -> Result<TokenMask, String> {
        let mut mask = vec![0_u32; VOCAB.div_ceil(32)];
        let allowed = |token: &usize| match self.forced.first() {
            Some(&forced) => *token == forced as usize,
            None => token % 3 != self.tokens % 3,
        };
        for token in (0..97).filter(allowed) {
            mask[token / 32] |= 1 << (token % 32);
        }
        Ok(mask.into())
    }

    fn consume(&mut self, token: u32) -> Result<(), String> {
        self.tokens += 1;
        if self.forced.is_empty() {
            if token.is_multiple_of(10) {
                self.forced = vec![7, 8];
            }
        } else if self.forced.remove(0) != token {
            return Err(format!("{token} is not allowed"));
        }
        Ok(())
    }

    fn forced(&mut self, limit: usize) -> Vec<u32> {
        self.forced.iter().copied().take(limit).collect()
    }

    fn is_complete(&self) -> bool {
        self.end.is_some_and(|end| self.tokens >= end)
    }

    fn canceller(&self) -> Box<dyn Fn() + Send> {
        Box::new(|| {})
    }
}

/// Requests of all kinds of sampling.
pub fn requests() -> Vec<Request> {
    let sampled = |seed| SamplingParams {
        temperature: 0.7,
        seed: Some(seed),
        ..greedy(60)
    };
    let kinds = [
        greedy(60),
        sampled(1),
        SamplingParams {
            top_p: 0.9,
            top_k: Some(20),
            min_p: 0.01,
            ..sampled(2)
        },
        SamplingParams {
            repetition_penalty: 1.3,
            presence_penalty: 0.4,
            frequency_penalty: 0.3,
            ..sampled(3)
        },
        SamplingParams {
            frequency_penalty: 1.5,
            logprobs: Some(3),
            prompt_logprobs: Some(1),
            ..greedy(40)
        },
        SamplingParams {
            logit_bias: vec![(3, 4.0), (5, -4.0)],
            logprobs: Some(0),
            ..sampled(4)
        },
        SamplingParams {
            min_tokens: 20,
            stop_token_ids: (0..30).collect(),
            ..sampled(5)
        },
        SamplingParams {
            stop_token_ids: vec![1, 2, 3, 4, 5],
            ..greedy(60)
        },
    ];
    let mut requests = Vec::new();
    for (kind, params) in kinds.into_iter().enumerate() {
        for constraint in [None, Some(false), Some(true)] {
            let plain = Request {
                prompt: prompt(kind as u64, 10 + 7 * kind),
                params: params.clone(),
                constraint: constraint.map(|jump_forward| Constrain {
                    grammar: Arc::new(Thirds),
                    jump_forward,
                }),
                ..Request::default()
            };
            requests.push(with_prediction(&plain));
            requests.push(plain);
        }
    }
    requests
}
