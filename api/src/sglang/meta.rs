//! The answers of `/generate`: one object for each choice. In a stream every event has that object
//! again, with all of the output so far.

use std::sync::Arc;

use hearth_engine::DraftCounts;
use hearth_engine::logprobs::TokenLogprobs;
use hearth_engine::output::{Detokenize, token_text};
use serde::Serialize;

use crate::generate::{Finish, MatchedStop};
use crate::numbers::finite;
use crate::respond::Whole;
use crate::sglang::request::LogprobsAsked;
use crate::tally::Tally;

/// A token with its log-probability: `[logprob, id, text]`. The text is null unless the request
/// asks for it.
type Scored = (Option<f32>, u32, Option<String>);

#[derive(Debug, Serialize)]
pub struct Answer<'a> {
    text: &'a str,
    output_ids: &'a [u32],
    meta_info: MetaInfo<'a>,
    /// The choice that an event is about, in the stream of a batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
}

#[derive(Debug, Serialize)]
struct MetaInfo<'a> {
    id: &'a str,
    finish_reason: Option<FinishReason<'a>>,
    prompt_tokens: usize,
    completion_tokens: usize,
    cached_tokens: usize,
    cached_tokens_details: CachedTokens,
    weight_version: &'static str,
    /// Seconds, for choices that have finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    e2e_latency: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_token_latency: Option<f64>,
    #[serde(flatten)]
    drafts: Option<Drafts>,
    #[serde(flatten)]
    logprobs: Option<Logprobs>,
}

/// The drafts of a choice, where the server speculates.
#[derive(Debug, PartialEq, Serialize)]
struct Drafts {
    /// Forward passes that had a draft of the choice.
    spec_verify_ct: usize,
    /// The tokens that such a forward pass brought on average.
    spec_accept_length: f64,
    /// The part of the drafted tokens that became output.
    spec_accept_rate: f64,
    spec_num_correct_drafts: usize,
    spec_num_proposed_drafts: usize,
}

impl From<DraftCounts> for Drafts {
    fn from(counts: DraftCounts) -> Self {
        let per = |part: usize, whole: usize| part as f64 / whole.max(1) as f64;
        Self {
            spec_verify_ct: counts.drafts,
            spec_accept_length: per(counts.drafts + counts.accepted, counts.drafts),
            spec_accept_rate: per(counts.accepted, counts.drafted),
            spec_num_correct_drafts: counts.accepted,
            spec_num_proposed_drafts: counts.drafted,
        }
    }
}

#[derive(Debug, Serialize)]
struct CachedTokens {
    device: usize,
    host: usize,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum FinishReason<'a> {
    Stop {
        matched: Option<&'a MatchedStop>,
    },
    Length {
        length: usize,
    },
    Abort {
        message: &'static str,
        status_code: Option<u16>,
        err_type: Option<&'static str>,
    },
}

#[derive(Debug, Serialize)]
struct Logprobs {
    input_token_logprobs: Vec<Scored>,
    output_token_logprobs: Vec<Scored>,
    output_token_logprobs_length: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    input_top_logprobs: Option<Vec<Option<Vec<Scored>>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_top_logprobs: Option<Vec<Option<Vec<Scored>>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input_token_ids_logprobs: Option<Vec<Option<Vec<Scored>>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_token_ids_logprobs: Option<Vec<Option<Vec<Scored>>>>,
}

/// The facts about one prompt that its answers depend on.
#[derive(Debug)]
pub struct PromptMeta {
    pub rid: String,
    pub max_new_tokens: usize,
    pub skip_special: bool,
    /// True if the text includes the token that ended it.
    pub keep_stop: bool,
    pub logprobs: Option<LogprobsAsked>,
    /// The first prompt token that the request asks about, which has no log-probability.
    pub first_scored: u32,
}

/// Writes the answers of one request.
pub struct Writer {
    pub tokenizer: Arc<dyn Detokenize>,
    pub prompts: Vec<PromptMeta>,
    /// The number of choices per prompt.
    pub n: usize,
    /// True if the server drafts tokens.
    pub speculates: bool,
    /// True if log-probabilities have the texts of their tokens with them.
    pub texts: bool,
    /// True if a prefill server answers with the log-probabilities of the prompt, which routers put
    /// before those of the decode server.
    pub scored_by_prefill: bool,
}

impl Writer {
    fn prompt(&self, index: usize) -> &PromptMeta {
        &self.prompts[index / self.n]
    }

    /// Adds the token or the string that ended choice `index` to its tokens and, if the request
    /// asks for it, to its text.
    pub fn end(&self, index: usize, whole: &mut Whole) {
        let Some(Finish {
            matched: Some(MatchedStop::Token(token)),
            ..
        }) = whole.finish
        else {
            return;
        };
        whole.ids.push(token);
        let prompt = self.prompt(index);
        let shown = !(prompt.skip_special && self.tokenizer.is_special(token));
        if prompt.keep_stop && shown {
            let bytes = self.tokenizer.token_bytes(token);
            whole.text.push_str(&String::from_utf8_lossy(&bytes));
        }
    }

