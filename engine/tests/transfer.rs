//! One engine computes prompts, another one generates the outputs, and this test carries keys and
//! values between them. The fake model stores a hash of the whole prefix in each slot, so a wrong
//! slot or a wrong byte changes every token that follows.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use common::{Answer, Call, Fixture, answer, expected, greedy, limits, prompt, request};
use hearth_engine::constraint::{Constrain, Constraint, Grammar};
use hearth_engine::{
    EngineConfig, Event, FinishReason, Generation, RemoteOutput, RemoteToken, Request,
    SamplingParams, Transfer, TransferError,
};
use hearth_forward::TokenMask;

fn config() -> EngineConfig {
    EngineConfig {
        prefill_chunk: 8,
        max_batch_tokens: 16,
        ..EngineConfig::default()
    }
}

fn part(request: &Request, transfer: Transfer) -> Request {
    Request {
        transfer: Some(transfer),
        ..request.clone()
    }
}

/// Reads events until the output of the prefill is complete. Returns it with the number of tokens
/// that can be read.
fn prefill(generation: &mut Generation) -> (usize, RemoteOutput, Vec<usize>) {
    let mut output = RemoteOutput::default();
    let mut progress = Vec::new();
    loop {
        match generation.next_blocking().unwrap() {
            Event::Started { cached_tokens, .. } => output.cached_tokens = cached_tokens,
            Event::Computed { tokens } => progress.push(tokens),
            Event::PromptLogprobs(logprobs) => output.prompt_logprobs = logprobs,
            Event::Forced(tokens) => {
                let logprobs = tokens.into_iter().filter_map(|token| token.logprob);
                output.forced.extend(logprobs);
            }
            Event::Token(token) => {
                output.sampled = Some(RemoteToken {
                    id: token.id,
                    logprob: token.logprob,
                });
                return (*progress.last().unwrap(), output, progress);
            }
            Event::Finished(..) => return (0, output, progress),
            event => panic!("{event:?}"),
        }
    }
}

fn receiving(generation: &mut Generation) -> (usize, usize) {
    match generation.next_blocking().unwrap() {
        Event::Receiving { from, tokens } => (from, tokens),
        event => panic!("{event:?}"),
    }
}

/// Runs `request` on both engines. Returns the answer and how many tokens were moved.
fn both(prefill_engine: &Fixture, decode: &Fixture, request: &Request) -> (Answer, usize) {
    let mut sender = prefill_engine
        .engine
        .submit(part(request, Transfer::Send))
        .unwrap();
    let mut receiver = decode
        .engine
        .submit(part(request, Transfer::Receive))
        .unwrap();
    let (from, tokens) = receiving(&mut receiver);
    let (computed, output, _) = prefill(&mut sender);
    let mut written = from;
    while written < tokens.min(computed) {
        let until = computed.min(written + 5);
        let read = prefill_engine
            .engine
            .read_kv(sender.transfer_id(), written..until);
        let bytes = read.wait_blocking().unwrap().unwrap();
        let write = decode
            .engine
            .write_kv(receiver.transfer_id(), written, until - written, bytes);
        write.wait_blocking().unwrap().unwrap();
        written = until;
    }
    let received = decode
        .engine
        .received(receiver.transfer_id(), written, output);
    received.wait_blocking().unwrap().unwrap();
    sender.stop();
    (answer(receiver), written - from)
}

fn end(
    answer: &Answer,
) -> (
    &[u32],
    &Result<(FinishReason, hearth_engine::Usage), String>,
) {
    (&answer.tokens, &answer.end)
}

