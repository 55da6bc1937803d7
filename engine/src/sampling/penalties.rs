//! Penalties on tokens that have occurred before.

use std::collections::HashMap;

use hearth_forward::LogitEdit;

use super::params::SamplingParams;

/// How often tokens have occurred in one request, and the penalties for it.
#[derive(Debug)]
pub struct Penalties {
    repetition: f32,
    presence: f32,
    frequency: f32,
    /// Occurrences in the output, by token; 0 for a token that occurs in the prompt only, which
    /// is subject to the repetition penalty only. The map is sparse: the cost of a step grows with
    /// the number of distinct tokens.
    occurrences: HashMap<u32, u32>,
}

impl Penalties {
    /// `None` if `params` set no penalties, so that nothing need be counted.
    pub fn new(params: &SamplingParams, prompt: &[u32]) -> Option<Self> {
        let repetition = params.repetition_penalty;
        if repetition == 1.0 && params.presence_penalty == 0.0 && params.frequency_penalty == 0.0 {
            return None;
        }
        let occurrences = if repetition == 1.0 {
            HashMap::new()
        } else {
            prompt.iter().map(|&token| (token, 0)).collect()
        };
        Some(Self {
            repetition,
            presence: params.presence_penalty,
            frequency: params.frequency_penalty,
            occurrences,
        })
    }

    /// Counts `token` as part of the output.
    pub fn record(&mut self, token: u32) {
        *self.occurrences.entry(token).or_insert(0) += 1;
    }

    /// The edits that amount to [`apply`](Self::apply), by token.
    pub fn edits(&self) -> HashMap<u32, LogitEdit> {
        let edit = |(&token, &count): (&u32, &u32)| {
            let edit = LogitEdit {
                token,
                bias: 0.0,
                factor: self.repetition,
                amount: self.amount(count),
            };
            (token, edit)
        };
        self.occurrences.iter().map(edit).collect()
    }

    /// The amount to subtract for `count` occurrences in the output.
    fn amount(&self, count: u32) -> f32 {
        match count {
            0 => 0.0,
            count => self.frequency * count as f32 + self.presence,
        }
    }

    /// Lowers (or, with negative penalties, raises) the logits of tokens that have occurred.
    /// Masked logits stay masked.
    pub fn apply(&self, logits: &mut [f32]) {
        for (&token, &count) in &self.occurrences {
            let Some(logit) = logits.get_mut(token as usize) else {
                continue;
            };
            // Dividing a negative logit would make its token more likely.
            *logit = if *logit > 0.0 {
                *logit / self.repetition
            } else {
                *logit * self.repetition
            };
            *logit -= self.amount(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn params(repetition: f32, presence: f32, frequency: f32) -> SamplingParams {
        SamplingParams {
            repetition_penalty: repetition,
            presence_penalty: presence,
            frequency_penalty: frequency,
            ..SamplingParams::default()
        }
    }

    #[test]
    fn nothing_is_tracked_when_all_penalties_are_off() {
        assert!(Penalties::new(&params(1.0, 0.0, 0.0), &[1, 2]).is_none());
        assert!(Penalties::new(&params(1.0, 0.1, 0.0), &[1, 2]).is_some());
    }

    #[test]
    fn tokens_outside_the_vocabulary_are_ignored() {
        let penalties = Penalties::new(&params(2.0, 0.0, 0.0), &[1, 99]).expect("one is on");
        let mut logits = [4.0, 4.0];
        penalties.apply(&mut logits);
        assert_eq!(logits, [4.0, 2.0]);
    }

    #[test]
    fn a_masked_logit_stays_masked() {
        let mut penalties = Penalties::new(&params(0.5, -2.0, -2.0), &[0]).expect("all are on");
        penalties.record(0);
        let mut logits = [f32::NEG_INFINITY];
        penalties.apply(&mut logits);
        assert_eq!(logits, [f32::NEG_INFINITY]);
    }

    proptest! {
        #[test]
        fn agree_with_counting_the_whole_history(
            logits in prop::collection::vec(-10f32..10.0, 12),
            prompt in prop::collection::vec(0u32..12, 0..8),
            output in prop::collection::vec(0u32..12, 0..20),
            repetition in prop_oneof![Just(1.0f32), 0.1f32..2.0],
            presence in prop_oneof![Just(0.0f32), -2f32..2.0],
            frequency in prop_oneof![Just(0.0f32), -2f32..2.0],
        ) {
            let mut expected = logits.clone();
            for (token, logit) in expected.iter_mut().enumerate() {
                let token = token as u32;
                if prompt.contains(&token) || output.contains(&token) {
                    *logit *= if *logit > 0.0 { 1.0 / repetition } else { repetition };
                }
                let count = output.iter().filter(|&&t| t == token).count();
                *logit -= frequency * count as f32;
                *logit -= presence * f32::from(u8::from(count > 0));
            }

            let mut actual = logits;
            if let Some(mut penalties) = Penalties::new(&params(repetition, presence, frequency), &prompt) {
                output.iter().for_each(|&token| penalties.record(token));
                penalties.apply(&mut actual);
            }
            for (a, e) in actual.iter().zip(&expected) {
                prop_assert!((a - e).abs() < 1e-3, "{} against {}", a, e);
            }
        }
    }
}
