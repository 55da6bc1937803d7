//! Window slots: how many a request holds, and what happens where they are short.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::mpsc::Sender;

use common::{Call, Fixture, answer, expected, limits, prompt, request};
use hearth_engine::{EngineConfig, EngineStats, Request, Speculation};
use hearth_forward::{ExecutorLimits, WindowLimits};

/// The model's limits in these tests.
fn model_limits() -> ExecutorLimits {
    ExecutorLimits {
        max_model_len: 2000,
        ..limits(3000)
    }
}

/// An engine whose forward passes wait until the window slots in use have been counted, so that no
/// pass is missed, however slowly the test's thread runs.
struct Counted {
    fixture: Fixture,
    permits: Sender<()>,
    /// Permits that have been sent.
    permitted: usize,
}

impl Counted {
    fn new(config: EngineConfig, window: WindowLimits, samples_on_device: bool) -> Self {
        let (fixture, permits) =
            Fixture::gated_with_window(config, model_limits(), window, samples_on_device);
        Self {
            fixture,
            permits,
            permitted: 0,
        }
    }

    /// The most window slots in use while a prompt of `prompt_len` tokens and an output of `output`
    /// are computed.
    fn most_used(&mut self, prompt_len: usize, output: usize) -> usize {
        let prompt = prompt(1, prompt_len);
        let generation = self.fixture.submit(&prompt, output);
        let reader = std::thread::spawn(move || answer(generation));
        let mut most = 0;
        while !(reader.is_finished() && self.passes().0 == self.permitted) {
            if self.passes().1 == self.permitted {
                std::thread::yield_now();
                continue;
            }
            let EngineStats { window, .. } = self.fixture.engine.stats();
            most = most.max(window.held + window.protected);
            self.permits.send(()).unwrap();
            self.permitted += 1;
        }
        assert_eq!(reader.join().unwrap().tokens, expected(&prompt, output));
        most
    }

    /// The forward passes that have been submitted, and those of them that wait for a permit or
    /// have had one.
    fn passes(&self) -> (usize, usize) {
        let calls = self.fixture.calls.lock().unwrap();
        let submitted = calls.iter().filter(|c| matches!(c, Call::Submit(..)));
        let submitted = submitted.count();
        (submitted, calls.len() - submitted)
    }

    /// Lets all passes run: without a sender of permits none of them waits.
    fn open(self) -> Fixture {
        self.fixture
    }
}

#[test]
fn a_request_that_runs_alone_holds_one_window_however_long_it_gets() {
    let tokens = 160;
    for (page_size, samples_on_device) in [(1, true), (1, false), (16, true)] {
        // A window, the slots that are given up together, and pages at both ends.
        let slots = tokens + 32 + 2 * page_size + 20;
        let window = WindowLimits { slots, tokens };
        let config = EngineConfig {
            page_size,
            ..EngineConfig::default()
        };
        let mut counted = Counted::new(config, window, samples_on_device);
        for (prompt_len, output) in [(170, 400), (10, 500), (700, 20)] {
            let most = counted.most_used(prompt_len, output);
            assert!((tokens..=slots).contains(&most), "{most}");
        }
        let fixture = counted.open();
        fixture.assert_idle_and_conserved();
        assert_eq!(fixture.engine.stats().preemptions, 0);
    }
}

#[test]
fn a_long_prompt_takes_window_slots_for_a_chunk_at_a_time() {
    let config = EngineConfig {
        prefill_chunk: 64,
        max_batch_tokens: 72,
        ..EngineConfig::default()
    };
    let window = WindowLimits {
        slots: 2000,
        tokens: 40,
    };
    let most = Counted::new(config, window, true).most_used(1500, 10);
    assert!((64..40 + 2 * 72 + 40).contains(&most), "{most}");
}

#[test]
fn drafts_take_no_window_slots_from_requests_that_start_again() {
    for seed in 0..4 {
        let config = EngineConfig {
            retract_every: Some(2 + seed % 3),
            max_running: 24,
            max_batch_tokens: 400,
            prefill_chunk: 64,
            speculation: Some(Speculation {
                num_tokens: 16,
                adaptive: false,
                ..Speculation::default()
            }),
            ..EngineConfig::default()
        };
        let window = WindowLimits {
            slots: 330 + 17 * seed as usize,
            tokens: 250,
        };
        let fixture = Fixture::with_window(config, model_limits(), window, false);
        let prompts: Vec<_> = (0..100).map(|i| prompt(seed * 100 + i, 25)).collect();
        let requests = prompts.iter().map(|prompt| Request {
            prediction: expected(prompt, 60),
            ..request(prompt, 60)
        });
        for (answer, prompt) in fixture.run_at_once(requests).iter().zip(&prompts) {
            assert!(answer.end.is_ok(), "{:?}", answer.end);
            assert_eq!(answer.tokens, expected(prompt, 60));
        }
        fixture.assert_idle_and_conserved();
    }
}