#[test]
fn two_engines_give_the_output_of_one_and_move_only_what_is_missing() {
    for on_device in [true, false] {
        let fixture = || match on_device {
            true => Fixture::new(config(), 400),
            false => Fixture::sampling_on_host(config(), 400),
        };
        let (one, prefiller, decoder) = (fixture(), fixture(), fixture());
        for (seed, len) in (0..).zip([1, 2, 7, 8, 9, 40]) {
            let prompt = prompt(seed, len);
            let request = request(&prompt, 12);
            let alone = answer(one.engine.submit(request.clone()).unwrap());
            assert_eq!(alone.tokens, expected(&prompt, 12));
            let (answer, moved) = both(&prefiller, &decoder, &request);
            assert_eq!(end(&answer), end(&alone));
            assert_eq!(moved, len);
            // The decode engine has the prompt now, and needs its last token only.
            let (again, moved) = both(&prefiller, &decoder, &request);
            assert_eq!(again.tokens, alone.tokens);
            assert_eq!(moved, 1);
        }
        // No forward pass computed a prompt on the decode engine.
        assert!(decoder.steps().iter().all(|step| step.prefills == 0));
        prefiller.assert_idle_and_conserved();
        decoder.assert_idle_and_conserved();
    }
}

#[test]
fn a_prompt_is_sent_chunk_by_chunk_while_it_is_computed() {
    let prefiller = Fixture::new(config(), 400);
    let request = request(&prompt(3, 30), 4);
    let mut sender = prefiller
        .engine
        .submit(part(&request, Transfer::Send))
        .unwrap();
    let (_, _, progress) = prefill(&mut sender);
    assert_eq!(progress, [0, 16, 30]);
}

#[test]
fn log_probabilities_stop_tokens_and_empty_outputs_are_passed_on() {
    let (one, prefiller, decoder) = (
        Fixture::new(config(), 400),
        Fixture::new(config(), 400),
        Fixture::new(config(), 400),
    );
    let prompt = prompt(5, 20);
    let first = expected(&prompt, 1)[0];
    let params = [
        SamplingParams {
            logprobs: Some(3),
            prompt_logprobs: Some(2),
            ..greedy(6)
        },
        SamplingParams {
            stop_token_ids: vec![first],
            ..greedy(6)
        },
        greedy(1),
        SamplingParams {
            prompt_logprobs: Some(1),
            ..greedy(0)
        },
        SamplingParams {
            seed: Some(7),
            temperature: 1.5,
            ..greedy(20)
        },
    ];
    for params in params {
        let request = Request {
            prompt: prompt.clone(),
            params,
            ..Request::default()
        };
        let all = |mut generation: Generation| {
            let mut events = Vec::new();
            while let Some(event) = generation.next_blocking() {
                match event {
                    Event::Started { .. } | Event::Receiving { .. } => {}
                    Event::Token(token) => events.push(format!("{} {:?}", token.id, token.logprob)),
                    Event::PromptLogprobs(logprobs) => events.push(format!("{logprobs:?}")),
                    Event::Finished(reason, usage) => {
                        events.push(format!("{reason:?} {}", usage.completion_tokens));
                    }
                    event => panic!("{event:?}"),
                }
            }
            events
        };
        one.engine.flush_cache().wait_blocking().unwrap().unwrap();
        decoder
            .engine
            .flush_cache()
            .wait_blocking()
            .unwrap()
            .unwrap();
        let alone = all(one.engine.submit(request.clone()).unwrap());
        let mut sender = prefiller
            .engine
            .submit(part(&request, Transfer::Send))
            .unwrap();
        let mut receiver = decoder
            .engine
            .submit(part(&request, Transfer::Receive))
            .unwrap();
        let (from, tokens) = receiving(&mut receiver);
        let (computed, output, _) = prefill(&mut sender);
        let id = receiver.transfer_id();
        if computed > 0 {
            let read = prefiller.engine.read_kv(sender.transfer_id(), from..tokens);
            let bytes = read.wait_blocking().unwrap().unwrap();
            let write = decoder.engine.write_kv(id, from, tokens - from, bytes);
            write.wait_blocking().unwrap().unwrap();
        }
        let received = decoder.engine.received(id, computed.max(from), output);
        received.wait_blocking().unwrap().unwrap();
        sender.stop();
        assert_eq!(all(receiver), alone, "{:?}", request.params);
        prefiller.assert_idle_and_conserved();
        decoder.assert_idle_and_conserved();
    }
}

