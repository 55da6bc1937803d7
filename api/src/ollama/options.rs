//! The field `options` of Ollama's requests.

use hearth_engine::SamplingParams;
use hearth_engine::output::TextOptions;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::error::{ApiError, out_of_bounds};
use crate::fields::bounds::at_least;
use crate::fields::sampling::SamplingFields;
use crate::fields::wire::OneOrMany;
use crate::prompt;
use crate::served::Served;

/// The options. They include those that this server does not implement, so that they are refused by
/// name unless their value changes nothing.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    num_predict: Option<i64>,
    num_ctx: Option<i64>,
    temperature: Option<f64>,
    top_k: Option<i64>,
    top_p: Option<f64>,
    min_p: Option<f64>,
    seed: Option<i64>,
    stop: Option<OneOrMany>,
    repeat_penalty: Option<f64>,
    presence_penalty: Option<f64>,
    frequency_penalty: Option<f64>,
    repeat_last_n: Option<i64>,
    typical_p: Option<f64>,
    tfs_z: Option<f64>,
    mirostat: Option<i64>,
    mirostat_tau: Option<f64>,
    mirostat_eta: Option<f64>,
    penalize_newline: Option<bool>,
    num_keep: Option<i64>,
    // Options for starting Ollama's runner. They are refused, because the model is loaded already.
    numa: Option<IgnoredAny>,
    num_batch: Option<IgnoredAny>,
    num_gpu: Option<IgnoredAny>,
    main_gpu: Option<IgnoredAny>,
    low_vram: Option<IgnoredAny>,
    use_mmap: Option<IgnoredAny>,
    use_mlock: Option<IgnoredAny>,
    num_thread: Option<IgnoredAny>,
}

impl Options {
    /// The engine's parameters for a prompt of `tokens`.
    ///
    /// # Errors
    /// 400 with field, bound and value.
    pub fn check(
        self,
        served: &Served,
        prompt_field: &str,
        tokens: usize,
    ) -> Result<(SamplingParams, TextOptions), ApiError> {
        self.checked(served, prompt_field, tokens)
            .map_err(|error| match error.param.as_deref() {
                Some(param) if param == prompt_field => error,
                _ => error.within("options"),
            })
    }

    fn checked(
        mut self,
        served: &Served,
        prompt_field: &str,
        tokens: usize,
    ) -> Result<(SamplingParams, TextOptions), ApiError> {
        self.refuse_unsupported()?;
        let room = prompt::output_room(served, prompt_field, tokens)?;
        let room = self.within_num_ctx(prompt_field, tokens, room)?;
        let max_tokens = match self.num_predict {
            None => prompt::suggested(served, room),
            // -1 is "without a limit" and -2 "to the end of the context", which are the same here.
            Some(-1 | -2) => room,
            asked => at_least("num_predict", 1, asked)?.map_or(room, |asked| asked.min(room)),
        };
        let fields = SamplingFields {
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
            repetition_penalty: self.repeat_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            seed: self.seed,
            stop: self.stop.take().unwrap_or_default(),
            ..SamplingFields::default()
        };
        let params = SamplingParams {
            max_tokens,
            ..fields.params(&served.defaults)?
        };
        let text = TextOptions {
            stop: fields.stop_strings()?.to_vec(),
            ..TextOptions::default()
        };
        Ok((params, text))
    }

    /// The output tokens that `num_ctx` leaves, which bounds prompt and output together. A value
    /// above the model's own context has no effect.
    fn within_num_ctx(
        &self,
        prompt_field: &str,
        tokens: usize,
        room: usize,
    ) -> Result<usize, ApiError> {
        let Some(given) = at_least("num_ctx", 2, self.num_ctx)? else {
            return Ok(room);
        };
        if tokens >= given {
            let message = format!(
                "`{prompt_field}` has {tokens} tokens; with at least one output token it may have \
                 at most {} in `options.num_ctx` of {given}",
                given - 1
            );
            return Err(ApiError::context_length(prompt_field, message));
        }
        Ok(room.min(given - tokens))
    }

    fn refuse_unsupported(&self) -> Result<(), ApiError> {
        if let Some(given @ (..=-2 | 1..)) = self.repeat_last_n {
            let bound = "left out, or -1: penalties here look at the whole context";
            return Err(out_of_bounds("repeat_last_n", bound, given));
        }
        let fields = [
            ("repeat_last_n", self.repeat_last_n == Some(0)),
            ("typical_p", self.typical_p.is_some_and(|p| p != 1.0)),
            ("tfs_z", self.tfs_z.is_some_and(|z| z != 1.0)),
            ("mirostat", self.mirostat.is_some_and(|m| m != 0)),
            ("mirostat_tau", self.mirostat_tau.is_some()),
            ("mirostat_eta", self.mirostat_eta.is_some()),
            ("penalize_newline", self.penalize_newline == Some(false)),
            ("num_keep", self.num_keep.is_some_and(|n| n != 0)),
            ("numa", self.numa.is_some()),
            ("num_batch", self.num_batch.is_some()),
            ("num_gpu", self.num_gpu.is_some()),
            ("main_gpu", self.main_gpu.is_some()),
            ("low_vram", self.low_vram.is_some()),
            ("use_mmap", self.use_mmap.is_some()),
            ("use_mlock", self.use_mlock.is_some()),
            ("num_thread", self.num_thread.is_some()),
        ];
        match fields.into_iter().find(|(_, asked)| *asked) {
            Some((field, _)) => Err(ApiError::unsupported(field)),
            None => Ok(()),
        }
    }
}
