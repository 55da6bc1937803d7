//! Which drafts are worth their rows.

use super::costs::StepCosts;
use super::model_time::ModelTime;

/// Drafts are computed if they are expected to bring this many times as many tokens a second.
const GAIN: f32 = 1.02;

/// A row of a draft in a step with prefill costs as much as this many tokens of a prompt at most,
/// because it has logits.
const DRAFT_ROW: f32 = 1.25;

/// A draft that a request offers for the next step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Offer {
    /// Tokens of the draft.
    pub tokens: usize,
    /// The probability that a token of it is accepted if those before it were.
    pub rate: f32,
    /// `None` if the draft exists already.
    pub by_model: Option<ByModel>,
}

/// The draft model would have to make the draft.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ByModel {
    /// The tokens that it has to compute before it can draft.
    pub missing: usize,
    /// Tokens that the request may still generate.
    pub remaining: usize,
}

/// How long a step takes by its rows.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StepTime<'a> {
    /// A step of decode rows alone.
    Decode(&'a StepCosts),
    /// A step that also has `prefill` tokens of prompts. Each of its tokens takes `row` seconds.
    WithPrefill { prefill: usize, row: f32 },
}

impl StepTime<'_> {
    /// The time with `rows` decode rows and no drafts. `None` if it has to be measured (again).
    fn base(&self, rows: usize) -> Option<f32> {
        match self {
            Self::Decode(costs) => costs.base(rows),
            Self::WithPrefill { .. } => self.expected(rows, 0),
        }
    }

    /// The time with `drafted` rows of drafts as well.
    fn expected(&self, rows: usize, drafted: usize) -> Option<f32> {
        match self {
            Self::Decode(costs) => costs.expected(rows + drafted),
            Self::WithPrefill { prefill, row } => {
                Some(row * ((prefill + rows) as f32 + DRAFT_ROW * drafted as f32))
            }
        }
    }
}

/// How many tokens of each offer to compute in a step with `rows` decode rows, so that the step
/// brings the most tokens a second: a step with more rows takes longer, the draft model takes its
/// time by `model`, and the `j`-th token of an offer is accepted with the probability `rate` to the
/// power of `j`.
pub(crate) fn plan(
    rows: usize,
    offers: &[Offer],
    step: StepTime<'_>,
    model: Option<&StepCosts>,
) -> Vec<usize> {
    let none = vec![0; offers.len()];
    let Some(base) = step.base(rows) else {
        return none;
    };
    let mut best = (GAIN * rows as f32 / base, none);
    // Drafts that exist are computed without those of the model, too, because the first forward
    // pass of the model may cost more than all that it brings.
    for model in std::iter::once(None).chain(model.map(Some)) {
        if let Some(better) = best_of(rows, offers, step, model, best.0) {
            best = better;
        }
    }
    best.1
}

