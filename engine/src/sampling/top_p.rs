//! Top-p (nucleus) filtering of a row, without sorting the row.

use super::top_k::Candidate;

/// Weights are summed in buckets by the upper bits of their floats: sign, exponent and 6 bits of
/// mantissa, so that a bucket spans less than 2 %. Weights are in [0, 1], so the buckets are in the
/// order of the weights.
const LOWER_BITS: u32 = 17;
const BUCKETS: usize = bucket(1.0) + 1;

const fn bucket(weight: f32) -> usize {
    (weight.to_bits() >> LOWER_BITS) as usize
}

/// Zeroes the `weights`, each in [0, 1], beyond the smallest set of highest-ranking tokens whose
/// share of the sum is at least `top_p`.
pub fn keep_top_p(weights: &mut [f32], top_p: f32) {
    let mut sums = vec![0f64; BUCKETS];
    for &weight in weights.iter() {
        sums[bucket(weight)] += f64::from(weight);
    }
    let enough = f64::from(top_p) * sums.iter().sum::<f64>();
    let mut above = 0.0;
    let mut crossed = None;
    for (number, sum) in sums.iter().enumerate().rev() {
        if above + sum >= enough {
            crossed = Some(number);
            break;
        }
        above += sum;
    }
    // Rounding may leave the sum of all weights just below `enough`: then nothing is cut.
    let Some(crossed) = crossed else { return };
    let Some(last) = last_kept(weights, crossed, enough - above) else {
        return;
    };
    for (token, weight) in weights.iter_mut().enumerate() {
        let beyond = *weight < last.value || (*weight == last.value && token > last.token as usize);
        *weight = if beyond { 0.0 } else { *weight };
    }
}

/// The token with which the sum of the weights in bucket `number`, taken by rank, reaches `enough`;
/// the last token of the bucket if rounding keeps the sum below it.
fn last_kept(weights: &[f32], number: usize, enough: f64) -> Option<Candidate> {
    let mut members: Vec<Candidate> = weights
        .iter()
        .enumerate()
        .filter(|(_, weight)| bucket(**weight) == number)
        .map(|(token, &value)| Candidate {
            token: token as u32,
            value,
        })
        .collect();
    members.sort_unstable_by(Candidate::ranking);
    let mut sum = 0.0;
    let reached = members.iter().position(|member| {
        sum += f64::from(member.value);
        sum >= enough
    });
    reached.map(|at| members[at]).or(members.last().copied())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ties_are_cut_from_the_highest_id_on() {
        let mut weights = [1.0, 0.5, 1.0, 1.0, 0.5];
        keep_top_p(&mut weights, 0.4);
        assert_eq!(weights, [1.0, 0.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn a_tiny_share_keeps_the_most_likely_token_and_a_full_one_keeps_all() {
        let row = [0.1, 1.0, 0.3];
        let kept = |top_p| {
            let mut weights = row;
            keep_top_p(&mut weights, top_p);
            weights
        };
        assert_eq!(kept(f32::MIN_POSITIVE), [0.0, 1.0, 0.0]);
        assert_eq!(kept(1.0), row);
    }

    proptest! {
        #[test]
        fn agrees_with_a_full_sort(
            // Sixteenths add up exactly, whatever the order; ties abound.
            mut weights in prop::collection::vec((0u8..=16).prop_map(|x| f32::from(x) / 16.0), 0..200),
            sixteenths in 1u8..16,
        ) {
            weights.push(1.0);
            let top_p = f32::from(sixteenths) / 16.0;
            let mut ranked: Vec<Candidate> = weights
                .iter()
                .enumerate()
                .map(|(token, &value)| Candidate { token: token as u32, value })
                .collect();
            ranked.sort_by(Candidate::ranking);
            let enough = top_p * weights.iter().sum::<f32>();
            let mut expected = vec![0.0; weights.len()];
            let mut sum = 0.0;
            for candidate in ranked {
                if sum < enough {
                    expected[candidate.token as usize] = candidate.value;
                    sum += candidate.value;
                }
            }
            keep_top_p(&mut weights, top_p);
            prop_assert_eq!(weights, expected);
        }
    }
}
