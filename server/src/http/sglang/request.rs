//! `/generate` as it comes in.

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::super::error::ApiError;
use super::super::openai::capped::{Capped, Noticed, Word, rest_of_seq};
use super::super::openai::sampling::{alternatives, out_of_bounds};
use super::super::openai::wire::Object;
use super::input::{Each, Ids};
use super::sampling::Sampling;

/// SGLang's `GenerateReqInput`, with what its router adds. Fields that this server does
/// not implement are here too, so that they are refused by name unless they ask for nothing.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GenerateRequest {
    pub model: Option<String>,
    pub text: Option<Each<String>>,
    pub input_ids: Option<Ids>,
    pub sampling_params: Option<Each<Object<Sampling>>>,
    pub rid: Option<Each<String>>,
    pub stream: Option<bool>,
    pub return_logprob: Option<Each<bool>>,
    pub logprob_start_len: Option<Each<i64>>,
    pub top_logprobs_num: Option<Each<i64>>,
    pub return_text_in_logprobs: Option<bool>,
    pub priority: Option<i64>,
    pub cache_salt: Option<String>,
    pub extra_key: Option<String>,
    /// SGLang reads it for its own log and metrics only.
    log_metrics: Option<bool>,
    no_logs: Option<bool>,
    token_ids_logprob: Option<Noticed>,
    input_embeds: Option<Noticed>,
    image_data: Option<NoticedValue>,
    video_data: Option<NoticedValue>,
    audio_data: Option<NoticedValue>,
    modalities: Option<Capped<String, 2>>,
    lora_path: Option<Word>,
    session_params: Option<IgnoredAny>,
    session_id: Option<IgnoredAny>,
    custom_logit_processor: Option<IgnoredAny>,
    return_hidden_states: Option<bool>,
    return_entropy: Option<bool>,
    return_bytes: Option<bool>,
    background: Option<bool>,
    stream_options: Option<IgnoredAny>,
    bootstrap_host: Option<IgnoredAny>,
    bootstrap_port: Option<IgnoredAny>,
    bootstrap_room: Option<IgnoredAny>,
    data_parallel_rank: Option<i64>,
    custom_labels: Option<IgnoredAny>,
    max_thinking_tokens: Option<IgnoredAny>,
}

/// Whether a value asks for something: null and an empty list do not.
#[derive(Debug)]
pub struct NoticedValue(bool);

impl<'de> Deserialize<'de> for NoticedValue {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::{Error, MapAccess, SeqAccess, Visitor};
        struct Values;
        impl<'de> Visitor<'de> for Values {
            type Value = NoticedValue;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a value or a list of them")
            }
            fn visit_str<E: Error>(self, _: &str) -> Result<NoticedValue, E> {
                Ok(NoticedValue(true))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<NoticedValue, A::Error> {
                let given = rest_of_seq(&mut seq)?;
                Ok(NoticedValue(given > 0))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<NoticedValue, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(NoticedValue(true))
            }
        }
        deserializer.deserialize_any(Values)
    }
}

/// What is asked about the tokens of one prompt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogprobsAsked {
    /// The first prompt token to be scored; `None`: only the output.
    pub from: Option<usize>,
    pub top: usize,
}

impl GenerateRequest {
    /// # Errors
    /// 400 naming the first field that asks for something this server cannot do.
    pub fn refuse_unsupported(&self) -> Result<(), ApiError> {
        let some = |list: &Option<Noticed>| list.as_ref().is_some_and(|list| list.given > 0);
        let value = |value: &Option<NoticedValue>| value.as_ref().is_some_and(|v| v.0);
        let lora = self.lora_path.as_ref().map(|Word(word)| word.as_deref());
        let fields = [
            ("token_ids_logprob", some(&self.token_ids_logprob)),
            ("input_embeds", some(&self.input_embeds)),
            ("image_data", value(&self.image_data)),
            ("video_data", value(&self.video_data)),
            ("audio_data", value(&self.audio_data)),
            (
                "modalities",
                self.modalities.as_ref().is_some_and(|m| m.given > 0),
            ),
            ("lora_path", !matches!(lora, None | Some(Some("")))),
            ("session_params", self.session_params.is_some()),
            ("session_id", self.session_id.is_some()),
            (
                "custom_logit_processor",
                self.custom_logit_processor.is_some(),
            ),
            (
                "return_hidden_states",
                self.return_hidden_states == Some(true),
            ),
            ("return_entropy", self.return_entropy == Some(true)),
            ("return_bytes", self.return_bytes == Some(true)),
            ("background", self.background == Some(true)),
            ("no_logs", self.no_logs == Some(true)),
            ("log_metrics", self.log_metrics == Some(false)),
            ("stream_options", self.stream_options.is_some()),
            ("bootstrap_host", self.bootstrap_host.is_some()),
            ("bootstrap_port", self.bootstrap_port.is_some()),
            ("bootstrap_room", self.bootstrap_room.is_some()),
            (
                "data_parallel_rank",
                self.data_parallel_rank.is_some_and(|rank| rank != 0),
            ),
            ("custom_labels", self.custom_labels.is_some()),
            ("max_thinking_tokens", self.max_thinking_tokens.is_some()),
        ];
        match fields.into_iter().find(|(_, given)| *given) {
            Some((field, _)) => Err(ApiError::unsupported(field)),
            None => Ok(()),
        }
    }

    /// What is asked about the tokens of each prompt, for prompts of `lengths` tokens.
    ///
    /// # Errors
    /// 400 out of bounds, or for a list of another length than the prompts'.
    pub fn logprobs(&mut self, lengths: &[usize]) -> Result<Vec<Option<LogprobsAsked>>, ApiError> {
        let prompts = lengths.len();
        let asked = self.return_logprob.take().unwrap_or(Each::All(false));
        let starts = self.logprob_start_len.take().unwrap_or(Each::All(-1));
        let tops = self.top_logprobs_num.take().unwrap_or(Each::All(0));
        let asked = asked.spread("return_logprob", prompts)?;
        let starts = starts.spread("logprob_start_len", prompts)?;
        let tops = tops.spread("top_logprobs_num", prompts)?;
        let each = asked.into_iter().zip(starts).zip(tops).zip(lengths);
        each.map(|(((asked, start), top), &length)| {
            let top = alternatives("top_logprobs_num", Some(top))?.unwrap_or(0);
            let from = match usize::try_from(start) {
                Ok(start) if start <= length => (start < length).then_some(start),
                Err(_) if start == -1 => None,
                _ => {
                    let bound = format!("-1 (output only) or between 0 and {length}");
                    return Err(out_of_bounds("logprob_start_len", &bound, start));
                }
            };
            Ok(asked.then_some(LogprobsAsked { from, top }))
        })
        .collect()
    }
}