#[test]
fn after_a_failure_the_decode_engine_computes_the_rest_itself() {
    let (prefiller, decoder) = (Fixture::new(config(), 400), Fixture::new(config(), 400));
    let prompt = prompt(9, 33);
    for (written, logprobs) in [(0, None), (10, None), (33, None), (10, Some(1))] {
        let mut request = request(&prompt, 5);
        request.params.prompt_logprobs = logprobs;
        let mut sender = prefiller
            .engine
            .submit(part(&request, Transfer::Send))
            .unwrap();
        decoder
            .engine
            .flush_cache()
            .wait_blocking()
            .unwrap()
            .unwrap();
        let mut receiver = decoder
            .engine
            .submit(part(&request, Transfer::Receive))
            .unwrap();
        assert_eq!(receiving(&mut receiver), (0, 33));
        prefill(&mut sender);
        let id = receiver.transfer_id();
        if written > 0 {
            let read = prefiller.engine.read_kv(sender.transfer_id(), 0..written);
            let bytes = read.wait_blocking().unwrap().unwrap();
            let write = decoder.engine.write_kv(id, 0, written, bytes);
            write.wait_blocking().unwrap().unwrap();
        }
        decoder.engine.receive_failed(id, written);
        let answer = answer(receiver);
        assert_eq!(answer.tokens, expected(&prompt, 5));
        // The last token is always computed, and so is what log-probabilities are wanted of.
        let reused = if logprobs.is_some() {
            0
        } else {
            written.min(32)
        };
        assert_eq!(answer.cached_tokens, reused);
        // The request does not receive any more.
        let late = decoder.engine.write_kv(id, 0, 1, vec![0; 8]);
        assert_eq!(late.wait_blocking().unwrap(), Err(TransferError::Gone));
        drop(sender);
        prefiller.assert_idle_and_conserved();
        decoder.assert_idle_and_conserved();
    }
}

#[test]
fn commands_that_do_not_fit_the_request_are_refused_and_change_nothing() {
    let (prefiller, decoder) = (Fixture::new(config(), 400), Fixture::new(config(), 400));
    let prompt = prompt(11, 12);
    let request = request(&prompt, 3);
    let mut sender = prefiller
        .engine
        .submit(part(&request, Transfer::Send))
        .unwrap();
    let mut receiver = decoder
        .engine
        .submit(part(&request, Transfer::Receive))
        .unwrap();
    receiving(&mut receiver);
    let (_, output, _) = prefill(&mut sender);
    let (from, to) = (sender.transfer_id(), receiver.transfer_id());
    let read = |range| {
        prefiller
            .engine
            .read_kv(from, range)
            .wait_blocking()
            .unwrap()
    };
    let out_of_range = |error| matches!(error, TransferError::OutOfRange { .. });
    assert!(out_of_range(read(0..13).unwrap_err()));
    #[allow(clippy::reversed_empty_ranges)]
    let reversed = 5..4;
    assert!(out_of_range(read(reversed).unwrap_err()));
    let bytes = read(0..12).unwrap();
    let write = |from, tokens, bytes: &[u8]| {
        let write = decoder.engine.write_kv(to, from, tokens, bytes.to_vec());
        write.wait_blocking().unwrap()
    };
    assert!(out_of_range(write(1, 12, &bytes).unwrap_err()));
    assert!(out_of_range(write(usize::MAX, 2, &bytes).unwrap_err()));
    let short = write(0, 12, &bytes[1..]).unwrap_err();
    assert!(matches!(short, TransferError::Device(_)), "{short}");
    let received = |written, output: &RemoteOutput| {
        let received = decoder.engine.received(to, written, output.clone());
        received.wait_blocking().unwrap()
    };
    let token = output.sampled.clone().unwrap();
    let sampled = |id| RemoteOutput {
        sampled: id,
        ..output.clone()
    };
    let wrong = |error| matches!(error, TransferError::Output(_));
    assert!(wrong(received(11, &output).unwrap_err()));
    assert!(wrong(received(12, &sampled(None)).unwrap_err()));
    let beyond = RemoteToken { id: 101, ..token };
    assert!(wrong(received(12, &sampled(Some(beyond))).unwrap_err()));
    let unasked = RemoteOutput {
        prompt_logprobs: vec![None],
        ..output.clone()
    };
    assert!(wrong(received(12, &unasked).unwrap_err()));
    write(0, 12, &bytes).unwrap();
    received(12, &output).unwrap();
    assert_eq!(answer(receiver).tokens, expected(&prompt, 3));
    drop(sender);
    // The slots of a request that has ended cannot be read.
    prefiller.wait_until("ended", |f| f.engine.stats().is_idle());
    assert_eq!(
        prefiller
            .engine
            .read_kv(from, 0..1)
            .wait_blocking()
            .unwrap(),
        Err(TransferError::Gone)
    );
    decoder.assert_idle_and_conserved();
}

