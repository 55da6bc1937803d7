//! The drafts of a request, and what the sampler makes of them.

use std::slice::ChunksExactMut;

use super::grammar::NewTokens;
use super::phase::Phase;
use super::request::ActiveRequest;
use crate::constraint::WaitBudget;
use crate::request::{DraftCounts, Event};
use crate::speculation::{
    ByModel, CachedText, DraftContext, FirstRates, Offer, RequestSpeculation, Speculation,
};

impl ActiveRequest {
    /// How many tokens may be drafted after the last one. The one after the draft is sampled, so
    /// it must not be beyond the end of the output.
    fn draft_limit(&self) -> usize {
        let continues = self.outcome.is_none()
            && self.late_row.is_none()
            && self.unsent_forced.is_none()
            && self.phase == Phase::Local;
        if self.may_speculate && self.prompt_is_done && continues {
            self.remaining().saturating_sub(1)
        } else {
            0
        }
    }

    /// Drafts at most `most` tokens, and offers them. `rates` are the shares of drafts that other
    /// requests accepted.
    pub fn offer_draft(
        &mut self,
        config: &Speculation,
        rates: FirstRates,
        cache: &dyn CachedText,
        most: usize,
    ) -> Option<Offer> {
        let most = most.min(self.draft_limit());
        if most == 0 {
            return None;
        }
        let prediction = &mut self.prediction;
        let (prompt_len, longest) = (self.prompt_len, self.params.max_tokens);
        let speculation = self.speculation.get_or_insert_with(|| {
            let prediction = std::mem::take(prediction);
            let new = RequestSpeculation::new(config, rates, prediction, prompt_len, longest);
            Box::new(new)
        });
        let context = DraftContext {
            tokens: &self.tokens,
            prompt_len,
            namespace: &self.namespace,
            cache,
        };
        speculation.offer(&context, most)
    }

    /// Offers a draft of at most `most` tokens that the draft model would make, after it has
    /// computed `missing` tokens.
    pub fn offer_of_model(&mut self, missing: usize, most: usize) -> Option<Offer> {
        let most = most.min(self.draft_limit());
        let remaining = self.remaining();
        let by_model = ByModel { missing, remaining };
        let speculation = self.speculation.as_mut().filter(|_| most > 0);
        speculation.map(|speculation| speculation.offer_of_model(by_model, most))
    }

    /// How many tokens of the offered draft to compute, of which `planned` are worth it.
    pub fn tokens_to_draft(&mut self, planned: usize) -> usize {
        let output_len = self.output_len();
        let speculation = self.speculation.as_mut();
        speculation.map_or(0, |speculation| {
            speculation.tokens_to_draft(planned, output_len)
        })
    }

    /// The draft model made `draft`.
    pub fn take_draft(&mut self, draft: Vec<u32>) {
        if let Some(speculation) = &mut self.speculation {
            speculation.take_draft(draft);
        }
    }

    /// True if the draft model made the draft.
    pub fn is_drafted_by_model(&self) -> bool {
        let speculation = self.speculation.as_ref();
        speculation.is_some_and(|speculation| speculation.is_by_model())
    }

    /// True if anything may be drafted after the last token.
    pub fn can_draft(&self) -> bool {
        self.draft_limit() > 0
    }

    /// Cuts the draft to `len` tokens.
    pub fn cut_draft(&mut self, len: usize) {
        if let Some(speculation) = &mut self.speculation {
            speculation.cut(len);
        }
    }

    /// The draft of the next step.
    pub fn draft(&self) -> &[u32] {
        let speculation = self.speculation.as_ref();
        speculation.map_or(&[], |speculation| speculation.draft())
    }

    pub(super) fn draft_counts(&self) -> DraftCounts {
        let speculation = self.speculation.as_ref();
        speculation.map_or(DraftCounts::default(), |speculation| speculation.counts)
    }

    /// Samples the next token from the first of `rows`, and while it equals the next token of
    /// `draft` the token after it from the next row. `rows` has one row more than `draft`, and
    /// all of them are taken. Grammars get the time `budget` to answer between two rows. Returns
    /// the new tokens, and how many tokens of the draft were accepted.
    pub fn sample_draft(
        &mut self,
        rows: &mut ChunksExactMut<'_, f32>,
        draft: &[u32],
        budget: &mut WaitBudget,
    ) -> (NewTokens, usize) {
        let mut rows = rows.take(draft.len() + 1);
        let mut tokens = match rows.next() {
            Some(row) => self.sample(row),
            None => NewTokens::default(),
        };
        let mut accepted = 0;
        for &drafted in draft {
            let is_accepted = tokens.sampled == accepted + 1
                && tokens.forced == 0
                && self.outcome.is_none()
                && self.tokens.last() == Some(&drafted);
            match rows.next() {
                Some(row) if is_accepted => {
                    accepted += 1;
                    tokens += self.sample_within(row, budget);
                }
                _ => break,
            }
        }
        rows.for_each(drop);
        if draft.is_empty() {
            return (tokens, accepted);
        }
        if let Some(speculation) = &mut self.speculation {
            speculation.record(draft.len(), accepted);
        }
        (tokens, accepted)
    }

    /// Marks the tokens in the outbox, which one step brought: sampled, drafted and accepted, or
    /// forced by a grammar.
    pub(super) fn mark_run(&mut self) {
        let drafts = self.draft_counts();
        let tokens = |event: &Event| match event {
            Event::Token(_) => 1,
            Event::Forced(tokens) => tokens.len(),
            _ => 0,
        };
        let run = self.outbox.iter().map(tokens).sum();
        let mut latest = None;
        for event in self.outbox.iter_mut().rev() {
            let tokens = match event {
                Event::Token(token) => std::slice::from_mut(token),
                Event::Forced(tokens) => tokens,
                _ => continue,
            };
            for token in tokens.iter_mut().rev() {
                token.run = run;
                token.drafts = drafts;
                token.at = *latest.get_or_insert(token.at);
            }
        }
    }
}
