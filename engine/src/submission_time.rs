//! How long a forward pass is expected to take, and how much fits into the time that it may take.
//!
//! The driver of a GPU resets the device if one submission takes some seconds. The cost of a token
//! grows with its context, so a bound in tokens does not keep a submission short.

use std::time::Duration;

use hearth_forward::{ForwardBatch, SequenceSpan};

/// Tokens of a prompt that always fit, so that there is progress.
pub(crate) const LEAST_CHUNK: usize = 16;

/// A sequence with at most so many tokens in a step decodes, or costs as much as one that does. A
/// [`LEAST_CHUNK`] is more, so that the time of chunks is measured again however short they are.
const MOST_ROWS: usize = 8;

/// Tokens of a prompt that fit before anything was measured, and decode rows that fit before any were.
const FIRST_CHUNK: usize = 32;
const FIRST_ROWS: usize = 8;

/// A chunk that the bound cuts is a multiple of this, because kernels work on tiles of tokens.
const TILE: usize = 16;

/// Contexts up to this have one range; above, each octave has its own.
const SHORT_CONTEXT: usize = 128;
const RANGES: usize = 24;

/// The weight of a step that took less time than expected. A longer one counts at once.
const RELAX: f32 = 0.5;

/// The part of the shortest step of few tokens that does not depend on their number. A larger part
/// would make the time of many rows look too short.
const FIXED_PART: f32 = 0.5;

/// The shortest time of a step of few tokens is multiplied by this at each such step, so that an old
/// measurement is forgotten.
const FORGET: f32 = 1.01;

/// The least time of a token in seconds, so that times can be compared.
const LEAST_RATE: f32 = 1e-9;

/// After a loss of the device, this many steps with prompts double what fits again; twice as many
/// after each further loss.
const FIRST_PATIENCE: u64 = 256;

/// Losses make the bound at most this many times shorter.
const MOST_CAUTION: f32 = 16.0;

/// The expected time of forward passes by the measured ones, and the bound of that time.
#[derive(Debug)]
pub(crate) struct SubmissionTime {
    /// In seconds; infinite for no bound.
    bound: f32,
    /// The time of a forward pass apart from its tokens, in seconds.
    base: f32,
    /// Seconds for each token of decode rows and of chunks, by context.
    rates: Rates,
    /// Prompt tokens that a forward pass may have; fewer after a loss of the device.
    most_tokens: usize,
    /// The bound is divided by this.
    caution: f32,
    /// Steps with prompts since the last loss or growth.
    calm: u64,
    patience: u64,
}

/// The classes of sequences: few tokens of a request that decodes, or a chunk of a prompt.
const ROWS: usize = 0;
const CHUNK: usize = 1;

/// The measured times, by class and range of contexts.
type Rates = [[Option<Rate>; RANGES]; 2];

/// The time of a token at a context.
#[derive(Clone, Copy, Debug)]
struct Rate {
    seconds: f32,
    context: usize,
}

impl Rate {
    /// The most seconds that a token takes at `context`: twice the context takes at most twice the
    /// time.
    fn at(self, context: usize) -> f32 {
        let times = (floored(context) as f32 / floored(self.context) as f32).max(1.0);
        self.seconds * times
    }
}

/// Shorter contexts cost nothing to speak of.
fn floored(context: usize) -> usize {
    context.max(SHORT_CONTEXT)
}

/// The time and the tokens that a forward pass may still be given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeLeft {
    pub seconds: f32,
    /// Tokens of prompts.
    pub tokens: usize,
}

impl SubmissionTime {
    /// Without a bound, no time limits a forward pass.
    pub fn new(bound: Option<Duration>) -> Self {
        Self {
            bound: bound.map_or(f32::INFINITY, |bound| bound.as_secs_f32()),
            base: f32::INFINITY,
            rates: [[None; RANGES]; 2],
            most_tokens: usize::MAX,
            caution: 1.0,
            calm: 0,
            patience: FIRST_PATIENCE / 2,
        }
    }

    /// True if there is a bound.
    pub fn is_bounded(&self) -> bool {
        self.bound.is_finite()
    }

    /// The time that the tokens of a forward pass may take, in seconds.
    pub fn for_tokens(&self) -> f32 {
        self.bound / self.caution - self.base()
    }

    /// The time and the tokens that are left beside the tokens of `batch`.
    pub fn left(&self, batch: &ForwardBatch) -> TimeLeft {
        let mut left = TimeLeft {
            seconds: self.for_tokens(),
            tokens: self.most_tokens,
        };
        for span in &batch.sequences {
            let (tokens, start) = parts(span);
            if class(tokens) == CHUNK {
                left.tokens = left.tokens.saturating_sub(tokens);
            }
            if self.is_bounded() {
                left.seconds -= self.cost(start, tokens);
            }
        }
        left
    }

