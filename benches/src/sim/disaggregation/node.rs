//! One node: the scheduler's rule in small.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::measure::Recorder;
use crate::sim::cost::Device;

/// The limits of a step, in the terms of `EngineConfig`, and its device.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Requests that run at the same time.
    pub max_running: usize,
    /// Prompt tokens of a step, shared by all prompts in the order of their arrival.
    pub prefill_chunk: u64,
    pub device: Device,
}

/// The tokens of a prompt that one step has computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Chunk {
    pub request: usize,
    pub tokens: u64,
    /// Whether the whole prompt is computed, so that the first token is known.
    pub last: bool,
}

/// A request whose prompt is computed and in the node's KV cache.
#[derive(Clone, Copy, Debug)]
pub struct Computed {
    pub request: usize,
    /// Tokens in the KV cache.
    pub context: u64,
    /// Tokens to decode after the first one.
    pub left: u64,
}

#[derive(Debug)]
struct Prompt {
    request: usize,
    tokens: u64,
    computed: u64,
}

/// The step that the device computes.
#[derive(Debug)]
struct Step {
    chunks: Vec<Chunk>,
    /// Rows that were in the step before, too.
    old_rows: u64,
    /// The time of the last token of each other row.
    new_rows: Vec<u64>,
}

/// A node that computes prompts, decodes, or both: that depends on what it is given.
#[derive(Debug)]
pub struct Node {
    limits: Limits,
    prompts: VecDeque<Prompt>,
    /// Requests that wait for a row.
    waiting: VecDeque<Computed>,
    /// Decode rows, and the tokens that the KV cache has for them.
    rows: u64,
    context: u64,
    /// The time of the first token of each row that was in no step yet.
    new_rows: Vec<u64>,
    /// For each row the number of its last step, the request, and its context after that step. Each
    /// step has all rows, so the number is known from the start.
    last_steps: BinaryHeap<Reverse<(u64, usize, u64)>>,
    started_steps: u64,
    step: Option<Step>,
    /// The end of the last step.
    last_end: u64,
}

/// The results of a step.
#[derive(Debug, Default)]
pub struct Ended {
    /// Decoded tokens, one for each row.
    pub decoded: u64,
    pub chunks: Vec<Chunk>,
    /// The requests that have all their tokens.
    pub complete: Vec<usize>,
}

/// The requests of a node.
#[derive(Clone, Copy, Debug, Default)]
pub struct Load {
    pub running: usize,
    pub waiting: usize,
}

impl Node {
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            prompts: VecDeque::new(),
            waiting: VecDeque::new(),
            rows: 0,
            context: 0,
            new_rows: Vec::new(),
            last_steps: BinaryHeap::new(),
            started_steps: 0,
            step: None,
            last_end: 0,
        }
    }

    /// Queues a prompt of `tokens` tokens.
    pub fn prefill(&mut self, request: usize, tokens: u64) {
        self.prompts.push_back(Prompt {
            request,
            tokens,
            computed: 0,
        });
    }

    /// Queues a request for decoding.
    pub fn decode(&mut self, computed: Computed) {
        self.waiting.push_back(computed);
    }

    /// Gives rows to waiting requests as long as there are any. Returns these requests; their
    /// second token follows from the next step.
    pub fn admit(&mut self, now: u64) -> Vec<Computed> {
        let mut admitted = Vec::new();
        while self.rows < self.limits.max_running as u64 {
            let Some(next) = self.waiting.pop_front() else {
                break;
            };
            if next.left > 0 {
                self.rows += 1;
                self.context += next.context;
                self.new_rows.push(now);
                let last_step = self.started_steps + next.left;
                let end = (last_step, next.request, next.context + next.left);
                self.last_steps.push(Reverse(end));
            }
            admitted.push(next);
        }
        admitted
    }

    /// Starts a step if the device is idle and there is work. Returns the nanoseconds that it takes.
    pub fn start_step(&mut self) -> Option<u64> {
        if self.step.is_some() {
            return None;
        }
        // A prompt that a step computes to its end needs a row after it.
        let free_rows = self.limits.max_running.saturating_sub(self.rows as usize);
        let mut chunks = Vec::new();
        let mut tokens = self.rows;
        let mut context = self.context + self.rows;
        let mut budget = self.limits.prefill_chunk;
        while budget > 0 && chunks.len() < free_rows {
            let Some(prompt) = self.prompts.front_mut() else {
                break;
            };
            let chunk = budget.min(prompt.tokens - prompt.computed);
            prompt.computed += chunk;
            budget -= chunk;
            tokens += chunk;
            context += prompt.computed;
            let last = prompt.computed == prompt.tokens;
            chunks.push(Chunk {
                request: prompt.request,
                tokens: chunk,
                last,
            });
            if last {
                self.prompts.pop_front();
            }
        }
        if tokens == 0 {
            return None;
        }
        let new_rows = std::mem::take(&mut self.new_rows);
        self.step = Some(Step {
            chunks,
            old_rows: self.rows - new_rows.len() as u64,
            new_rows,
        });
        self.started_steps += 1;
        Some(self.limits.device.step_ns(tokens, context))
    }

    /// Requests that compute or decode, and those that wait.
    pub fn load(&self) -> Load {
        let computing = self.step.as_ref().map_or(0, |step| {
            step.chunks.iter().filter(|chunk| chunk.last).count()
        });
        let begun = usize::from(
            self.prompts
                .front()
                .is_some_and(|prompt| prompt.computed > 0),
        );
        Load {
            running: self.rows as usize + computing + begun,
            waiting: self.waiting.len() + self.prompts.len() - begun,
        }
    }

    /// Ends the running step.
    pub fn end_step(&mut self, now: u64, recorder: &mut Recorder) -> Ended {
        let Some(step) = self.step.take() else {
            return Ended::default();
        };
        recorder.next_tokens(now, now - self.last_end, step.old_rows);
        for last_token in &step.new_rows {
            recorder.next_tokens(now, now - last_token, 1);
        }
        self.last_end = now;
        let rows = step.old_rows + step.new_rows.len() as u64;
        self.context += rows;
        let mut complete = Vec::new();
        while let Some(&Reverse((last_step, request, context))) = self.last_steps.peek() {
            if last_step > self.started_steps {
                break;
            }
            self.last_steps.pop();
            self.rows -= 1;
            self.context -= context;
            complete.push(request);
        }
        Ended {
            decoded: rows,
            chunks: step.chunks,
            complete,
        }
    }
}
