//! Where the last tokens of a text occurred before (prompt lookup decoding).

use super::drafter::{DraftContext, Drafter};

const NONE: u32 = u32::MAX;

/// The most places that a lookup compares. This bounds its cost for texts that repeat
/// themselves.
const MOST_PLACES: usize = 64;

/// The most tokens that enter the index in one step. A long prompt is indexed over the first
/// steps of its output.
const INDEXED_AT_ONCE: usize = 4096;

/// The most chains of the index.
const MOST_CHAINS: usize = 1 << 16;

/// Finds the places of a growing text by their last tokens. Places whose `min` tokens before
/// them have the same hash form a chain, latest first, as in LZ77 compressors, so a new token
/// costs the same however long the text is.
#[derive(Debug)]
pub(super) struct NgramIndex {
    min: usize,
    max: usize,
    /// The latest place of each chain.
    latest: Vec<u32>,
    /// For the place `p`, at index `p - min`, the one before it in its chain.
    before: Vec<u32>,
}

/// A place of the text before which stands the end of the tokens that were looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Match {
    /// The index of the token that follows.
    pub place: usize,
    /// How many tokens before it are equal; at most `max`.
    pub len: usize,
}

impl NgramIndex {
    /// An index of a text of about `expected_len` tokens.
    pub fn new(min: usize, max: usize, expected_len: usize) -> Self {
        let chains = expected_len.clamp(16, MOST_CHAINS).next_power_of_two();
        Self {
            min,
            max,
            latest: vec![NONE; chains],
            before: Vec::new(),
        }
    }

    /// Adds the next places of `text`, whose beginning has not changed, at most `most`. Returns
    /// whether the index has all places up to the end of the text.
    pub fn extend(&mut self, text: &[u32], most: usize) -> bool {
        let end = text.len().min(self.before.len() + self.min - 1 + most);
        let Ok(end_id) = u32::try_from(end) else {
            return false;
        };
        let first = self.before.len() + self.min;
        for (place, id) in (first..=end).zip(first as u32..=end_id) {
            let chain = self.chain(&text[place - self.min..place]);
            self.before
                .push(std::mem::replace(&mut self.latest[chain], id));
        }
        end == text.len()
    }

    /// The place in the indexed `text` before which most of the last tokens of `tail` stand, at
    /// least `min` and at most `max`; of several such places the latest. The end of `text` does
    /// not count.
    pub fn find(&self, text: &[u32], tail: &[u32]) -> Option<Match> {
        let wanted = &tail[tail.len().checked_sub(self.min)?..];
        let mut best: Option<Match> = None;
        let mut place = self.latest[self.chain(wanted)];
        for _ in 0..MOST_PLACES {
            if place == NONE {
                break;
            }
            let at = place as usize;
            if at < text.len() {
                let len = common_end(&text[..at], tail, self.max);
                if len >= self.min && best.is_none_or(|best| len > best.len) {
                    best = Some(Match { place: at, len });
                    if len == self.max {
                        break;
                    }
                }
            }
            place = self.before[at - self.min];
        }
        best
    }

    fn chain(&self, tokens: &[u32]) -> usize {
        let mix = |hash: u64, &token: &u32| {
            (hash.rotate_left(5) ^ u64::from(token)).wrapping_mul(0x9E37_79B9_7F4A_7C15)
        };
        let hash = tokens.iter().fold(0, mix);
        (hash >> 32) as usize & (self.latest.len() - 1)
    }
}

/// How many of the last tokens of `a` and `b` are equal, at most `most`.
fn common_end(a: &[u32], b: &[u32], most: usize) -> usize {
    let pairs = a.iter().rev().zip(b.iter().rev()).take(most);
    pairs.take_while(|(x, y)| x == y).count()
}

/// Drafts what followed the latest place at which the request's last tokens occurred before, in
/// prompt or output.
#[derive(Debug)]
pub(super) struct PromptLookup {
    index: NgramIndex,
}

impl PromptLookup {
    pub fn new(min: usize, max: usize, expected_len: usize) -> Self {
        Self {
            index: NgramIndex::new(min, max, expected_len),
        }
    }
}

impl Drafter for PromptLookup {
    fn draft(&mut self, context: &DraftContext<'_>, most: usize, draft: &mut Vec<u32>) {
        let tokens = context.tokens;
        if !self.index.extend(tokens, INDEXED_AT_ONCE) {
            return;
        }
        let Some(found) = self.index.find(tokens, tokens) else {
            return;
        };
        // A match that reaches the end of the text goes on with the draft itself, so that a
        // loop is drafted to any length.
        for place in found.place..found.place + most {
            let token = match tokens.get(place) {
                Some(&token) => token,
                None => draft[place - tokens.len()],
            };
            draft.push(token);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use proptest::prelude::*;

    use super::*;

    /// The latest of the places with the longest match, by comparing everything.
    fn naive(text: &[u32], tail: &[u32], min: usize, max: usize) -> Option<Match> {
        let matches = (0..text.len()).map(|place| Match {
            place,
            len: common_end(&text[..place], tail, max),
        });
        matches
            .filter(|found| found.len >= min)
            .max_by_key(|found| (found.len, found.place))
    }

    proptest! {
        #[test]
        fn a_lookup_finds_what_a_naive_search_finds(
            text in prop::collection::vec(0u32..4, 0..60),
            other in prop::collection::vec(0u32..4, 0..12),
            min in 1usize..5,
            more in 0usize..4,
            chunk in 1usize..70,
            expected_len in 0usize..100,
        ) {
            let max = min + more;
            let mut index = NgramIndex::new(min, max, expected_len);
            let mut end = 0;
            while end < text.len() {
                end = (end + chunk).min(text.len());
                prop_assert!(index.extend(&text[..end], usize::MAX >> 1));
                let text = &text[..end];
                prop_assert_eq!(index.find(text, text), naive(text, text, min, max));
            }
            // In a text that the tail is no part of, the end is a place like others, but
            // nothing follows it.
            prop_assert_eq!(index.find(&text, &other), naive(&text, &other, min, max));
        }
    }

    #[test]
    fn a_long_text_is_indexed_in_parts() {
        let text: Vec<u32> = (0..100).collect();
        let mut index = NgramIndex::new(2, 4, 100);
        assert!(!index.extend(&text, 40));
        assert!(!index.extend(&text, 40));
        assert!(index.extend(&text, 40));
        let tail = [7, 50, 51];
        let found = Some(Match { place: 52, len: 2 });
        assert_eq!(index.find(&text, &tail), found);
    }

    #[test]
    fn texts_that_repeat_themselves_cost_no_more_than_50_microseconds_a_step() {
        let period = |n: u32| (0..8192).map(|i| i % n).collect::<Vec<u32>>();
        let noise = (0..8192u32).map(|i| i.wrapping_mul(2654435761) >> 29);
        for mut text in [
            period(1),
            period(2),
            period(63),
            period(4096),
            noise.collect(),
        ] {
            let mut index = NgramIndex::new(2, 64, text.len());
            index.extend(&text, usize::MAX >> 1);
            let mut times = Vec::new();
            for step in 0..101 {
                text.push(step % 7);
                let start = Instant::now();
                assert!(index.extend(&text, INDEXED_AT_ONCE));
                std::hint::black_box(index.find(&text, &text));
                times.push(start.elapsed());
            }
            // The median, because another process may take the core.
            times.sort();
            assert!(times[50] < Duration::from_micros(50), "{:?}", times[50]);
        }
    }
}
