//! Log-probabilities of tokens under the model's own distribution: before temperature, penalties
//! and filters, so that they do not depend on how a request is sampled. Where a grammar allows
//! several tokens, the distribution is over these; where it allows only one, the distribution is
//! over the whole vocabulary.

use super::softmax::{clean, log_sum_exp};
use super::top_k::{Candidate, top_k};

/// The log-probability of a token, and those of the most likely tokens at its position.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    pub token: u32,
    /// Natural logarithm; -inf for a token that the model or a mask rules out.
    pub logprob: f32,
    /// The most likely tokens, most likely first. `token` is among them only if it is one of the
    /// most likely.
    pub top: Vec<(u32, f32)>,
    /// The log-probabilities that the request asked for by token id, in the order of the request.
    pub asked: Vec<(u32, f32)>,
}

/// The log-probability of `token` by `logits` (`[vocab_size]`), and those of the `top_n` most likely
/// tokens and of `ids`.
pub fn token_logprobs(logits: &[f32], token: u32, top_n: usize, ids: &[u32]) -> TokenLogprobs {
    let normaliser = log_sum_exp(logits);
    let logprob = |logit: f32| match clean(logit) {
        // In a row where all is masked, the difference would be that of two infinities.
        f32::NEG_INFINITY => f32::NEG_INFINITY,
        // Rounding must not let a probability exceed 1.
        logit => (logit - normaliser).min(0.0),
    };
    let of = |token: u32| {
        let logit = logits.get(token as usize);
        logit.map_or(f32::NEG_INFINITY, |&logit| logprob(logit))
    };
    let mut top = Vec::new();
    top_k(logits, top_n, &mut top);
    top.sort_unstable_by(Candidate::ranking);
    TokenLogprobs {
        token,
        logprob: of(token),
        top: top
            .iter()
            .map(|kept| (kept.token, logprob(kept.value)))
            .collect(),
        asked: ids.iter().map(|&id| (id, of(id))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(actual: f32, expected: f64) -> bool {
        (f64::from(actual) - expected).abs() < 1e-5
    }

    #[test]
    fn are_the_logarithm_of_the_softmax() {
        let logits = [1.0, 3.0, -2.0, 3.0];
        let total: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
        let given = token_logprobs(&logits, 2, 2, &[]);
        assert!(close(given.logprob, (f64::exp(-2.0) / total).ln()));
        assert_eq!(given.top.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 3]);
        assert!(close(given.top[0].1, (f64::exp(3.0) / total).ln()));
        assert_eq!(given.top[0].1, given.top[1].1);
        let asked = token_logprobs(&logits, 0, 1, &[2, 9, 1, 2]).asked;
        assert_eq!(asked[..2], [(2, given.logprob), (9, f32::NEG_INFINITY)]);
        assert_eq!(asked[2..], [(1, given.top[0].1), (2, given.logprob)]);
    }

    #[test]
    fn zero_alternatives_is_the_token_alone() {
        let given = token_logprobs(&[0.0, 0.0], 1, 0, &[]);
        assert!(close(given.logprob, 0.5f64.ln()));
        assert!(given.top.is_empty());
    }

    #[test]
    fn masked_and_broken_logits_have_no_probability() {
        let logits = [f32::NEG_INFINITY, 2.0, f32::NAN];
        let given = token_logprobs(&logits, 0, 3, &[]);
        assert_eq!(given.logprob, f32::NEG_INFINITY);
        assert_eq!(given.top, [(1, 0.0)]);
        assert_eq!(
            token_logprobs(&logits, 2, 0, &[]).logprob,
            f32::NEG_INFINITY
        );
        assert_eq!(
            token_logprobs(&[f32::NAN; 3], 1, 3, &[]).logprob,
            f32::NEG_INFINITY
        );
        assert_eq!(
            token_logprobs(&logits, 77, 0, &[]).logprob,
            f32::NEG_INFINITY
        );
    }

    #[test]
    fn an_infinite_logit_is_certain() {
        let given = token_logprobs(&[0.0, f32::INFINITY], 1, 1, &[]);
        assert_eq!((given.logprob, given.top), (0.0, vec![(1, 0.0)]));
    }
}
