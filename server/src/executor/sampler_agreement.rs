//! A property test: the engine's sampler and the reference of the device's sampler agree, so that
//! a request gets the same distribution of tokens whether or not its device samples.

use hearth_engine::SamplingParams;
use hearth_engine::sampler::SamplerState;
use hearth_shaders::check::{Random, acceptable_tokens};

fn params(vocab: usize, random: &mut Random) -> SamplingParams {
    let share = |random: &mut Random| random.within(1, 999) as f32 / 1000.0;
    let some = |random: &mut Random, value: f32| if random.one_in(2) { value } else { 0.0 };
    let token = |random: &mut Random| random.below(vocab + 2) as u32;
    SamplingParams {
        min_tokens: random.below(3) * 5,
        stop_token_ids: vec![token(random), token(random)],
        temperature: [0.0, 0.4, 0.8, 1.0, 1.7][random.below(5)],
        top_p: if random.one_in(2) { share(random) } else { 1.0 },
        top_k: random.one_in(2).then(|| random.within(1, 60) as u32),
        min_p: share(random) * share(random) * some(random, 1.0),
        repetition_penalty: 1.0 + some(random, 0.3),
        presence_penalty: some(random, 0.5),
        frequency_penalty: some(random, -0.25),
        logit_bias: vec![(token(random), some(random, 3.0))],
        seed: Some(random.bits()),
        ..SamplingParams::default()
    }
}

#[test]
fn the_engine_samples_a_token_that_a_device_may_sample_for_the_same_request() {
    let mut random = Random::seeded(random_seed());
    for _ in 0..4000 {
        let vocab = random.within(1, 700);
        let params = params(vocab, &mut random);
        let prompt: Vec<u32> = (0..20).map(|_| random.below(vocab) as u32).collect();
        let mut sampler = SamplerState::new(&params, &prompt);
        let generated = random.below(12);
        for _ in 0..generated {
            sampler.record(random.below(vocab.min(9)) as u32);
        }
        let sample_params = sampler.sample_params(generated, None);
        let mut row = logits(vocab, &mut random);
        let acceptable = acceptable_tokens(&row, &sample_params);
        let sampled = sampler.sample(&mut row, generated);
        let token = sampled.map_or(-1, |sampled| sampled.token as i32);
        assert!(
            acceptable.contains(&token),
            "{token}, not {acceptable:?}: {params:?}"
        );
    }
}

/// Logits with few distinct values, so that ties are common, or with many; some are NaN or minus
/// infinity.
fn logits(vocab: usize, random: &mut Random) -> Vec<f32> {
    let mut logits = random.normal(vocab);
    if random.one_in(3) {
        for logit in &mut logits {
            // Adding zero removes negative zeros, which the reference ranks behind positive ones.
            *logit = (*logit * 3.0).round() / 2.0 + 0.0;
        }
    } else {
        logits.iter_mut().for_each(|logit| *logit *= 3.0);
    }
    logits[random.below(vocab)] = f32::NAN;
    logits[random.below(vocab)] = f32::NEG_INFINITY;
    logits
}

fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    let seed = RandomState::new().hash_one(0);
    eprintln!("seed {seed}");
    seed
}
