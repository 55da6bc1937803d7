//! The times of the engine steps that a request took part in.

use std::time::{Duration, Instant};

use crate::records::StepRecord;

/// Prompt chunks of one request that get spans of their own.
const MAX_CHUNKS: usize = 64;

/// The times of the engine steps that a request took part in.
#[derive(Clone, Debug, Default)]
pub struct StepTimes {
    /// Sum of the scheduling times; `forward` and `execute` are sums as well.
    pub scheduler: Duration,
    pub forward: Duration,
    pub execute: Duration,
    /// The first steps; those before the request's first token computed its prompt.
    first: Vec<Chunk>,
}

/// The part of one step that belongs to a request.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    scheduled: Instant,
    forwarded: Instant,
    tokens: usize,
}

impl StepTimes {
    /// Adds a step that computed `tokens` tokens of the request.
    pub fn add(&mut self, step: &StepRecord, tokens: usize) {
        self.scheduler += step.scheduler();
        self.forward += step.forward();
        self.execute += step.execute();
        if self.first.len() < MAX_CHUNKS {
            self.first.push(Chunk {
                scheduled: step.scheduled,
                forwarded: step.forwarded,
                tokens,
            });
        }
    }

    /// Divides the time between `from` and the first token at `to` into prefill chunks. Each
    /// chunk ends with a forward pass: its begin, its end and the tokens that it computed.
    pub(super) fn chunks(&self, from: Instant, to: Instant) -> Vec<(Instant, Instant, usize)> {
        let computed = self.first.iter().filter(|chunk| chunk.scheduled < to);
        let mut chunks: Vec<_> = computed
            .scan(from, |since, chunk| {
                let begun = std::mem::replace(since, chunk.forwarded.clamp(*since, to));
                Some((begun, *since, chunk.tokens))
            })
            .collect();
        if let Some((_, end, _)) = chunks.last_mut() {
            *end = to;
        }
        chunks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chunks_of_a_prompt_fill_the_time_to_its_first_token() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut steps = StepTimes::default();
        for (scheduled, forwarded, tokens) in [(1, 5, 32), (6, 9, 32), (10, 12, 7), (15, 17, 1)] {
            steps.first.push(Chunk {
                scheduled: at(scheduled),
                forwarded: at(forwarded),
                tokens,
            });
        }
        let chunks = [(0, 5, 32), (5, 9, 32), (9, 13, 7)];
        let chunks = chunks.map(|(from, to, tokens)| (at(from), at(to), tokens));
        assert_eq!(steps.chunks(at(0), at(13)), chunks);
        assert_eq!(StepTimes::default().chunks(at(0), at(13)), []);
    }
}
