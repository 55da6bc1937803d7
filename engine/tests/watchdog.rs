//! A device whose driver resets it when a forward pass takes too long.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::*;
use hearth_engine::{Engine, EngineConfig, EngineHandle};
use hearth_forward::{
    Executor, ExecutorLimits, ForwardBatch, ForwardError, ForwardOutput, SampleRequests,
    SequenceSpan,
};

/// The time of a sequence's share of a forward pass, in microseconds.
type Cost = fn(&SequenceSpan) -> u64;

/// The driver resets the device after this many microseconds, whatever the test takes by the clock.
const WATCHDOG: u64 = 40_000;
const BOUND: Duration = Duration::from_millis(20);

struct Watched {
    model: FakeModel,
    cost: Cost,
    lost: bool,
    resets: Arc<AtomicUsize>,
}

impl Executor for Watched {
    type Submission = (u64, <FakeModel as Executor>::Submission);

    fn limits(&self) -> ExecutorLimits {
        self.model.limits()
    }

    fn samples_on_device(&self) -> bool {
        self.model.samples_on_device()
    }

    fn has_watchdog(&self) -> bool {
        true
    }

    fn submit(
        &mut self,
        batch: &ForwardBatch,
        sample_requests: &mut SampleRequests<'_>,
    ) -> Result<Self::Submission, ForwardError> {
        let took = batch.sequences.iter().map(self.cost).sum();
        Ok((took, self.model.submit(batch, sample_requests)?))
    }

    fn complete(
        &mut self,
        (took, submission): Self::Submission,
    ) -> Result<ForwardOutput, ForwardError> {
        std::thread::sleep(Duration::from_micros(took.min(WATCHDOG)));
        if took > WATCHDOG {
            self.lost = true;
            self.resets.fetch_add(1, Ordering::SeqCst);
            return Err(ForwardError::other("the driver reset the device"));
        }
        self.model.complete(submission)
    }

    fn is_lost(&self) -> bool {
        self.lost
    }

    fn reopen(&mut self) -> Result<(), ForwardError> {
        self.model.forget();
        self.lost = false;
        Ok(())
    }
}

/// An engine over the device, and how often it was reset.
fn start(config: EngineConfig, cost: Cost) -> (EngineHandle, Arc<AtomicUsize>) {
    let resets = Arc::<AtomicUsize>::default();
    let held = Arc::clone(&resets);
    let limits = ExecutorLimits {
        kv_slots: 8192,
        max_model_len: 8192,
        vocab_size: VOCAB,
    };
    let engine = Engine::spawn(config, move || {
        Ok(Watched {
            model: FakeModel::new(limits, 0),
            cost,
            lost: false,
            resets: held,
        })
    });
    (engine.unwrap(), resets)
}

fn bounded(max_submission: Option<Duration>) -> EngineConfig {
    EngineConfig {
        max_submission,
        ..EngineConfig::default()
    }
}

/// A token costs as much again for each 200 tokens before it.
fn attention(span: &SequenceSpan) -> u64 {
    let (tokens, context) = (u64::from(span.tokens), u64::from(span.context));
    30 * tokens * (200 + context - tokens / 2) / 200
}

#[test]
fn chunks_of_a_long_prompt_shrink_with_its_context() {
    let (engine, resets) = start(bounded(Some(BOUND)), attention);
    let prompt = prompt(1, 4000);
    let answer = answer(engine.submit(request(&prompt, 4)).unwrap());
    assert_eq!(answer.end.unwrap().1.completion_tokens, 4);
    assert_eq!(answer.tokens, expected(&prompt, 4));
    assert_eq!(resets.load(Ordering::SeqCst), 0);
    let steps = engine.stats().steps;
    assert!(steps < 400, "{steps} steps: the chunks are too small");
}

#[test]
fn without_the_bound_the_same_prompt_resets_the_device() {
    let (engine, resets) = start(bounded(None), attention);
    let answer = answer(engine.submit(request(&prompt(1, 4000), 4)).unwrap());
    assert!(answer.end.unwrap_err().contains("reset"));
    assert_eq!(resets.load(Ordering::SeqCst), 1);
}

#[test]
fn decode_rows_that_do_not_fit_together_take_turns_beside_prompts() {
    // 40 rows would take 80 ms.
    let cost: Cost = |span| if span.tokens > 8 { 1000 } else { 2000 };
    let (engine, resets) = start(bounded(Some(BOUND)), cost);
    let prompts: Vec<_> = (0..40).map(|seed| prompt(seed, 20)).collect();
    let submit = |prompt: &Vec<u32>| engine.submit(request(prompt, 6)).unwrap();
    let generations: Vec<_> = prompts.iter().map(submit).collect();
    for (prompt, generation) in prompts.iter().zip(generations) {
        let answer = answer(generation);
        assert!(answer.end.is_ok(), "{answer:?}");
        assert_eq!(answer.tokens, expected(prompt, 6));
    }
    assert_eq!(resets.load(Ordering::SeqCst), 0);
}

#[test]
fn after_each_loss_the_chunk_of_a_prompt_is_half_as_long() {
    // It takes no time until it is too long, so that measurements show nothing.
    let cost: Cost = |span| if span.tokens > 100 { WATCHDOG + 1 } else { 0 };
    for bound in [None, Some(BOUND)] {
        let (engine, resets) = start(bounded(bound), cost);
        let prompt = prompt(1, 700);
        let mut attempts = 0;
        let answer = loop {
            let answer = answer(engine.submit(request(&prompt, 4)).unwrap());
            attempts += 1;
            if answer.end.is_ok() || attempts == 10 {
                break answer;
            }
        };
        assert_eq!(answer.tokens, expected(&prompt, 4));
        let resets = resets.load(Ordering::SeqCst);
        assert!((1..=3).contains(&resets), "{resets}");
        assert_eq!(attempts, resets + 1);
    }
}