    /// The expected time of `tokens` tokens after `start` others of their sequence, in seconds.
    /// Nothing where there is no bound.
    pub fn cost(&self, start: usize, tokens: usize) -> f32 {
        match self.is_bounded() {
            true => tokens as f32 * self.rate(tokens, start),
            false => 0.0,
        }
    }

    /// At most `tokens` tokens after `start` others of their sequence, such that they take at most
    /// `seconds`.
    pub fn fitting(&self, start: usize, tokens: usize, seconds: f32) -> usize {
        if self.cost(start, tokens) <= seconds {
            return tokens;
        }
        // More tokens cost more, so that the most that fit are found by halving.
        let (mut fitting, mut too_many) = (0, tokens);
        while too_many - fitting > 1 {
            let middle = fitting.midpoint(too_many);
            match self.cost(start, middle) <= seconds {
                true => fitting = middle,
                false => too_many = middle,
            }
        }
        match fitting {
            TILE.. => fitting / TILE * TILE,
            _ => fitting,
        }
    }

    /// Records that a forward pass over `sequences` took the time `took`.
    pub fn record(&mut self, sequences: &[SequenceSpan], took: Duration) {
        if sequences
            .iter()
            .any(|span| class(span.tokens as usize) == CHUNK)
        {
            self.note_calm();
        }
        if self.is_bounded() && !sequences.is_empty() {
            self.measure(sequences, took.as_secs_f32());
        }
    }

    fn measure(&mut self, sequences: &[SequenceSpan], seconds: f32) {
        let expected: f32 = sequences.iter().map(|span| self.cost_of(span)).sum();
        let tokens: usize = sequences.iter().map(|span| span.tokens as usize).sum();
        if tokens <= MOST_ROWS {
            self.base = (self.base * FORGET).min(seconds * FIXED_PART);
        }
        let factor = (seconds - self.base()).max(0.0) / expected;
        let is_first = !self.is_known();
        let before = self.rates;
        for span in sequences {
            let (tokens, start) = parts(span);
            let (class, context) = (class(tokens), start + tokens / 2);
            let expected_each = self.rate_before(&before, class, context);
            let new = (expected_each * factor).max(LEAST_RATE);
            let share = tokens as f32 * expected_each / expected;
            let weight = match () {
                () if is_first => 1.0,
                () if factor > 1.0 => share,
                () => share * RELAX,
            };
            self.rates[class][range(context)] = Some(Rate {
                seconds: expected_each + weight * (new - expected_each),
                context,
            });
        }
    }

    /// The device was lost with a forward pass over `sequences`. The time that it took may be the
    /// cause, so that the same requests must not be computed in the same way again. Returns how many
    /// tokens of prompts a forward pass may have now.
    pub fn note_loss(&mut self, sequences: &[SequenceSpan]) -> usize {
        let tokens = sequences.iter().map(|span| span.tokens as usize);
        let prompts: usize = tokens.filter(|&tokens| class(tokens) == CHUNK).sum();
        if prompts > 0 {
            self.most_tokens = self.most_tokens.min((prompts / 2).max(LEAST_CHUNK));
        }
        self.caution = (2.0 * self.caution).min(MOST_CAUTION);
        self.calm = 0;
        self.patience = self.patience.saturating_mul(2);
        self.most_tokens
    }

    /// After many steps without a loss, twice as much fits again.
    fn note_calm(&mut self) {
        self.calm += 1;
        if self.calm >= self.patience {
            self.calm = 0;
            self.most_tokens = self.most_tokens.saturating_mul(2);
            self.caution = (self.caution / 2.0).max(1.0);
        }
    }

    fn base(&self) -> f32 {
        match self.base.is_finite() {
            true => self.base,
            false => 0.0,
        }
    }

    fn is_known(&self) -> bool {
        self.rates.iter().flatten().any(Option::is_some)
    }

    fn cost_of(&self, span: &SequenceSpan) -> f32 {
        let (tokens, start) = parts(span);
        self.cost(start, tokens)
    }

    /// The time of each of `tokens` tokens after `start` others.
    fn rate(&self, tokens: usize, start: usize) -> f32 {
        self.rate_before(&self.rates, class(tokens), start + tokens / 2)
    }

    /// The time of a token by the measured `rates`. A token of a chunk takes no longer than a row, so
    /// that rows tell about chunks, too.
    fn rate_before(&self, rates: &Rates, class: usize, context: usize) -> f32 {
        let rows = || rate_of(&rates[ROWS], context);
        match class {
            ROWS => rows().unwrap_or(self.bound / FIRST_ROWS as f32),
            _ => {
                let known = rate_of(&rates[CHUNK], context).or_else(rows);
                known.unwrap_or(self.bound / FIRST_CHUNK as f32)
            }
        }
    }
}

