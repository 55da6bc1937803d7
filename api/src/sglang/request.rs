//! The JSON of a request to `/generate`.

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::error::{ApiError, out_of_bounds};
use crate::fields::adapters::ScaledAdapters;
use crate::fields::bounds::{alternatives, token_ids};
use crate::fields::capped::rest_of_seq;
use crate::fields::disaggregation::{Disaggregation, WholeNumber};
use crate::fields::each::Each;
use crate::fields::wire::Object;
use crate::sglang::input::Ids;
use crate::sglang::sampling::Sampling;

/// SGLang's `GenerateReqInput`, with the fields that its router adds. It also has the fields that
/// this server does not implement, so that they are refused by name unless their value changes
/// nothing.
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
    /// The name of an adapter, or one for each prompt.
    pub lora_path: Option<Each<String>>,
    /// Adapters by their ids, with factors (llama-server's field).
    pub lora: Option<ScaledAdapters>,
    pub cache_salt: Option<String>,
    pub extra_key: Option<String>,
    /// `false` drafts nothing for these prompts.
    pub speculative: Option<bool>,
    bootstrap_host: Option<Each<String>>,
    bootstrap_port: Option<Each<WholeNumber>>,
    bootstrap_room: Option<Each<WholeNumber>>,
    data_parallel_rank: Option<i64>,
    data_parallel_rank_decode: Option<i64>,
    routed_dp_rank: Option<i64>,
    disagg_prefill_dp_rank: Option<i64>,
    /// SGLang uses it for its own log and metrics.
    log_metrics: Option<bool>,
    no_logs: Option<bool>,
    pub token_ids_logprob: Option<Ids>,
    input_embeds: Asks,
    image_data: Asks,
    video_data: Asks,
    audio_data: Asks,
    modalities: Asks,
    session_params: Asks,
    session_id: Asks,
    custom_logit_processor: Asks,
    return_hidden_states: Asks,
    return_entropy: Asks,
    return_bytes: Asks,
    background: Asks,
    stream_options: Asks,
    custom_labels: Asks,
    max_thinking_tokens: Asks,
    watermark: Asks,
    return_sampling_mask: Asks,
    sampling_logprobs_mode: Asks,
    return_flat_raw_top_logprobs: Asks,
    return_flat_raw_output_top_logprobs: Asks,
    return_routed_experts: Asks,
    routed_experts_start_len: Asks,
    return_indexer_topk: Asks,
    return_prompt_token_ids: Asks,
    require_reasoning: Asks,
    lora_id: Asks,
    positional_embed_overrides: Asks,
    token_indices_to_pool: Asks,
    multi_item_delimiter_indices: Asks,
    bootstrap_pair_key: Asks,
    decode_tp_size: Asks,
    routing_key: Asks,
    conversation_id: Asks,
    use_audio_in_video: Asks,
    video_config: Asks,
    mm_hashes: Asks,
    mm_content_hashes: Asks,
    mm_processor_kwargs: Asks,
    images_config: Asks,
}

/// True if a value asks for something. Null, false, 0 and empty values do not: clients send them
/// for fields that they do not use.
#[derive(Debug, Default)]
struct Asks(bool);

impl<'de> Deserialize<'de> for Asks {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::{Error, MapAccess, SeqAccess, Visitor};
        struct Values;
        impl<'de> Visitor<'de> for Values {
            type Value = Asks;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a value")
            }
            fn visit_unit<E: Error>(self) -> Result<Asks, E> {
                Ok(Asks(false))
            }
            fn visit_bool<E: Error>(self, value: bool) -> Result<Asks, E> {
                Ok(Asks(value))
            }
            fn visit_u64<E: Error>(self, value: u64) -> Result<Asks, E> {
                Ok(Asks(value != 0))
            }
            fn visit_i64<E: Error>(self, value: i64) -> Result<Asks, E> {
                Ok(Asks(value != 0))
            }
            fn visit_f64<E: Error>(self, value: f64) -> Result<Asks, E> {
                Ok(Asks(value != 0.0))
            }
            fn visit_str<E: Error>(self, value: &str) -> Result<Asks, E> {
                Ok(Asks(!value.is_empty()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Asks, A::Error> {
                Ok(Asks(rest_of_seq(&mut seq)? > 0))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Asks, A::Error> {
                let mut given = false;
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                    given = true;
                }
                Ok(Asks(given))
            }
        }
        deserializer.deserialize_any(Values)
    }
}

/// The log-probabilities that the request asks for, for one prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct LogprobsAsked {
    /// The first prompt token with a log-probability; `None`: only the output has them.
    pub from: Option<usize>,
    pub top: usize,
    /// Tokens whose log-probabilities are given at every position, whichever token comes there.
    pub ids: Vec<u32>,
}

