//! Many requests, a pool that is far too small, and consumers that go away.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Answer, FAILS, Fixture, POLICIES, answer, expected, limits, prompt, request};
use hearth_engine::{
    EngineConfig, EvictionPolicy, Generation, HostWritePolicy, Request, Speculation, SubmitError,
};
use hearth_forward::{ExecutorLimits, WindowLimits};
use proptest::collection::vec;
use proptest::prelude::*;

/// What a consumer does with its stream.
#[derive(Clone, Copy, Debug)]
enum Consumer {
    ReadsAll,
    LeavesAfter(usize),
    Stops(usize),
}

#[derive(Clone, Debug)]
struct Client {
    family: u64,
    common: usize,
    own: usize,
    max_tokens: usize,
    namespaced: bool,
    poisoned: bool,
    consumer: Consumer,
}

impl Client {
    fn prompt(&self) -> Vec<u32> {
        let mut tokens = prompt(self.family, self.common);
        tokens.extend(prompt(100 + self.own as u64, self.own));
        if self.poisoned {
            tokens.push(FAILS);
        }
        tokens
    }

    fn request(&self) -> Request {
        let namespace = self.namespaced.then(|| "tenant".to_owned());
        Request {
            namespace,
            priority: self.own as i32 % 3,
            ..request(&self.prompt(), self.max_tokens)
        }
    }

    fn consume(&self, mut generation: Generation) -> Option<Answer> {
        let (events, stop) = match self.consumer {
            Consumer::ReadsAll => return Some(answer(generation)),
            Consumer::LeavesAfter(events) => (events, false),
            Consumer::Stops(events) => (events, true),
        };
        for _ in 0..events {
            generation.next_blocking();
        }
        if stop {
            generation.stop();
        }
        None
    }
}

fn client() -> impl Strategy<Value = Client> {
    let consumer = prop_oneof![
        3 => Just(Consumer::ReadsAll),
        1 => (0..20_usize).prop_map(Consumer::LeavesAfter),
        1 => (0..20_usize).prop_map(Consumer::Stops),
    ];
    (
        0..3_u64,
        0..30_usize,
        1..20_usize,
        0..40_usize,
        any::<bool>(),
        0..30_u8,
        consumer,
    )
        .prop_map(
            |(family, common, own, max_tokens, namespaced, poison, consumer)| Client {
                family,
                common,
                own,
                max_tokens,
                namespaced,
                poisoned: poison == 0,
                consumer,
            },
        )
}

fn config() -> impl Strategy<Value = EngineConfig> {
    let bounds = (1..10_usize, 1..64_usize, 1..32_usize, any::<bool>());
    let evictions = vec![
        EvictionPolicy::Lru,
        EvictionPolicy::Lfu,
        EvictionPolicy::Fifo,
        EvictionPolicy::Slru,
        EvictionPolicy::Priority,
    ];
    let policies = (
        prop::sample::select(vec![1_usize, 2, 8, 64]),
        prop::sample::select(evictions),
        prop::sample::select(POLICIES.to_vec()),
        prop::option::of(2..5_u64),
        prop::option::of((1..17_usize, any::<bool>())),
    );
    (bounds, policies).prop_map(|(bounds, policies)| {
        let (max_running, max_batch_tokens, prefill_chunk, prefix_cache) = bounds;
        let (page_size, eviction, schedule, retract_every, speculation) = policies;
        EngineConfig {
            max_running,
            max_queue: 1024,
            max_batch_tokens,
            prefill_chunk,
            max_submission: None,
            prefix_cache,
            page_size,
            eviction,
            host_writes: HostWritePolicy::default(),
            schedule,
            cache_changes: false,
            speculation: speculation.map(|(num_tokens, adaptive)| Speculation {
                num_tokens,
                adaptive,
                lookup_min: 1,
                lookup_max: 2,
                ..Speculation::default()
            }),
            retract_every,
        }
    })
}

