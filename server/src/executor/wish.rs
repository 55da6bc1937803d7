//! A choice in the model's words.

use hearth_engine::{Choice, LogitEdit};
use hearth_model::runner::{self, Wish};

pub fn wish(choice: Choice) -> Wish {
    let choice = match choice {
        Choice::Token(choice) => choice,
        Choice::Logits => return Wish::Logits,
        Choice::Nothing => return Wish::Nothing,
    };
    let edit = |edit: &LogitEdit| runner::Edit {
        token: edit.token,
        bias: edit.bias,
        factor: edit.factor,
        amount: edit.amount,
    };
    Wish::Token(runner::Choice {
        temperature: choice.temperature,
        top_k: choice.top_k,
        top_p: choice.top_p,
        min_p: choice.min_p,
        draw: choice.draw,
        mask: choice.mask,
        edits: choice.edits.iter().map(edit).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
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
    fn the_engine_samples_what_a_device_should_choose_for_the_same_request() {
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
            let Wish::Token(choice) = wish(Choice::Token(sampler.choice(generated, None))) else {
                panic!("a token is wished for");
            };
            let mut row = logits(vocab, &mut random);
            let right = acceptable_tokens(&row, &choice);
            let sampled = sampler.sample(&mut row, generated);
            let token = sampled.map_or(-1, |sampled| sampled.token as i32);
            assert!(right.contains(&token), "{token}, not {right:?}: {params:?}");
        }
    }

    /// Of few distinct values, so that ties abound, or plain ones, with some that say nothing.
    fn logits(vocab: usize, random: &mut Random) -> Vec<f32> {
        let mut logits = random.normal(vocab);
        if random.one_in(3) {
            for logit in &mut logits {
                // No negative zero, which the reference ranks behind the other.
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
}
