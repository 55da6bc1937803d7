//! llama-server's answers to a completion: one object, or one for each piece of text and one at the
//! end.

use std::sync::Arc;

use hearth_engine::output::{Detokenize, token_text};
use serde_json::{Map, Value, json};

use crate::generate::{Finish, MatchedStop, PieceToken, Update};
use crate::numbers::finite;
use crate::respond::{ChunkFormat, Whole};
use crate::sse;
use crate::tally::Tally;

/// Writes the answers of one request.
pub struct Answers {
    pub tokenizer: Arc<dyn Detokenize>,
    pub model: String,
    /// The text of each prompt.
    pub prompts: Vec<String>,
    /// Continuations of each prompt.
    pub copies: usize,
    /// `generation_settings`, one for each prompt.
    pub settings: Vec<Value>,
    pub probabilities: bool,
    pub return_tokens: bool,
    pub timings_per_token: bool,
    /// The fields of a complete answer that are wanted; none are all of them.
    pub response_fields: Vec<String>,
}

impl Answers {
    /// The answer of choice `index`, complete.
    pub fn whole(&self, index: usize, whole: &Whole, finish: &Finish, tally: &Tally) -> Value {
        let mut answer = self.end(index, finish, whole.text.contains('\n'), tally);
        answer["content"] = whole.text.as_str().into();
        if self.return_tokens {
            answer["tokens"] = whole.ids.as_slice().into();
        }
        if self.probabilities {
            answer["completion_probabilities"] = self.probabilities(&whole.tokens);
        }
        self.selected(answer)
    }

    /// The end of an answer. The content is empty, because a stream has sent it already.
    fn end(&self, index: usize, finish: &Finish, has_new_line: bool, tally: &Tally) -> Value {
        let counts = tally.counts(index);
        let (stop_type, stopping_word) = match (finish.reason, &finish.matched) {
            (_, Some(MatchedStop::Text(word))) => ("word", word.as_str()),
            ("length", _) => ("limit", ""),
            ("stop", _) => ("eos", ""),
            _ => ("none", ""),
        };
        let prompt = index / self.copies;
        json!({
            "index": index,
            "content": "",
            "tokens": [],
            // A request has no slot that another one could ask for.
            "id_slot": -1,
            "stop": true,
            "model": self.model,
            "tokens_predicted": counts.completion,
            "tokens_evaluated": counts.prompt,
            "tokens_cached": counts.cached,
            "generation_settings": self.settings[prompt],
            "prompt": self.prompts[prompt],
            "has_new_line": has_new_line,
            "truncated": false,
            "stop_type": stop_type,
            "stopping_word": stopping_word,
            "timings": timings(index, tally),
        })
    }

    /// A piece of a stream.
    fn piece(&self, index: usize, text: &str, ids: &[u32], tally: &Tally) -> Value {
        let counts = tally.counts(index);
        let mut piece = json!({
            "index": index,
            "content": text,
            "tokens": ids,
            "stop": false,
            "id_slot": -1,
            "tokens_predicted": counts.completion,
            "tokens_evaluated": counts.prompt,
        });
        if self.timings_per_token {
            piece["timings"] = timings(index, tally);
        }
        piece
    }

    fn probabilities(&self, tokens: &[PieceToken]) -> Value {
        let one = |(id, logprob): (u32, f32)| {
            let (token, bytes) = token_text(&*self.tokenizer, id);
            json!({"id": id, "token": token, "bytes": bytes, "logprob": finite(logprob)})
        };
        let entries = tokens.iter().map(|PieceToken { logprobs, .. }| {
            let mut entry = one((logprobs.token, logprobs.logprob));
            entry["top_logprobs"] = logprobs.top.iter().copied().map(one).collect();
            entry
        });
        entries.collect()
    }

    /// The wanted fields of `answer`. As in llama-server, a field within another one is named by its
    /// path, and a missing one is left out.
    fn selected(&self, answer: Value) -> Value {
        if self.response_fields.is_empty() {
            return answer;
        }
        let found = self.response_fields.iter().filter_map(|path| {
            let mut names = path.split('/');
            let found = names.try_fold(&answer, |within, name| within.get(name));
            found.map(|value| (path.clone(), value.clone()))
        });
        Value::Object(found.collect::<Map<_, _>>())
    }
}

/// The times of choice `index`: those of the prompt end with the first text of the request.
fn timings(index: usize, tally: &Tally) -> Value {
    let counts = tally.counts(index);
    let total = tally.elapsed();
    let prompt = tally.first_text_after().unwrap_or(total);
    let part = |tokens: usize, seconds: f64| {
        let (count, ms) = (tokens as f64, seconds * 1e3);
        // A rate of nothing is not a number, which JSON has as null.
        let rate = (tokens > 0 && ms > 0.0).then(|| (ms / count, count / seconds));
        (tokens, ms, rate.unzip())
    };
    let computed = counts.prompt.saturating_sub(counts.cached);
    let (prompt_n, prompt_ms, of_prompt) = part(computed, prompt.as_secs_f64());
    let decoding = total.saturating_sub(prompt).as_secs_f64();
    let (predicted_n, predicted_ms, of_output) = part(counts.completion, decoding);
    json!({
        "cache_n": counts.cached,
        "prompt_n": prompt_n,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": of_prompt.0,
        "prompt_per_second": of_prompt.1,
        "predicted_n": predicted_n,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": of_output.0,
        "predicted_per_second": of_output.1,
    })
}

/// The events of a stream. It has no end mark: `stop` is true in the last event of each choice.
pub struct Pieces {
    answers: Answers,
    /// True for each choice whose text has a line break so far.
    has_new_line: Vec<bool>,
}

impl Pieces {
    pub fn new(answers: Answers) -> Self {
        let choices = answers.prompts.len() * answers.copies;
        Self {
            answers,
            has_new_line: vec![false; choices],
        }
    }
}

impl ChunkFormat for Pieces {
    fn update(&mut self, index: usize, update: Update, tally: &Tally, out: &mut Vec<u8>) {
        match update {
            Update::Text(piece) => {
                self.has_new_line[index] |= piece.text.contains('\n');
                let mut event = self.answers.piece(index, &piece.text, &piece.ids, tally);
                if self.answers.probabilities {
                    let tokens = self.answers.probabilities(&piece.tokens);
                    event["completion_probabilities"] = tokens;
                }
                sse::push(out, &event);
            }
            Update::Finished(finish) => {
                if !finish.ids.is_empty() {
                    let event = self.answers.piece(index, "", &finish.ids, tally);
                    sse::push(out, &event);
                }
                let has_new_line = self.has_new_line[index];
                let end = self.answers.end(index, &finish, has_new_line, tally);
                sse::push(out, &self.answers.selected(end));
            }
            _ => {}
        }
    }

    fn close(&mut self, _tally: &Tally, _out: &mut Vec<u8>) {}

    fn end_mark(&self) -> &'static [u8] {
        b""
    }
}
