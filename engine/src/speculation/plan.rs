//! Which drafts are worth their rows.

use super::costs::StepCosts;

/// Drafts are computed if they are expected to bring this many times as many tokens a second.
const GAIN: f32 = 1.02;

/// A draft that a request offers for the next step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Offer {
    /// Tokens of the draft.
    pub tokens: usize,
    /// The probability that a token of it is accepted if those before it were.
    pub rate: f32,
}

/// How many tokens of each offer to compute in a step of `rows` rows, so that the step brings the
/// most tokens a second: a step with more rows takes longer, and the `j`-th token of an offer
/// is accepted with the probability `rate` to the power of `j`.
pub(crate) fn plan(rows: usize, offers: &[Offer], costs: &StepCosts) -> Vec<usize> {
    let mut planned = vec![0; offers.len()];
    let Some(base) = costs.base(rows) else {
        return planned;
    };
    let mut gains: Vec<(f32, usize)> = Vec::new();
    for (index, offer) in offers.iter().enumerate() {
        let powers = std::iter::successors(Some(offer.rate), |gain| Some(gain * offer.rate));
        gains.extend(powers.take(offer.tokens).map(|gain| (gain, index)));
    }
    // A stable sort keeps the tokens of an offer in order.
    gains.sort_by(|a, b| b.0.total_cmp(&a.0));
    let (mut tokens, mut best, mut chosen) = (rows as f32, GAIN * rows as f32 / base, 0);
    for (count, (gain, _)) in (1..).zip(&gains) {
        tokens += gain;
        let Some(seconds) = costs.expected(rows + count) else {
            break;
        };
        if tokens / seconds > best {
            (best, chosen) = (tokens / seconds, count);
        }
    }
    for (_, index) in &gains[..chosen] {
        planned[*index] += 1;
    }
    planned
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Measured times of 1 to 200 rows, by their ratio to the time of one row.
    fn costs(time: impl Fn(usize) -> f32) -> StepCosts {
        let mut costs = StepCosts::new();
        (1..200).for_each(|rows| costs.record(rows, time(rows)));
        (1..200).for_each(|rows| costs.record(rows, time(rows)));
        costs
    }

    fn offer(tokens: usize, rate: f32) -> Offer {
        Offer { tokens, rate }
    }

    #[test]
    fn nothing_is_drafted_before_the_time_without_drafts_is_known() {
        let mut costs = StepCosts::new();
        assert_eq!(plan(1, &[offer(4, 0.9)], &costs), [0]);
        costs.record(1, 1.0);
        assert_eq!(plan(1, &[offer(4, 0.9)], &costs), [4]);
    }

    #[test]
    fn cheap_rows_are_all_used_and_dear_rows_only_where_they_pay() {
        let memory_bound = costs(|rows| 1.0 + 0.01 * rows as f32);
        assert_eq!(plan(1, &[offer(4, 0.5)], &memory_bound), [4]);
        let compute_bound = costs(|rows| rows as f32);
        assert_eq!(plan(1, &[offer(4, 0.9)], &compute_bound), [0]);
        let between = costs(|rows| 1.0 + 0.3 * rows as f32);
        let planned = plan(1, &[offer(4, 0.6)], &between)[0];
        assert!((1..4).contains(&planned), "{planned}");
        assert_eq!(plan(1, &[offer(4, 0.1)], &between), [0]);
    }

    #[test]
    fn the_likeliest_offers_come_first() {
        let between = costs(|rows| 1.0 + 0.15 * rows as f32);
        let offers = [offer(4, 0.1), offer(4, 0.95), offer(4, 0.3)];
        let planned = plan(3, &offers, &between);
        assert_eq!((planned[0], planned[1]), (0, 4), "{planned:?}");
    }

    #[test]
    fn a_full_batch_on_a_compute_bound_device_drafts_nothing() {
        let compute_bound = costs(|rows| 8.0 + rows as f32);
        assert_eq!(plan(64, &[offer(4, 0.5); 64], &compute_bound), [0; 64]);
    }
}
