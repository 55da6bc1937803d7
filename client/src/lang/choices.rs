//! How `select` compares its choices. The three methods are SGLang's.

use serde::{Deserialize, Serialize};

/// A rule for which choice is the most likely one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChoiceMethod {
    /// The highest mean log-probability of a choice's tokens.
    #[default]
    TokenLengthNormalized,
    /// The choice whose first token is the most likely; among those with the same first token, the
    /// one whose second token is, and so on. A choice that has ended counts with its mean.
    GreedyTokenSelection,
    /// The highest mean gain of a token's log-probability over the one that it has without the
    /// prompt.
    UnconditionalLikelihoodNormalized,
}

/// The log-probabilities of one choice, in nats, one for each token.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ChoiceLogprobs {
    /// After the prompt.
    pub logprobs: Vec<f64>,
    /// Without the prompt; empty where the method does not ask for them. The first token has none,
    /// and counts as 0.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unconditional: Vec<f64>,
}

impl ChoiceMethod {
    /// True if the method compares with log-probabilities without the prompt.
    pub fn is_unconditional(self) -> bool {
        self == Self::UnconditionalLikelihoodNormalized
    }

    /// The score of each choice, and the index of the best, which is the first among equals. For
    /// the greedy method the scores are the means.
    pub fn best(self, choices: &[ChoiceLogprobs]) -> (Vec<f64>, usize) {
        let means = choices.iter().map(|choice| mean(&choice.logprobs));
        match self {
            Self::TokenLengthNormalized => {
                let scores: Vec<f64> = means.collect();
                let best = first_highest(scores.iter().copied().enumerate());
                (scores, best)
            }
            Self::UnconditionalLikelihoodNormalized => {
                let gains = choices.iter().map(gain);
                let scores: Vec<f64> = gains.collect();
                let best = first_highest(scores.iter().copied().enumerate());
                (scores, best)
            }
            Self::GreedyTokenSelection => {
                let scores: Vec<f64> = means.collect();
                let best = greedy(choices, &scores);
                (scores, best)
            }
        }
    }
}

fn mean(values: &[f64]) -> f64 {
    match values.len() {
        0 => 0.0,
        count => values.iter().sum::<f64>() / count as f64,
    }
}

fn gain(choice: &ChoiceLogprobs) -> f64 {
    let alone = choice.unconditional.iter().copied();
    let pairs = choice
        .logprobs
        .iter()
        .zip(alone.chain(std::iter::repeat(0.0)));
    let gains: Vec<f64> = pairs.map(|(after, alone)| after - alone).collect();
    mean(&gains)
}

fn first_highest(scores: impl Iterator<Item = (usize, f64)>) -> usize {
    let higher = |best: Option<(usize, f64)>, next: (usize, f64)| match best {
        Some(best) if next.1 <= best.1 || next.1.is_nan() => Some(best),
        _ => Some(next),
    };
    scores.fold(None, higher).map_or(0, |(index, _)| index)
}

fn greedy(choices: &[ChoiceLogprobs], means: &[f64]) -> usize {
    let longest = choices.iter().map(|choice| choice.logprobs.len()).max();
    let at = |index: usize, token: usize| {
        let logprobs = &choices[index].logprobs;
        logprobs.get(token).copied().unwrap_or(means[index])
    };
    let mut left: Vec<usize> = (0..choices.len()).collect();
    for token in 0..longest.unwrap_or(0) {
        let highest = left
            .iter()
            .map(|&index| at(index, token))
            .fold(f64::NEG_INFINITY, f64::max);
        left.retain(|&index| at(index, token) >= highest);
        if left.len() <= 1 {
            break;
        }
    }
    left.first().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choices(logprobs: &[&[f64]]) -> Vec<ChoiceLogprobs> {
        let each = logprobs.iter().map(|logprobs| ChoiceLogprobs {
            logprobs: logprobs.to_vec(),
            unconditional: Vec::new(),
        });
        each.collect()
    }

    #[test]
    fn the_mean_does_not_favour_short_choices() {
        let given = choices(&[&[-1.0], &[-0.5, -0.9], &[-0.7, -0.7]]);
        let (scores, best) = ChoiceMethod::TokenLengthNormalized.best(&given);
        assert_eq!((scores, best), (vec![-1.0, -0.7, -0.7], 1));
    }

    #[test]
    fn a_log_probability_of_zero_counts() {
        let given = choices(&[&[0.0, -2.0], &[-1.5]]);
        assert_eq!(ChoiceMethod::TokenLengthNormalized.best(&given).1, 0);
    }

    #[test]
    fn greedy_goes_token_by_token() {
        // The last has the best mean, and the first token of the others is more likely.
        let given = choices(&[&[-0.1, -3.0], &[-0.1, -2.0], &[-0.2, -0.2]]);
        let (_, best) = ChoiceMethod::GreedyTokenSelection.best(&given);
        assert_eq!(best, 1);
        assert_eq!(ChoiceMethod::TokenLengthNormalized.best(&given).1, 2);
        // The first has ended, and counts with its mean of -0.1.
        let given = choices(&[&[-0.1], &[-0.1, -2.0]]);
        assert_eq!(ChoiceMethod::GreedyTokenSelection.best(&given).1, 0);
    }

    #[test]
    fn the_unconditional_method_takes_the_gain() {
        let mut given = choices(&[&[-1.0, -1.0], &[-1.0, -2.0]]);
        given[0].unconditional = vec![0.0, -1.0];
        given[1].unconditional = vec![0.0, -9.0];
        let (scores, best) = ChoiceMethod::UnconditionalLikelihoodNormalized.best(&given);
        assert_eq!((scores, best), (vec![-0.5, 3.0], 1));
    }
}
