//! After which tokens grammars force text.

use std::cell::Cell;
use std::rc::Rc;

/// Rises with each time that text was forced after a token, and falls with each that it was
/// not: a token that is common in free text is not taken for one that ends a value because
/// it once did.
const RISE: i8 = 4;
const MOST: i8 = 8;

/// What was forced after which token lately, in outputs of any grammar; a guess at whether
/// an answer is worth waiting for, and no more.
#[derive(Clone, Debug)]
pub(crate) struct Habits(Rc<[Cell<i8>]>);

impl Habits {
    pub fn new(vocab_size: usize) -> Self {
        Self((0..vocab_size).map(|_| Cell::new(0)).collect())
    }

    pub fn note(&self, token: u32, forced: bool) {
        if let Some(score) = self.0.get(token as usize) {
            let change = if forced { RISE } else { -1 };
            score.set((score.get() + change).clamp(0, MOST));
        }
    }

    pub fn expects_force(&self, token: u32) -> bool {
        self.0
            .get(token as usize)
            .is_some_and(|score| score.get() > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_forced_text_is_expected_to_until_it_often_does_not() {
        let habits = Habits::new(10);
        assert!(!habits.expects_force(3) && !habits.expects_force(99));
        habits.note(3, true);
        assert!(habits.expects_force(3) && !habits.expects_force(4));
        for _ in 0..4 {
            assert!(habits.expects_force(3));
            habits.note(3, false);
        }
        assert!(!habits.expects_force(3));
        for _ in 0..100 {
            habits.note(3, true);
        }
        for _ in 0..8 {
            habits.note(3, false);
        }
        assert!(!habits.expects_force(3), "nothing is expected for ever");
        habits.note(99, true);
    }
}
