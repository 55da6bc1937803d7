//! The token counts of one request, and its line in the log.

use std::time::{Duration, Instant};

use hearth_engine::DraftCounts;
use serde::Serialize;

use crate::exchange::Exchange;
use crate::generate::Update;

/// OpenAI's usage object, summed over all choices of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    pub prompt_tokens: usize,
    pub completion_tokens: usize,
    pub total_tokens: usize,
    pub prompt_tokens_details: PromptTokensDetails,
    /// Present where tokens were drafted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_tokens_details: Option<CompletionTokensDetails>,
}

/// The numbers of drafted tokens; see `--speculative-config`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CompletionTokensDetails {
    /// Drafted tokens that are part of the output.
    pub accepted_prediction_tokens: usize,
    /// Drafted tokens that are not. They are not counted in `completion_tokens`.
    pub rejected_prediction_tokens: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PromptTokensDetails {
    /// Prompt tokens whose KV was taken from the prefix cache.
    pub cached_tokens: usize,
}

impl Usage {
    pub fn new(prompt_tokens: usize, cached_tokens: usize, completion_tokens: usize) -> Self {
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            prompt_tokens_details: PromptTokensDetails { cached_tokens },
            completion_tokens_details: None,
        }
    }

    /// With the counts of drafts, if there were any.
    fn with_drafts(self, drafts: DraftCounts) -> Self {
        let details = CompletionTokensDetails {
            accepted_prediction_tokens: drafts.accepted,
            rejected_prediction_tokens: drafts.drafted.saturating_sub(drafts.accepted),
        };
        Self {
            completion_tokens_details: (drafts.drafted > 0).then_some(details),
            ..self
        }
    }
}

/// The token counts of one choice.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub prompt: usize,
    pub cached: usize,
    pub completion: usize,
    pub drafts: DraftCounts,
    finish: Option<&'static str>,
}

/// Counts the tokens in a request's updates. When it is dropped it logs one line, however the
/// request ended.
pub struct Tally {
    request_id: String,
    /// The trace that the request is part of, if traces are exported.
    trace_id: Option<String>,
    route: &'static str,
    copies: usize,
    choices: Vec<Counts>,
    failure: Option<String>,
    arrived: Instant,
    first_text: Option<Instant>,
}

impl Tally {
    pub fn new(request_id: String, route: &'static str, prompts: usize, copies: usize) -> Self {
        let exchange = Exchange::current();
        let span = exchange
            .as_ref()
            .and_then(|exchange| exchange.span.as_ref());
        Self {
            request_id,
            trace_id: span.map(|span| span.trace_id().to_string()),
            route,
            copies,
            choices: vec![Counts::default(); prompts * copies],
            failure: None,
            arrived: Instant::now(),
            first_text: None,
        }
    }

    pub fn choices(&self) -> usize {
        self.choices.len()
    }

    pub fn record(&mut self, index: usize, update: &Update) {
        let counts = &mut self.choices[index];
        match update {
            Update::Started {
                prompt_tokens,
                cached_tokens,
            } => {
                (counts.prompt, counts.cached) = (*prompt_tokens, *cached_tokens);
            }
            Update::PromptLogprobs(_) | Update::Embedding(_) => {}
            Update::Text(piece) => {
                counts.completion = piece.completion_tokens;
                counts.drafts = piece.drafts;
                self.first_text.get_or_insert_with(Instant::now);
            }
            Update::Finished(finish) => {
                (counts.completion, counts.finish) =
                    (finish.completion_tokens, Some(finish.reason));
                counts.drafts = finish.drafts;
            }
            Update::Failed(error) => self.failure = Some(error.message.clone()),
        }
    }

    /// The counts of one choice so far.
    pub fn counts(&self, index: usize) -> Counts {
        self.choices[index]
    }

    /// The time since the request arrived.
    pub fn elapsed(&self) -> Duration {
        self.arrived.elapsed()
    }

    /// The time from the request's arrival to its first text; none before that text.
    pub fn first_text_after(&self) -> Option<Duration> {
        self.first_text.map(|at| at.duration_since(self.arrived))
    }

    /// The sums so far. A prompt counts once, however many copies continue it.
    pub fn usage(&self) -> Usage {
        let prompts = || self.choices.iter().step_by(self.copies);
        Usage::new(
            prompts().map(|counts| counts.prompt).sum(),
            prompts().map(|counts| counts.cached).sum(),
            self.choices.iter().map(|counts| counts.completion).sum(),
        )
        .with_drafts(self.drafts())
    }

    fn drafts(&self) -> DraftCounts {
        let each = || self.choices.iter().map(|counts| counts.drafts);
        DraftCounts {
            drafts: each().map(|drafts| drafts.drafts).sum(),
            drafted: each().map(|drafts| drafts.drafted).sum(),
            accepted: each().map(|drafts| drafts.accepted).sum(),
        }
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        let usage = self.usage();
        let outcome = match (
            &self.failure,
            self.choices.iter().all(|c| c.finish.is_some()),
        ) {
            (Some(_), _) => "failed",
            (None, true) => "finished",
            (None, false) => "cancelled",
        };
        let ms = |since: Instant| since.duration_since(self.arrived).as_millis() as u64;
        tracing::info!(
            request_id = self.request_id,
            trace_id = self.trace_id,
            route = self.route,
            outcome,
            error = self.failure,
            choices = self.choices.len(),
            prompt_tokens = usage.prompt_tokens,
            cached_tokens = usage.prompt_tokens_details.cached_tokens,
            completion_tokens = usage.completion_tokens,
            first_text_ms = self.first_text.map(ms),
            total_ms = ms(Instant::now()),
            "request"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::{Finish, Piece};

    #[test]
    fn a_prompt_counts_once_and_every_copy_its_own_tokens() {
        let mut tally = Tally::new(String::new(), "/test", 2, 2);
        for index in 0..4 {
            let prompt_tokens = if index < 2 { 10 } else { 20 };
            tally.record(
                index,
                &Update::Started {
                    prompt_tokens,
                    cached_tokens: index,
                },
            );
        }
        let piece = Piece {
            completion_tokens: 3,
            ..Piece::default()
        };
        tally.record(0, &Update::Text(piece));
        let finish = Finish {
            reason: "stop",
            matched: None,
            completion_tokens: 5,
            drafts: DraftCounts::default(),
            ids: Vec::new(),
        };
        tally.record(3, &Update::Finished(finish.clone()));
        assert_eq!(tally.usage(), Usage::new(30, 2, 8));
        let drafts = DraftCounts {
            drafts: 2,
            drafted: 7,
            accepted: 3,
        };
        tally.record(3, &Update::Finished(Finish { drafts, ..finish }));
        let usage = serde_json::to_value(tally.usage()).unwrap();
        assert_eq!(
            usage["completion_tokens_details"],
            serde_json::json!({
                "accepted_prediction_tokens": 3, "rejected_prediction_tokens": 4,
            })
        );
    }
}
