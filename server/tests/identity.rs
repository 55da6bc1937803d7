//! Runs the engine with a real model on the CPU: outputs do not depend on policies, page sizes, the
//! cache or preemptions.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use hearth_engine::{
    BuildDraftModel, DraftMethod, Engine, EngineConfig, EngineHandle, Event, Generation, Request,
    SamplingParams, SchedulePolicy, Speculation,
};
use hearth_server::config::{Config, Dtype};
use hearth_server::executor::ModelExecutor;
use hearth_server::load;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../model/goldens/qwen3");
/// A model with other weights, which drafts for it.
const DRAFT_MODEL: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../model/goldens/llama-llama3-tied"
);
const POLICIES: [SchedulePolicy; 6] = [
    SchedulePolicy::Fcfs,
    SchedulePolicy::Lpm,
    SchedulePolicy::DfsWeight,
    SchedulePolicy::Lof,
    SchedulePolicy::Priority,
    SchedulePolicy::Random,
];

/// A model with a fifth of the slots that 200 prompts need together.
fn executor(model: &str) -> ModelExecutor {
    let model = Config {
        model: Some(model.to_owned()),
        device: "cpu".to_owned(),
        dtype: Dtype::F32,
        kv_tokens: Some(2048),
        ..Config::default()
    };
    let checkpoint = load::open(&model).unwrap();
    load::executor(&model, checkpoint, None, Default::default())
        .unwrap()
        .0
}

fn engine(config: EngineConfig) -> EngineHandle {
    let draft: BuildDraftModel = Box::new(|_| Ok(Box::new(executor(DRAFT_MODEL))));
    Engine::spawn_with_draft_model(config, || Ok(executor(MODEL)), Some(draft)).unwrap()
}

/// Two hundred prompts in families of eight with shared prefixes.
fn prompts() -> Vec<Vec<u32>> {
    let mut random = 1_u64;
    let mut tokens = move |len: usize| -> Vec<u32> {
        let mut token = || {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
            (random >> 33) as u32 % 200
        };
        (0..len).map(|_| token()).collect()
    };
    let families = (0..25)
        .map(|family| tokens(10 + 3 * family))
        .collect::<Vec<_>>();
    let one = |i: usize| [&families[i / 8][..], &tokens(1 + i % 17)].concat();
    (0..200).map(one).collect()
}

/// The tokens, and the bits of their log-probabilities.
fn output(mut generation: Generation) -> Vec<(u32, u32)> {
    let mut output = Vec::new();
    while let Some(event) = generation.next_blocking() {
        match event {
            Event::Token(token) => {
                output.push((token.id, token.logprob.unwrap().logprob.to_bits()));
            }
            Event::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
    assert_eq!(output.len(), 8);
    output
}

fn request(number: usize, prompt: &[u32]) -> Request {
    Request {
        prompt: prompt.to_vec(),
        params: SamplingParams {
            max_tokens: 8,
            temperature: 0.0,
            logprobs: Some(0),
            ..SamplingParams::default()
        },
        priority: number as i32 % 3,
        ..Request::default()
    }
}

/// Tests six of 72 combinations, or all if `HEARTH_ALL_COMBINATIONS` is set.
#[test]
fn two_hundred_prompts_have_the_same_bits_whatever_the_scheduler_does() {
    let prompts = prompts();
    let alone = engine(EngineConfig {
        prefix_cache: false,
        ..EngineConfig::default()
    });
    let reference: Vec<_> = prompts
        .iter()
        .map(|prompt| output(alone.submit(request(0, prompt)).unwrap()))
        .collect();
    drop(alone);
    let all = std::env::var_os("HEARTH_ALL_COMBINATIONS").is_some();
    let mut combinations = 0;
    for (index, schedule) in POLICIES.into_iter().enumerate() {
        for (nth, page_size) in [1, 16, 64].into_iter().enumerate() {
            for (prefix_cache, retract_every) in [
                (true, Some(3)),
                (true, None),
                (false, Some(3)),
                (false, None),
            ] {
                if !all && (nth != index % 3 || !prefix_cache || retract_every.is_none()) {
                    continue;
                }
                let config = EngineConfig {
                    schedule,
                    page_size,
                    prefix_cache,
                    retract_every,
                    max_running: 48,
                    max_batch_tokens: 256,
                    prefill_chunk: 64,
                    ..EngineConfig::default()
                };
                let when = format!("{config:?}");
                let engine = engine(config);
                let generations: Vec<_> = (0..)
                    .zip(&prompts)
                    .map(|(number, prompt)| engine.submit(request(number, prompt)).unwrap())
                    .collect();
                for (generation, reference) in generations.into_iter().zip(&reference) {
                    assert_eq!(output(generation), *reference, "{when}");
                }
                let stats = engine.stats();
                let retracted = stats.preemptions > 100;
                assert!(retracted || retract_every.is_none(), "{stats:?}");
                assert_eq!(stats.cached_tokens > 0, prefix_cache, "{stats:?}");
                combinations += 1;
            }
        }
    }
    assert_eq!(combinations, if all { 72 } else { 6 });
}

/// Drafts from a prediction that is mostly right, from the cache and from the text itself.
#[test]
fn two_hundred_prompts_have_the_same_bits_with_drafts() {
    let prompts = prompts();
    let sampled = |number: usize, prompt: &[u32]| {
        let request = request(number, prompt);
        let params = SamplingParams {
            temperature: if number.is_multiple_of(2) { 0.0 } else { 1.0 },
            seed: Some(number as u64),
            ..request.params
        };
        Request { params, ..request }
    };
    let alone = engine(EngineConfig::default());
    let outputs = |engine: &EngineHandle, predictions: &[Vec<u32>]| {
        let generations: Vec<_> = prompts
            .iter()
            .enumerate()
            .map(|(number, prompt)| {
                let request = Request {
                    prediction: predictions.get(number).cloned().unwrap_or_default(),
                    ..sampled(number, prompt)
                };
                engine.submit(request).unwrap()
            })
            .collect();
        generations.into_iter().map(output).collect::<Vec<_>>()
    };
    let reference = outputs(&alone, &[]);
    drop(alone);
    let predictions: Vec<Vec<u32>> = reference
        .iter()
        .map(|output| {
            let mut tokens: Vec<u32> = output.iter().map(|(token, _)| *token).collect();
            tokens[5] = (tokens[5] + 1) % 200;
            tokens
        })
        .collect();
    for (page_size, retract_every) in [(1, None), (16, Some(3))] {
        for (adaptive, method) in [
            (false, DraftMethod::Ngram),
            (true, DraftMethod::Ngram),
            (false, DraftMethod::DraftModel),
        ] {
            let config = EngineConfig {
                page_size,
                retract_every,
                max_running: 48,
                max_batch_tokens: 256,
                prefill_chunk: 64,
                speculation: Some(Speculation {
                    adaptive,
                    method,
                    ..Speculation::default()
                }),
                ..EngineConfig::default()
            };
            let when = format!("{config:?}");
            let engine = engine(config);
            assert_eq!(outputs(&engine, &predictions), reference, "{when}");
            let stats = engine.stats();
            // A preempted request has to compute its text again before it drafts.
            let accepted = if retract_every.is_some() { 30 } else { 200 };
            let enough = stats.accepted_tokens > accepted;
            assert!(adaptive || enough, "{when} {stats:?}");
            assert!(adaptive || stats.drafted_tokens > stats.accepted_tokens);
            let by_model = method == DraftMethod::DraftModel;
            assert_eq!(stats.draft_forwards > 0, by_model, "{when} {stats:?}");
        }
    }
}