/// The most seconds of a token at `context`, by what was measured there, or else at shorter contexts and
/// at longer ones.
fn rate_of(rates: &[Option<Rate>; RANGES], context: usize) -> Option<f32> {
    let own = range(context);
    let at = |rate: &Rate| rate.at(context);
    if let Some(rate) = &rates[own] {
        return Some(at(rate));
    }
    let shorter = rates[..own].iter().rev().flatten().next().map(at);
    let longer = rates[own..].iter().flatten().next().map(at);
    match (shorter, longer) {
        (Some(shorter), Some(longer)) => Some(shorter.min(longer)),
        (shorter, longer) => shorter.or(longer),
    }
}

/// The tokens to compute, and the number of those before them.
fn parts(span: &SequenceSpan) -> (usize, usize) {
    let tokens = span.tokens as usize;
    (tokens, (span.context as usize).saturating_sub(tokens))
}

/// [`ROWS`] or [`CHUNK`]: a device computes the tokens of a chunk together.
fn class(tokens: usize) -> usize {
    match tokens > MOST_ROWS {
        true => CHUNK,
        false => ROWS,
    }
}

fn range(context: usize) -> usize {
    let octaves = (context / SHORT_CONTEXT).checked_ilog2();
    octaves.map_or(0, |octaves| (octaves as usize + 1).min(RANGES - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Option<Duration> = Some(Duration::from_secs(1));

    fn span(start: u32, tokens: u32) -> SequenceSpan {
        SequenceSpan {
            tokens,
            context: start + tokens,
            first_slot: 0,
        }
    }

    fn left(time: &SubmissionTime) -> TimeLeft {
        time.left(&ForwardBatch::default())
    }

    /// A device that takes 10 ms for a step, 1 ms for each token, and as much again for each 1000
    /// tokens of context.
    fn seconds(sequences: &[SequenceSpan]) -> f32 {
        let of = |span: &SequenceSpan| {
            let (tokens, start) = parts(span);
            tokens as f32 * 0.001 * (1.0 + (start + tokens / 2) as f32 / 1000.0)
        };
        0.01 + sequences.iter().map(of).sum::<f32>()
    }

    /// Computes a prompt of `length` tokens in chunks of at most 2048. Returns the longest time of a
    /// step, and the number of steps.
    fn run(time: &mut SubmissionTime, length: usize) -> (f32, usize) {
        let (mut start, mut longest, mut steps) = (0, 0.0f32, 0);
        while start < length {
            let left = left(time);
            let wanted = (length - start).min(2048).min(left.tokens);
            let tokens = time.fitting(start, wanted, left.seconds).max(LEAST_CHUNK);
            let sequences = [span(start as u32, tokens as u32)];
            let took = seconds(&sequences);
            time.record(&sequences, Duration::from_secs_f32(took));
            longest = longest.max(took);
            (start, steps) = (start + tokens, steps + 1);
        }
        (longest, steps)
    }

    #[test]
    fn chunks_of_long_contexts_keep_to_the_bound_and_use_it() {
        let mut time = SubmissionTime::new(SECOND);
        let (longest, steps) = run(&mut time, 60_000);
        assert!(longest < 1.1, "{longest}");
        // All of it takes 1860 s.
        assert!(steps < 3000, "{steps}");
        let (longest, _) = run(&mut time, 60_000);
        assert!(longest < 1.1, "{longest}");
    }

    #[test]
    fn without_a_bound_everything_fits() {
        let mut time = SubmissionTime::new(None);
        let (_, steps) = run(&mut time, 60_000);
        assert_eq!(steps, 30);
    }

    #[test]
    fn the_first_chunk_is_small_and_a_delay_is_forgotten() {
        let mut time = SubmissionTime::new(SECOND);
        assert_eq!(time.fitting(0, 500, time.for_tokens()), FIRST_CHUNK);
        run(&mut time, 2000);
        let usual = time.fitting(0, 2000, time.for_tokens());
        assert!((400..1100).contains(&usual), "{usual}");
        time.record(&[span(0, 100)], Duration::from_secs(20));
        assert!(time.fitting(0, 200, time.for_tokens()) < 50);
        run(&mut time, 2000);
        run(&mut time, 2000);
        assert!(time.fitting(0, 2000, time.for_tokens()) > usual / 2);
    }

    #[test]
    fn a_loss_halves_the_chunk_until_many_steps_were_calm() {
        let mut time = SubmissionTime::new(None);
        assert_eq!(time.note_loss(&[span(0, 512)]), 256);
        assert_eq!(time.note_loss(&[span(0, 256), span(300, 1)]), 128);
        assert_eq!(time.note_loss(&[span(300, 1)]), 128);
        for _ in 0..10 {
            let tokens = left(&time).tokens as u32;
            time.note_loss(&[span(0, tokens)]);
        }
        assert_eq!(left(&time).tokens, LEAST_CHUNK);

        let mut time = SubmissionTime::new(SECOND);
        time.note_loss(&[span(0, 512)]);
        let bound = time.for_tokens();
        for _ in 0..FIRST_PATIENCE {
            time.record(&[span(0, 100)], Duration::from_millis(1));
        }
        assert_eq!(left(&time).tokens, 512);
        assert!(time.for_tokens() > 1.9 * bound);
    }
}