#[test]
fn slots_of_an_evicted_prefix_are_copied_to_the_host_before_received_kv_is_written_to_them() {
    let (permits, gate) = channel();
    let decoder = Fixture::build_any(config(), limits(80), 200, Some(gate), false);
    let (evicted, received) = (prompt(51, 60), prompt(52, 60));
    // The first request needs five of them, and the second one more than are left.
    (0..10).for_each(|_| permits.send(()).unwrap());
    decoder.run(&evicted, 2);
    let beside = decoder.submit(&[5, 6], 12);
    decoder.wait_until("a step is in flight", |f| {
        f.calls.lock().unwrap().last() == Some(&Call::Complete(11))
    });
    // The request gets its slots now, and the next step copies what they had.
    let receive = part(&request(&received, 4), Transfer::Receive);
    let mut receiver = decoder.engine.submit(receive).unwrap();
    let (from, tokens) = receiving(&mut receiver);
    let prefiller = Fixture::new(config(), 400);
    let send = part(&request(&received, 4), Transfer::Send);
    let mut sender = prefiller.engine.submit(send).unwrap();
    let (_, output, _) = prefill(&mut sender);
    let read = prefiller.engine.read_kv(sender.transfer_id(), from..tokens);
    let bytes = read.wait_blocking().unwrap().unwrap();
    let id = receiver.transfer_id();
    let write = decoder.engine.write_kv(id, from, tokens - from, bytes);
    drop(permits);
    write.wait_blocking().unwrap().unwrap();
    let end = decoder.engine.received(id, tokens, output);
    end.wait_blocking().unwrap().unwrap();
    assert_eq!(answer(receiver).tokens, expected(&received, 4));
    assert_eq!(answer(beside).tokens, expected(&[5, 6], 12));
    let again = decoder.run(&evicted, 4);
    assert_eq!(again.tokens, expected(&evicted, 4));
    assert!(decoder.engine.stats().loaded_tokens > 0);
    decoder.assert_idle_and_conserved();
}

#[test]
fn requests_that_transfer_give_their_slots_to_others_when_these_run_out() {
    // The pool has room for both prompts, but not for the output of the second request.
    let decoder = Fixture::new(config(), 60);
    let long = prompt(21, 30);
    let mut receiver = decoder
        .engine
        .submit(part(&request(&long, 4), Transfer::Receive))
        .unwrap();
    receiving(&mut receiver);
    let other = prompt(22, 10);
    assert_eq!(decoder.run(&other, 24).tokens, expected(&other, 24));
    // It was preempted, and computes its prompt itself.
    assert_eq!(answer(receiver).tokens, expected(&long, 4));
    decoder.assert_idle_and_conserved();

    let prefiller = Fixture::new(config(), 60);
    let mut sender = prefiller
        .engine
        .submit(part(&request(&long, 4), Transfer::Send))
        .unwrap();
    prefill(&mut sender);
    assert_eq!(prefiller.run(&other, 24).tokens, expected(&other, 24));
    let ended = answer(sender).end.unwrap_err();
    assert!(ended.contains("were needed for other requests"), "{ended}");
    prefiller.assert_idle_and_conserved();
}