impl GenerateRequest {
    /// # Errors
    /// 400 that names the first field which asks for something this server cannot do.
    pub fn refuse_unsupported(&self) -> Result<(), ApiError> {
        let fields = [
            ("input_embeds", self.input_embeds.0),
            ("image_data", self.image_data.0),
            ("video_data", self.video_data.0),
            ("audio_data", self.audio_data.0),
            ("modalities", self.modalities.0),
            ("session_params", self.session_params.0),
            ("session_id", self.session_id.0),
            ("custom_logit_processor", self.custom_logit_processor.0),
            ("return_hidden_states", self.return_hidden_states.0),
            ("return_entropy", self.return_entropy.0),
            ("return_bytes", self.return_bytes.0),
            ("background", self.background.0),
            ("stream_options", self.stream_options.0),
            ("custom_labels", self.custom_labels.0),
            ("max_thinking_tokens", self.max_thinking_tokens.0),
            ("watermark", self.watermark.0),
            ("return_sampling_mask", self.return_sampling_mask.0),
            ("sampling_logprobs_mode", self.sampling_logprobs_mode.0),
            (
                "return_flat_raw_top_logprobs",
                self.return_flat_raw_top_logprobs.0,
            ),
            (
                "return_flat_raw_output_top_logprobs",
                self.return_flat_raw_output_top_logprobs.0,
            ),
            ("return_routed_experts", self.return_routed_experts.0),
            ("routed_experts_start_len", self.routed_experts_start_len.0),
            ("return_indexer_topk", self.return_indexer_topk.0),
            ("return_prompt_token_ids", self.return_prompt_token_ids.0),
            ("require_reasoning", self.require_reasoning.0),
            ("lora_id", self.lora_id.0),
            (
                "positional_embed_overrides",
                self.positional_embed_overrides.0,
            ),
            ("token_indices_to_pool", self.token_indices_to_pool.0),
            (
                "multi_item_delimiter_indices",
                self.multi_item_delimiter_indices.0,
            ),
            ("bootstrap_pair_key", self.bootstrap_pair_key.0),
            ("decode_tp_size", self.decode_tp_size.0),
            ("routing_key", self.routing_key.0),
            ("conversation_id", self.conversation_id.0),
            ("use_audio_in_video", self.use_audio_in_video.0),
            ("video_config", self.video_config.0),
            ("mm_hashes", self.mm_hashes.0),
            ("mm_content_hashes", self.mm_content_hashes.0),
            ("mm_processor_kwargs", self.mm_processor_kwargs.0),
            ("images_config", self.images_config.0),
            ("no_logs", self.no_logs == Some(true)),
            ("log_metrics", self.log_metrics == Some(false)),
        ];
        match fields.into_iter().find(|(_, given)| *given) {
            Some((field, _)) => Err(ApiError::unsupported(field)),
            None => Ok(()),
        }
    }

    /// Moves out the fields of a router that pairs prefill with decode servers.
    pub fn take_disaggregation(&mut self) -> Disaggregation {
        Disaggregation {
            bootstrap_host: self.bootstrap_host.take(),
            bootstrap_port: self.bootstrap_port.take(),
            bootstrap_room: self.bootstrap_room.take(),
            data_parallel_rank: self.data_parallel_rank,
            data_parallel_rank_decode: self.data_parallel_rank_decode,
            routed_dp_rank: self.routed_dp_rank,
            disagg_prefill_dp_rank: self.disagg_prefill_dp_rank,
        }
    }

    /// The log-probabilities that the request asks for, for each of the prompts, which have
    /// `lengths` tokens of a vocabulary of `vocab_size`.
    ///
    /// # Errors
    /// 400 for values out of bounds, or for a list that is not as long as that of the prompts.
    pub fn logprobs(
        &mut self,
        lengths: &[usize],
        vocab_size: usize,
    ) -> Result<Vec<Option<LogprobsAsked>>, ApiError> {
        let prompts = lengths.len();
        let asked = self.return_logprob.take().unwrap_or(Each::All(false));
        let starts = self.logprob_start_len.take().unwrap_or(Each::All(-1));
        let tops = self.top_logprobs_num.take().unwrap_or(Each::All(0));
        let asked = asked.spread("return_logprob", prompts)?;
        let starts = starts.spread("logprob_start_len", prompts)?;
        let tops = tops.spread("top_logprobs_num", prompts)?;
        let ids = match self.token_ids_logprob.take() {
            None => vec![Vec::new(); prompts],
            Some(Ids::One(ids)) => vec![ids; prompts],
            Some(Ids::Many(lists)) if lists.given == prompts => lists.items,
            Some(Ids::Many(lists)) => {
                let bound = format!("token ids, or a list of them for each of {prompts} prompts");
                let given = format!("a list of {}", lists.given);
                return Err(out_of_bounds("token_ids_logprob", &bound, given));
            }
        };
        let each = asked.into_iter().zip(starts).zip(tops);
        let each = each.zip(ids).zip(lengths);
        each.map(|((((asked, start), top), ids), &length)| {
            let top = alternatives("top_logprobs_num", Some(top))?.unwrap_or(0);
            let from = match usize::try_from(start) {
                Ok(start) if start <= length => (start < length).then_some(start),
                Err(_) if start == -1 => None,
                _ => {
                    let bound = format!("-1 (output only) or between 0 and {length}");
                    return Err(out_of_bounds("logprob_start_len", &bound, start));
                }
            };
            token_ids("token_ids_logprob", &ids, vocab_size)?;
            Ok(asked.then_some(LogprobsAsked { from, top, ids }))
        })
        .collect()
    }
}
