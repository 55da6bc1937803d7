//! How long the draft model is expected to take.

use super::costs::StepCosts;

/// The tokens of a request that the draft model has not seen are computed once. Their time is
/// divided among this many steps, or as many as the request has tokens left.
const AMORTISED_OVER: usize = 64;

/// A request with more tokens to compute than this has not been drafted for lately.
const FEW: usize = 16;

/// The time of the forward passes that make the drafts of one step: the first drafts one token of
/// each request, the second another one of those that want two, and so on.
#[derive(Debug)]
pub(super) struct ModelTime<'a> {
    costs: &'a StepCosts,
    /// The rows of each forward pass.
    rows: Vec<usize>,
    seconds: f32,
}

impl<'a> ModelTime<'a> {
    pub fn new(costs: &'a StepCosts) -> Self {
        Self {
            costs,
            rows: Vec::new(),
            seconds: 0.0,
        }
    }

    /// A request with `drafted` tokens wants another one. `missing` of its tokens have to be
    /// computed before the first, and it may generate `remaining`.
    pub fn add(&mut self, drafted: usize, missing: usize, remaining: usize) {
        let mut rows = 1;
        if drafted == 0 {
            rows = missing.min(FEW);
            if missing > FEW {
                let steps = remaining.clamp(1, AMORTISED_OVER);
                self.seconds += self.costs.estimate(missing) / steps as f32;
            }
        }
        if drafted == self.rows.len() {
            self.rows.push(0);
        } else {
            self.seconds -= self.costs.estimate(self.rows[drafted]);
        }
        self.rows[drafted] += rows;
        self.seconds += self.costs.estimate(self.rows[drafted]);
    }

    pub fn seconds(&self) -> f32 {
        self.seconds.max(0.0)
    }
}
