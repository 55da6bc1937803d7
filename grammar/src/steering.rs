//! Steers an output to its end before the tokens run out, so that it is never cut where it could
//! have been complete.
//!
//! A *way* is a list of tokens that completes the output. Far from the limit nothing changes. Near
//! it, the mask has only tokens that make no way longer: text that goes on within a string or a
//! number, and the next token of the way. At last it has only the way.

mod search;

pub(crate) use self::search::{completing, search};
use crate::json_text::Position;
use crate::mask::Mask;
use crate::vocabulary::Vocabulary;

/// The tokens by which text within a string may make the way longer before it is checked again: a
/// character of several tokens, or a pattern.
const MARGIN: usize = 8;

/// How an output is steered.
#[derive(Debug)]
pub(crate) struct Steering {
    /// The most tokens by which one token can make the way longer.
    rise: usize,
    /// The way to the end from an earlier position, without the tokens that were taken since.
    way: Option<Vec<u32>>,
    /// With more tokens left than these, the way is short enough.
    check_below: usize,
    position: Position,
}

/// The tokens that may come next.
#[derive(Debug, PartialEq)]
pub(crate) enum Steered {
    /// All that the grammar allows.
    Free,
    /// The ones that make the way no longer, and this one.
    Careful(u32),
    /// This one.
    Only(u32),
}

impl Steering {
    pub fn new(rise: usize) -> Self {
        Self {
            rise,
            way: None,
            check_below: usize::MAX,
            position: Position::default(),
        }
    }

    /// The output goes on with `token`, whose bytes are `bytes`.
    pub fn advance(&mut self, token: u32, bytes: &[u8]) {
        self.position.advance(bytes);
        if let Some(way) = &mut self.way
            && way.first() == Some(&token)
        {
            way.remove(0);
        }
    }

    /// The tokens that may come next with `left` tokens left. `leads` returns a way that still completes the
    /// output of `walk`, and `search` finds one.
    pub fn next<W>(
        &mut self,
        left: usize,
        walk: &mut W,
        leads: impl FnOnce(&mut W, Vec<u32>) -> Option<Vec<u32>>,
        search: impl FnOnce(&mut W, Position) -> Option<Vec<u32>>,
    ) -> Steered {
        if left > self.check_below {
            return Steered::Free;
        }
        let known = self.way.take().and_then(|way| leads(walk, way));
        let Some(way) = known.or_else(|| search(walk, self.position)) else {
            // It may be found from a later position.
            self.check_below = left.saturating_sub(MARGIN);
            return Steered::Free;
        };
        let length = way.len();
        let next = way.first().copied();
        self.way = Some(way);
        let Some(next) = next else {
            return Steered::Free;
        };
        // A token may rise the way once more before it is seen.
        let safe = length + MARGIN + self.rise;
        if left <= length + MARGIN {
            self.check_below = left;
            Steered::Only(next)
        } else if left <= safe {
            self.check_below = left;
            Steered::Careful(next)
        } else {
            // The way gets longer by the rise with each token at most, while one token less is left.
            self.check_below = left - 1 - (left - 1 - safe) / (self.rise + 1);
            Steered::Free
        }
    }

    /// `mask` with the tokens that `steered` leaves.
    pub fn narrowed(&self, mask: &Mask, steered: &Steered, vocabulary: &Vocabulary) -> Mask {
        let set = |words: &mut [u32], token: u32| {
            if let Some(word) = words.get_mut(token as usize / 32) {
                *word |= 1 << (token % 32);
            }
        };
        match steered {
            Steered::Free => Mask::clone(mask),
            Steered::Only(token) => {
                let mut words = vec![0; mask.len()];
                set(&mut words, *token);
                words.into()
            }
            Steered::Careful(token) => {
                let plain = vocabulary.plain(self.position.in_string());
                let both = mask.iter().zip(plain).map(|(a, b)| a & b);
                let mut words: Vec<u32> = both.collect();
                set(&mut words, *token);
                words.into()
            }
        }
    }

    /// The length of a way from the beginning, or from the position that was checked last.
    pub fn length_by(
        &mut self,
        search: impl FnOnce(Position) -> Option<Vec<u32>>,
    ) -> Option<usize> {
        if self.way.is_none() {
            self.way = search(self.position);
        }
        self.way.as_ref().map(Vec::len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(steering: &mut Steering, left: usize, way: usize) -> Steered {
        steering.next(left, &mut (), |_, _| None, |_, _| Some(vec![7; way]))
    }

    #[test]
    fn an_output_is_free_first_then_careful_and_then_follows_its_way() {
        let mut steering = Steering::new(10);
        assert_eq!(next(&mut steering, 1000, 3), Steered::Free);
        assert_eq!(next(&mut steering, 3 + 8 + 10 + 1, 3), Steered::Free);
        assert_eq!(next(&mut steering, 3 + 8 + 10, 3), Steered::Careful(7));
        assert_eq!(next(&mut steering, 3 + 8, 3), Steered::Only(7));
        assert_eq!(next(&mut steering, 1, 3), Steered::Only(7));
    }

    #[test]
    fn the_way_is_looked_for_before_it_could_have_become_too_long() {
        for rise in [0, 1, 10, 300] {
            let mut steering = Steering::new(rise);
            let (mut left, mut way, mut searches) = (4000, 1, 0);
            while left > 0 {
                let mut looked = false;
                let steered = steering.next(
                    left,
                    &mut (),
                    |_, _| None,
                    |_, _| {
                        looked = true;
                        Some(vec![7; way])
                    },
                );
                searches += usize::from(looked);
                if steered != Steered::Free {
                    break;
                }
                // The worst token that there is.
                way += rise;
                left -= 1;
                assert!(way <= left, "{rise}: {way} of {left}");
            }
            assert!(searches < 1000, "{rise}: {searches}");
        }
    }
}
