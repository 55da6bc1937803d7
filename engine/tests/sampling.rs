//! The sampler compared with a naive one that sorts the whole vocabulary in f64.

use hearth_engine::params::SamplingParams;
use hearth_engine::sampler::{SampleError, SamplerState};
use proptest::prelude::*;

fn sample(params: &SamplingParams, logits: &[f32], generated: usize) -> u32 {
    let mut row = logits.to_vec();
    let sampled = SamplerState::new(params, &[]).sample(&mut row, generated);
    sampled.expect("some token is not masked").token
}

/// The distribution that `params` define over `logits` without earlier tokens, by definition.
fn distribution(logits: &[f32], params: &SamplingParams) -> Vec<f64> {
    let logits: Vec<f64> = logits
        .iter()
        .map(|&x| {
            if x.is_nan() {
                f64::NEG_INFINITY
            } else {
                x.into()
            }
        })
        .collect();
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut weights: Vec<f64> = logits
        .iter()
        .map(|x| ((x - max) / f64::from(params.temperature)).exp())
        .collect();
    let mut ranked: Vec<usize> = (0..weights.len()).collect();
    ranked.sort_by(|&a, &b| weights[b].total_cmp(&weights[a]).then(a.cmp(&b)));
    for &token in ranked
        .iter()
        .skip(params.top_k.map_or(usize::MAX, |k| k as usize))
    {
        weights[token] = 0.0;
    }
    // The most likely token weighs exp(0) = 1.
    for weight in &mut weights {
        if *weight < f64::from(params.min_p) {
            *weight = 0.0;
        }
    }
    let total: f64 = weights.iter().sum();
    let mut before = 0.0;
    for &token in &ranked {
        let weight = weights[token];
        if params.top_p < 1.0 && before >= f64::from(params.top_p) * total {
            weights[token] = 0.0;
        }
        before += weight;
    }
    let total: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / total).collect()
}

