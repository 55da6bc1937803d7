//! Predicts after which tokens grammars force text.

use std::cell::Cell;
use std::rc::Rc;

/// The score of a token rises by this much each time that text was forced after it, and falls
/// by one each time that it was not. So a token that is common in free text is not mistaken
/// for one that ends a value because it did so once.
const RISE: i8 = 4;
const MOST: i8 = 8;

/// Scores of tokens by whether text was forced after them lately, in outputs of any grammar.
/// This is a guess at whether an answer is worth waiting for, and no more.
#[derive(Clone, Debug)]
pub(crate) struct ForcedTextPredictor(Rc<[Cell<i8>]>);

impl ForcedTextPredictor {
    pub fn new(vocab_size: usize) -> Self {
        Self((0..vocab_size).map(|_| Cell::new(0)).collect())
    }

    /// Records whether text was forced after `token`.
    pub fn record(&self, token: u32, forced: bool) {
        if let Some(score) = self.0.get(token as usize) {
            let change = if forced { RISE } else { -1 };
            score.set((score.get() + change).clamp(0, MOST));
        }
    }

    /// Whether text is likely to be forced after `token`.
    pub fn predicts(&self, token: u32) -> bool {
        self.0
            .get(token as usize)
            .is_some_and(|score| score.get() > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_forced_text_is_predicted_to_do_so_until_it_often_did_not() {
        let predictor = ForcedTextPredictor::new(10);
        assert!(!predictor.predicts(3) && !predictor.predicts(99));
        predictor.record(3, true);
        assert!(predictor.predicts(3) && !predictor.predicts(4));
        for _ in 0..4 {
            assert!(predictor.predicts(3));
            predictor.record(3, false);
        }
        assert!(!predictor.predicts(3));
        for _ in 0..100 {
            predictor.record(3, true);
        }
        for _ in 0..8 {
            predictor.record(3, false);
        }
        assert!(!predictor.predicts(3), "no prediction lasts for ever");
        predictor.record(99, true);
    }
}
