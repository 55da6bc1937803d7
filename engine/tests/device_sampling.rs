//! Executors that sample on the device, compared with executors that return logits.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use common::{Fixture, SILENT, VOCAB, answer, expected, greedy, limits, prompt, request};
use hearth_engine::constraint::{Constrain, Constraint, Grammar};
use hearth_engine::{Engine, EngineConfig, Request, SamplingParams};
use hearth_forward::{
    Executor, ExecutorLimits, ForwardBatch, ForwardError, ForwardOutput, SampleRequest,
    SampleRequests, TokenMask,
};

const LENGTH: usize = 24;

/// Allows three of four tokens, different ones at each position, and only one token at every fifth
/// position. The output is complete after [`LENGTH`] tokens.
#[derive(Clone)]
struct Stripes {
    at: usize,
    /// Called before each mask with the position of the mask.
    before_mask: Arc<dyn Fn(usize) + Send + Sync>,
}

impl std::fmt::Debug for Stripes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Stripes")
    }
}

impl Stripes {
    fn only(&self) -> Option<u32> {
        (self.at % 5 == 4).then_some((self.at * 7 % 90) as u32)
    }
}

impl Grammar for Stripes {
    fn start(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

impl Constraint for Stripes {
    fn mask(&mut self) -> Result<TokenMask, String> {
        (self.before_mask)(self.at);
        let mut mask = vec![0; VOCAB.div_ceil(32)];
        for token in 0..VOCAB as u32 {
            let may = self.only().map_or_else(
                || !(token as usize + self.at).is_multiple_of(4),
                |only| token == only,
            );
            mask[token as usize / 32] |= u32::from(may) << (token % 32);
        }
        Ok(mask.into())
    }

    fn consume(&mut self, _: u32) -> Result<(), String> {
        self.at += 1;
        Ok(())
    }

    fn forced(&mut self, limit: usize) -> Vec<u32> {
        self.only().filter(|_| limit > 0).into_iter().collect()
    }

    fn is_complete(&self) -> bool {
        self.at >= LENGTH
    }

    fn canceller(&self) -> Box<dyn Fn() + Send> {
        Box::new(|| {})
    }
}

fn constrained(
    mut request: Request,
    jump_forward: bool,
    before_mask: impl Fn(usize) + Send + Sync + 'static,
) -> Request {
    let grammar = Stripes {
        at: 0,
        before_mask: Arc::new(before_mask),
    };
    request.constraint = Some(Constrain {
        grammar: Arc::new(grammar),
        jump_forward,
    });
    request
}

/// Sampling parameters of every kind.
fn kinds() -> Vec<SamplingParams> {
    let changes: [fn(&mut SamplingParams); 10] = [
        |params| params.temperature = 0.0,
        |_| {},
        |params| params.top_k = Some(5),
        |params| params.top_p = 0.6,
        |params| params.min_p = 0.2,
        |params| (params.top_k, params.top_p, params.min_p) = (Some(20), 0.8, 0.01),
        |params| (params.presence_penalty, params.frequency_penalty) = (1.5, 0.5),
        |params| params.repetition_penalty = 1.7,
        |params| params.logit_bias = vec![(3, 6.0), (4, -100.0), (9, 5.0)],
        |params| {
            params.min_tokens = 12;
            params.stop_token_ids = (70..90).collect();
            params.temperature = 0.0;
            params.repetition_penalty = 1.2;
        },
    ];
    let kind = |(index, change): (usize, fn(&mut SamplingParams))| {
        let mut params = SamplingParams {
            temperature: 0.9,
            seed: Some(index as u64),
            ..greedy(40)
        };
        change(&mut params);
        params
    };
    changes.into_iter().enumerate().map(kind).collect()
}

/// A request for each of [`kinds`], without a grammar and with one.
fn requests() -> Vec<Request> {
    let mut requests = Vec::new();
    for (index, params) in kinds().into_iter().enumerate() {
        let free = Request {
            params,
            ..request(&prompt(index as u64, 20), 40)
        };
        let pause = move |at: usize| {
            if at % 7 == index % 7 {
                std::thread::sleep(Duration::from_millis(2));
            }
        };
        requests.push(constrained(free.clone(), true, |_| {}));
        requests.push(constrained(free.clone(), false, pause));
        requests.push(free);
    }
    requests
}

fn outputs(fixture: &Fixture) -> Vec<Vec<u32>> {
    let answers = fixture.run_at_once(requests());
    fixture.assert_idle_and_conserved();
    let whole = |answer: common::Answer| {
        answer.end.unwrap();
        answer.tokens
    };
    answers.into_iter().map(whole).collect()
}

#[test]
fn tokens_are_the_same_with_sampling_on_the_host_and_on_the_device() {
    let config = EngineConfig::default;
    let engine = Fixture::sampling_on_host(config(), 4096);
    let wanted = outputs(&engine);
    assert!(engine.steps().iter().all(|step| step.sampled == 0));
    let executor = Fixture::new(config(), 4096);
    assert_eq!(outputs(&executor), wanted);
    let steps = executor.steps();
    assert!(
        steps.iter().all(|step| step.rows == 0),
        "no logits leave the device"
    );
    assert!(steps.iter().map(|step| step.sampled).sum::<usize>() > 300);
    // Now with few slots, small chunks, and requests that are computed again.
    let crowded = EngineConfig {
        max_batch_tokens: 16,
        prefill_chunk: 4,
        retract_every: Some(3),
        ..config()
    };
    let fixture = Fixture::new(crowded, 200);
    assert_eq!(outputs(&fixture), wanted);
    assert!(fixture.engine.stats().preemptions > 10);
}

#[test]
fn only_a_request_with_log_probabilities_needs_logits() {
    let fixture = Fixture::new(EngineConfig::default(), 400);
    let run = |params: SamplingParams| {
        fixture.steps.lock().unwrap().clear();
        let request = Request {
            params,
            ..request(&prompt(5, 30), 8)
        };
        let answer = answer(fixture.engine.submit(request).unwrap());
        let steps = fixture.steps();
        let rows: usize = steps.iter().map(|step| step.rows).sum();
        (answer.tokens, rows)
    };
    assert_eq!(run(greedy(8)), (expected(&prompt(5, 30), 8), 0));
    let with_logprobs = SamplingParams {
        logprobs: Some(2),
        ..greedy(8)
    };
    assert_eq!(run(with_logprobs), (expected(&prompt(5, 30), 8), 8));
}

#[test]
fn a_late_mask_returns_the_logits_of_its_own_request_only() {
    let wanted = {
        let fixture = Fixture::sampling_on_host(EngineConfig::default(), 400);
        let request = constrained(request(&[1, 2], 40), true, |_| {});
        answer(fixture.engine.submit(request).unwrap()).tokens
    };
    let fixture = Fixture::new(EngineConfig::default(), 400);
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    let hold = Arc::clone(&gate);
    let late = constrained(request(&[1, 2], 40), true, move |at| {
        if at == 7 {
            let open = hold.0.lock().unwrap();
            let open = hold
                .1
                .wait_timeout_while(open, Duration::from_secs(30), |open| !*open);
            drop(open.unwrap());
        }
    });
    let late = fixture.engine.submit(late).unwrap();
    let beside = fixture.submit(&[3, 4], 100);
    let late_rows = |fixture: &Fixture| fixture.steps().iter().map(|s| s.late_rows).sum::<usize>();
    fixture.wait_until("its row of logits", |fixture| late_rows(fixture) > 0);
    *gate.0.lock().unwrap() = true;
    gate.1.notify_all();
    assert_eq!(answer(late).tokens, wanted);
    assert_eq!(answer(beside).tokens, expected(&[3, 4], 100));
    fixture.assert_idle_and_conserved();
}

#[test]
fn a_row_without_any_token_to_sample_ends_its_request_only() {
    for fixture in [
        Fixture::new(EngineConfig::default(), 400),
        Fixture::sampling_on_host(EngineConfig::default(), 400),
    ] {
        let beside = fixture.submit(&[3, 4], 50);
        let silent = answer(fixture.submit(&[5, SILENT], 10));
        let error = silent.end.unwrap_err();
        assert!(error.starts_with("no token can be sampled"), "{error}");
        assert!(silent.tokens.is_empty());
        assert_eq!(answer(beside).tokens, expected(&[3, 4], 50));
        fixture.assert_idle_and_conserved();
    }
}

#[test]
fn dropping_a_request_while_its_token_is_sampled_does_not_affect_others() {
    let (fixture, permits) = Fixture::gated(EngineConfig::default(), 400);
    let mut requests = vec![
        constrained(request(&[1, 2], 40), false, |_| {}),
        request(&[5, 6], 30),
        request(&[3, 4], 30),
    ];
    requests[1].params.temperature = 1.0;
    let submit = |request| fixture.engine.submit(request).unwrap();
    let mut requests = requests.into_iter();
    let mut running: Vec<_> = requests.by_ref().take(1).map(submit).collect();
    // It starts when its grammar has answered, and steps of the others do not wait for that.
    fixture.wait_until("it starts", |f| f.engine.stats().running == 1);
    running.extend(requests.map(submit));
    for step in 1..=4 {
        permits.send(()).unwrap();
        fixture.wait_until("a step", |f| f.engine.stats().steps == step);
    }
    // The device computes the next step.
    fixture.wait_until("all run", |f| f.engine.stats().running == 3);
    let survivor = running.pop().unwrap();
    drop(running);
    drop(permits);
    assert_eq!(answer(survivor).tokens, expected(&[3, 4], 30));
    fixture.assert_idle_and_conserved();
    assert_eq!(fixture.engine.stats().cancelled, 2);
}

/// An executor that samples with a fault after token 7.
struct Careless {
    limits: ExecutorLimits,
    fault: fn(&mut SampleRequests<'_>) -> ForwardOutput,
}

impl Executor for Careless {
    type Submission = ForwardOutput;

    fn limits(&self) -> ExecutorLimits {
        self.limits
    }

    fn samples_on_device(&self) -> bool {
        true
    }

    fn complete(&mut self, output: ForwardOutput) -> Result<ForwardOutput, ForwardError> {
        Ok(output)
    }

    fn submit(
        &mut self,
        batch: &ForwardBatch,
        sample_requests: &mut SampleRequests<'_>,
    ) -> Result<ForwardOutput, ForwardError> {
        Ok(match batch.tokens[0] {
            7 => (self.fault)(sample_requests),
            _ => ForwardOutput {
                sampled: vec![Some(3); sample_requests().len()],
                ..ForwardOutput::default()
            },
        })
    }
}

#[test]
fn missing_or_unknown_tokens_fail_one_step_only() {
    let faults: [fn(&mut SampleRequests<'_>) -> ForwardOutput; 4] = [
        // It does not ask for the sample requests.
        |_| ForwardOutput::default(),
        |sample_requests| {
            sample_requests();
            ForwardOutput::default()
        },
        |sample_requests| ForwardOutput {
            sampled: vec![Some(VOCAB as u32); sample_requests().len()],
            ..ForwardOutput::default()
        },
        |sample_requests| {
            let requests = sample_requests();
            let is_token = |request: &SampleRequest| matches!(request, SampleRequest::Token(_));
            assert!(requests.iter().all(is_token));
            ForwardOutput {
                sampled: vec![Some(1)],
                sample_logits: vec![0.0; VOCAB],
                ..ForwardOutput::default()
            }
        },
    ];
    for fault in faults {
        let build = move || {
            let limits = limits(100);
            Ok(Careless { limits, fault })
        };
        let engine = Engine::spawn(EngineConfig::default(), build).unwrap();
        let run = |prompt: &[u32]| answer(engine.submit(request(prompt, 2)).unwrap());
        let error = run(&[7]).end.unwrap_err();
        assert!(error.contains("the model"), "{error}");
        assert_eq!(run(&[5]).tokens, [3, 3]);
    }
}