/// A hash of the two numbers (splitmix64).
fn mix(seed: u64, index: u64) -> u64 {
    let mut mixed = seed.wrapping_add((index + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ mixed >> 31
}

/// Logits of `vocab` tokens with a distribution like that of a model: a few likely tokens and a long
/// tail.
fn row(vocab: usize, seed: u64) -> Vec<f32> {
    let uniform = |i: usize| (mix(seed, i as u64) >> 11) as f64 / (1u64 << 53) as f64;
    (0..vocab)
        .map(|i| (-2.0 * uniform(i).max(1e-9).ln()) as f32)
        .collect()
}

/// Samples many tokens and compares their counts with the naive distribution by chi-square. The seed
/// is fixed, so the result is the same in every run.
fn assert_distributed(logits: &[f32], params: &SamplingParams) {
    const DRAWS: usize = 20_000;
    let params = SamplingParams {
        seed: Some(11),
        ..params.clone()
    };
    let expected = distribution(logits, &params);
    let mut counts = vec![0f64; logits.len()];
    let mut state = SamplerState::new(&params, &[]);
    for position in 0..DRAWS {
        let sampled = state
            .sample(&mut logits.to_vec(), position)
            .expect("not all is masked");
        counts[sampled.token as usize] += 1.0;
    }
    // Rare tokens share a cell, so that enough tokens are expected in every cell.
    let (mut cells, mut statistic, mut rare) = (0, 0.0, (0.0, 0.0));
    for (count, probability) in counts.iter().zip(&expected) {
        let mean = probability * DRAWS as f64;
        if *probability == 0.0 {
            assert_eq!(
                *count, 0.0,
                "an excluded token was sampled under {params:?}"
            );
        } else if mean < 20.0 {
            rare = (rare.0 + count, rare.1 + mean);
        } else {
            cells += 1;
            statistic += (count - mean).powi(2) / mean;
        }
    }
    if rare.1 > 0.0 {
        cells += 1;
        statistic += (rare.0 - rare.1).powi(2) / rare.1;
    }
    // The mean of chi-square is its degrees of freedom, and its variance twice that; the bound is 4
    // sigma.
    let freedom = f64::from(cells - 1);
    let bound = freedom + 4.0 * (2.0 * freedom).sqrt();
    assert!(
        statistic <= bound,
        "chi-square {statistic} over {bound} under {params:?}"
    );
}

#[test]
fn samples_follow_the_naive_distribution() {
    let plain = SamplingParams::default();
    for (vocab, seed) in [(5, 1), (300, 2), (3000, 3)] {
        let logits = row(vocab, seed);
        assert_distributed(&logits, &plain);
        assert_distributed(
            &logits,
            &SamplingParams {
                temperature: 0.5,
                ..plain.clone()
            },
        );
        assert_distributed(
            &logits,
            &SamplingParams {
                temperature: 2.0,
                ..plain.clone()
            },
        );
        assert_distributed(
            &logits,
            &SamplingParams {
                top_k: Some(3),
                ..plain.clone()
            },
        );
        assert_distributed(
            &logits,
            &SamplingParams {
                top_k: Some(100),
                ..plain.clone()
            },
        );
        assert_distributed(
            &logits,
            &SamplingParams {
                top_p: 0.1,
                ..plain.clone()
            },
        );
        assert_distributed(
            &logits,
            &SamplingParams {
                top_p: 0.95,
                ..plain.clone()
            },
        );
        assert_distributed(
            &logits,
            &SamplingParams {
                min_p: 0.05,
                ..plain.clone()
            },
        );
        assert_distributed(
            &logits,
            &SamplingParams {
                temperature: 1.3,
                top_k: Some(40),
                top_p: 0.9,
                min_p: 0.1,
                ..plain.clone()
            },
        );
    }
    // A flat row is the worst case for top-p, which must sum nearly all of it.
    assert_distributed(
        &[0.25; 400],
        &SamplingParams {
            top_p: 0.9,
            ..plain
        },
    );
}

#[test]
fn a_tie_at_temperature_zero_goes_to_the_lowest_id() {
    let params = SamplingParams {
        temperature: 0.0,
        ..SamplingParams::default()
    };
    assert_eq!(sample(&params, &[0.0, 7.0, 7.0, 1.0], 0), 1);
    assert_eq!(
        sample(&params, &[f32::NAN, f32::NEG_INFINITY, -3.0, -3.0], 0),
        2
    );
    assert_eq!(sample(&params, &[f32::NAN, 1.0, f32::INFINITY], 0), 2);
}

#[test]
fn a_row_without_a_finite_logit_is_an_error() {
    for temperature in [0.0, 1.0] {
        for (top_k, top_p, min_p) in [(None, 1.0, 0.0), (Some(2), 0.5, 0.1), (None, 0.5, 0.0)] {
            let params = SamplingParams {
                temperature,
                top_k,
                top_p,
                min_p,
                ..SamplingParams::default()
            };
            for mut row in [vec![f32::NEG_INFINITY; 9], vec![f32::NAN; 9], vec![]] {
                let vocab_size = row.len();
                let given = SamplerState::new(&params, &[]).sample(&mut row, 0);
                assert_eq!(given, Err(SampleError::NoToken { vocab_size }));
            }
        }
    }
}

#[test]
fn min_tokens_forbids_the_end_until_it_is_reached() {
    let params = SamplingParams {
        temperature: 0.0,
        min_tokens: 2,
        eos_token_ids: vec![0, 99],
        stop_token_ids: vec![1],
        ..SamplingParams::default()
    };
    let logits = [5.0, 4.0, 3.0];
    assert_eq!(sample(&params, &logits, 0), 2);
    assert_eq!(sample(&params, &logits, 1), 2);
    assert_eq!(sample(&params, &logits, 2), 0);
}

#[test]
fn logit_bias_moves_and_cannot_unmask() {
    let params = SamplingParams {
        temperature: 0.0,
        logit_bias: vec![(0, 100.0), (1, -100.0), (2, 1.0)],
        ..SamplingParams::default()
    };
    assert_eq!(sample(&params, &[f32::NEG_INFINITY, 9.0, 0.0, 0.5], 0), 2);
}

#[test]
fn penalties_see_the_tokens_sampled_before() {
    let logits = [1.0, 0.9, 0.8];
    let frequency = SamplingParams {
        temperature: 0.0,
        frequency_penalty: 0.25,
        ..SamplingParams::default()
    };
    let mut state = SamplerState::new(&frequency, &[0, 0, 0]);
    let tokens: Vec<u32> = (0..5)
        .map(|i| state.sample(&mut logits.to_vec(), i).expect("finite").token)
        .collect();
    // The prompt does not count; each occurrence subtracts a quarter.
    assert_eq!(tokens, [0, 1, 2, 0, 1]);

    let repetition = SamplingParams {
        temperature: 0.0,
        repetition_penalty: 1.2,
        ..SamplingParams::default()
    };
    let mut state = SamplerState::new(&repetition, &[0]);
    assert_eq!(
        state.sample(&mut logits.to_vec(), 0).expect("finite").token,
        1
    );
    assert_eq!(
        state.sample(&mut logits.to_vec(), 1).expect("finite").token,
        0
    );
}

#[test]
fn top_p_is_a_share_of_what_min_p_and_top_k_left() {
    // Half of the probability is a long tail that min_p drops. Of the rest, the first two tokens have
    // 0.9.
    let mut probabilities = vec![0.25, 0.2, 0.05];
    probabilities.extend([0.005; 100]);
    let logits: Vec<f32> = probabilities.iter().map(|p: &f32| p.ln()).collect();
    let tokens = |top_k| -> std::collections::BTreeSet<u32> {
        let params = SamplingParams {
            min_p: 0.1,
            top_p: 0.6,
            top_k,
            seed: Some(1),
            ..SamplingParams::default()
        };
        (0..500).map(|i| sample(&params, &logits, i)).collect()
    };
    // 0.6 of 0.5 needs two tokens; 0.6 of 1 would need all three and more.
    assert_eq!(tokens(None), [0, 1].into());
    assert_eq!(tokens(Some(50)), [0, 1].into());
    assert_eq!(tokens(Some(1)), [0].into());
}

#[test]
fn logprobs_are_of_the_raw_distribution_and_change_no_token() {
    let logits = row(500, 5);
    let without = SamplingParams {
        temperature: 1.7,
        top_p: 0.8,
        presence_penalty: 1.0,
        logit_bias: vec![(3, 8.0)],
        seed: Some(1),
        ..SamplingParams::default()
    };
    let with = SamplingParams {
        logprobs: Some(4),
        ..without.clone()
    };
    let total: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
    let exact = |token: u32| f64::from(logits[token as usize]) - total.ln();
    let (mut plain, mut telling) = (
        SamplerState::new(&without, &[]),
        SamplerState::new(&with, &[]),
    );
    for i in 0..50 {
        let expected = plain.sample(&mut logits.clone(), i).expect("finite");
        let given = telling.sample(&mut logits.clone(), i).expect("finite");
        assert_eq!((expected.token, expected.logprob), (given.token, None));
        let logprob = given.logprob.expect("it was asked for");
        assert_eq!((logprob.token, logprob.top.len()), (given.token, 4));
        for (token, value) in logprob
            .top
            .iter()
            .copied()
            .chain([(given.token, logprob.logprob)])
        {
            assert!((f64::from(value) - exact(token)).abs() < 1e-5);
        }
    }
}

#[test]
fn rounding_noise_of_another_batch_hardly_ever_changes_a_seeded_token() {
    // The logits are pairs of equal values: if tokens were sorted by probability, noise would swap
    // the two of each pair.
    let logits: Vec<f32> = row(500, 6).iter().flat_map(|&x| [x, x]).collect();
    for (top_k, top_p) in [(None, 1.0), (Some(50), 1.0), (None, 0.9)] {
        let params = SamplingParams {
            top_k,
            top_p,
            seed: Some(3),
            ..SamplingParams::default()
        };
        let changed = (0..2000).filter(|&position| {
            let noisy: Vec<f32> = logits
                .iter()
                .enumerate()
                .map(|(i, x)| x + 1e-6 * ((i * 7919 + position) % 3) as f32)
                .collect();
            sample(&params, &logits, position) != sample(&params, &noisy, position)
        });
        assert!(changed.count() <= 2, "top_k {top_k:?}, top_p {top_p}");
    }
}

#[test]
fn unseeded_requests_differ() {
    let logits = vec![0.0; 1000];
    let draw = || {
        let mut state = SamplerState::new(&SamplingParams::default(), &[]);
        let row = || logits.clone();
        (0..8)
            .map(|i| state.sample(&mut row(), i).expect("finite").token)
            .collect::<Vec<_>>()
    };
    assert_ne!(draw(), draw());
}

/// Logits with ties, masks and broken values, at least one of them finite.
fn logits() -> impl Strategy<Value = Vec<f32>> {
    let logit = prop_oneof![
        8 => -12f32..12.0,
        4 => (-8i32..8).prop_map(|x| x as f32),
        1 => Just(f32::NEG_INFINITY),
        1 => Just(f32::NAN),
    ];
    (prop::collection::vec(logit, 0..400), -12f32..12.0).prop_map(|(mut logits, finite)| {
        logits.push(finite);
        logits
    })
}

fn params() -> impl Strategy<Value = SamplingParams> {
    (
        prop_oneof![1 => Just(0.0f32), 4 => 0.1f32..2.0],
        prop::option::of(1u32..500),
        prop_oneof![Just(1.0f32), 0.01f32..1.0],
        prop_oneof![Just(0.0f32), 0.0f32..=1.0],
        any::<u64>(),
    )
        .prop_map(|(temperature, top_k, top_p, min_p, seed)| SamplingParams {
            temperature,
            top_k,
            top_p,
            min_p,
            seed: Some(seed),
            ..SamplingParams::default()
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_sampled_token_is_one_that_the_naive_filters_keep(
        logits in logits(),
        params in params(),
        position in 0usize..10_000,
    ) {
        let token = sample(&params, &logits, position) as usize;
        if params.temperature == 0.0 {
            let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            prop_assert_eq!(token, logits.iter().position(|&x| x == best).expect("one is finite"));
        } else {
            // Slightly wider than the parameters: f32 and f64 may cut at different last tokens.
            let wider = SamplingParams {
                top_p: (params.top_p + 1e-5).min(1.0),
                min_p: (params.min_p - 1e-5).max(0.0),
                ..params.clone()
            };
            prop_assert!(distribution(&logits, &wider)[token] > 0.0);
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_token_whatever_was_sampled_before(
        logits in logits(),
        params in params(),
        position in 0usize..10_000,
        others in prop::collection::vec((logits(), 0usize..100), 0..3),
    ) {
        let expected = sample(&params, &logits, position);
        let mut state = SamplerState::new(&params, &[]);
        for (mut other, position) in others {
            state.sample(&mut other, position).expect("one is finite");
        }
        let given = state.sample(&mut logits.clone(), position).expect("one is finite");
        prop_assert_eq!(given.token, expected);
    }
}