#[test]
fn an_engine_that_only_waits_for_transfers_serves_others_and_ends() {
    let decoder = Fixture::new(config(), 400);
    let mut receivers: Vec<_> = (0..3)
        .map(|seed| {
            let request = request(&prompt(30 + seed, 20), 4);
            decoder
                .engine
                .submit(part(&request, Transfer::Receive))
                .unwrap()
        })
        .collect();
    for receiver in &mut receivers {
        receiving(receiver);
    }
    decoder.wait_until("parked", |f| f.engine.stats().transferring == 3);
    let other = prompt(40, 10);
    assert_eq!(decoder.run(&other, 9).tokens, expected(&other, 9));
    drop(receivers);
    decoder.assert_idle_and_conserved();
}

/// A grammar whose masks take long. Token `n` of an output is one of three that depend on `n`, or
/// is forced.
#[derive(Clone, Copy, Debug)]
struct Slow {
    forces_first: bool,
}

struct SlowState {
    grammar: Slow,
    length: u32,
}

impl SlowState {
    fn allowed(&self) -> [u32; 3] {
        let first = 7 * self.length % 90;
        [first, first + 1, first + 2]
    }
}

impl Grammar for Slow {
    fn start(&self) -> Box<dyn Constraint> {
        Box::new(SlowState {
            grammar: *self,
            length: 0,
        })
    }
}

impl Constraint for SlowState {
    fn mask(&mut self) -> Result<TokenMask, String> {
        std::thread::sleep(Duration::from_millis(30));
        let mut words = vec![0; common::VOCAB.div_ceil(32)];
        for token in self.allowed() {
            words[token as usize / 32] |= 1 << (token % 32);
        }
        Ok(words.into())
    }

    fn consume(&mut self, token: u32) -> Result<(), String> {
        let is_allowed = self.allowed().contains(&token);
        self.length += 1;
        is_allowed
            .then_some(())
            .ok_or_else(|| format!("{token} is not allowed"))
    }

    fn forced(&mut self, limit: usize) -> Vec<u32> {
        let is_forced = self.grammar.forces_first && self.length == 0;
        [1, 8]
            .into_iter()
            .take(if is_forced { limit } else { 0 })
            .collect()
    }

    fn is_complete(&self) -> bool {
        false
    }

    fn canceller(&self) -> Box<dyn Fn() + Send> {
        Box::new(|| {})
    }
}

#[test]
fn a_token_that_comes_before_its_mask_advances_the_grammar() {
    for (forces_first, logprobs) in [(false, None), (true, None), (true, Some(1))] {
        let fixture = || Fixture::sampling_on_host(config(), 400);
        let (one, prefiller, decoder) = (fixture(), fixture(), fixture());
        let mut request = request(&prompt(50, 12), 6);
        request.params.logprobs = logprobs;
        request.constraint = Some(Constrain {
            grammar: Arc::new(Slow { forces_first }),
            jump_forward: true,
        });
        let alone = answer(one.engine.submit(request.clone()).unwrap());
        assert_eq!(alone.tokens.len(), 6, "{alone:?}");
        // The prefill engine is done before the decode engine has its first mask.
        let mut sender = prefiller
            .engine
            .submit(part(&request, Transfer::Send))
            .unwrap();
        let (_, output, _) = prefill(&mut sender);
        let mut receiver = decoder
            .engine
            .submit(part(&request, Transfer::Receive))
            .unwrap();
        let (from, tokens) = receiving(&mut receiver);
        let read = prefiller.engine.read_kv(sender.transfer_id(), from..tokens);
        let bytes = read.wait_blocking().unwrap().unwrap();
        let id = receiver.transfer_id();
        let write = decoder.engine.write_kv(id, from, tokens - from, bytes);
        write.wait_blocking().unwrap().unwrap();
        let received = decoder.engine.received(id, tokens, output);
        received.wait_blocking().unwrap().unwrap();
        assert_eq!(end(&answer(receiver)), end(&alone));
        sender.stop();
        prefiller.assert_idle_and_conserved();
        decoder.assert_idle_and_conserved();
    }
}