/// The best number of tokens of each offer with its tokens a second, if these are more than
/// `least`.
fn best_of(
    rows: usize,
    offers: &[Offer],
    step: StepTime<'_>,
    model: Option<&StepCosts>,
    least: f32,
) -> Option<(f32, Vec<usize>)> {
    let mut gains: Vec<(f32, usize)> = Vec::new();
    for (index, offer) in offers.iter().enumerate() {
        if offer.by_model.is_none() || model.is_some() {
            let powers = std::iter::successors(Some(offer.rate), |gain| Some(gain * offer.rate));
            gains.extend(powers.take(offer.tokens).map(|gain| (gain, index)));
        }
    }
    // A stable sort keeps the tokens of an offer in order.
    gains.sort_by(|a, b| b.0.total_cmp(&a.0));
    let (mut tokens, mut best, mut chosen) = (rows as f32, least, 0);
    let mut model = model.map(ModelTime::new);
    let mut planned = vec![0; offers.len()];
    for (count, &(gain, index)) in (1..).zip(&gains) {
        tokens += gain;
        if let (Some(model), Some(by_model)) = (&mut model, &offers[index].by_model) {
            model.add(planned[index], by_model.missing, by_model.remaining);
        }
        planned[index] += 1;
        let Some(seconds) = step.expected(rows, count) else {
            break;
        };
        let seconds = seconds + model.as_ref().map_or(0.0, ModelTime::seconds);
        if tokens / seconds > best {
            (best, chosen) = (tokens / seconds, count);
        }
    }
    let mut planned = vec![0; offers.len()];
    for (_, index) in &gains[..chosen] {
        planned[*index] += 1;
    }
    (chosen > 0).then_some((best, planned))
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
        Offer {
            tokens,
            rate,
            by_model: None,
        }
    }

    fn by_model(tokens: usize, rate: f32, missing: usize) -> Offer {
        let by_model = Some(ByModel {
            missing,
            remaining: 1000,
        });
        Offer {
            by_model,
            ..offer(tokens, rate)
        }
    }

    fn decode(rows: usize, offers: &[Offer], costs: &StepCosts) -> Vec<usize> {
        plan(rows, offers, StepTime::Decode(costs), None)
    }

    #[test]
    fn nothing_is_drafted_before_the_time_without_drafts_is_known() {
        let mut costs = StepCosts::new();
        assert_eq!(decode(1, &[offer(4, 0.9)], &costs), [0]);
        costs.record(1, 1.0);
        assert_eq!(decode(1, &[offer(4, 0.9)], &costs), [4]);
    }

    #[test]
    fn cheap_rows_are_all_used_and_dear_rows_only_where_they_pay() {
        let memory_bound = costs(|rows| 1.0 + 0.01 * rows as f32);
        assert_eq!(decode(1, &[offer(4, 0.5)], &memory_bound), [4]);
        let compute_bound = costs(|rows| rows as f32);
        assert_eq!(decode(1, &[offer(4, 0.9)], &compute_bound), [0]);
        let between = costs(|rows| 1.0 + 0.3 * rows as f32);
        let planned = decode(1, &[offer(4, 0.6)], &between)[0];
        assert!((1..4).contains(&planned), "{planned}");
        assert_eq!(decode(1, &[offer(4, 0.1)], &between), [0]);
    }

    #[test]
    fn the_likeliest_offers_come_first() {
        let between = costs(|rows| 1.0 + 0.15 * rows as f32);
        let offers = [offer(4, 0.1), offer(4, 0.95), offer(4, 0.3)];
        let planned = decode(3, &offers, &between);
        assert_eq!((planned[0], planned[1]), (0, 4), "{planned:?}");
    }

    #[test]
    fn a_full_batch_on_a_compute_bound_device_drafts_nothing() {
        let compute_bound = costs(|rows| 8.0 + rows as f32);
        assert_eq!(decode(64, &[offer(4, 0.5); 64], &compute_bound), [0; 64]);
    }

    #[test]
    fn the_draft_model_is_used_where_its_time_pays() {
        let step = costs(|rows| 1.0 + 0.01 * rows as f32);
        let plan = |offers: &[Offer], model: &StepCosts| {
            plan(offers.len(), offers, StepTime::Decode(&step), Some(model))
        };
        let small = costs(|rows| 0.1 + 0.001 * rows as f32);
        assert_eq!(plan(&[by_model(4, 0.8, 1)], &small), [4]);
        assert_eq!(plan(&[by_model(4, 0.1, 1)], &small), [0]);
        let large = costs(|rows| 0.6 + 0.001 * rows as f32);
        assert_eq!(plan(&[by_model(4, 0.5, 1)], &large), [0]);
        // The forward passes of the model are shared by all requests.
        assert_eq!(plan(&[by_model(1, 0.8, 1); 8], &large), [1; 8]);
        // A prompt that the draft model has not seen.
        assert_eq!(plan(&[by_model(4, 0.8, 100_000)], &small), [0]);
        // A draft that exists is computed even where one of the model does not pay.
        let both = [offer(2, 0.3), by_model(4, 0.4, 1)];
        assert_eq!(plan(&both, &large), [2, 0]);
    }

    #[test]
    fn beside_a_prompt_drafts_are_compared_with_its_tokens() {
        let mixed = StepTime::WithPrefill {
            prefill: 512,
            row: 0.001,
        };
        assert_eq!(plan(1, &[offer(4, 0.5)], mixed, None), [4]);
        assert_eq!(plan(64, &[offer(4, 0.05); 64], mixed, None), [0; 64]);
        // Each forward pass of the model takes as long as the step.
        let slow = costs(|_| 0.5);
        let offers = [by_model(4, 0.5, 1)];
        assert_eq!(plan(1, &offers, mixed, Some(&slow)), [0]);
        let fast = costs(|_| 0.005);
        assert_eq!(plan(1, &offers, mixed, Some(&fast)), [4]);
    }
}
