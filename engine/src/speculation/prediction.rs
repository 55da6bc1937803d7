//! Drafts from a prediction of the output that the request brings.

use super::drafter::{DraftContext, Drafter};
use super::ngram::NgramIndex;

/// How many of the last output tokens must be in the prediction for it to be taken up again.
const RESUME_MIN: usize = 2;
const RESUME_MAX: usize = 8;

/// Drafts the prediction from its beginning, and after a deviation from the place at which the
/// last output tokens stand in it.
#[derive(Debug)]
pub(super) struct Prediction {
    tokens: Vec<u32>,
    index: NgramIndex,
    /// Tokens of the output that were compared with the prediction.
    compared: usize,
    /// Where the output is in the prediction; `None` after a deviation.
    place: Option<usize>,
}

impl Prediction {
    pub fn new(tokens: Vec<u32>) -> Self {
        Self {
            index: NgramIndex::new(RESUME_MIN, RESUME_MAX, tokens.len()),
            tokens,
            compared: 0,
            place: Some(0),
        }
    }

    /// The place in the prediction after `output`.
    fn place_after(&mut self, output: &[u32]) -> Option<usize> {
        for &token in output.get(self.compared..).unwrap_or_default() {
            let is_next = |place: &usize| self.tokens.get(*place) == Some(&token);
            self.place = self.place.filter(is_next).map(|place| place + 1);
        }
        self.compared = output.len();
        if self.place.is_none() {
            let found = self.index.find(&self.tokens, output);
            self.place = found.map(|found| found.place);
        }
        self.place
    }
}

impl Drafter for Prediction {
    fn draft(&mut self, context: &DraftContext<'_>, most: usize, draft: &mut Vec<u32>) {
        self.index.extend(&self.tokens, usize::MAX >> 1);
        if let Some(place) = self.place_after(context.output()) {
            draft.extend(self.tokens[place..].iter().take(most));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prediction_is_followed_left_and_taken_up_again() {
        let mut prediction = Prediction::new(vec![1, 2, 3, 4, 5, 6]);
        prediction.index.extend(&prediction.tokens, 100);
        let mut place = |output: &[u32]| prediction.place_after(output);
        assert_eq!(place(&[]), Some(0));
        assert_eq!(place(&[1, 2]), Some(2));
        assert_eq!(place(&[1, 2, 9]), None, "9 is not predicted");
        assert_eq!(place(&[1, 2, 9, 4]), None, "one token is no evidence");
        assert_eq!(place(&[1, 2, 9, 4, 5]), Some(5));
        assert_eq!(place(&[1, 2, 9, 4, 5, 6]), Some(6), "the end");
        assert_eq!(place(&[1, 2, 9, 4, 5, 6, 7]), None);
    }
}
