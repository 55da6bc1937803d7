//! The speculation of one request.

use super::acceptance::Acceptance;
use super::config::{DraftMethod, Speculation};
use super::drafter::{DraftContext, Drafter};
use super::ngram::PromptLookup;
use super::plan::{ByModel, Offer};
use super::prediction::Prediction;
use super::prefix_cache::CachedContinuation;
use crate::request::DraftCounts;

/// The shares of drafts that a new request is expected to accept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FirstRates {
    pub of_found: f32,
    pub of_model: f32,
}

/// The drafters of one request, and what became of their drafts.
#[derive(Debug)]
pub(crate) struct RequestSpeculation {
    /// The first of them that finds something drafts.
    drafters: Vec<Box<dyn Drafter>>,
    /// The accepted share of the drafts that these found.
    of_found: Acceptance,
    /// The accepted share of the drafts of the draft model.
    of_model: Acceptance,
    /// True if the latest offer was one of the draft model.
    by_model: bool,
    adaptive: bool,
    /// The draft of the next step.
    draft: Vec<u32>,
    pub counts: DraftCounts,
}

impl RequestSpeculation {
    /// For a request of `prompt_len` tokens, which may generate `max_tokens`; `rates` are the
    /// shares of drafts that other requests accepted.
    pub fn new(
        config: &Speculation,
        rates: FirstRates,
        prediction: Vec<u32>,
        prompt_len: usize,
        max_tokens: usize,
    ) -> Self {
        let mut drafters: Vec<Box<dyn Drafter>> = vec![Box::new(CachedContinuation)];
        if !prediction.is_empty() {
            drafters.push(Box::new(Prediction::new(prediction)));
        }
        if config.method == DraftMethod::Ngram {
            let expected_len = prompt_len.saturating_add(max_tokens);
            drafters.push(Box::new(PromptLookup::new(
                config.lookup_min,
                config.lookup_max,
                expected_len,
            )));
        }
        Self {
            drafters,
            of_found: Acceptance::new(rates.of_found, config.num_tokens),
            of_model: Acceptance::new(rates.of_model, config.num_tokens),
            by_model: false,
            adaptive: config.adaptive,
            draft: Vec::new(),
            counts: DraftCounts::default(),
        }
    }

    /// Drafts at most `most` tokens, and offers them.
    pub fn offer(&mut self, context: &DraftContext<'_>, most: usize) -> Option<Offer> {
        self.draft.clear();
        self.by_model = false;
        let most = match self.adaptive {
            true => most.min(self.of_found.depth()),
            false => most,
        };
        for drafter in &mut self.drafters {
            if most > 0 && self.draft.is_empty() {
                drafter.draft(context, most, &mut self.draft);
            }
        }
        (!self.draft.is_empty()).then(|| Offer {
            tokens: self.draft.len(),
            rate: self.of_found.rate(),
            by_model: None,
        })
    }

    /// Offers a draft of at most `most` tokens that the draft model would make.
    pub fn offer_of_model(&mut self, by_model: ByModel, most: usize) -> Offer {
        self.by_model = true;
        let tokens = match self.adaptive {
            true => most.min(self.of_model.depth()),
            false => most,
        };
        Offer {
            tokens,
            rate: self.of_model.rate(),
            by_model: Some(by_model),
        }
    }

    /// How many tokens of the offered draft to compute after `output_len` output tokens, of which
    /// `planned` are worth it. Where these are none, one is computed now and then, to learn
    /// whether drafts are accepted.
    pub fn tokens_to_draft(&mut self, planned: usize, output_len: usize) -> usize {
        match planned {
            0 => usize::from(self.acceptance().retries(output_len)),
            planned => planned,
        }
    }

    fn acceptance(&mut self) -> &mut Acceptance {
        match self.by_model {
            true => &mut self.of_model,
            false => &mut self.of_found,
        }
    }

    /// The draft model made `draft`.
    pub fn take_draft(&mut self, draft: Vec<u32>) {
        self.draft = draft;
    }

    /// True if the draft model made the draft.
    pub fn is_by_model(&self) -> bool {
        self.by_model
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
        self.counts.drafts += 1;
        self.counts.drafted += drafted;
        self.counts.accepted += accepted;
        self.acceptance().record(drafted, accepted);
    }
}
