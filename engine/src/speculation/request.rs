//! The speculation of one request.

use super::acceptance::Acceptance;
use super::config::Speculation;
use super::drafter::{DraftContext, Drafter};
use super::ngram::PromptLookup;
use super::plan::Offer;
use super::prediction::Prediction;
use super::prefix_cache::CachedContinuation;
use crate::request::DraftCounts;

/// The drafters of one request, and what became of their drafts.
#[derive(Debug)]
pub(crate) struct RequestSpeculation {
    /// The first of them that finds something drafts.
    drafters: Vec<Box<dyn Drafter>>,
    acceptance: Acceptance,
    adaptive: bool,
    /// The draft of the next step.
    draft: Vec<u32>,
    pub counts: DraftCounts,
}

impl RequestSpeculation {
    /// For a request of `prompt_len` tokens, which may generate `max_tokens`; `rate` is the
    /// share of drafts that other requests accepted.
    pub fn new(
        config: &Speculation,
        rate: f32,
        prediction: Vec<u32>,
        prompt_len: usize,
        max_tokens: usize,
    ) -> Self {
        let mut drafters: Vec<Box<dyn Drafter>> = vec![Box::new(CachedContinuation)];
        if !prediction.is_empty() {
            drafters.push(Box::new(Prediction::new(prediction)));
        }
        let expected_len = prompt_len.saturating_add(max_tokens);
        drafters.push(Box::new(PromptLookup::new(
            config.lookup_min,
            config.lookup_max,
            expected_len,
        )));
        Self {
            drafters,
            acceptance: Acceptance::new(rate, config.num_tokens),
            adaptive: config.adaptive,
            draft: Vec::new(),
            counts: DraftCounts::default(),
        }
    }

    /// Drafts at most `most` tokens, and offers them.
    pub fn offer(&mut self, context: &DraftContext<'_>, most: usize) -> Option<Offer> {
        self.draft.clear();
        let most = match self.adaptive {
            true => most.min(self.acceptance.depth()),
            false => most,
        };
        for drafter in &mut self.drafters {
            if most > 0 && self.draft.is_empty() {
                drafter.draft(context, most, &mut self.draft);
            }
        }
        (!self.draft.is_empty()).then(|| Offer {
            tokens: self.draft.len(),
            rate: self.acceptance.rate(),
        })
    }

    /// Records that `planned` tokens of the offered draft are worth computing, after `output_len` output
    /// tokens. Where these are none, one may be computed nevertheless, to learn whether drafts
    /// are accepted.
    pub fn keep(&mut self, planned: usize, output_len: usize) {
        let kept = match planned {
            0 => usize::from(self.acceptance.retries(output_len)),
            planned => planned,
        };
        self.draft.truncate(kept);
    }

    /// Cuts the draft to `len` tokens.
    pub fn cut(&mut self, len: usize) {
        self.draft.truncate(len);
    }

    /// The draft of the next step.
    pub fn draft(&self) -> &[u32] {
        &self.draft
    }

    /// Records that the first `accepted` of `drafted` tokens became output.
    pub fn record(&mut self, drafted: usize, accepted: usize) {
        self.counts.drafted += drafted;
        self.counts.accepted += accepted;
        self.acceptance.record(drafted, accepted);
    }
}