/// The request of `client`, with a prediction that is mostly right.
fn predicted(client: &Client) -> Request {
    let mut prediction = expected(&client.prompt(), client.max_tokens);
    for token in prediction.iter_mut().skip(2).step_by(6) {
        *token = (*token + 1) % 90;
    }
    Request {
        prediction,
        ..client.request()
    }
}

fn run(config: EngineConfig, kv_slots: usize, window: Option<WindowLimits>, clients: &[Client]) {
    let any_poison = clients.iter().any(|client| client.poisoned);
    let limits = ExecutorLimits {
        max_model_len: 80,
        ..limits(kv_slots)
    };
    // Nothing is drafted for a device that samples.
    let samples_on_device = config.speculation.is_none();
    let fixture = match window {
        None => Fixture::build_any(config, limits, 0, None, samples_on_device),
        Some(window) => Fixture::with_window(config, limits, window, samples_on_device),
    };
    std::thread::scope(|scope| {
        for clients in clients.chunks(clients.len().div_ceil(8)) {
            let fixture = &fixture;
            scope.spawn(move || {
                let submitted: Vec<_> = clients
                    .iter()
                    .filter_map(|client| match fixture.engine.submit(predicted(client)) {
                        Ok(generation) => Some((client, generation)),
                        Err(SubmitError::PromptTooLong { .. }) => None,
                        Err(error) => panic!("{error}"),
                    })
                    .collect();
                for (client, generation) in submitted {
                    let Some(answer) = client.consume(generation) else {
                        continue;
                    };
                    let room = fixture.engine.context_limit() - client.prompt().len();
                    let whole = expected(&client.prompt(), client.max_tokens.min(room));
                    match answer.end {
                        Ok(_) => assert_eq!(answer.tokens, whole),
                        // It was in a batch with a prompt that fails or panics.
                        Err(_) => {
                            assert!(any_poison);
                            assert_eq!(answer.tokens, whole[..answer.tokens.len()]);
                        }
                    }
                }
            });
        }
    });
    fixture.assert_idle_and_conserved();
    let stats = fixture.engine.stats();
    assert!(fixture.steps().iter().all(|s| s.tokens <= 64));
    assert!(stats.finished + stats.cancelled + stats.failed <= clients.len() as u64);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn every_output_is_right_and_every_slot_is_returned(
        config in config(),
        kv_slots in 20..200_usize,
        clients in vec(client(), 1..60),
    ) {
        run(config, kv_slots, None, &clients);
    }

    /// The fake model checks that every window shows what the other layers have.
    #[test]
    fn every_output_is_right_while_window_slots_are_given_up(
        config in config(),
        kv_slots in 20..200_usize,
        tokens in 1..40_usize,
        beside in 0..100_usize,
        poison in any::<bool>(),
        mut clients in vec(client(), 1..60),
    ) {
        // A wrong window fails its request, which a poisoned prompt would hide.
        clients.iter_mut().for_each(|client| client.poisoned &= poison);
        // A request that runs alone needs so many.
        let least = tokens + 2 * config.page_size + 50;
        let window = WindowLimits { slots: least + beside, tokens };
        run(config, kv_slots, Some(window), &clients);
    }
}

#[test]
fn a_burst_of_ten_thousand_cancellations_leaks_nothing() {
    let config = EngineConfig {
        max_queue: 20_000,
        ..EngineConfig::default()
    };
    let fixture = Fixture::new(config, 256);
    let survivor = fixture.submit(&prompt(1, 10), 200);
    let burst: Vec<_> = (0..10_000)
        .map(|i| fixture.submit(&prompt(i, 10), 20))
        .collect();
    drop(burst);
    assert_eq!(answer(survivor).tokens, expected(&prompt(1, 10), 200));
    fixture.assert_idle_and_conserved();
    let stats = fixture.engine.stats();
    assert_eq!(stats.finished + stats.cancelled, 10_001);
}
