//! The k largest values of a row, without sorting the row.

use std::cmp::Ordering;

/// A token and its value: a logit or a weight.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    pub token: u32,
    pub value: f32,
}

impl Candidate {
    /// Largest value first; of equal values, lowest token first.
    pub fn ranking(&self, other: &Self) -> Ordering {
        other
            .value
            .total_cmp(&self.value)
            .then(self.token.cmp(&other.token))
    }
}

/// Fills `kept` with the `k` largest entries of `row`, in no particular order, or with fewer if
/// fewer are neither -inf nor NaN. Of equal values, the lowest tokens are kept.
pub fn top_k(row: &[f32], k: usize, kept: &mut Vec<Candidate>) {
    kept.clear();
    if k == 0 {
        return;
    }
    // One pass: collect the values above a threshold, and raise the threshold to the k-th largest
    // value each time the buffer has grown to twice k. After the start of a row hardly any value
    // exceeds it.
    let capacity = k.saturating_mul(2).max(64);
    let mut threshold = f32::NEG_INFINITY;
    for (token, &value) in row.iter().enumerate() {
        if value > threshold {
            // A later token that only equals the threshold ranks behind those that are kept.
            kept.push(Candidate {
                token: token as u32,
                value,
            });
            if kept.len() == capacity {
                kept.select_nth_unstable_by(k - 1, Candidate::ranking);
                kept.truncate(k);
                threshold = kept[k - 1].value;
            }
        }
    }
    if kept.len() > k {
        kept.select_nth_unstable_by(k - 1, Candidate::ranking);
        kept.truncate(k);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_a_full_sort(
            // Few distinct values, so that ties abound.
            row in prop::collection::vec(prop_oneof![
                4 => (-40i32..40).prop_map(|x| x as f32 / 4.0),
                1 => Just(f32::NEG_INFINITY),
                1 => Just(f32::NAN),
            ], 0..600),
            k in 0usize..300,
        ) {
            let mut expected: Vec<Candidate> = row
                .iter()
                .enumerate()
                .filter(|(_, value)| **value > f32::NEG_INFINITY)
                .map(|(token, &value)| Candidate { token: token as u32, value })
                .collect();
            expected.sort_by(Candidate::ranking);
            expected.truncate(k);
            let mut kept = Vec::new();
            top_k(&row, k, &mut kept);
            kept.sort_by(Candidate::ranking);
            prop_assert_eq!(kept, expected);
        }
    }
}