    /// The object for choice `index` with its output so far.
    pub fn answer<'a>(
        &'a self,
        index: usize,
        whole: &'a Whole,
        tally: &Tally,
        indexed: bool,
    ) -> Answer<'a> {
        let prompt = self.prompt(index);
        let counts = tally.counts(index);
        let ended = whole.finish.is_some();
        Answer {
            text: &whole.text,
            output_ids: &whole.ids,
            meta_info: MetaInfo {
                id: &prompt.rid,
                finish_reason: whole
                    .finish
                    .as_ref()
                    .map(|finish| finish_reason(finish, prompt.max_new_tokens)),
                prompt_tokens: counts.prompt,
                completion_tokens: counts.completion,
                cached_tokens: counts.cached,
                cached_tokens_details: CachedTokens {
                    device: counts.cached,
                    host: 0,
                },
                weight_version: "default",
                e2e_latency: ended.then(|| tally.elapsed().as_secs_f64()),
                first_token_latency: tally
                    .first_text_after()
                    .filter(|_| ended)
                    .map(|after| after.as_secs_f64()),
                drafts: self.speculates.then(|| Drafts::from(counts.drafts)),
                logprobs: prompt
                    .logprobs
                    .as_ref()
                    .map(|asked| self.logprobs(prompt, asked, whole)),
            },
            index: indexed.then_some(index),
        }
    }

    fn logprobs(&self, prompt: &PromptMeta, asked: &LogprobsAsked, whole: &Whole) -> Logprobs {
        let output = || whole.tokens.iter().map(|token| &token.logprobs);
        let (top, ids) = (asked.top > 0, !asked.ids.is_empty());
        let known = match self.scored_by_prefill {
            true => &[],
            false => &whole.prompt_logprobs[..],
        };
        let known = known.iter().skip(asked.from.unwrap_or(0));
        // The log-probabilities of the prompt are known before any of the output.
        let input: Vec<Option<&TokenLogprobs>> = known.map(Option::as_ref).collect();
        let first = (!input.is_empty()).then(|| self.scored(None, prompt.first_scored));
        let rest = || input.iter().skip(1).flatten();
        type Pairs = fn(&TokenLogprobs) -> &[(u32, f32)];
        let input_lists = |pairs: Pairs| {
            let first = (!input.is_empty()).then_some(None);
            let rest = rest().map(|logprobs| Some(self.scored_all(pairs(logprobs))));
            first.into_iter().chain(rest).collect()
        };
        let output_lists = |pairs: Pairs| {
            let lists = output().map(|logprobs| Some(self.scored_all(pairs(logprobs))));
            lists.collect()
        };
        Logprobs {
            input_token_logprobs: first
                .into_iter()
                .chain(rest().map(|logprobs| self.own(logprobs)))
                .collect(),
            output_token_logprobs: output().map(|logprobs| self.own(logprobs)).collect(),
            output_token_logprobs_length: whole.tokens.len(),
            input_top_logprobs: top.then(|| input_lists(|logprobs| &logprobs.top)),
            output_top_logprobs: top.then(|| output_lists(|logprobs| &logprobs.top)),
            input_token_ids_logprobs: ids.then(|| input_lists(|logprobs| &logprobs.asked)),
            output_token_ids_logprobs: ids.then(|| output_lists(|logprobs| &logprobs.asked)),
        }
    }

    fn own(&self, logprobs: &TokenLogprobs) -> Scored {
        self.scored(Some(logprobs.logprob), logprobs.token)
    }

    fn scored_all(&self, tokens: &[(u32, f32)]) -> Vec<Scored> {
        let each = tokens.iter();
        each.map(|&(token, logprob)| self.scored(Some(logprob), token))
            .collect()
    }

    fn scored(&self, logprob: Option<f32>, token: u32) -> Scored {
        let text = self.texts.then(|| token_text(&*self.tokenizer, token).0);
        (logprob.map(finite), token, text)
    }
}

fn finish_reason(finish: &Finish, max_new_tokens: usize) -> FinishReason<'_> {
    match finish.reason {
        "length" => FinishReason::Length {
            length: max_new_tokens,
        },
        "abort" => FinishReason::Abort {
            message: "the request was aborted",
            status_code: None,
            err_type: None,
        },
        _ => FinishReason::Stop {
            matched: finish.matched.as_ref(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafts_are_counted_with_the_token_that_is_sampled_in_any_case() {
        let drafts = Drafts::from(DraftCounts {
            drafts: 4,
            drafted: 12,
            accepted: 6,
        });
        assert_eq!((drafts.spec_verify_ct, drafts.spec_accept_length), (4, 2.5));
        assert_eq!(drafts.spec_accept_rate, 0.5);
        let none = Drafts::from(DraftCounts::default());
        assert_eq!((none.spec_accept_length, none.spec_accept_rate), (0.0, 0.0));
    }
}
